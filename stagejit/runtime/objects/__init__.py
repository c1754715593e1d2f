"""Machine code: compiled, linked, held in memory and on disk."""

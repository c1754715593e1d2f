"""Complex numbers as pairs of real ones, whose parts are the last axis."""

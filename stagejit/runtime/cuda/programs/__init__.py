"""CUDA programs. To read: `program.py`, `hosting.py`, `streams.py`, `executor.py`."""

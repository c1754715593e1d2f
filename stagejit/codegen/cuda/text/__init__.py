"""Kernels for blocks of threads as CUDA C++. To read in this order: `types.py`, `expressions.py`,
`casts.py`, `tiles.py`, `memory.py`, `statements.py`, `printer.py`; `preamble.py` has the functions
that kernels call."""

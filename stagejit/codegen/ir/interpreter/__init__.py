"""The meaning of the loop-nest IR, on NumPy arrays. To read in this order: `arithmetic.py` (with
`rounding.py`), `memory.py`, `run.py`; then `shared.py` and `grid.py` (blocks of
threads).
"""

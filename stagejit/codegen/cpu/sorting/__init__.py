"""Sorts. To read in this order: `codegen/sorting/` (keys, rows), `ways.py`, then the ways to sort
rows: `short.py` (in registers; with `records.py`), `selection.py` (few elements), `radix.py` (any);
`specials.py` (what keys do not tell), `kernel.py` (which way a region goes).
"""

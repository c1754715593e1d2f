"""Sorts. To read in this order: `keys.py` (numbers that order as elements do), `rows.py` (what a
row reads and writes), then the ways to sort rows: `short.py` (in registers; with `networks.py`,
`records.py`), `selection.py` (few elements), `radix.py` (any); `specials.py` (what keys do not
tell), `kernel.py` (which way a region goes).
"""

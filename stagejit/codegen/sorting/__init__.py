"""Sorts. To read in this order: `keys.py` (numbers that order as elements do), `rows.py` (what a
row reads and writes), `radix.py` (long rows), `selection.py` (few elements), `kernel.py` (which way
a region goes).
"""

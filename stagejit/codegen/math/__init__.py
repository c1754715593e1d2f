"""Scalar functions as loop-nest IR. To read in this order: `functions.py` (all of them by name),
`core.py` (what they share), then the families; `coefficients.py` and `cost.py` are tables.
"""

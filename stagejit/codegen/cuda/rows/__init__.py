"""Reductions by blocks of threads. To read in this order: `codegen/rows/`, `mapping.py` (which
threads have which elements, and what that costs), `merging.py` (what threads tell each other),
`policies.py` (the loops), `reduce.py`.
"""

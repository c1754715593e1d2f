"""Values of a region as code, element by element. To read in this order: `space.py` and
`footprint.py` (the dry run), `positions.py`, `elements.py` and `stores.py`; the rest says how
elements that are no neighbours cross memory, and what that costs.
"""

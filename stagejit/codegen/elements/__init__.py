"""Values of a region as code, element by element. To read in this order: `space.py`, `walk.py` (the
way through a region), `footprint.py` (the dry run of it), `positions.py` and `elements.py` (its
code); the rest says how elements that are no neighbours cross memory, and what that
costs.
"""

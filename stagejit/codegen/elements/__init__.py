"""Values of a region as code, element by element: what `places/` found out, in registers. To read
in this order: `positions.py` (where the loops stand) and `elements.py` (the values there); the rest
says how elements that are no neighbours cross memory, and how `stores.py`, `lines.py` and
`scatters.py` put them there.
"""

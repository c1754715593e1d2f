"""Where the loops of a kernel go, and what they read and write there, before any code is written.
To read in this order: `space.py` (the loops over a shape), `walk.py` (the way through a region),
`footprint.py` (the dry run of it), `windows.py` (what that needs of windows), `accesses.py` (what
an access costs) and `loops.py` (all of it together, with the vectors that cost least).
"""

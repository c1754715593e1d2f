"""The loops of a kernel. To read in this order: `tree.py` (loops and statements as data),
`emitter.py` (their code: vectors, tails, blocks, groups, items and carried registers are written
here and nowhere else), `spans.py` and `groups.py` (what a loop covers), `items.py` (what threads
share), `kernels.py` (from nests to a kernel), `text.py` (what a
reader sees of a tree).
"""

"""The loops of products and convolutions, whatever they run on. To read in this order: `nest.py`
and `conv_nest.py` (the loops), `walk.py` (what they read and write, over as few variables as
possible), `sources.py` (where an operand lies), `parts.py` (how many steps a part of a sum has).
"""

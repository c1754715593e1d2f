"""Products of bytes, summed four at a time: `fill.py` makes words of the bytes of an operand,
`tiles.py` multiplies them in vectors, `matrices.py` in registers of whole matrices. See
`contraction/quads.py`.
"""

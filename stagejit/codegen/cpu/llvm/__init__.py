"""LLVM IR as text. To read in this order: `text.py`, `lower.py`, `ops.py`, `casts.py`, `memory.py`,
`shadow.py` (checks of scratch).
"""

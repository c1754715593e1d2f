"""Kernels for CPUs: policies that write loops (`maps.py`, `rows/`, `contract/`, `sorting/`,
`scatter.py`), and `llvm/`, the text of what they emit.
"""

"""The loop-nest IR. To read in this order: `nodes.py`, `hoisting.py`, `builder.py`, `rules.py`,
`verifier.py`; then `shared_code.py` (calls), `strides.py` and `transposes.py` (shuffles),
`interpreter/` (what kernels mean) and `grid/` (blocks of threads).
"""

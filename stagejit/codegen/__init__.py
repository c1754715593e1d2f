"""Kernels: from dispatched regions through the loop-nest IR to LLVM IR.

To read in this order: `closed.py` (what a generator sees of a region), `generate.py` (which
generator makes its kernel), `ir/` (what a kernel is made of), `places/` (what its loops read and
write), `elements/` (values of a region as code), `nest/` (its loops: a tree, and the one emitter),
then, in `cpu/`, the policies that make such trees: `maps.py` is the simplest, then `scatter.py`,
`rows/`, `contract/`, `sorting/`. `math/` has the scalar functions, `cpu/llvm/` writes the text that
LLVM compiles.
"""

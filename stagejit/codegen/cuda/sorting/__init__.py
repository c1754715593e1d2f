"""Sorts by blocks of threads. To read in this order: `codegen/sorting/` (keys, words, rows),
`records.py` (what is compared and moved), `tiling.py` (what a block sorts), `merges.py` (how sorted
runs become one), `kernel.py` (the passes).
"""

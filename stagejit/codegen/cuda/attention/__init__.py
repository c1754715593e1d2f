"""Attention on a GPU, without a matrix of scores. To read in this order: `nest.py` (what is read
and stored), `shapes.py` (how large tiles are), `staging.py` (tiles in shared memory), `products.py`
(what a thread does with them), `multiply_adds.py` and `tensor_cores.py` (the two ways to do it),
`rows.py` (the softmax as it goes along), `kernel.py`.
"""

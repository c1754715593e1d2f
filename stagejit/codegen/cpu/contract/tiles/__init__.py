"""Which tiles a product has, by a model of cycles: `reach.py` says where operands come from,
`step_cost.py` what a step costs, `search.py` chooses the registers, `blocks.py` the rest.
"""

"""What a call takes by the model of its kernels: one model, of which explanations, pictures and
what rewrites are worth tell. To read: `kernels.py`, then `threads.py` (a CPU) or `streams.py` (a
GPU), and `model.py`, which picks one.

A modelled time is one thing, a floor another: what the memory and the arithmetic of a machine allow
at least, of bytes and operations alone (`machine.floor_seconds`).
"""

"""Order, barriers and memory: from regions to a plan.

To be read in this order: `build.py` is the walk, `bufferize.py` and `bodies.py` give values their
buffers, `slots.py` transients their memory; `conflicts/` says who waits for whom, `memory/` who is
alive when and what fits where, `threads/` what runs at the same time; `plans/` is what comes out,
`schedule.py` that with what backends need of it. `verifier/` proves it.
"""

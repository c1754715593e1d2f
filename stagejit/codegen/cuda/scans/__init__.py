"""Running values by threads. To read in this order: `codegen/rows/scans.py`, `scanning.py` (what
threads tell each other), `policies.py` (the loops), `cumulative.py` (which one, and why).
"""

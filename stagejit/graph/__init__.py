"""The dataflow graph: ops, verifier, text form, and the NumPy interpreter: its meaning."""

from stagejit.graph import ops as ops  # whoever has a graph has its op kinds

"""The dataflow graph: ops, verifier, text form, and the NumPy interpreter: its meaning."""

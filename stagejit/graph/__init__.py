"""The dataflow graph: ops, verifier, text form, and the NumPy interpreter that defines its meaning."""

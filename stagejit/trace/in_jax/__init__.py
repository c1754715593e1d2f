"""Primitives as JAX functions of other primitives."""

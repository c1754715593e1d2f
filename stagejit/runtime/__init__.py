"""Kernels and host programs as machine code inside JAX: engine, cache, handlers, embedding."""

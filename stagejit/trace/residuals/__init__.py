"""Gradients of bound functions: JAX's backward programs make anew what weights alone determine."""

"""Gradients of bound functions: backward programs read weights where they are, of one moment."""

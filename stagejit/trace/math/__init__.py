"""Elementwise equations: maps, conversions, special functions, and what they are made of."""

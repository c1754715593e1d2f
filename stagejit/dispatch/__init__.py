"""Dispatch formation: which ops run together, and what each dispatch touches."""

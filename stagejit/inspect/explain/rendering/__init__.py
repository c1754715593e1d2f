"""Explanations in words: for a terminal, and as a page."""

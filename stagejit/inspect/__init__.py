"""Views of a compilation for people."""

"""Rewrites of graphs, and the driver that applies them and records why."""

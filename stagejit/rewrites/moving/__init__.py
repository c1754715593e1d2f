"""Rewrites of ops that move elements: views, inserts and their chains, pads, windows."""

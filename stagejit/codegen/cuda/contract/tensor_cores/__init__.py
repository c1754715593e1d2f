"""Tiles whose sums tensor cores multiply: of a warp, and of a warpgroup."""

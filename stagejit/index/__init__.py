"""Affine index maps, coordinates and boxes: which elements, without knowing of which op."""

"""How attributes and constants are spelled in a graph's text.

Input: a value. Output: its text, from which `tokens.py` gets every bit back.
"""

from __future__ import annotations

import base64
from typing import Any

import numpy as np

MAX_INLINE_ELEMENTS = 16


def literal_text(value: Any) -> str:
    """An attribute: none, true, 3, nan, "clip", f32, (1, 2). A tuple of one is `(1)`."""
    if isinstance(value, tuple):
        return f"({', '.join(map(literal_text, value))})"
    if value is None or isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, str):
        escaped = value.replace("\\", "\\\\").replace('"', '\\"').replace("\n", "\\n")
        return f'"{escaped}"'
    return repr(value) if isinstance(value, float) else str(value)


def array_text(array: np.ndarray[Any, Any]) -> str:
    """A scalar as itself, few elements as a flat list, one repeated as `splat`, others in
    base64."""
    if array.ndim == 0:
        return element_text(array)
    flat = array.reshape(-1)
    if flat.size <= MAX_INLINE_ELEMENTS:
        return f"[{', '.join(element_text(item) for item in flat)}]"
    if flat.tobytes() == flat[:1].tobytes() * flat.size:
        return f"splat({element_text(flat[0])})"
    return f'base64("{base64.b64encode(flat.tobytes()).decode()}")'


def element_text(element: Any) -> str:
    """The shortest decimal that gives the same bits back, else the bits themselves."""
    element = np.asarray(element)
    if element.dtype.kind == "b":
        return "true" if element else "false"
    if element.dtype.kind in "iu":
        return str(int(element))
    text = str(element[()])
    if element.dtype.kind != "c" and element_bits(text, element.dtype) == element.tobytes():
        return text
    return f"bits(0x{element.tobytes()[::-1].hex()})"


def element_bits(text: str, dtype: np.dtype[Any]) -> bytes | None:
    """The bytes of a decimal read as an element; None where it is none."""
    try:
        return np.asarray(float(text)).astype(dtype).tobytes()
    except ValueError:
        return None

"""A primitive of our own, which is the op `window`: it stands only in functions that we trace.

Input: an operand of a native type, `Windows` without holes, a function of `WINDOW_FUNCTIONS`.
Output: the op. Invariant: nobody evaluates, differentiates or maps it: it is translated.
"""

from __future__ import annotations

from typing import Any

import jax
import numpy as np
from jax.extend.core import Primitive

from stagejit.graph.ir import Value
from stagejit.trace.emitter import Emitter
from stagejit.trace.translation import Site, Translation, translation
from stagejit.trace.windows.geometry import Windows
from stagejit.types import from_numpy

window_p: Any = Primitive("window")


def is_native(x: Any) -> bool:
    """Whether the op takes its elements."""
    return bool(from_numpy(x.dtype).is_native) and x.size > 0


def window(fn: str, x: Any, windows: Windows) -> Any:
    """Each window of `x` reduced by a monoid, or the number of the tap that it chooses."""
    return window_p.bind(
        x,
        fn=fn,
        counts=windows.counts,
        sizes=windows.sizes,
        strides=windows.strides,
        padding=windows.padding,
        dilation=windows.steps,
    )


def _abstract(x: Any, *, fn: str, counts: tuple[int, ...], **dims: Any) -> Any:
    return jax.core.ShapedArray(counts, np.int32 if fn.startswith("first") else x.dtype)


window_p.def_abstract_eval(_abstract)


def _translated(emit: Emitter, site: Site, x: Value) -> Value:
    dims = {name: site.params[name] for name in ("sizes", "strides", "padding", "dilation")}
    return emit.emit("window", (x,), site.result, fn=site.params["fn"], **dims)


TRANSLATIONS: dict[str, Translation] = {
    "window": translation(_translated, "fn", "counts", "sizes", "strides", "padding", "dilation"),
}

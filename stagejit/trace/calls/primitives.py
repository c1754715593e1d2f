"""Which primitive of JAX an equation applies, and what others of JAX's primitives are made of.

Input: primitive objects. Output: the name that our tables know a primitive of JAX by, or the
function that a primitive's lowering rule traces. Invariant: a primitive is known by identity: one
that somebody else defines is foreign whatever it calls itself, and a primitive that this version of
JAX lacks is simply absent.
"""

from __future__ import annotations

import functools
import importlib
import sys
from collections.abc import Callable
from typing import Any

from jax.extend.core import Primitive
from jax.interpreters import mlir

# `jax.extend.core.primitives` publishes most of the primitives that programs consist of; the rest
# (`random_wrap`, `split`, `tile`, `pure_callback`, `shard_map`, ...) is only where JAX defines it.
_MODULES = (
    "jax.extend.core.primitives",
    "jax._src.ad_checkpoint", "jax._src.ad_util", "jax._src.callback", "jax._src.core",
    "jax._src.custom_batching", "jax._src.custom_derivatives", "jax._src.debugging",
    "jax._src.dispatch", "jax._src.ffi", "jax._src.lax.ann",
    "jax._src.lax.control_flow.conditionals", "jax._src.lax.control_flow.loops",
    "jax._src.lax.control_flow.solves", "jax._src.lax.convolution", "jax._src.lax.fft",
    "jax._src.lax.lax", "jax._src.lax.linalg", "jax._src.lax.parallel", "jax._src.lax.slicing",
    "jax._src.lax.special", "jax._src.lax.windowed_reductions", "jax._src.pjit",
    "jax._src.random.core", "jax._src.random.prng", "jax._src.random.threefry2x32",
    "jax._src.shard_map", "jax._src.state.primitives", "stagejit.trace.windows.window",
)  # fmt: skip
_LOADED_ON_DEMAND = ("jax._src.pallas.pallas_call",)  # imported by who uses them, not by us

# How `mlir.lower_fun` names the rules that it makes; the function is in their closure.
_LOWER_FUN = "lower_fun.<locals>.f_lowered"


@functools.cache
def _names() -> dict[Primitive, str]:
    return {
        primitive: primitive.name
        for module in _MODULES
        for primitive in _primitives_of(_imported(module))
    }


def _imported(module: str) -> Any:
    try:
        return importlib.import_module(module)
    except ImportError:
        return None


def _primitives_of(module: Any) -> list[Primitive]:
    return [found for found in vars(module or object).values() if isinstance(found, Primitive)]


def jax_name(primitive: Primitive) -> str | None:
    """The name of a primitive that JAX itself defines; None for a foreign one."""
    name = _names().get(primitive)
    if name is not None:
        return name
    late = (sys.modules.get(module) for module in _LOADED_ON_DEMAND)
    own = any(primitive in _primitives_of(module) for module in late)
    return str(primitive.name) if own else None


# -- implementations ------------------------------------------------------------------------------

_registered: dict[Primitive, Callable[..., Any]] = {}


def inline(primitive: Primitive, function: Callable[..., Any] | None) -> None:
    """Compile a primitive of one's own, or another library's, as the JAX function `function`.

    function: takes the operands, and the equation's parameters as keyword arguments; returns one
        value, or a sequence of them where the primitive has multiple results. None takes an earlier
        registration back.

    Functions that are compiled already stay as they are (`jax.clear_caches()` forgets them). Raises
    TypeError for what is no primitive, ValueError for a primitive of JAX's.

    >>> stagejit.inline(double_p, lambda x: x + x)
    """
    if not isinstance(primitive, Primitive):
        raise TypeError(f"stagejit.inline takes a jax.extend.core.Primitive, not {primitive!r}")
    if jax_name(primitive) is not None:
        raise ValueError(f"{primitive} is a primitive of JAX's, which stagejit knows")
    if function is None:
        _registered.pop(primitive, None)
    elif callable(function):
        _registered[primitive] = function
    else:
        raise TypeError(f"stagejit.inline takes a function, not {function!r}")


def implementation(primitive: Primitive) -> Callable[..., Any] | None:
    """The JAX function that computes a primitive, called as `primitive.bind`; None where nobody
    says.

    In this order: what `inline` was given, the function of a lowering rule that `mlir.lower_fun`
    made, and, for a foreign primitive that nobody has taught XLA, its own `impl`. A lowering rule
    that is written by hand is there for a reason: the primitive stays with XLA.
    """
    if primitive in _registered:
        return _registered[primitive]
    rule = _lowering_rule(primitive)
    if rule is not None:
        return _traced_by(rule)
    return getattr(primitive, "impl", None) if jax_name(primitive) is None else None


def has_meaning(primitive: Primitive) -> bool:
    """Whether anybody says what a primitive computes: JAX, XLA, `inline` or its own `impl`."""
    is_known = primitive in _registered or jax_name(primitive) is not None
    return is_known or _lowering_rule(primitive) is not None or "impl" in vars(primitive)


def _lowering_rule(primitive: Primitive) -> Any:
    """The rule that lowers a primitive for the CPU. `register_lowering` fills these tables; JAX
    offers no reader for them."""
    specific: dict[Any, Any] = getattr(mlir, "_platform_specific_lowerings", {}).get("cpu", {})
    common: dict[Any, Any] = getattr(mlir, "_lowerings", {})
    entry: Any = specific.get(primitive) or common.get(primitive)
    return getattr(entry, "rule", entry)


def _traced_by(rule: Any) -> Callable[..., Any] | None:
    """The function that a rule made by `mlir.lower_fun` traces; None for any other rule."""
    if getattr(rule, "__qualname__", "") != _LOWER_FUN:
        return None
    cells = zip(rule.__code__.co_freevars, rule.__closure__ or (), strict=True)
    found: Callable[..., Any] | None = {name: c.cell_contents for name, c in cells}.get("fun")
    return found

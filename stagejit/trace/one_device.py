"""What says where data lives, or lets devices communicate, and does nothing on one device.

Input: an equation's name and parameters, and the names of axes of one device that `shard_map` has
made around it. Output: the primitive that it amounts to, of one device and in one memory; or the
body of a `shard_map`. Invariant: what names more devices than one, or another memory, stays as it
is. A program is only compiled where it runs whole on each device, and JAX has checked before that
all of its shardings name the same devices.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from typing import Any

import jax

from stagejit.compat import ClosedJaxpr, named_axis
from stagejit.graph.ir import Value
from stagejit.trace.delegation import why_not_native
from stagejit.trace.emitter import Emitter
from stagejit.trace.translation import Site, Translation, Unsupported, translation

Params = Mapping[str, Any]

# Over an axis of a `vmap` with a name, a collective reduces an axis of its own operand.
_REDUCTIONS = {
    "psum": "reduce_sum", "psum_invariant": "reduce_sum", "pmax": "reduce_max",
    "pmin": "reduce_min",
}  # fmt: skip

# What one device gets of itself: its operand, with or without an axis of one device.
_TO_ITSELF = frozenset({
    *_REDUCTIONS, "all_gather", "all_gather_invariant", "all_gather_reduced", "all_to_all",
    "reduce_scatter", "unreduced_reduce_scatter", "unreduced_psum", "unreduced_pmax",
    "unreduced_pmin", "preduced", "vary_unreduced_cast", "vary_unreduced_cast_p", "pbroadcast",
    "pcast", "ppermute",
})  # fmt: skip

# Names of our own, of what is left of a collective on one device.
_FIRST, _NOTHING = "the first device", "nothing sent"


def on_one_device(equation: Any, name: str, alone: Collection[str]) -> tuple[str, Params]:
    """The primitive that an equation of this name amounts to, and its parameters; others as they
    are. alone: names of axes of one device. An axis with another name is one of several: `vmap`
    replaces those of its own by their positions."""
    params = equation.params
    if name == "device_put" and all(map(_is_here, params["devices"])):
        return name, {"devices": (None,) * len(equation.invars)}
    if name in _PLACED and all(map(_is_here, _PLACED[name](params))):
        return "copy", {}
    if "axes" not in params and "axis_name" not in params:
        return name, params
    axes = params.get("axes", params.get("axis_name", ()))
    axes = tuple(axes) if isinstance(axes, tuple | list) else (axes,)
    left = tuple(axis for axis in axes if axis not in alone)
    if axes and not left:
        return _to_itself(equation, name)
    apart = left == axes and params.get("axis_index_groups") is not None
    if name in _REDUCTIONS and all(isinstance(axis, int) for axis in left) and not apart:
        return _REDUCTIONS[name], {"axes": left}
    return name, params


def _to_itself(equation: Any, name: str) -> tuple[str, Params]:
    """A collective over axes of one device."""
    params = equation.params
    if name == "axis_index":
        return _FIRST, {}
    if name == "ppermute" and not params["perm"]:
        return _NOTHING, {}
    if name in _TO_ITSELF and len(equation.invars) == len(equation.outvars) == 1:
        (x,), (made,) = equation.invars, equation.outvars
        if x.aval.dtype == made.aval.dtype:
            return "reshape", {"new_sizes": made.aval.shape, "dimensions": None}
    return name, params


# The shardings that an equation names.
_PLACED: dict[str, Callable[[Params], Sequence[Any]]] = {
    "sharding_constraint": lambda params: [params["sharding"], params["layout"]],
    "reshard": lambda params: [params["dst_sharding"]],
}


def _is_here(where: Any) -> bool:
    """Whether it is one device in whose memory arrays are anyway. None says nothing."""
    if where is None or isinstance(where, jax.Device):
        return True
    if not isinstance(where, jax.sharding.Sharding) or where.num_devices != 1:
        return False
    return where.memory_kind in (None, jax.local_devices(backend="cpu")[0].default_memory().kind)


def body_on_one_device(params: Params) -> tuple[ClosedJaxpr, frozenset[str]]:
    """The body of a `shard_map`, and the names of its axes. Raises Unsupported where there are
    several devices."""
    mesh, body = params["mesh"], params["jaxpr"]
    if mesh.size != 1:
        raise Unsupported(why_not_native("shard_map"))
    if not isinstance(body, ClosedJaxpr):
        body = ClosedJaxpr(body, ())
    return body, frozenset(mesh.axis_names)


def effects_beside(equation: Any, alone: Collection[str]) -> list[Any]:
    """The effects of an equation, but for that of naming an axis of one device."""
    return [effect for effect in equation.effects if named_axis(effect) not in alone]


def _first(emit: Emitter, site: Site) -> Value:
    return emit.const(0, site.result.dtype)


def _nothing(emit: Emitter, site: Site, x: Value) -> Value:
    return emit.full(0, site.result)


TRANSLATIONS: dict[str, Translation] = {
    _FIRST: translation(_first),
    _NOTHING: translation(_nothing),
}

"""Translations of reductions and cumulative operations to `reduce` and `cumulative`.

Input: JAX primitives such as `reduce_sum`, `argmax` and `cumsum`; for the generic `reduce` see
`in_jax/folds.py`. Output: one `reduce` or `cumulative` equation.
Invariant: `fn` is associative and commutative with an identity in every dtype that it is used with.
"""

from __future__ import annotations

from stagejit.graph.functions import identity
from stagejit.graph.ir import Value
from stagejit.trace.emitter import Emitter
from stagejit.trace.translation import Site, Translation, Unsupported, integers, translation
from stagejit.types import TensorType, bool_, from_numpy


def _reduce(fn: str) -> Translation:
    def rule(emit: Emitter, site: Site, x: Value) -> Value:
        return reduce(emit, fn, x, integers(site.params["axes"]))

    return translation(rule, "axes", ignored=("out_sharding",))


def reduce(emit: Emitter, fn: str, x: Value, axes: tuple[int, ...]) -> Value:
    """`x` reduced over `axes`; over none of them it is `x` itself."""
    axes = tuple(sorted(axes))
    if not axes:
        return x
    if x.type.dtype is bool_:  # bools have one spelling of each monoid
        fn = {"mul": "and", "min": "and", "max": "or"}.get(fn, fn)
    shape = tuple(size for axis, size in enumerate(x.type.shape) if axis not in axes)
    if not x.type.size:
        return emit.full(identity(fn, x.type.dtype), TensorType(x.type.dtype, shape))
    return emit.emit("reduce", (x,), TensorType(x.type.dtype, shape), fn=fn, axes=axes)


def _arg_reduce(fn: str) -> Translation:
    def rule(emit: Emitter, site: Site, x: Value) -> Value:
        axes, dtype = integers(site.params["axes"]), from_numpy(site.params["index_dtype"])
        if len(axes) != 1:
            raise Unsupported(f"{fn} over {len(axes)} axes")
        return emit.emit("reduce", (x,), site.result, fn=fn, axes=axes, dtype=dtype)

    return translation(rule, "axes", "index_dtype", ignored=("out_sharding",))


def _cumulative(fn: str) -> Translation:
    def rule(emit: Emitter, site: Site, x: Value) -> Value:
        if x.type.dtype is bool_:
            raise Unsupported(f"cumulative {fn} of bools")
        return emit.emit(
            "cumulative",
            (x,),
            x.type,
            fn=fn,
            axis=int(site.params["axis"]),
            reverse=bool(site.params["reverse"]),
        )

    return translation(rule, "axis", "reverse")


TRANSLATIONS: dict[str, Translation] = {
    "reduce_sum": _reduce("add"),
    "reduce_prod": _reduce("mul"),
    "reduce_max": _reduce("max"),
    "reduce_min": _reduce("min"),
    "reduce_and": _reduce("and"),
    "reduce_or": _reduce("or"),
    "reduce_xor": _reduce("xor"),
    "argmax": _arg_reduce("argmax"),
    "argmin": _arg_reduce("argmin"),
    "cumsum": _cumulative("add"),
    "cumprod": _cumulative("mul"),
    "cummax": _cumulative("max"),
    "cummin": _cumulative("min"),
    "cumlogsumexp": _cumulative("logaddexp"),
}

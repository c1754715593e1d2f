"""Steps of random programs: functions of single elements."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from tests.strategies import Builder, Made


def _unary(b: Builder) -> Made:
    x = b.value(lambda v: v.is_float)
    if x is None:
        return None
    n = x.name
    return b.choose([
        f"lax.tanh({n})", f"lax.sin({n})", f"lax.cos({n})", f"lax.logistic({n})", f"lax.erf({n})",
        f"lax.exp(-jnp.abs({n}))", f"lax.log(jnp.abs({n}) + 1)", f"lax.sqrt(jnp.abs({n}) + 1)",
        f"lax.rsqrt(jnp.abs({n}) + 1)", f"lax.log1p(jnp.abs({n}))", f"lax.expm1(lax.tanh({n}))",
        f"lax.atan({n})", f"lax.asinh({n})", f"lax.square(lax.tanh({n}))",
        f"lax.integer_pow(lax.tanh({n}), 3)", f"lax.cbrt(jnp.abs({n}) + 1)", f"jax.nn.relu({n})",
        f"jax.nn.silu({n})", f"lax.exp2(lax.tanh({n}))", f"{n} * 0.5",
    ]), False  # fmt: skip


def _exact_unary(b: Builder) -> Made:
    x = b.value()
    assert x is not None
    if x.dtype == "bool":
        return f"~{x.name}", True
    if x.is_integer:
        return b.choose([
            f"-{x.name}", f"jnp.abs({x.name})", f"lax.sign({x.name})", f"~{x.name}",
            f"lax.population_count({x.name})", f"lax.clz({x.name})", f"lax.square({x.name})",
            f"{x.name} // 3", f"{x.name} % 5", f"lax.integer_pow({x.name}, 3)",
        ]), True  # fmt: skip
    if not x.exact:
        return f"-{x.name}", False
    return b.choose(
        [
            f"lax.floor({x.name})",
            f"lax.ceil({x.name})",
            f"lax.sign({x.name})",
            f"lax.round({x.name}, lax.RoundingMethod.TO_NEAREST_EVEN)",
            f"lax.round({x.name})",
            f"jnp.abs({x.name})",
        ]
    ), True


def _binary(b: Builder) -> Made:
    x = b.value(lambda v: v.dtype != "bool")
    if x is None:
        return None
    y = b.value(lambda v: v.dtype == x.dtype and v.shape in (x.shape, ()))
    assert y is not None
    if x.is_float:
        fn = b.choose(["jnp.add", "jnp.subtract", "jnp.maximum", "jnp.minimum", "_mul", "_div"])
        if fn == "_mul":
            return f"lax.tanh({x.name}) * {y.name}", False
        if fn == "_div":
            return f"{x.name} / (jnp.abs({y.name}) + 1)", False
        exact = fn in ("jnp.maximum", "jnp.minimum") and x.exact and y.exact
        return f"{fn}({x.name}, {y.name})", exact
    fn = b.choose(
        [
            "lax.add",
            "lax.sub",
            "lax.mul",
            "lax.max",
            "lax.min",
            "lax.bitwise_and",
            "lax.bitwise_or",
            "lax.bitwise_xor",
            "lax.div",
            "lax.rem",
            "lax.shift_left",
            "lax.shift_right_logical",
            "lax.shift_right_arithmetic",
        ]
    )
    second = y.name if y.shape == x.shape else f"jnp.broadcast_to({y.name}, {x.shape})"
    if fn in ("lax.div", "lax.rem"):  # XLA folds x / x to 1, for zero too
        second = f"({second} | 1)"
    return f"{fn}({x.name}, {second})", True


def _compare(b: Builder) -> Made:
    x = b.value(lambda v: v.exact)
    y = b.value(
        lambda v: x is not None and v.exact and v.dtype == x.dtype and v.shape in (x.shape, ())
    )
    if x is None or y is None:
        return None
    return f"{x.name} {b.choose(['<', '<=', '>', '>=', '==', '!='])} {y.name}", True


def _select(b: Builder) -> Made:
    predicate = b.value(lambda v: v.dtype == "bool")
    if predicate is None:
        return None
    x = b.value(lambda v: v.shape in (predicate.shape, ()))
    y = b.value(lambda v: x is not None and v.dtype == x.dtype and v.shape in (x.shape, ()))
    if x is None or y is None:
        return None
    return f"jnp.where({predicate.name}, {x.name}, {y.name})", x.exact and y.exact


def _clamp(b: Builder) -> Made:
    x = b.value(lambda v: v.dtype != "bool")
    if x is None:
        return None
    return f"jnp.clip({x.name}, 1, 5)", x.exact


def _convert(b: Builder) -> Made:
    x = b.value()
    assert x is not None
    targets = [*b.floats] if x.is_float and not x.exact else [*b.floats, *b.integers, "bool"]
    target = b.choose(targets)
    exact = x.exact and ("float" not in target or x.dtype in ("bool", "int8", "uint8", "float32"))
    if x.is_integer and target in ("float16", "bfloat16"):
        exact = False
    return f"{x.name}.astype('{target}')", exact


STEPS = (_unary, _unary, _exact_unary, _binary, _binary, _compare, _select, _clamp, _convert)

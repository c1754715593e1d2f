"""Statements that compute element by element, convert, reduce, and multiply matrices.

Input: a draft. Output: one more statement in it. Invariant: values stay of moderate size, and what
depends on the last bit is applied to exact values only (see `draft.py`).
"""

from __future__ import annotations

from tests.fuzz.programs.draft import Draft, Known, Refused, a_number

_SMOOTH = (
    "jnp.sin({x})", "jnp.cos({x})", "jnp.tanh({x})", "jnp.exp(jnp.minimum({x}, 3))",
    "jnp.log1p(jnp.abs({x}))", "jnp.sqrt(jnp.abs({x}) + 1)", "jax.nn.sigmoid({x})",
    "lax.rsqrt(jnp.abs({x}) + 1)", "jnp.cbrt({x})", "lax.erf({x})", "jax.nn.gelu({x})",
    "jax.nn.silu({x})", "jax.nn.softplus({x})", "jax.nn.elu({x})", "jnp.square({x}) * 0.1",
    "jnp.expm1(jnp.minimum({x}, 2))", "jnp.arctan({x})", "jnp.log(jnp.abs({x}) + 0.5)",
    "{x} ** 3 * 0.05", "1 / (1 + {x} * {x})", "lax.lgamma(jnp.abs({x}) + 1.5)",
    "jnp.sinh(jnp.clip({x}, -2, 2))", "jnp.arcsinh({x})", "lax.erf_inv(jnp.tanh({x}) * 0.7)",
    "jnp.nan_to_num({x})", "lax.logistic({x}) - {x} * 0.25", "jnp.exp2(jnp.clip({x}, -3, 3))",
    "jnp.power(jnp.abs({x}) + 1, 0.75)", "lax.digamma(jnp.abs({x}) + 2)", "jnp.sinc({x} * 0.3)",
)  # fmt: skip
_EXACT_FLOAT = (
    "-{x}", "jnp.abs({x})", "jnp.maximum({x}, 0)", "jax.nn.relu({x})", "jnp.clip({x}, -2, 3)",
    "{x} + 1", "{x} - 2.5", "{x} * 0.5", "jnp.floor({x})", "jnp.round({x})", "jnp.sign({x})",
    "jnp.ceil({x} * 0.5)", "jnp.trunc({x})", "jnp.where({x} > 1, {x}, -{x})",
    "lax.stop_gradient({x})", "jnp.isnan({x})", "jnp.isfinite({x})",
    f"jnp.signbit({a_number('{x}')})",
)  # fmt: skip
_CONTINUOUS = frozenset(_EXACT_FLOAT[:8]) | {"lax.stop_gradient({x})"}
_INTEGER = (
    "-{x}", "~{x}", "jnp.abs({x})", "{x} * 3", "{x} + 7", "{x} & 5", "{x} | 2", "{x} ^ 9",
    "{x} << 1", "{x} >> 1", "lax.shift_right_logical({x}, jnp.full_like({x}, 2))",
    "lax.population_count({x})", "lax.clz({x})", "jnp.sign({x})", "{x} // 3", "{x} % 5",
    "lax.rem({x}, jnp.full_like({x}, 4))", "{x} * {x}", "jnp.clip({x}, 0, 6)",
)  # fmt: skip
_BINARY_FLOAT = (
    "{x} + {y}", "{x} - {y}", "{x} * {y} * 0.5", "jnp.maximum({x}, {y})", "jnp.minimum({x}, {y})",
    "{x} / (1 + jnp.abs({y}))", "jnp.arctan2({x}, jnp.abs({y}) + 1)", "jnp.logaddexp({x}, {y})",
    "jnp.hypot({x}, {y} + 0.5)", "jnp.power(jnp.abs({x}) + 0.5, jnp.tanh({y}))",
    "jnp.sin({x}) * {y}",
    "{x} * 0.3 + {y}", "lax.nextafter({x}, {y}) * 2", "jnp.float_power(2, jnp.tanh({x})) - {y}",
)  # fmt: skip
_BINARY_EXACT = (
    "{x} + {y}", "{x} - {y}", "jnp.maximum({x}, {y})", "jnp.minimum({x}, {y})", "{x} < {y}",
    "{x} >= {y}", "{x} == {y}", "{x} != {y}", "jnp.where({x} > {y}, {x}, {y} + 1)",
    f"jnp.copysign({{x}}, {a_number('{y}')})", "jnp.heaviside({x}, {y})", "jnp.fmin({x}, {y})",
)  # fmt: skip
_BINARY_INTEGER = (
    "{x} + {y}", "{x} - {y}", "{x} * {y}", "{x} & {y}", "{x} | {y}", "{x} ^ {y}",
    "jnp.maximum({x}, {y})", "jnp.minimum({x}, {y})", "{x} < {y}", "{x} == {y}",
    "{x} // jnp.where(({y} == 0) | ({y} == -1), 3, {y})", "{x} << ({y} & 3)", "{x} >> ({y} & 3)",
    "{x} % jnp.where(({y} == 0) | ({y} == -1), 3, {y})", "jnp.gcd({x}, {y} & 7)",
)  # fmt: skip
_BINARY_BOOL = ("{x} & {y}", "{x} | {y}", "{x} ^ {y}", "{x} == {y}", "jnp.logical_and(~{x}, {y})")
_COMPLEX = (
    "jnp.real({x})", "jnp.imag({x})", "jnp.conj({x})", "jnp.abs({x})", "{x} * (0.5 + 1j)",
    "-{x}", "jnp.exp(1j * jnp.real({x}))", "{x} * jnp.conj({x})", "jnp.sum({x})",
)  # fmt: skip


def unary(draft: Draft) -> None:
    x = draft.pick()
    rng = draft.rng
    if x.is_bool:
        draft.let(rng.choice((f"~{x.name}", f"jnp.where({x.name}, 2.5, -1.0)")), True)
    elif x.is_integer:
        draft.let(rng.choice(_INTEGER).format(x=x.name), True)
    elif x.exact and rng.random() < 0.5:
        draft.let(rng.choice(_EXACT_FLOAT).format(x=x.name), True)
    else:
        text = rng.choice(_SMOOTH if rng.random() < 0.7 else sorted(_CONTINUOUS))
        draft.let(text.format(x=x.name), False)


def binary(draft: Draft) -> None:
    x = draft.pick()
    y = draft.like(x)
    texts: tuple[str, ...]
    if x.is_bool:
        texts, exact = _BINARY_BOOL, True
    elif x.is_integer:
        texts, exact = _BINARY_INTEGER, True
    elif x.exact and y.exact and draft.rng.random() < 0.7:
        texts, exact = _BINARY_EXACT, True
    else:
        texts, exact = _BINARY_FLOAT, False
    draft.let(draft.rng.choice(texts).format(x=x.name, y=y.name), exact)


def select(draft: Draft) -> None:
    x = draft.pick()
    y = draft.like(x)
    mask = draft.pick(lambda known: known.is_bool and known.shape in ((), x.shape))
    draft.let(f"jnp.where({mask.name}, {x.name}, {y.name})", x.exact and y.exact)


def convert(draft: Draft) -> None:
    x = draft.pick()
    floats = ["float32", "float32", "bfloat16", "float16"]
    integers = ["int32", "int8", "uint8", "int16", "uint32", "uint16"]
    if draft.x64:
        floats += ["float64"] * 2
        integers += ["int64", "uint64"]
    stays_float = x.is_float and (not x.exact or draft.rng.random() < 0.5)
    dtype = draft.rng.choice(floats if stays_float else [*floats, *integers, "bool"])
    wide = dtype in ("float32", "float64")
    if x.is_float and dtype.startswith("uint"):
        # The conversion of what does not fit is nobody's to define.
        draft.let(f"jnp.clip({x.name}, 0, 100).astype(jnp.{dtype})", True)
    elif x.is_float and not dtype.startswith(("float", "bfloat", "bool")):
        draft.let(f"jnp.clip(jnp.nan_to_num({x.name}), -100, 100).astype(jnp.{dtype})", True)
    else:
        small = x.dtype in ("int8", "uint8", "bool")
        exact = x.exact and ((wide and (x.is_float or small)) or "float" not in dtype)
        draft.let(f"{x.name}.astype(jnp.{dtype})", exact)


def through_storage(draft: Draft) -> None:
    """Through a type that has no arithmetic."""
    x = draft.pick(lambda known: known.exact and (known.is_float or known.is_integer))
    if x.is_float:
        storage = draft.rng.choice(("float8_e4m3fn", "float8_e5m2"))
        text = f"jnp.clip({x.name}, -16, 16).astype(jnp.{storage})"
    else:
        storage = draft.rng.choice(("int4", "uint4"))
        text = f"({x.name} & 7).astype(jnp.{storage})"
    if "exotic" in draft.features and draft.rng.random() < 0.5:
        draft.let(text + draft.rng.choice(("", "", ".astype(jnp.complex64)")), True)
    else:
        draft.let(f"{text}.astype(jnp.{x.dtype})", True)


def complex_value(draft: Draft) -> None:
    if draft.rng.random() < 0.5:
        x = draft.pick(lambda known: known.is_complex)
        draft.let(draft.rng.choice(_COMPLEX).format(x=x.name), False)
        return
    x = draft.pick(lambda known: known.dtype in ("float32", "float64"))
    text = draft.rng.choice(("lax.complex({x}, {x} + 1)", "{x} * 1j", "jnp.exp(1j * {x})"))
    text = text.format(x=x.name)
    if "exotic" not in draft.features:
        text = f"{draft.rng.choice(('jnp.real', 'jnp.imag', 'jnp.abs'))}({text})"
    draft.let(text, False)


def bitcast(draft: Draft) -> None:
    widths = {"float32": "int32", "int32": "float32", "uint32": "int32", "int8": "uint8"}
    widths |= {"float16": "int16", "bfloat16": "uint16", "int16": "uint16", "uint16": "int16"}
    x = draft.pick(lambda known: known.exact and known.dtype in widths)
    to = widths[x.dtype]
    source = f"({x.name} & 0x3FFFFFFF)" if to == "float32" else x.name
    if x.is_float:
        source = a_number(x.name)
    if x.dtype == "int32" and draft.rng.random() < 0.3:
        to, source = "int8", x.name
    draft.let(f"lax.bitcast_convert_type({source}, jnp.{to})", not to.startswith("float"))


# ---------------------------------------------------------------------- reductions and products


def _axes(draft: Draft, x: Known) -> str:
    """Some axes of x, as the argument of a reduction."""
    if not x.rank or draft.rng.random() < 0.2:
        return ""
    some = sorted(draft.rng.sample(range(x.rank), draft.rng.randint(1, x.rank)))
    keep = ", keepdims=True" if draft.rng.random() < 0.4 else ""
    return f", axis={some[0] if len(some) == 1 else tuple(some)}{keep}"


def reduce(draft: Draft) -> None:
    x = draft.pick(lambda known: known.is_plain and known.size > 0)
    rng, axes = draft.rng, _axes(draft, x)
    if x.is_bool:
        draft.let(f"jnp.{rng.choice(('any', 'all', 'sum'))}({x.name}{axes})", True)
    elif x.is_integer:
        fn = rng.choice(("sum", "prod", "max", "min", "any"))
        draft.let(f"jnp.{fn}({x.name}{axes})", True)
    else:
        fn = rng.choice(("sum", "mean", "max", "min", "std", "var", "prod"))
        text = f"jnp.tanh({x.name})" if fn == "prod" else x.name
        draft.let(f"jnp.{fn}({text}{axes})", x.exact and fn in ("max", "min"))


def arg_reduce(draft: Draft) -> None:
    x = draft.pick(lambda known: known.exact and known.size > 0 and known.is_plain)
    axis = f", axis={draft.rng.randrange(x.rank)}" if x.rank and draft.rng.random() < 0.7 else ""
    draft.let(f"jnp.{draft.rng.choice(('argmax', 'argmin'))}({x.name}{axis})", True)


def normalize(draft: Draft) -> None:
    x = draft.pick(lambda known: known.is_float and known.rank > 0 and known.size > 0)
    axes = tuple(sorted(draft.rng.sample(range(x.rank), draft.rng.randint(1, min(2, x.rank)))))
    axis = str(axes[0] if len(axes) == 1 else axes)
    texts = (
        "jax.nn.softmax({x}, axis={a})", "jax.nn.log_softmax({x}, axis={a})",
        "{x} - {x}.mean({a}, keepdims=True)", "{x} - {x}.max({a}, keepdims=True)",
        "jax.nn.logsumexp({x}, axis={a})",
        "({x} - {x}.mean({a}, keepdims=True)) * lax.rsqrt({x}.var({a}, keepdims=True) + 1)",
        "{x} / (1 + jnp.abs({x}).sum({a}, keepdims=True))", "jnp.linalg.norm({x} + 1, axis={a})",
    )  # fmt: skip
    draft.let(draft.rng.choice(texts).format(x=x.name, a=axis), False)


def cumulative(draft: Draft) -> None:
    x = draft.pick(lambda known: known.is_plain and known.rank > 0 and not known.is_bool)
    axis = draft.rng.randrange(x.rank)
    fn = draft.rng.choice(("cumsum", "cummax", "cummin", "cumprod"))
    reverse = ", reverse=True" if draft.rng.random() < 0.4 else ""
    text = f"jnp.tanh({x.name})" if fn == "cumprod" and x.is_float else x.name
    exact = x.exact and (x.is_integer or fn in ("cummax", "cummin"))
    draft.let(f"lax.{fn}({text}, axis={axis}{reverse})", exact)


def product(draft: Draft) -> None:
    x = draft.pick(lambda known: (known.is_float or known.is_integer) and 0 < known.rank < 4)
    rng = draft.rng
    y = draft.pick(lambda known: known.dtype == x.dtype and 0 < known.rank < 4)
    pairs = [(i, j) for i in range(x.rank) for j in range(y.rank) if x.shape[i] == y.shape[j]]
    if pairs:
        i, j = rng.choice(pairs)
        letters = "abc"[: x.rank]
        others = list("xyz"[: y.rank])
        others[j] = letters[i]
        out = [c for c in (*letters, *others) if c != letters[i]]
        rng.shuffle(out)
        text = f"jnp.einsum('{letters},{''.join(others)}->{''.join(out)}', {x.name}, {y.name})"
    elif x.rank == 2:
        text = f"{x.name} @ {x.name}.T"
    else:
        raise Refused("no axes go together")
    scale = "" if x.is_integer else " * 0.25"
    draft.let(text + scale, x.is_integer)


def convolution(draft: Draft) -> None:
    x = draft.pick(lambda known: known.is_float and known.rank in (3, 4) and known.size > 0)
    spatial = x.rank - 2
    kernel = tuple(draft.rng.randint(1, min(3, size)) for size in x.shape[2:])
    filters = (draft.rng.choice((1, 2, 4)), x.shape[1], *kernel)
    weights = f"jnp.full({filters}, 0.125, jnp.{x.dtype})"
    stride = tuple(draft.rng.choice((1, 1, 2)) for _ in range(spatial))
    padding = draft.rng.choice(("'SAME'", "'VALID'"))
    draft.let(f"lax.conv_general_dilated({x.name}, {weights}, {stride}, {padding})", False)

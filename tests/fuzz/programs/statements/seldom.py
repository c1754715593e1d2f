"""Statements with functions that programs use now and then: general forms of products, windows and
sorts, interpolation, histograms, custom derivatives, barriers.

Input: a draft. Output: one more statement in it. In each text, `{x}` is a value of the kind that
its row names, `{n}` the length of its first axis.
"""

from __future__ import annotations

from collections.abc import Callable

from tests.fuzz.programs.draft import Draft, Known, Refused

_Row = tuple[Callable[[Known], bool], bool, tuple[str, ...]]


def _vector(known: Known) -> bool:
    return known.is_float and known.rank == 1 and known.size > 0


def _matrix(known: Known) -> bool:
    return known.is_float and known.rank == 2 and known.size > 0


def _any_float(known: Known) -> bool:
    return known.is_float and known.size > 0


def _exact_vector(known: Known) -> bool:
    return known.is_plain and known.exact and known.rank == 1 and known.size > 0


def _small_integers(known: Known) -> bool:
    return known.dtype in ("int32", "int8", "uint8") and known.rank == 1 and known.size > 0


def _images(known: Known) -> bool:
    return known.is_float and known.rank == 4 and known.size > 0


# What a text takes, whether its result is exact where x is, and the texts.
_ROWS: tuple[_Row, ...] = (
    (
        _vector,
        False,
        (
            # Whether zeros of the padding meet an infinite weight is nobody's to define.
            "jnp.convolve({x}, jnp.nan_to_num(jnp.tanh({x}[:3])), mode='same')",
            "jnp.outer({x}, {x})",
            "jnp.kron({x}, {x}[:2])",
            "jnp.polyval(jnp.tanh({x}[:4]), jnp.tanh({x}))",
            "jnp.interp(jnp.linspace(-1, 1, 7), jnp.arange({n}), {x})",
            "jnp.tanh({x}[:, None] - {x}[None, :]).sum(0)",
            "jnp.diff({x})",
            "jnp.vander(jnp.tanh({x}[:4]), 3)",
            "jnp.correlate({x}, {x}[:2])",
            "jnp.trapezoid({x})",
            "jnp.gradient(jnp.pad({x}, 2))",
        ),
    ),
    (
        _matrix,
        False,
        (
            "jnp.tensordot({x}, {x}, axes=((0,), (0,)))",
            "jnp.trace({x})",
            "jnp.vecdot({x}, {x})",
            "jnp.einsum('ij,ij->i', {x}, {x})",
            "jnp.einsum('ij,kj->ik', {x}, {x})",
            "jnp.cov({x} + 1)",
            "lax.dot_general({x}, {x}, (((1,), (1,)), ((), ())), "
            "preferred_element_type=jnp.float32)",
            "lax.dot({x}, {x}.T, precision='highest')",
            "jnp.linalg.multi_dot([{x}, {x}.T, {x}]) * 0.1",
            "jnp.apply_along_axis(lambda r: jnp.sort(r) * 2, 1, {x})",
            "jnp.percentile({x}, 30, axis=0)",
            "jax.nn.glu(jnp.concatenate([{x}, {x}], 1), 1)",
            "jnp.vectorize(jnp.dot, signature='(k),(k)->()')({x}, {x})",
            "{x} / jnp.linalg.norm({x} + 3, axis=1, keepdims=True)",
            "jnp.linalg.svd(jnp.tanh({x}), compute_uv=False)",
            "jnp.abs(jnp.linalg.qr(jnp.tanh({x}) + jnp.eye(*{x}.shape), mode='r'))",
            "jnp.real(jnp.fft.fft2(jnp.tanh({x})))",
            "jax.nn.dot_product_attention({x}[None, :, None], {x}[None, :, None], "
            "{x}[None, :, None])[0, :, 0]",
            "jnp.exp({x} - {x}.max(1, keepdims=True))[:, ::-1]"
            " / (1 + jnp.exp(jnp.tanh({x})).sum(1, keepdims=True))",
            "jax.nn.softmax({x}.T, axis=0) * {x}.T",
            "jax.nn.softmax(jnp.tile({x}, 2), axis=-1)",
        ),
    ),
    (
        _any_float,
        False,
        (
            "jnp.stack([{x} * k for k in range(1, 6)], -1)",
            "jnp.stack([jnp.sin({x}), {x}, jnp.cos({x})], 0)",
            "jnp.select([{x} > 1e9, {x} < -1e9], [{x}, -{x}], {x} * 2)",
            "lax.reduce_precision({x}, 8, 23)",
            "jnp.concatenate([jnp.sin({x}).reshape(-1), {x}.reshape(-1)])",
            "lax.optimization_barrier(jnp.sin({x})) + {x}",
            "jnp.where(jnp.isnan({x}), 0, {x}) * 0.5",
            "jax.nn.standardize({x})",
            "jnp.mean({x} ** 2, keepdims=True) + {x}",
            "lax.reduce({x} * 0.5, jnp.zeros((), {x}.dtype), lax.add, tuple(range({x}.ndim)))",
            "jnp.average({x}, weights=jnp.abs({x}) + 1)",
            "jnp.clip({x}, jnp.min({x}), jnp.mean({x}))",
            "jax.lax.map(lambda r: r * 2, jnp.atleast_1d({x}), batch_size=2)",
            "jnp.roll({x} * 2, 1) + {x}",
            "jnp.ldexp({x}, 2)",
            "jnp.logaddexp2({x}, 1)",
            "lax.square(lax.rsqrt(1 + jnp.abs({x})))",
        ),
    ),
    (
        _exact_vector,
        True,
        (
            "lax.sort(({x}, jnp.arange({n})), num_keys=1)[1]",
            "lax.sort(({x}, {x}[::-1]), num_keys=2)[1]",
            "jnp.lexsort((jnp.arange({n}), {x}))",
            "jnp.flatnonzero({x}, size=3, fill_value=0)",
            "jnp.compress(jnp.array([True, False, True])[:{n}], {x}, size=2)",
            "jnp.isin({x}, {x}[:2])",
            "jnp.where({x} == {x}[0], size=3, fill_value=-1)[0]",
            "jnp.resize({x}, (3, {n}))",
            "jnp.delete({x}, 0)",
            "jnp.insert({x}, 0, {x}[-1])",
            "lax.dynamic_index_in_dim({x}, jnp.argmax({x}), keepdims=False)",
            "jnp.digitize({x}, jnp.array([-1, 0, 2]))",
            "lax.dynamic_update_index_in_dim({x}, {x}[-1], jnp.argmin({x}), 0)",
            "jnp.append({x}, {x})",
        ),
    ),
    (
        _small_integers,
        True,
        (
            "jnp.bincount(jnp.abs({x}.astype(jnp.int32)) % 5, length=5)",
            "jax.nn.one_hot({x} % 4, 4)",
            "jnp.eye(5)[{x} % 5]",
            "jnp.cumsum({x})",
            "jnp.unravel_index(jnp.abs({x}.astype(jnp.int32)) % 6, (2, 3))[1]",
            "lax.dot_general({x}, {x}, (((0,), (0,)), ((), ())), preferred_element_type=jnp.int32)",
            "jnp.bitwise_count({x})",
            "jnp.packbits({x}.astype(jnp.bool_))",
            "jnp.left_shift({x}, 1) | 1",
            "jnp.divmod({x}, 3)[1]",
            "jnp.zeros((4, 3)).at[{x} % 4, 1].add(1)",
            "jnp.zeros(6).at[{x}].set(2.0, mode='drop')",
            "jnp.arange(12.0).reshape(4, 3)[{x} % 4]",
            "jnp.full((5, 2), 3).at[{x} % 5].multiply(2)",
        ),
    ),
    (
        _images,
        False,
        (
            "lax.reduce_window({x}, 0.0, lax.add, (1, 1, 2, 1), (1, 1, 1, 1), 'SAME', "
            "window_dilation=(1, 1, 2, 1))",
            "jax.grad(lambda a: jnp.sum(lax.reduce_window(a, -jnp.inf, lax.max, (1, 1, 2, 2), "
            "(1, 1, 1, 1), 'SAME')))({x})",
            "lax.conv_transpose({x}, jnp.full((2, 2, {x}.shape[3], 2), 0.1, {x}.dtype), "
            "(2, 1), 'SAME')",
            # In float64, XLA's groups get the NaN of others, multiplied by 0.
            "lax.conv_general_dilated(jnp.where(jnp.isfinite({x}), {x}, 1), "
            "jnp.full((2 * {x}.shape[1], 1, 1, 2), 0.25, {x}.dtype), (1, 1), 'SAME', "
            "feature_group_count={x}.shape[1])",
            "lax.conv_general_dilated({x}, jnp.full((3, {x}.shape[1], 2, 1), 0.25, {x}.dtype), "
            "(1, 1), ((1, 1), (0, 2)), "
            "lhs_dilation=(2, 1), rhs_dilation=(1, 2))",
            "jax.image.resize({x}, (*{x}.shape[:2], 4, 3), 'linear')",
            "{x}.transpose(0, 2, 3, 1).mean((1, 2))",
            "jax.nn.softmax({x}.transpose(0, 2, 1, 3), axis=(1, 2))",
        ),
    ),
)


def seldom(draft: Draft) -> None:
    """One of the texts above."""
    wanted, stays_exact, texts = draft.rng.choice(_ROWS)
    x = draft.pick(wanted)
    text = draft.rng.choice(texts).format(x=x.name, n=x.shape[0] if x.rank else 1)
    draft.let(text, stays_exact)


def custom_vjp(draft: Draft) -> None:
    """A function with a backward pass of its own, and its gradient."""
    x = draft.pick(_any_float)
    name = draft.fresh("fun")
    lines = [
        f"{name} = jax.custom_vjp(lambda a: jnp.sin(a) * 2)",
        f"{name}.defvjp(lambda a: (jnp.sin(a) * 2, a), lambda a, g: (g * jnp.cos(a) * 2,))",
    ]
    draft.let(f"jax.grad(lambda a: {name}(a).sum())({x.name}) + {name}({x.name})", False, lines)


def static(draft: Draft) -> None:
    """A jitted function with a static argument, called with two values of it."""
    x = draft.pick(lambda known: _any_float(known) and known.rank > 0)
    name = draft.fresh("fun")
    n = draft.rng.randint(1, 3)
    lines = [f"{name} = jax.jit(lambda a, n: jnp.tile(a, n)[..., ::n] * n, static_argnums=1)"]
    draft.let(f"{name}({x.name}, {n}) + {name}({x.name}, 1).sum()", False, lines)


def jacobian(draft: Draft) -> None:
    x = draft.pick(lambda known: _vector(known) and known.size <= 8)
    form = draft.rng.choice(("jax.jacfwd", "jax.jacrev", "jax.hessian"))
    inner = "jnp.sum(jnp.tanh(a) ** 3)" if form == "jax.hessian" else "jnp.cumsum(jnp.sin(a)) * a"
    draft.let(f"{form}(lambda a: {inner})({x.name})", False)


def trees(draft: Draft) -> None:
    """A loop whose carry is a dictionary."""
    x = draft.pick(lambda known: _any_float(known) and known.size <= 64)
    if draft.depth > 1:
        raise Refused("too deep")
    body = draft.fresh("body")
    step = draft.rng.choice(
        ("{'a': c['b'], 'b': (c['a'] * 0.5)}", "{'b': c['b'] - c['a'], 'a': c['a']}")
    )
    lines = [f"def {body}(c, n):", f"    return {step}, {{'y': c['a'] + n}}"]
    start = f"{{'a': {x.name}, 'b': {x.name} * 2}}"
    more = draft.rng.choice(("", ", unroll=True", ", reverse=True"))
    text = f"lax.scan({body}, {start}, jnp.arange(3).astype({x.name}.dtype){more})"
    draft.let(text + draft.rng.choice(("[0]['a']", "[0]['b']", "[1]['y']")), False, lines)

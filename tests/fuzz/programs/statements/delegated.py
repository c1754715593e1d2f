"""Sorts, and statements that stay with XLA in part: windows, decompositions, transforms, random
keys, callbacks. What later statements do not use of them is as interesting as what they do.

Input: a draft. Output: one more statement in it.
"""

from __future__ import annotations

from tests.fuzz.programs.draft import Draft, Known, Refused, a_number


def _with_axis(known: Known) -> bool:
    return known.is_plain and known.rank > 0


def sorting(draft: Draft) -> None:
    x, rng = draft.pick(_with_axis), draft.rng
    empty = [known for known in draft.scope.values() if _with_axis(known) and not known.size]
    if empty and rng.random() < 0.25:  # what nobody computes, and XLA wants to read
        x = empty[-1]
    axis = rng.randrange(x.rank)
    if rng.random() < 0.35 and not x.is_bool:
        k = rng.randint(min(1, x.shape[-1]), x.shape[-1])
        source = a_number(x.name) if x.is_float else x.name  # NaN is sorted by its sign
        if x.exact:
            draft.let(f"lax.top_k({source}, {k})", True, results=2)
        else:
            draft.let(f"lax.top_k({source}, {k})[0]", False)
        return
    texts = [
        f"jnp.sort({x.name}, axis={axis})",
        f"jnp.sort({x.name}, axis={axis}, descending=True)",
    ]
    if x.is_float:
        texts += [f"jnp.median({x.name}, axis={axis})"]
    if x.exact:
        texts += [
            f"jnp.argsort({x.name}, axis={axis})",
            f"jnp.searchsorted(jnp.sort({x.name}.reshape(-1)), {x.name})",
        ]
        texts += [
            f"jnp.unique({x.name}, size=4, fill_value=0)",
            f"jnp.nonzero({x.name}, size=4, fill_value=1)[0]",
        ]
    draft.let(rng.choice(texts), x.exact)


def window(draft: Draft) -> None:
    x, rng = (
        draft.pick(lambda known: _with_axis(known) and known.size > 0 and not known.is_bool),
        draft.rng,
    )
    sizes = tuple(rng.randint(1, min(3, size)) for size in x.shape)
    strides = tuple(rng.choice((1, 1, 2)) for _ in x.shape)
    padding = rng.choice(("'SAME'", "'VALID'"))
    kinds = [("lax.add", "0"), ("lax.max", "-100"), ("lax.min", "100")]
    fn, init = rng.choice(kinds)
    if x.dtype.startswith("u") and fn == "lax.max":
        init = "0"
    text = (
        f"lax.reduce_window({x.name}, jnp.{x.dtype}({init}), {fn}, {sizes}, {strides}, {padding})"
    )
    draft.let(text, x.exact and (fn != "lax.add" or x.is_integer))


def library(draft: Draft) -> None:
    """Decompositions of well-conditioned matrices, and Fourier transforms."""
    rng = draft.rng
    x = draft.pick(
        lambda known: (
            known.dtype in ("float32", "float64") and known.rank in (1, 2) and 0 < known.size <= 64
        )
    )
    if x.rank == 1 or rng.random() < 0.3:
        fn = rng.choice(("fft", "ifft", "rfft"))
        part = rng.choice(("jnp.real", "jnp.imag", "jnp.abs"))
        draft.let(f"{part}(jnp.fft.{fn}(jnp.tanh({x.name})))", False)
        return
    n = x.shape[0]
    spd = f"jnp.tanh({x.name}) @ jnp.tanh({x.name}).T + 2 * jnp.eye({n}, dtype={x.name}.dtype)"
    texts = (
        "jnp.linalg.cholesky({m})",
        "jnp.linalg.inv({m})",
        "jnp.linalg.solve({m}, jnp.tanh({x}))",
        "jax.scipy.linalg.solve_triangular({m}, jnp.tanh({x}), lower=True)",
        "jnp.linalg.slogdet({m})[1]",
        "jnp.linalg.eigvalsh({m})",
        "jnp.linalg.det({m}) * 0.01",
    )
    draft.let(rng.choice(texts).format(m=spd, x=x.name), False)


def key(draft: Draft) -> None:
    """Typed keys, and what is drawn with them."""
    rng = draft.rng
    if "keys" not in draft.features:
        raise Refused("no typed keys")
    keys = [known for known in draft.scope.values() if known.is_key]
    if not keys or rng.random() < 0.15:
        draft.let(f"jax.random.key({rng.randint(0, 9)})", True)
        return
    scalars = [known for known in keys if known.shape == ()]
    if not scalars:
        draft.let(f"{keys[-1].name}[0]", True)
        return
    one = rng.choice(scalars).name
    shape = rng.choice(((), (3,), (2, 5), (17,)))
    dtype = rng.choice(("jnp.float32", "jnp.bfloat16", "jnp.float16"))
    texts = [
        (f"jax.random.split({one})", True),
        (f"jax.random.fold_in({one}, {rng.randint(0, 99)})", True),
        (f"jax.random.split({one}, 3)[1]", True),
        (f"jax.random.clone({one})", True),
        (f"jax.random.key_data({one})", True),
        (f"jax.random.wrap_key_data(jax.random.key_data({one}) ^ 5)", True),
        (f"jax.random.normal({one}, {shape}, {dtype})", False),
        (f"jax.random.uniform({one}, {shape}, {dtype})", False),
        (f"jax.random.bits({one}, {shape}, jnp.uint32)", True),
        (f"jax.random.randint({one}, {shape}, -5, 9)", True),
        (f"jax.random.bernoulli({one}, 0.5, {shape})", True),
        (f"jax.random.permutation({one}, 7)", True),
        (f"jax.random.categorical({one}, jnp.zeros((3, 4)))", True),
        (f"jax.random.choice({one}, 9, (4,))", True),
    ]
    if "exotic" in draft.features:
        texts += [(f"jnp.stack([{one}, {one}])", True), (f"jnp.broadcast_to({one}, (2, 2))", True)]
    text, exact = rng.choice(texts)
    draft.let(text, exact)


def old_key(draft: Draft) -> None:
    """Raw keys of two words."""
    rng = draft.rng
    shape = rng.choice(((), (3,), (2, 5), (17,)))
    text = rng.choice((
        f"jax.random.normal(jax.random.PRNGKey({rng.randint(0, 9)}), {shape})",
        f"jax.random.randint(jax.random.PRNGKey({rng.randint(0, 9)}), {shape}, -4, 9, jnp.int32)",
    ))  # fmt: skip
    draft.let(text, "randint" in text)


def callback(draft: Draft) -> None:
    rng = draft.rng
    if "effects" not in draft.features:
        raise Refused("no effects")
    x = draft.pick()
    if rng.random() < 0.5:
        struct = f"jax.ShapeDtypeStruct({x.shape}, jnp.{x.dtype})"
        function = f"lambda a: np.asarray(a), {struct}"
        text = f"jax.pure_callback({function}, {x.name}, vmap_method='sequential')"
        draft.let(text, x.exact)
    else:
        before = [f"jax.debug.callback(lambda a: None, {x.name})"]
        draft.let(f"{x.name} * 1" if not x.is_bool else f"~{x.name}", x.exact, before)

"""Schedules, layouts and machines from outside of the package; and no cache mixes them up."""

from __future__ import annotations

import dataclasses
from pathlib import Path
from typing import Any

import jax.numpy as jnp
import numpy as np
import pytest

import stagejit
from stagejit import extending
from stagejit.codegen.target import Target
from stagejit.errors import ExtensionError, NoDriverError, OptionsError
from stagejit.extending import writing as w
from tests.extending.own import RECURRENCE, SOFTSIGN, recurrence_kernel, recurrence_p, softsign_p

X = np.random.default_rng(0).standard_normal((6, 1000)).astype(np.float32)
A = np.random.default_rng(1).standard_normal((40, 70)).astype(np.float32)
B = np.random.default_rng(2).standard_normal((70, 90)).astype(np.float32)


def items_of(size: int, backend: str = "cpu", name: str = "small-items") -> Any:
    """A schedule of maps: so many elements of the last variable an item."""

    @extending.schedule(name, kinds="map", backend=backend)
    def small(region: w.ClosedRegion, machine: Any) -> Any:
        """few elements an item"""
        loops = w.loops_of_stores(region, machine)
        (variables,) = loops.groups
        if not variables:
            return extending.declined("one element is one item")
        *outer, inner = variables
        loops = loops.in_vectors([inner])

        def tree(loops: Any, emitter: Any, memory: Any) -> w.Parallel:
            body: Any = w.stored(loops, emitter, memory)
            if backend == "cpu":
                body = w.vectors(inner, loops.lanes, body)
            step = size if backend == "cpu" else 1
            return w.items([*((var, 1) for var in outer), (inner, step)], body, emitter)

        return w.kernel(region, machine, loops, tree, threads=size)

    return small


def jitted(f: Any, *extensions: Any, **more: Any) -> Any:
    return stagejit.jit(f, options=stagejit.Options(extensions=extensions, verify=True, **more))


def loops(f: Any, *args: Any) -> str:
    text: str = f.lower(*args).as_text("loops")
    return text


@pytest.mark.parametrize("size", [7, 64, 100, 130, 4096])
def test_a_schedule_changes_the_kernel_and_not_what_it_computes(size: int) -> None:
    f = jitted(lambda x: jnp.exp(x) * 2 + x.T.reshape(6, 1000), items_of(size))
    plain = jitted(lambda x: jnp.exp(x) * 2 + x.T.reshape(6, 1000))
    np.testing.assert_array_equal(f(X), plain(X))
    assert f"in blocks of {size}" in loops(f, X)
    assert loops(f, X) != loops(plain, X)
    text = f.explain(X).as_text(kernels=True)
    assert "schedule: by small-items: few elements an item" in text
    assert f.plan(X).as_text() == plain.plan(X).as_text()


@pytest.mark.parametrize("threads", [32, 128])
def test_a_schedule_of_a_gpu(threads: int) -> None:
    f = jitted(lambda x: jnp.exp(x) * 2, items_of(threads, "cuda"), target="cuda-emulated")
    np.testing.assert_allclose(f(X), np.exp(X) * 2, rtol=1e-6)
    assert f"by blocks of {threads}" in loops(f, X)


def test_what_a_schedule_declines_is_the_packages() -> None:
    f = jitted(lambda x: jnp.exp(x), items_of(64))
    np.testing.assert_allclose(f(np.float32(2.0)), np.exp(2.0), rtol=1e-6)
    text = f.explain(np.float32(2.0)).as_text(kernels=True)
    assert "schedule: small-items declined: one element is one item" in text


@pytest.mark.parametrize(("rows", "vectors"), [(4, 1), (2, 2), (1, 1)])
def test_a_tile_of_products(rows: int, vectors: int) -> None:
    f = jitted(lambda a, b: a @ b, extending.tile("my-tile", rows=rows, vectors=vectors))
    np.testing.assert_allclose(f(A, B), A @ B, rtol=1e-4, atol=1e-4)
    text = f.explain(A, B).as_text(kernels=True)
    assert f"by my-tile: tiles of {rows} rows of {vectors} vectors" in text
    assert loops(f, A, B) != loops(jitted(lambda a, b: a @ b), A, B)


def test_a_tile_that_does_not_fit_is_declined() -> None:
    f = jitted(lambda a, b: a @ b, extending.tile("huge", rows=50, vectors=50))
    np.testing.assert_allclose(f(A, B), A @ B, rtol=1e-4, atol=1e-4)
    text = f.explain(A, B).as_text(kernels=True)
    assert "huge declined: no tile of 50 rows of 50 vectors fits" in text


@pytest.mark.parametrize(
    ("made", "what"),
    [(lambda region, machine: 3, "returned an int for a map"), (lambda *_: 1 / 0, "ZeroDivision")],
)
def test_a_schedule_that_fails_is_named(made: Any, what: str) -> None:
    f = jitted(lambda x: x * 2, extending.schedule("bad", kinds="map")(made))
    with pytest.raises(ExtensionError, match=what) as caught:
        f(X)
    assert caught.value.loc.file == __file__


@pytest.mark.parametrize(
    ("kinds", "axis", "what"),
    [
        (
            "reduce",
            1,
            r"no lines of a reduce whose operand is f32\[33,100\], and whose result is f32",
        ),
        ("contract", 1, "no lines of a contract whose operand is"),
        ("cumulative", 2, "has no axis 2"),
        ("cumulative", -1, "has no axis -1"),
    ],
)
def test_lines_that_there_are_not(kinds: str, axis: int, what: str) -> None:
    own = extending.schedule("mine", kinds=kinds)(
        lambda region, machine: w.lines_of(region, machine, axis=axis)
    )
    f = stagejit.jit(
        lambda x: (x.sum(1), jnp.cumsum(x, 0), x @ x.T), options=stagejit.Options(extensions=own)
    )
    with pytest.raises(ExtensionError, match=what):
        f(np.ones((33, 100), np.float32))


@pytest.mark.parametrize(
    ("kinds", "what", "next_step"),
    [("mapp", "'mapp'", "did you mean 'map'?"), ("map sorted", "'sorted'", "did you mean 'sort'?")],
)
def test_kinds_of_dispatches_that_there_are_not(kinds: str, what: str, next_step: str) -> None:
    f = jitted(lambda x: x * 2, extending.schedule("lost", kinds=kinds)(lambda *given: None))
    with pytest.raises(ExtensionError, match=f"asks for dispatches of kind {what}") as caught:
        f(X)
    assert caught.value.next_step == next_step
    assert caught.value.loc.file == __file__


def test_kinds_of_dispatches_are_those_of_the_ops_of_extensions_too() -> None:
    op = extending.op(RECURRENCE, primitive=recurrence_p, cpu=recurrence_kernel)
    first = extending.schedule("first", kinds="linear_recurrence map")(lambda *given: None)
    f = jitted(lambda a, x: recurrence_p.bind(a, x), first, op)
    assert "linear_recurrence" in f.plan(X, X).as_text()
    f(X, X)


def test_a_schedule_of_another_backend_is_looked_at_there() -> None:
    attend = extending.schedule("theirs", kinds="attend", backend="cuda")(lambda *given: None)
    np.testing.assert_array_equal(jitted(lambda x: x * 2, attend)(X), X * 2)


# -- layouts


@pytest.mark.parametrize("columns", [16, 8, 5])
def test_a_resolver_packs_in_other_tiles(columns: int) -> None:
    @extending.resolver("my-panels")
    def panels(encoding: w.Encoding, type: w.TensorType, machine: Any) -> Any:
        if encoding.role != "rhs":
            return extending.declined("only right operands")
        return w.Layout((1, 0), (1, columns))

    other = stagejit.bind(lambda b, a: a @ b, B)  # of which programs are there, with panels
    other(A)
    bound = stagejit.bind(
        lambda b, a: a @ b, B, options=stagejit.Options(extensions=panels, verify=True)
    )
    np.testing.assert_allclose(bound(A), A @ B, rtol=1e-4, atol=1e-4)
    assert f"f32[70,90]{{1,0;1,{columns}}} weight 0" in bound.plan(A).as_text()
    told = [d for d in bound.plan(A).decisions if d.rewrite == "my-panels"]
    assert [d.applied for d in told] == [True]


@pytest.mark.parametrize(
    "layout",
    [
        w.Layout(order, tiles, padding)
        for order in [(), (0,), (0, 1), (1, 0), (0, 1, 2), (2, 1, 0)]
        for tiles in [(), (1,), (8,), (1, 1), (1, 4), (1, 1, 1), (1, 1, 4)]
        for padding in [(), (0,), (0, 0), (0, 0, 0)]
        if {len(order), len(tiles), len(padding)} - {0, 2}
    ],
    ids=repr,
)
def test_a_layout_of_another_rank_is_refused(layout: w.Layout) -> None:
    """Whether or not it changes anything."""

    @extending.resolver("odd")
    def odd(encoding: w.Encoding, type: w.TensorType, machine: Any) -> Any:
        return layout

    bound = stagejit.bind(lambda b, a: a @ b, B, options=stagejit.Options(extensions=odd))
    with pytest.raises(ExtensionError, match="which is no layout of f32"):
        bound(A)


@pytest.mark.parametrize("layout", [w.Layout(), w.Layout((0, 1)), w.Layout((), (1, 1))], ids=repr)
def test_a_layout_that_changes_nothing_is_taken(layout: w.Layout) -> None:
    own = extending.resolver("plain")(lambda encoding, type, machine: layout)
    bound = stagejit.bind(lambda b, a: a @ b, B, options=stagejit.Options(extensions=own))
    assert "f32[70,90] weight 0" in bound.plan(A).as_text()


# -- machines


def test_a_machine_with_other_cores_has_another_plan() -> None:
    """A long sum with few results is split for cores that there are."""
    long = np.ones((3, 1 << 22), np.float32)
    plans = {}
    for cores in (1, 8):
        machine = extending.cpu(f"of-{cores}", like="avx2", cores=cores)
        f = stagejit.jit(lambda x: x.sum(1), options=stagejit.Options(extensions=machine))
        plans[cores] = f.plan(long).as_text()
    assert "parts k0" in plans[8]
    assert plans[1] != plans[8]


def test_numbers_that_may_be_zero_are_given_as_zero() -> None:
    """Of these zero says that the machine has none; of others it is no number of a machine."""
    assert extending.cpu("asks", lines_ahead=0).machine.lines_ahead == 0
    for number, value in {"cores": 0, "l2_nbytes": 0, "bandwidth": 0.0}.items():
        with pytest.raises(OptionsError, match=f"{number} is {value}"):
            extending.cpu("none", **{number: value})


def test_a_machine_with_other_vectors_has_other_kernels() -> None:
    texts = {}
    for nbytes in (16, 32):
        machine = extending.cpu("narrow", like="sse2", vector_nbytes=nbytes)
        f = jitted(lambda x: x * 2, machine)
        texts[nbytes] = f.lower(X).as_text("llvm")
        if Target.host().is_x86:
            np.testing.assert_array_equal(f(X), X * 2)
    assert "<4 x float>" in texts[16]
    assert "<8 x float>" in texts[32]


def test_a_machine_that_is_not_here_has_plans_and_no_calls() -> None:
    like = "neon" if Target.host().is_x86 else "avx2"
    f = jitted(lambda x: x * 2, extending.cpu("elsewhere", like=like))
    assert "@mul.0 items" in f.explain(X).as_text(kernels=True)
    with pytest.raises(NoDriverError, match="which 'elsewhere' has"):
        f(X)


def test_a_gpu_of_ones_own() -> None:
    """Blocks are as many as fill it; it runs emulated."""
    small = extending.gpu("small", like="A100", cores=2, bandwidth=1e11)
    f = jitted(lambda x: x.sum(0), small, target="cuda-emulated")
    np.testing.assert_allclose(f(X), X.sum(0), rtol=1e-5, atol=1e-5)
    compilation = f.lower(X).compilation
    assert (compilation.target.name, compilation.target.cores) == ("small", 2)


# -- caches


def scaled(factor: float, flops: int = 1) -> Any:
    """softsign, but for a factor: an op of the same kind, text and types."""

    def code(b: Any, op: Any, elements: Any) -> Any:
        return elements[0] * factor

    definition = dataclasses.replace(
        SOFTSIGN, code=code, flops=lambda op: flops * op.result.type.size
    )
    return extending.op(definition, primitive=softsign_p)


def test_no_kernel_of_another_extension_is_found() -> None:
    """Same function, same shapes, same text of the kernel's key: only the extension differs."""

    def f(x: Any) -> Any:
        return softsign_p.bind(x)

    for factor in (2.0, 3.0, 2.0):
        options = stagejit.Options(extensions=scaled(factor))
        np.testing.assert_array_equal(stagejit.jit(f, options=options)(X), factor * X)
    held = stagejit.jit(f, options=stagejit.Options(extensions=scaled(5.0)))
    np.testing.assert_array_equal(held(X), 5 * X)
    with stagejit.Options(extensions=scaled(7.0)):
        np.testing.assert_array_equal(stagejit.jit(f)(X), 7 * X)
    np.testing.assert_array_equal(held(X), 5 * X)


def test_no_schedule_of_another_extension_is_found() -> None:
    for size in (64, 96, 64):
        f = jitted(lambda x: jnp.sin(x), items_of(size))
        assert f"in blocks of {size}" in loops(f, X)
    assert "in blocks of 64" not in loops(jitted(lambda x: jnp.sin(x)), X)


@pytest.mark.parametrize("flops", [1, 1000])  # of an element; dear values are kept on disk
def test_values_of_weights_are_made_by_the_ops_of_their_program(
    flops: int, cache_dir: Path
) -> None:
    """Of one array, which one value is kept of: in memory as long as a program reads it."""
    b, programs = jnp.asarray(B), []
    for factor in (2.0, 3.0):
        options = stagejit.Options(extensions=scaled(factor, flops))
        bound = stagejit.bind(lambda b, a: a @ softsign_p.bind(b), b, options=options)
        np.testing.assert_allclose(bound(A), A @ (factor * B), rtol=1e-4, atol=1e-3)
        programs += [bound] * (flops == 1)


def test_an_extension_is_no_state_of_the_process() -> None:
    """Options with it are other options; those without are what they were."""
    mine = items_of(64)
    assert stagejit.Options(extensions=mine) == stagejit.Options(extensions=(mine,))
    assert stagejit.Options(extensions=mine) != stagejit.Options(extensions=items_of(64))
    assert hash(stagejit.Options(extensions=mine)) == hash(stagejit.Options(extensions=mine))
    assert "small-items" not in loops(jitted(lambda x: x * 2), X)

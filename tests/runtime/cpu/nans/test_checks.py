"""`Options(check_nans=True)`: the dispatch that makes the first NaN is named, and no other."""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax

import stagejit
from stagejit.errors import OptionsError
from stagejit.index.box import Box
from stagejit.runtime.cpu.loader import load_program
from stagejit.runtime.cpu.nans.checks import Rows, check_of, rows_of
from stagejit.runtime.hosting.program import HostProgram
from stagejit.runtime.hosting.program_steps import BufferRef
from stagejit.schedule.plans.plan import Access, Buffer
from stagejit.types import dtype_named
from tests.runtime.cpu.nans.checked import CHECKED, EACH, PASSING_BY, error_of, line_of


def test_the_dispatch_its_ops_and_its_lines_are_named() -> None:
    def f(x: Any, w: Any) -> Any:
        y = jnp.sin(x) @ w
        return jnp.log(y).sum()  # log of negatives

    text = error_of(f, jnp.ones((4, 4)), -jnp.ones((4, 4)), options=EACH)
    assert "made the first NaN" in text
    assert "(map: log)" in text
    assert line_of(text, "log of negatives", __file__)
    assert "came in" not in text
    assert not error_of(f, jnp.ones((4, 4)), jnp.ones((4, 4)))


# What makes a NaN where `x` is -1 somewhere, and none where it is 1 everywhere.
MAKERS: dict[str, Callable[[Any], Any]] = {
    "map": jnp.log,
    "reduce": lambda x: jnp.sum(jnp.sqrt(x), axis=0) + 1,
    "contract": lambda x: jnp.log(x) @ x.T,
    "rows": lambda x: jax.nn.softmax(jnp.sqrt(x), axis=1),
    "sort": lambda x: jnp.sort(jnp.sqrt(x), axis=1),
    "cumulative": lambda x: jnp.cumsum(jnp.sqrt(x), axis=0),
    "placed": lambda x: jnp.concatenate((x, jnp.sqrt(x), x), axis=1),
    "padded": lambda x: jnp.pad(jnp.sqrt(x), ((1, 2), (3, 4))),
    "strided": lambda x: jnp.zeros((16, 24)).at[1::2, ::3].set(jnp.sqrt(x)),
    "gather": lambda x: jnp.sqrt(x)[jnp.array([0, 7, 1])],
    "scatter": lambda x: jnp.zeros((9, 8)).at[jnp.arange(8)].add(jnp.sqrt(x)),
    "conv": lambda x: lax.conv(jnp.sqrt(x)[None, None], jnp.ones((1, 1, 3, 3)), (1, 1), "SAME"),
    "called": lambda x: jnp.linalg.qr(jnp.sqrt(x))[0],
    "dynamic": lambda x: lax.dynamic_update_slice(
        jnp.ones((9, 9)), jnp.sqrt(x), (x[0, 0].astype(int), 0)
    ),
}


def arguments(dtype: str = "float32") -> tuple[Any, Any]:
    good = np.ones((8, 8))
    bad = good.copy()
    bad[7, 7] = -1
    return jnp.asarray(good, dtype), jnp.asarray(bad, dtype)


@pytest.mark.parametrize("name", MAKERS)
def test_kinds_of_dispatches(name: str) -> None:
    good, bad = arguments()
    assert "made the first NaN" in error_of(MAKERS[name], bad)
    assert error_of(MAKERS[name], good) == ""


@pytest.mark.parametrize("dtype", ["float16", "bfloat16", "float32", "complex64"])
def test_element_types(dtype: str) -> None:
    good, bad = arguments(dtype)

    def f(x: Any) -> Any:
        return (x / (x + 1)) * 2

    assert error_of(f, good) == ""
    assert "made the first" in error_of(lambda x: f(x) - f(x) * (x / (x * 0)), bad)


@pytest.mark.some(2)
@pytest.mark.parametrize("name", MAKERS)
def test_results_are_the_same(name: str) -> None:
    good, _ = arguments()
    expected = stagejit.jit(MAKERS[name])(good)
    for options in (CHECKED, EACH, stagejit.Options(check_nans=True, verify=True)):
        found = stagejit.jit(MAKERS[name], options=options)(good)
        np.testing.assert_allclose(found, expected, rtol=1e-5)


def test_turns_of_loops() -> None:
    def f(x: Any) -> Any:
        def body(x: Any, turn: Any) -> Any:
            x = jnp.where(turn == 3, jnp.sqrt(x - 100.0), x * 2)  # the fourth turn
            return x, x.sum()

        return lax.scan(body, x, jnp.arange(6))

    text = error_of(f, jnp.ones(5))
    assert re.search(r"@loop\.\d+/", text)
    assert line_of(text, "the fourth turn", __file__)
    assert error_of(lambda x: f(x + 1000.0), jnp.ones(5)) == ""


def test_while_loops_and_branches() -> None:
    def f(x: Any) -> Any:
        x = lax.while_loop(lambda x: x[0] < 100, lambda x: x * 3 + 1, x)
        return lax.cond(x[1] > 0, jnp.sin, jnp.log, x)

    assert "case0" in error_of(f, jnp.array([1.0, -2.0]))
    assert error_of(f, jnp.array([1.0, 2.0])) == ""


def test_iterations_of_threads_are_one_after_the_other() -> None:
    def f(x: Any) -> Any:
        return lax.map(lambda row: jnp.sqrt(row @ row.T) @ row, x)

    x = jnp.ones((32, 20, 20)).at[17, 3].mul(-1.0)
    assert "@loop" in error_of(f, x)
    assert error_of(f, jnp.ones((32, 20, 20))) == ""


def test_gradients() -> None:
    def f(x: Any) -> Any:
        return jnp.sum(jnp.sqrt(x) * x)

    text = error_of(jax.grad(lambda x: f(jnp.maximum(x, 0.0) * 0.0)), jnp.ones(7))
    assert "made the first NaN" in text
    assert error_of(jax.grad(f), jnp.ones(7)) == ""


def test_infinities() -> None:
    infs = stagejit.Options(check_infs=True)
    assert "infinity or NaN" in error_of(lambda x: 1 / x, jnp.zeros(40), options=infs)
    assert error_of(lambda x: 1 / x, jnp.zeros(40)) == ""
    assert "made the first" in error_of(jnp.log, -jnp.ones(40), options=infs)


def test_a_constant_that_is_nan_is_no_error_until_it_is_used_or_goes_out() -> None:
    def f(x: Any) -> Any:
        return jnp.full((4,), jnp.nan).at[:].set(x), x

    assert error_of(f, jnp.ones(4)) == ""


def test_what_is_no_float_passes_by() -> None:
    def f(key: Any, x: Any) -> Any:
        return key, jax.pure_callback(np.sign, jax.ShapeDtypeStruct(x.shape, x.dtype), x)

    key, x = jax.random.key(0), jnp.arange(4)
    found = stagejit.jit(f, options=CHECKED)(key, x)
    np.testing.assert_array_equal(found[1], [0, 1, 1, 1])


def test_programs_without_checks_have_none_for_xla() -> None:
    made = stagejit.jit(PASSING_BY["the last callback"]).lower(jnp.ones(4)).compilation
    checked = stagejit.jit(PASSING_BY["the last callback"], options=CHECKED).lower(jnp.ones(4))
    assert len(checked.compilation.run_until("load").staged.items) == 3
    assert len(made.run_until("load").staged.items) == 2


def test_programs_without_it_have_no_checks() -> None:
    x = jnp.ones((8, 8))
    lowered = stagejit.jit(MAKERS["placed"]).lower(x)
    assert "check" not in lowered.as_text("host")
    checked = stagejit.jit(MAKERS["placed"], options=CHECKED).lower(x).as_text("host")
    assert "check arg0 f32[64] for NaN" in checked
    assert "clear" in checked


def test_it_is_for_the_cpu() -> None:
    with pytest.raises(OptionsError, match="are for the CPU"):
        stagejit.Options(check_nans=True, target="cuda-emulated")


def test_jax_debug_nans_finds_the_line_as_ever() -> None:
    def f(x: Any) -> Any:
        y = jnp.log(x)  # found by JAX
        return (y * 0.5).sum()

    staged, x = stagejit.jit(f), jnp.array([-1.0, 2.0])
    with jax.debug_nans(True), pytest.raises(FloatingPointError, match="log"):
        staged(x)
    with jax.debug_nans(True), pytest.raises(FloatingPointError):
        stagejit.jit(jax.grad(lambda x: f(x) * jnp.sqrt(x[0])))(x)


@pytest.mark.parametrize("dtype", ["f16", "bf16", "f32", "f64"])
@pytest.mark.parametrize("count", [1, 7, 40])
def test_each_place_is_looked_at(dtype: str, count: int) -> None:
    """NaNs of both signs, everywhere in rows of a buffer; infinities are none."""
    kind = dtype_named(dtype)
    buffer = Buffer("b", (3, count + 2), kind, "argument")
    access = Access.of(buffer, Box((1, 1), (2, count), (1, 1)))
    check = replace(check_of(access, buffer, BufferRef("arg"), infs=False), said=1)
    program = HostProgram("rows", (check,), (buffer.nbytes,), (4,), checks=("a NaN",))
    loaded = load_program(program, {})
    result = jax.ShapeDtypeStruct((1,), np.float32)
    call = jax.jit(lambda x: jax.ffi.ffi_call(loaded.target, result)(x, **loaded.attributes))

    def finds(values: Any) -> bool:
        bits = {2: np.uint16, 4: np.uint32, 8: np.uint32}[kind.itemsize]
        try:
            call(values.view(bits)).block_until_ready()
        except (ValueError, jax.errors.JaxRuntimeError) as error:
            return "a NaN" in str(error)
        return False

    start = np.full((3, count + 2), -np.inf, kind.numpy)
    assert not finds(start)
    for at in np.ndindex(start.shape):
        values = start.copy()
        values[at] = np.nan if sum(at) % 2 else -np.nan
        assert finds(values) == (at[0] >= 1 and 1 <= at[1] <= count)


def test_rows_beside_each_other_are_one() -> None:
    buffer = Buffer("b", (4, 6, 5), dtype_named("f32"), "result")

    def rows(offsets: Any, sizes: Any, strides: Any = (1, 1, 1)) -> Rows:
        return rows_of(Access.of(buffer, Box(offsets, sizes, strides)), buffer)

    assert rows((0, 0, 0), (4, 6, 5)) == Rows(0, 120, ())
    assert rows((1, 2, 0), (2, 3, 5)) == Rows(160, 15, ((2, 120),))
    assert rows((0, 0, 1), (4, 6, 2)) == Rows(4, 2, ((24, 20),))
    assert rows((0, 1, 0), (2, 2, 3), (2, 3, 2)) == Rows(20, 1, ((2, 240), (2, 60), (3, 8)))
    assert rows((3, 5, 4), (1, 1, 1)) == Rows(476, 1, ())


def test_a_weight_that_is_made_before_calls_has_a_nan() -> None:
    w, x = np.ones((8, 8), np.float32), np.ones((2, 8), np.float32)
    options = stagejit.Options(check_nans=True)
    bound = stagejit.bind(lambda w, x: x @ (w * 2), w, options=options)
    np.testing.assert_array_equal(bound(x), np.full((2, 8), 16))
    w[0, 0] = np.nan
    bound.update(w)
    with pytest.raises(Exception, match=r"NaN came in by weight `.*`, which has it already"):
        jax.block_until_ready(bound(x))
    anew = stagejit.bind(lambda w, x: x @ (w * 2), w, options=options)
    with pytest.raises(Exception, match=r"NaN came in by weight `.*`, which has it already"):
        jax.block_until_ready(anew(x))

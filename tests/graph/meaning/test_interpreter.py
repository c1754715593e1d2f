"""The oracle itself: against NumPy in float64, against JAX, and on the edges of each type."""

from __future__ import annotations

import math
from typing import Any

import jax
import jax.numpy as jnp
import ml_dtypes
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from jax import lax

from stagejit.errors import InternalError
from stagejit.graph.functions import MAP_FUNCTIONS
from stagejit.graph.meaning import scalar
from stagejit.graph.meaning.interpreter import interpret
from stagejit.graph.text.parser import parse
from stagejit.trace.translate import graph_of
from tests.randomness import RNG
from tests.strategies import RandomProgram, assert_agrees, evaluate, programs

SPECIAL = np.array(
    [0.0, -0.0, 1, -1, 0.5, -0.5, 1.5, 2.5, -2.5, 3, 1e-3, 100, -100, np.inf, -np.inf, np.nan],
    np.float32,
)
EDGES = {np.dtype(t): np.array([np.iinfo(t).min, np.iinfo(t).max, 0, 1, 2, 3, 7], t)
         for t in (np.int8, np.uint8, np.int16, np.int32, np.uint32)}  # fmt: skip


@pytest.mark.fuzz
@given(programs())
def test_random_programs_agree_with_jax_and_with_themselves_in_float64(
    program: RandomProgram,
) -> None:
    graph = graph_of(program.fn, *program.args)
    exact = interpret(graph, program.args, precision="f64")
    assert_agrees(program, interpret(graph, program.args), exact)
    assert_agrees(program, evaluate(program), exact)


# --------------------------------------------------------------- elementwise

FLOAT_UNARY = [
    name for name, f in MAP_FUNCTIONS.items()
    if f.arity == 1 and f.kinds >= {"float"} and not f.params
]  # fmt: skip
JAX_NAMES = {"not": lax.bitwise_not}


def jax_function(name: str) -> Any:
    return JAX_NAMES.get(name) or getattr(lax, name)


@pytest.mark.parametrize("name", FLOAT_UNARY)
def test_unary_functions_on_special_values(name: str) -> None:
    fn = jax_function(name)
    with jax.enable_x64(True):
        wide = SPECIAL.astype(np.float64)
        ours = interpret(graph_of(fn, wide), [wide])[0]
        theirs = np.asarray(jax.jit(fn)(wide))
    np.testing.assert_allclose(ours, theirs, rtol=1e-12, atol=1e-15)
    zeros = (theirs == 0) & (ours == 0)
    if name not in ("sin", "tan", "cos"):
        np.testing.assert_array_equal(np.signbit(ours[zeros]), np.signbit(theirs[zeros]))


@pytest.mark.some(2)
@pytest.mark.parametrize(
    "name", ["add", "sub", "mul", "div", "rem", "max", "min", "pow", "atan2", "nextafter",
             "eq", "ne", "lt", "le", "gt", "ge"],
)  # fmt: skip
@pytest.mark.parametrize("dtype", [np.float32, ml_dtypes.bfloat16, np.float16])
def test_binary_functions_on_special_values(name: str, dtype: Any) -> None:
    x, y = (v.reshape(-1).astype(dtype) for v in np.meshgrid(SPECIAL, SPECIAL))
    fn = jax_function(name)
    ours = interpret(graph_of(fn, x, y), [x, y])[0]
    theirs = np.asarray(jax.jit(fn)(x, y))
    assert ours.dtype == theirs.dtype
    rtol = {2: 2e-2, 4: 2e-6}[np.dtype(dtype).itemsize]
    with np.errstate(all="ignore"):
        wide, reference = ours.astype(np.float64), theirs.astype(np.float64)
    # XLA flushes denormals to zero.
    np.testing.assert_allclose(wide, reference, rtol=rtol, atol=np.finfo(np.float32).tiny)


@pytest.mark.parametrize("dtype", [np.float16, ml_dtypes.bfloat16, np.float32, np.float64])
def test_neighbours_of_the_smallest_numbers(dtype: Any) -> None:
    """-0 .. +0 is one step wide for both zeros; from the least numbers a zero keeps the sign."""
    unsigned, top = f"u{np.dtype(dtype).itemsize}", 1 << (8 * np.dtype(dtype).itemsize - 1)
    ordered = [top + 2, top + 1, top, 0, 1, 2]
    for k, x in enumerate(ordered):
        for other, y in enumerate(ordered):
            if x & (top - 1) == y & (top - 1) == 0 or k == other:
                expected = y
            elif x & (top - 1) == 0:
                expected = ordered[4 if other > k else 1]
            else:
                expected = x + 1 if (other > k) == (x < top) else x - 1
            bits = [np.array([v], unsigned).view(dtype) for v in (x, y)]
            with jax.enable_x64(True):
                result = interpret(graph_of(lax.nextafter, *bits), bits)[0]
            assert result.view(unsigned)[0] == expected, (x, y)


@pytest.mark.some(2)
@pytest.mark.parametrize("dtype", EDGES)
@pytest.mark.parametrize(
    "name", ["add", "sub", "mul", "div", "rem", "max", "min", "and", "or", "xor", "shift_left",
             "shift_right_logical", "shift_right_arithmetic", "eq", "lt"],
)  # fmt: skip
def test_integer_functions_on_the_edges_of_their_type(name: str, dtype: np.dtype[Any]) -> None:
    x, y = (v.reshape(-1) for v in np.meshgrid(EDGES[dtype], EDGES[dtype]))
    fn = {"and": lax.bitwise_and, "or": lax.bitwise_or, "xor": lax.bitwise_xor}.get(
        name
    ) or jax_function(name)
    np.testing.assert_array_equal(interpret(graph_of(fn, x, y), [x, y])[0], jax.jit(fn)(x, y))


@pytest.mark.parametrize("dtype", EDGES)
@pytest.mark.parametrize("name", ["neg", "abs", "sign", "square", "population_count", "clz"])
def test_unary_integer_functions(name: str, dtype: np.dtype[Any]) -> None:
    if name == "abs" and dtype.kind == "u":
        return  # JAX does not define it
    x, fn = EDGES[dtype], jax_function(name)
    np.testing.assert_array_equal(interpret(graph_of(fn, x), [x])[0], jax.jit(fn)(x))


@pytest.mark.some(2)
@pytest.mark.parametrize("source", ["float32", "bfloat16", "float16", "int32", "uint8", "bool"])
@pytest.mark.parametrize(
    "target", ["bool", "int8", "uint8", "int16", "int32", "uint32", "float16", "bfloat16"]
)
def test_conversions_saturate_wrap_and_round_as_in_jax(source: str, target: str) -> None:
    numbers = np.array([0, 0.5, 1, -1, 2.5, 127.9, 128, -129, 255, 256, 300, -300, 65504, 7e4,
                        3e9, -3e9, 1e20, np.nan, np.inf, -np.inf])  # fmt: skip
    with np.errstate(all="ignore"):
        x = np.asarray(jnp.asarray(numbers, jnp.float32).astype(source))

    def fn(x: Any) -> Any:
        return lax.convert_element_type(x, jnp.dtype(target))

    ours, theirs = interpret(graph_of(fn, x), [x])[0], np.asarray(jax.jit(fn)(x))
    with np.errstate(all="ignore"):
        np.testing.assert_array_equal(ours.astype(np.float64), theirs.astype(np.float64))


@pytest.mark.parametrize("y", [-3, -1, 0, 1, 2, 3, 7])
def test_integer_powers(y: int) -> None:
    def fn(x: Any) -> Any:
        return lax.integer_pow(x, y)

    np.testing.assert_allclose(
        interpret(graph_of(fn, SPECIAL), [SPECIAL])[0], jax.jit(fn)(SPECIAL), rtol=1e-5
    )
    if y >= 0:
        x = EDGES[np.dtype(np.int32)]
        np.testing.assert_array_equal(interpret(graph_of(fn, x), [x])[0], jax.jit(fn)(x))


def test_rounding_away_is_exact_just_below_one_half() -> None:
    x = np.array([np.nextafter(0.5, 0), -0.5, 2.5])
    np.testing.assert_array_equal(scalar.float_function("round", {"rounding": "away"})(x),
                                  [0, -1, 3])  # fmt: skip


def test_erf_inv_inverts_erf_to_the_last_digits() -> None:
    x = np.linspace(-5.5, 5.5, 2001)
    y = np.vectorize(math.erf)(x)
    inverse = scalar.float_function("erf_inv", {})
    np.testing.assert_allclose(np.vectorize(math.erf)(inverse(y)), y, rtol=4e-16)
    tiny = np.array([1e-300, -1e-12, 0.0, -0.0])
    np.testing.assert_allclose(inverse(tiny), tiny * math.sqrt(math.pi) / 2, rtol=1e-14)
    np.testing.assert_array_equal(inverse(np.array([1, -1, 2.0])), [np.inf, -np.inf, np.nan])


# ------------------------------------------------------------------ precision


def test_declared_precision_rounds_each_op_once() -> None:
    x = np.float32(1) / np.float32(3)
    graph = graph_of(lambda x: x * x - x * x, np.float32(0))
    assert interpret(graph, [x])[0] == 0
    wide = interpret(graph_of(lambda x: x * 3 - 1, x), [x], precision="f64")[0]
    assert wide.dtype == np.float64
    assert wide == float(x) * 3 - 1


def test_sixteen_bit_sums_are_rounded_once() -> None:
    x = np.full(1000, 1.001, ml_dtypes.bfloat16)
    total = interpret(graph_of(lambda x: lax.reduce_sum(x, (0,)), x), [x])[0]
    assert total == np.asarray(x.astype(np.float64).sum()).astype(ml_dtypes.bfloat16)


@given(st.lists(st.floats(-4, 4, width=32), min_size=1, max_size=20))
def test_reductions_and_cumulative_ops_against_numpy(values: list[float]) -> None:
    x = np.array(values, np.float32)

    def fn(x: Any) -> Any:
        return jnp.sum(x), jnp.prod(x), jnp.max(x), jnp.argmin(x), jnp.cumsum(x), lax.cummax(x)

    wide = x.astype(np.float64)
    expected = [wide.sum(), wide.prod(), wide.max(), wide.argmin(), wide.cumsum(),
                np.maximum.accumulate(wide)]  # fmt: skip
    ours = interpret(graph_of(fn, x), [x], precision="f64")
    for a, b in zip(ours, expected, strict=True):
        np.testing.assert_allclose(a, b, rtol=1e-12, atol=1e-300)


# --------------------------------------------------------------------- faults


def test_equal_elements_have_one_sum_wherever_they_lie() -> None:
    """NumPy adds up in the order in memory, and rewrites leave views that lie in another one."""
    graph = parse("""
graph @g(%x: f64[16,8,12]) {
  %0: f64[16] = reduce add %x axes=(1, 2)
  return %0
}
""")
    x = RNG.random((16, 8, 12))
    elsewhere = np.asfortranarray(x)
    (one,), (other,) = interpret(graph, [x]), interpret(graph, [elsewhere])
    assert one.tobytes() == other.tobytes()


def test_what_was_never_written_reads_as_poison() -> None:
    text = """graph @f(%x: f32[2]) {
      %0: f32[4] = empty
      %1: f32[4] = insert_slice %x into %0 at (1)
      return %1
    }"""
    (result,) = interpret(parse(text), [np.ones(2, np.float32)])
    np.testing.assert_array_equal(result, [np.nan, 1, 1, np.nan])


def test_wrong_inputs_are_refused() -> None:
    graph = graph_of(lambda x: x, np.ones(3, np.float32))
    with pytest.raises(ValueError, match="takes 1 inputs, not 2"):
        interpret(graph, [1, 2])
    with pytest.raises(ValueError, match=r"shape \(2,\), not f32\[3\]"):
        interpret(graph, [np.ones(2)])


def test_a_parsed_delegate_cannot_run() -> None:
    line = '%0: f32[2] = delegate %x effects=() reason="sort"'
    graph = parse(f"graph @f(%x: f32[2]) {{\n  {line}\n  return %0\n}}")
    with pytest.raises(InternalError, match="was parsed from text"):
        interpret(graph, [np.ones(2)])


@pytest.mark.parametrize("shapes", [((2, 1, 4), (1, 1, 1)), ((1, 1, 1), (2, 1, 1)),
                                    ((2, 3, 4), (5, 3, 2))], ids=str)  # fmt: skip
@pytest.mark.parametrize("where", [0, 1])
def test_zero_times_nan_is_nan_in_every_convolution(shapes: Any, where: int) -> None:
    """BLAS may skip factors of zero."""
    args = [np.zeros(shape, np.float32) for shape in shapes]
    args[where][...] = np.nan
    graph = graph_of(lambda x, w: jax.lax.conv(x, w, (1,), "VALID"), *args)
    (result,) = interpret(graph, args)
    assert np.isnan(result).all()

"""Elementwise primitives become `map`s of one shape."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax

import stagejit
from stagejit.graph.functions import MAP_FUNCTIONS
from stagejit.graph.meaning.interpreter import interpret
from stagejit.graph.text.printer import as_text
from stagejit.trace.math.elementwise import TRANSLATIONS
from stagejit.trace.translate import graph_of


def ops_of(fn: Any, *args: Any) -> list[str]:
    return [line.strip() for line in as_text(graph_of(fn, *args)).splitlines()[1:-2]]


X = np.array([1.5, -2.0, 0.0], np.float32)


def test_scalars_are_filled_to_the_shape_of_the_other_operand() -> None:
    assert ops_of(lambda x: x * 2, X) == [
        "%0: f32[] = const 2.0",
        "%1: f32[3] = fill %0",
        "%2: f32[3] = map mul %arg0, %1",
    ]


def test_sizes_of_one_are_broadcast() -> None:
    x = np.ones((2, 3), np.float32)
    assert ops_of(lambda x, y: lax.sub(x, y), x, x[:, :1]) == [
        "%0: f32[2] = reshape %arg1",
        "%1: f32[2,3] = broadcast %0 axes=(0)",
        "%2: f32[2,3] = map sub %arg0, %1",
    ]


FLOATS = "add sub mul div rem max min pow atan2 nextafter eq ne lt le gt ge complex"
INTEGERS = "and or xor shift_left shift_right_logical shift_right_arithmetic add sub mul div rem eq"
COMPLEX = "add sub mul div eq ne pow"


@pytest.mark.parametrize(
    ("names", "dtype"), [(FLOATS, np.float32), (INTEGERS, np.int32), (COMPLEX, np.complex64)]
)
def test_either_operand_may_be_a_scalar_or_have_sizes_of_one(names: str, dtype: Any) -> None:
    x = np.arange(1, 7).reshape(2, 3).astype(dtype) * dtype(1.5)

    def program(x: Any) -> list[Any]:
        others = (dtype(2), x[:1], x[:, :1])
        pairs = [pair for other in others for pair in ((x, other), (other, x))]
        return [getattr(lax, f"{n}_p").bind(*pair) for n in names.split() for pair in pairs]

    for ours, theirs in zip(stagejit.jit(program)(x), jax.jit(program)(x), strict=True):
        assert (ours.shape, ours.dtype) == (theirs.shape, theirs.dtype)
        np.testing.assert_allclose(ours, theirs, rtol=2e-5)


def test_select_takes_the_true_case_first() -> None:
    p = np.array([True, False, True])
    assert ops_of(lambda p, x, y: lax.select_n(p, x, y), p, X, X)[-1].endswith(
        "map select %arg0, %arg2, %arg1"
    )


@pytest.mark.parametrize("count", [1, 2, 3, 4])
def test_select_of_many_cases_is_a_chain(count: int) -> None:
    which = np.array([0, count - 1, count // 2], np.int32)
    cases = [X + k for k in range(count)]
    graph = graph_of(lambda w, *c: lax.select_n(w, *c), which, *cases)
    np.testing.assert_array_equal(interpret(graph, [which, *cases])[0], lax.select_n(which, *cases))
    assert sum(op.attrs.get("fn") == "select" for op in graph) == count - 1


def test_clamp_fills_scalar_bounds() -> None:
    assert ops_of(lambda x: lax.clamp(0.0, x, 1.0), X)[-1].endswith("map clamp %2, %arg0, %3")


@pytest.mark.parametrize("dtype", ["int8", "int32"])
def test_a_power_with_an_integer_exponent_is_exact_about_its_sign(dtype: str) -> None:
    base = np.array([-1, -1, 2, 0], np.float32)
    exponent = np.array([3, 4, 5, 0]).astype(dtype)
    graph = graph_of(lax.pow, base, exponent)
    np.testing.assert_array_equal(interpret(graph, [base, exponent])[0], [-1, 1, 32, 1])


def test_a_large_odd_exponent_keeps_its_parity() -> None:
    base, exponent = np.float32(-1), np.int32(2**24 + 1)
    assert interpret(graph_of(lax.pow, base, exponent), [base, exponent])[0] == -1


def test_round_has_both_modes() -> None:
    for mode, word in ((0, "away"), (1, "even")):
        text = ops_of(lambda x, m=mode: lax.round(x, lax.RoundingMethod(m)), X)[0]
        assert text == f'%0: f32[3] = map round %arg0 rounding="{word}"'


def test_identities_are_not_emitted() -> None:
    assert ops_of(lambda x: lax.stop_gradient(jnp.copy(x)), X) == []


def test_an_optimization_barrier_holds_what_is_not_known() -> None:
    assert ops_of(lambda x, y: lax.optimization_barrier((x, y, x))[::2], X, X) == [
        "%0: f32[3], %1: f32[3] = optimization_barrier %arg0, %arg1"
    ]
    assert ops_of(lambda x: x[lax.optimization_barrier(jnp.int32(1))], X) == [
        "%0: f32[1] = extract_slice %arg0 at (1)",
        "%1: f32[] = reshape %0",
    ]


@pytest.mark.parametrize(
    ("prevent", "held"), [(True, 2), (False, 0), ((True, False), 2), ((False, False), 1)]
)
def test_a_checkpoint_computes_again_behind_a_barrier(prevent: Any, held: int) -> None:
    """The argument and, always, the cotangent that it has to wait for."""

    def f(x: Any, w: Any) -> Any:
        return jax.checkpoint(lambda x, w: jnp.sin(jnp.sin(x)), prevent_cse=prevent)(x, w).sum()

    assert not [line for line in ops_of(f, X, X) if "barrier" in line]
    barriers = [line for line in ops_of(jax.grad(f), X, X) if "optimization_barrier" in line]
    assert [line.count(":") for line in barriers] == ([held] if held else [])


def test_convert_to_the_same_type_is_not_emitted() -> None:
    assert ops_of(lambda x: x.astype(jnp.float32), X) == []


@pytest.mark.parametrize("dtype", ["float32", "float16", "bfloat16", "float64"])
@pytest.mark.parametrize(("exponent", "mantissa"), [(5, 10), (8, 7), (4, 3), (8, 23), (11, 52)])
def test_reduce_precision_gives_the_bits_that_xla_gives(
    dtype: str, exponent: int, mantissa: int
) -> None:
    rng = np.random.default_rng(0)
    with jax.enable_x64(True):
        target = np.dtype(jnp.dtype(dtype))
        bits = rng.integers(0, 256, 4000 * target.itemsize, dtype=np.uint8)
        x = bits.view(target)

        def f(x: Any) -> Any:
            return lax.reduce_precision(x, exponent, mantissa)

        ours = interpret(graph_of(f, x, delegate=False), [x])[0]
        theirs = np.asarray(jax.jit(f)(x))
    with np.errstate(invalid="ignore"):  # signalling NaNs of bfloat16
        both_nan = np.isnan(ours) & np.isnan(theirs)
    width = np.dtype(f"u{target.itemsize}")
    same = (ours.view(width) == theirs.view(width)) | both_nan
    assert same.all(), (x[~same], ours[~same], theirs[~same])


def test_threefry_is_native_and_exact() -> None:
    from jax.extend.random import threefry_2x32

    key = np.array([12, 34], np.uint32)
    count = np.arange(10, dtype=np.uint32)
    graph = graph_of(threefry_2x32, key, count, delegate=False)
    np.testing.assert_array_equal(interpret(graph, [key, count])[0], threefry_2x32(key, count))


def test_every_same_named_translation_has_a_map_function() -> None:
    names = {name for name, t in TRANSLATIONS.items() if t.rule.__name__ == "_same"}
    assert names <= MAP_FUNCTIONS.keys()


@pytest.mark.parametrize("dtype", [np.int8, np.uint8, np.int32, np.uint32])
def test_mulhi_is_the_upper_half_of_the_product(dtype: Any) -> None:
    if not hasattr(lax, "mulhi"):
        pytest.skip("this JAX has no public mulhi")
    info = np.iinfo(dtype)
    x = np.array([info.max, info.min, 3, info.max], dtype)
    y = np.array([info.max, info.max, 5, 2], dtype)
    graph = graph_of(lax.mulhi, x, y)
    np.testing.assert_array_equal(interpret(graph, [x, y])[0], lax.mulhi(x, y))


ORDERED = [np.nan, -np.nan, -np.inf, np.inf, 0.0, -0.0, 1.5, -1.5, 1e-40, -1e-40, 3.0]


@pytest.mark.parametrize("dtype", ["float32", "bfloat16", "float16", "int32", "uint8"])
def test_total_order(dtype: str) -> None:
    """Of floats: from -NaN over -0 and 0 to NaN."""
    values = jnp.asarray(ORDERED if "float" in dtype else [0, 1, 2, 200, 255]).astype(dtype)
    x, y = (a.reshape(-1) for a in jnp.meshgrid(values, values))

    def f(x: Any, y: Any) -> Any:
        return lax.lt_to_p.bind(x, y), lax.le_to_p.bind(x, y), lax.eq_to_p.bind(x, y)

    graph = graph_of(f, x, y)
    assert not [op for op in graph if op.kind == "delegate"]
    expected = jax.jit(f)(x, y)
    for a, b, c in zip(stagejit.jit(f)(x, y), interpret(graph, [x, y]), expected, strict=True):
        np.testing.assert_array_equal(a, c)
        np.testing.assert_array_equal(b, c)


def test_bits_of_the_same_type_are_the_same() -> None:
    graph = graph_of(lambda x: lax.bitcast_convert_type(x, bool), np.ones(3, bool), delegate=False)
    assert not list(graph)


_TYPES = ("u1", "i1", "u2", "i2", "f2", "u4", "i4", "f4", "u8", "i8", "f8")


@pytest.mark.parametrize("source", _TYPES)
def test_bits_of_elements_of_another_size(source: str) -> None:
    """As NumPy sees the same memory: in place of XLA, alone and between other operations."""
    rng, size = np.random.default_rng(7), int(source[1])
    arrays: list[np.ndarray[Any, Any]] = []
    names: list[str] = []
    shapes: list[tuple[int, ...]] = []
    for target in _TYPES:
        for shape in ((3, 5), (0, 2), (), (17,)):
            parts = int(target[1]) // size
            # Neither a NaN, whose bits may change, nor what XLA's threads take for zero.
            memory = rng.integers(32, 96, (*shape, *(parts,) * (parts > 1), size), np.uint8)
            arrays.append(memory.view(source)[..., 0])
            names.append(target)
            shapes.append((*shape, size // int(target[1])) if parts < 1 else shape)

    def program(*arrays: Any) -> Any:
        return [
            (
                lax.bitcast_convert_type(x, target),
                jnp.flip(lax.bitcast_convert_type(jnp.flip(x), target)),
            )
            for x, target in zip(arrays, names, strict=True)
        ]

    with jax.enable_x64(True):
        staged = stagejit.jit(program)
        assert not staged.plan(*arrays).delegated
        results = staged(*arrays)
    for (bits, turned), x, target, shape in zip(results, arrays, names, shapes, strict=True):
        assert bits.dtype == target
        np.testing.assert_array_equal(bits, np.frombuffer(x.tobytes(), target).reshape(shape))
        flipped = np.frombuffer(np.flip(x).tobytes(), target).reshape(shape)
        np.testing.assert_array_equal(turned, np.flip(flipped))

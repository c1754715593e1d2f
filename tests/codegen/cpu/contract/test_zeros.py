"""Steps in which an operand has nothing but zeros are left out, and every sum keeps its bits, that
of the sign of a zero too, whatever the other operand holds.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import ml_dtypes
import numpy as np
import pytest
from jax import Array

from stagejit.codegen.kernel import Kernel
from stagejit.graph.ir import Graph
from stagejit.graph.meaning.interpreter import interpret
from stagejit.graph.ops import build
from stagejit.trace.translate import graph_of
from tests.codegen.cpu.contract.test_contract import TARGETS, array
from tests.codegen.regions import Runner, region_of
from tests.randomness import RNG

M, K, N = 70, 90, 50
Numbers = np.ndarray[Any, Any]


@pytest.fixture(params=TARGETS)
def runner(request: pytest.FixtureRequest, compile_kernel: Any) -> Runner:
    return Runner(compile_kernel, TARGETS[request.param]())


def mostly_zero(number: int) -> Callable[[Graph], None]:
    """Says that operand `number` of the contraction may be."""

    def change(graph: Graph) -> None:
        for op in list(graph.ops()):
            if op.kind == "contract":
                attrs = {**op.attrs, "zeros": number}
                graph.replace_uses(op.result, build(graph, "contract", op.operands, **attrs))
        graph.eliminate_dead()

    return change


def looks(kernel: Kernel) -> bool:
    return "note the ends" in kernel.loops


KEPT: dict[str, Callable[[int, int], Any]] = {
    "lower": lambda m, k: np.tri(m, k, dtype=bool),
    "upper": lambda m, k: ~np.tri(m, k, -9, dtype=bool),
    "band": lambda m, k: abs(np.arange(m)[:, None] - np.arange(k)) < 5,
    "lengths": lambda m, k: np.arange(k) < RNG.integers(0, k + 1, m)[:, None],
    "segments": lambda m, k: np.arange(m)[:, None] // 16 == np.arange(k) // 16,
    "none": lambda m, k: np.zeros((m, k), bool),
    "random": lambda m, k: RNG.random((m, k)) < 0.01,
}
SPECIAL = {"signs": (), "not finite": (np.inf, -np.inf, np.nan)}


def operands(
    kept: Any, n: int, special: tuple[float, ...], dtype: Any = np.float32
) -> tuple[Numbers, Numbers]:
    """One with zeros of both signs, and one with whole columns of one sign, of -0 or +0, too."""
    m, k = kept.shape
    left = np.where(kept, array(m, k, dtype=dtype), dtype(0))
    left[RNG.random((m, k)) < 0.02] = -0.0
    right = array(k, n, dtype=dtype)
    for column, numbers in enumerate((-abs(right[:, 0]) - 1, abs(right[:, 0]), -0.0, 0.0)):
        right[:, column * 3] = numbers
    for number in special:
        right[RNG.integers(0, k), RNG.integers(0, n)] = number
    return left, right


def same(runner: Runner, fn: Any, *args: Any, number: int = 0) -> Kernel:
    """As near as ever, and the signs of zeros, and NaN where NaN is."""
    kernel = runner.check(fn, *args, change=mostly_zero(number))
    with jax.enable_x64(True):
        graph = graph_of(fn, *args)
    mostly_zero(number)(graph)
    region = region_of(graph)
    (found,) = runner.run(graph, region, runner.generate(region), list(args))
    (wanted,) = interpret(graph, list(args))
    zero = wanted == 0
    np.testing.assert_array_equal(np.signbit(found[zero]), np.signbit(wanted[zero]))
    return kernel


@pytest.mark.parametrize("special", SPECIAL)
@pytest.mark.parametrize("name", KEPT)
def test_any_zeros(runner: Runner, name: str, special: str) -> None:
    a, b = operands(KEPT[name](M, K), N, SPECIAL[special])
    kernel = same(runner, lambda a, b: a @ b, a, b)
    assert looks(kernel) or runner.target.cores == 4  # then items are few rows


LAYOUTS: dict[str, tuple[str, int]] = {
    "rows lie together": ("km,kn->mn", 0),
    "on the right": ("km,kn->nm", 1),
    "on the right, steps together": ("mk,nk->nm", 1),
    "the other one lies along the steps": ("km,nk->mn", 0),
    "both lie along the steps": ("mk,nk->mn", 0),
}


@pytest.mark.parametrize("layout", LAYOUTS)
def test_layouts(runner: Runner, layout: str) -> None:
    text, number = LAYOUTS[layout]
    for name in ("lower", "segments"):
        a, b = operands(KEPT[name](M, K), N, ())
        a = a.T.copy() if text.startswith("km") else a
        b = b.T.copy() if ",nk" in text else b
        fn = (lambda a, b: jnp.einsum(text, a, b)) if number == 0 else (
            lambda b, a: jnp.einsum(",".join(reversed(text.split("->")[0].split(","))) + "->"
                                    + text.split("->")[1], b, a))  # fmt: skip
        same(runner, fn, *((a, b) if number == 0 else (b, a)), number=number)


def test_heads(runner: Runner) -> None:
    p = np.stack([operands(KEPT[name](M, K), N, ())[0] for name in ("lower", "band", "none")])
    v = np.stack([operands(KEPT["lower"](M, K), 33, ())[1] for _ in range(3)])
    v[2, 3, 4] = np.inf
    p = p.reshape(1, 3, M, K)
    fn = lambda p, v: jnp.einsum("bhts,bshd->bthd", p, v)  # noqa: E731
    same(runner, fn, p, v.transpose(1, 0, 2)[None].copy())


@pytest.mark.parametrize("name", ["lower", "upper", "none"])
def test_long_sums_in_blocks(runner: Runner, name: str) -> None:
    a, b = operands(KEPT[name](100, 1700), 70, ())
    same(runner, lambda a, b: a @ b, a, b)


def test_results_may_be_masked_too(runner: Runner) -> None:
    a, b = operands(KEPT["lower"](M, K), N, ())
    mask = jnp.tri(M, N, -9, dtype=bool)
    kernel = runner.check(lambda a, b: jnp.where(mask, a @ b, 7), a, b, change=mostly_zero(0))
    assert "if some of it is stored" in kernel.loops


@pytest.mark.parametrize("dtype", [ml_dtypes.bfloat16, np.float16, np.float64])
def test_types(runner: Runner, dtype: Any) -> None:
    a, b = operands(KEPT["lower"](M, K), N, (), dtype)
    same(runner, lambda a, b: a @ b, a, b)


def test_operands_that_are_evaluated(runner: Runner) -> None:
    a, b = operands(KEPT["lower"](M, K), N, ())

    def fn(a: Array, b: Array) -> Array:
        return jnp.where(jnp.tri(M, K, dtype=bool), a + 1, 0.0) @ (b * 2)

    runner.check(fn, a, b, change=mostly_zero(0))


def _told(kernel: Kernel) -> list[str]:
    return [choice.reason for choice in kernel.choices if choice.name == "zeros"]


def test_explained(host: Runner) -> None:
    kernel = host.check(lambda a, b: a @ b, array(M, K), array(K, N), change=mostly_zero(1))
    assert _told(kernel) == ["from the first to the last step in which the right is not zero"]
    assert not _told(host.check(lambda a, b: a @ b, array(M, K), array(K, N)))


@pytest.mark.parametrize(
    ("m", "k", "n", "reason"),
    [
        (3, K, N, "there are too few rows, columns or steps to look for zeros"),
        (M, 20, N, "there are too few rows, columns or steps to look for zeros"),
        (M, K, 3, "they are no single loop of broadcasts"),
    ],
)
def test_dont_look_where_little_is_saved(host: Runner, m: int, k: int, n: int, reason: str) -> None:
    kernel = host.check(lambda a, b: a @ b, array(m, k), array(k, n), change=mostly_zero(0))
    assert not looks(kernel)
    assert _told(kernel) == [f"all steps: {reason}"]


def test_dont_look_where_tiles_evaluate(host: Runner) -> None:
    """What they read is not what they multiply by."""
    a, q = array(20, K), array(K, N, dtype=np.uint8)
    plain = host.check(lambda a, q: a @ (q.astype(jnp.float32) - 8), a, q)
    found = host.check(lambda a, q: a @ (q.astype(jnp.float32) - 8), a, q, change=mostly_zero(0))
    evaluated = not any(choice.packs == 1 for choice in plain.choices)
    assert (_told(found) == ["all steps: tiles evaluate what they read"]) == evaluated


def test_dont_look_over_several_axes(host: Runner) -> None:
    a, b = array(M, 40, 50), array(50, 40, N)
    kernel = host.check(lambda a, b: jnp.einsum("mij,jin->mn", a, b), a, b, change=mostly_zero(0))
    assert _told(kernel) == ["all steps: they are no single loop of broadcasts"]

"""Acceptance A11: plans for all sizes at once; equal symbolic sizes are proven equal, no others."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import export, lax

import stagejit
from stagejit.base.symbolic import Symbol, substitute, symbols_in
from stagejit.errors import UnsupportedOpError
from stagejit.graph.text.parser import parse
from stagejit.graph.text.printer import as_text
from stagejit.schedule.plans.parser import parse_plan
from stagejit.schedule.plans.plan import Plan
from stagejit.schedule.verifier.plans import verify_plan
from tests.acceptance.running import plan_of, same

N, M = export.symbolic_shape("n, m")
Function = Callable[..., Any]


def shaped(*shape: Any) -> Any:
    return jax.ShapeDtypeStruct(shape, np.float32)


def doubled_and_exp(axis: int) -> Function:
    return lambda a, b: jnp.concatenate([a * 2, jnp.exp(b)], axis)


CASES: dict[str, tuple[Function, list[Any]]] = {
    "concatenate": (doubled_and_exp(0), [shaped(4, N, 4, 64)] * 2),
    "concatenate_sizes": (doubled_and_exp(0), [shaped(N, 8)] * 2),
    "concatenate_two_sizes": (doubled_and_exp(1), [shaped(4, N, 3), shaped(4, M, 3)]),
    "pad": (lambda x: jnp.pad(jax.nn.relu(x), ((0, 0), (2, 3), (1, 1))), [shaped(4, N, 8)]),
    "slice": (lambda x: lax.slice(x, (0, 1), (x.shape[0], 5)) * 2, [shaped(N, 8)]),
    "transpose": (lambda x: jnp.exp(x).T + 1, [shaped(N, 8)]),
    "reshape": (lambda x: jnp.exp(x).reshape(-1) + 1, [shaped(N, 8)]),
    "flatten": (lambda x: x.reshape(-1), [shaped(N, M)]),
    "flatten_sizes": (lambda x: (jnp.exp(x).reshape(-1) + 1).reshape(x.shape), [shaped(N, M)]),
    "merge_sizes": (lambda x: jnp.exp(x).reshape(x.shape[0], -1), [shaped(N, M, 4)]),
    "reshape_sizes": (lambda x: jnp.exp(x).reshape(x.shape[::-1]) + 1, [shaped(N, M)]),
    "transpose_and_flatten": (lambda x: jnp.exp(x).T.reshape(-1) + 1, [shaped(N, M)]),
    "reduce": (lambda x: (x * x).sum(1), [shaped(N, 8)]),
    "reduce_size": (lambda x: (x * x).max(0), [shaped(N, 8)]),
    "softmax": (lambda x: jax.nn.softmax(x), [shaped(N, 8)]),
    "product": (lambda x, w: jax.nn.relu(x @ w) @ w, [shaped(N, 8), shaped(8, 8)]),
    "update": (
        lambda d, x: lax.dynamic_update_slice(d, x * 2, (1, 0)),
        [shaped(N + 4, 8), shaped(2, 8)],
    ),
    "broadcast": (lambda x, y: x + jnp.exp(y)[None], [shaped(N, 8), shaped(8)]),
    "stack": (lambda x, y: jnp.stack([x * 2, y + 1]), [shaped(N, 8)] * 2),
}
cases = pytest.mark.parametrize("name", CASES)


def planned(name: str, **options: Any) -> Plan:
    fn, args = CASES[name]
    return plan_of(fn, *args, **options)


def test_a11_a_concatenation_is_contiguous_for_all_sizes() -> None:
    plan = planned("concatenate")
    first, second = (dispatch.writes[0] for dispatch in plan.dispatches)
    assert [str(end) for end in (*first.hull, *second.hull)] == [
        "0", "4096*n", "4096*n", "8192*n"
    ]  # fmt: skip
    assert first.hull[1] == second.hull[0]
    assert second.hull[1] == plan.buffer("r0").nbytes
    assert (first.exact, second.exact, first.overlaps(second)) == (True, True, False)
    assert (len(plan.dispatches), plan.copies, plan.barriers) == (2, (), ())


def test_a11_off_brings_the_copies_back() -> None:
    plan = planned("concatenate", disable=["fuse-insert"])
    assert [str(copy.writes[0].nbytes) for copy in plan.copies] == ["4096*n", "4096*n"]
    assert plan.barriers
    assert str(plan.transient_nbytes) == "8192*n"


def test_a11_parts_along_the_symbolic_axis() -> None:
    plan = planned("concatenate_sizes")
    writes = [str(access) for d in plan.dispatches for access in d.writes]
    assert writes == ["r0[0:n, 0:8]", "r0[n:2*n, 0:8]"]
    assert plan.barriers == ()


def test_a11_unequal_sizes_are_apart_where_that_follows_and_not_equal() -> None:
    plan = planned("concatenate_two_sizes")
    first, second = (dispatch.writes[0] for dispatch in plan.dispatches)
    assert [str(first), str(second)] == ["r0[0:4, 0:n, 0:3]", "r0[0:4, n:m+n, 0:3]"]
    assert plan.barriers == ()
    assert first.nbytes != second.nbytes
    assert plan.sizes == ("n", "m")


@cases
def test_plans_verify_and_read_back(name: str) -> None:
    plan = planned(name)
    text = plan.as_text()
    assert text.splitlines()[1] == "  size n"
    verify_plan(plan)
    assert parse_plan(text).as_text() == text
    verify_plan(parse_plan(text))
    assert plan.delegated == ()
    fn, args = CASES[name]
    graph = stagejit.jit(fn).lower(*args).as_text("graph")
    assert as_text(parse(graph)).strip() == graph.strip()


@cases
@pytest.mark.parametrize("sizes", [(2, 3), (5, 2), (8, 9)])
def test_numbers_for_sizes_give_the_plan_for_numbers(name: str, sizes: tuple[int, int]) -> None:
    """What each dispatch touches, for these sizes, is what the plan for these numbers says."""
    fn, args = CASES[name]
    values = dict(zip("nm", sizes, strict=True))

    def number(size: Any) -> int:
        size = stagejit.compat.size_of(size)
        known = {symbol: values[symbol.name] for symbol in symbols_in(size)}
        return int(substitute(size, known))  # type: ignore[arg-type]

    arrays = [shaped(*map(number, arg.shape)) for arg in args]
    expected, plan = plan_of(fn, *arrays), planned(name)
    symbols: dict[Symbol, Any] = {
        symbol: values[symbol.name]
        for buffer in plan.buffers
        for size in buffer.shape
        for symbol in symbols_in(size)
    }

    def touched(plan: Plan) -> list[Any]:
        return [
            (d.kind, a.buffer, a.box.at(symbols), a.exact, substitute(a.nbytes, symbols))
            for d in plan.dispatches
            for a in (*d.reads, *d.writes)
        ]

    assert touched(plan) == touched(expected)


@pytest.mark.parametrize(
    ("fn", "word"),
    [
        (lambda x: jnp.sort(x), "sort"),
        (lambda x: jnp.cumsum(x, 0), "cumsum"),
        (lambda x: x[jnp.array([0, 0])], "gather"),
        (lambda x: lax.scan(lambda c, r: (c + r, None), jnp.zeros(8), x)[0], "scan"),
        (lambda x: lax.pad(x, np.float32(0), ((0, 0, 1), (0, 0, 0))), "pad"),
    ],
)
def test_dont_plan_what_is_not_known_for_all_sizes(fn: Function, word: str) -> None:
    with pytest.raises(UnsupportedOpError, match=f"cannot plan `{word}` for all sizes") as caught:
        plan_of(fn, shaped(N, 8))
    assert "test_symbolic_sizes.py:" in str(caught.value)
    assert "Next: plan it for arguments with numbers" in str(caught.value)


@pytest.mark.native  # by the names of its texts
def test_dont_compile_for_all_sizes() -> None:
    fn, args = CASES["concatenate"]
    jitted = stagejit.jit(fn)
    lowered = jitted.lower(*args)
    for ask in (lowered.compile, lambda: lowered.as_text("llvm")):
        with pytest.raises(UnsupportedOpError, match="kernels need numbers for n") as caught:
            ask()
        assert "Next: give arguments with numbers for sizes" in str(caught.value)
    for n in (1, 3):  # a call has numbers
        a, b = np.full((4, n, 4, 64), 3, np.float32), np.ones((4, n, 4, 64), np.float32)
        same(jitted(a, b), np.concatenate([a * 2, np.exp(b)]))


def test_export_for_all_sizes_stays_as_it_was() -> None:
    fn, args = CASES["concatenate_sizes"]
    exported = export.export(stagejit.jit(fn))(*args)
    a, b = np.ones((3, 8), np.float32), np.full((3, 8), 0.5, np.float32)
    same(exported.call(a, b), np.concatenate([a * 2, np.exp(b)]))

"""Which iterations threads may share, decided and verified each in its own way: against a search
through the elements that two iterations touch, and in nests of loops."""

from __future__ import annotations

import itertools
from dataclasses import dataclass
from types import SimpleNamespace
from typing import Any, cast

import hypothesis.strategies as st
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given, settings
from jax import lax

import stagejit
from stagejit.base.symbolic import Int, Symbol, expr, substitute
from stagejit.codegen.target import Target
from stagejit.errors import VerificationError
from stagejit.index.box import Box
from stagejit.options import Options
from stagejit.schedule.plans.plan import (
    Access,
    Binding,
    Body,
    Buffer,
    Counter,
    Dispatch,
    HostScalar,
    Plan,
)
from stagejit.schedule.threads.independent import dependence
from stagejit.schedule.verifier.iterations import verify_iterations
from stagejit.types import f32, i32, u8

COUNTS, STAYS, VARIES = Symbol("s0", 0, 400), Symbol("s1", 0, 3), Symbol("s2", 0, 2)
SHAPE = (900, 900)


@dataclass(frozen=True)
class Case:
    """A loop whose iterations touch boxes at sums of symbols."""

    trip: int
    first: int
    step: int
    writes: tuple[Box, ...]
    reads: tuple[Box, ...]

    def body(self) -> Body:
        """The loop's, whose counter each thread has in its part of the workspace."""
        scalars = (
            HostScalar(COUNTS, "i", (self.first, self.step)),
            HostScalar(STAYS, "stays"),
            HostScalar(VARIES, "varies"),
        )
        buffers = [Buffer(name, (), i32, "argument", at) for at, name in enumerate(NAMES)]
        x = Buffer("x", SHAPE, f32, "argument", 3, result=1)
        reads, writes = (
            tuple(Access.of(x, box) for box in boxes) for boxes in (self.reads, self.writes)
        )
        plan = Plan(
            "body",
            (Dispatch("d", "map", (), reads, writes),),
            (),
            (*buffers, x),
            scalars=scalars,
        )
        bindings = (
            Binding("i", "w"),
            Binding("stays", "at"),
            Binding("varies", "each", 0, 4),
            Binding("x", "y"),
        )
        counter = Counter("i", "end", self.first, self.step)
        return Body(plan, self.trip, bindings, "w", (), 2, (counter,))

    def is_verified(self) -> bool:
        end, workspace = Buffer("end", (), i32, "result", 0), Buffer("w", (256,), u8, "transient")
        loop = Dispatch("l", "loop", (), (), (Access.of(end, Box.whole(())),))
        try:
            verify_iterations("body", loop, self.body(), {"w": workspace})
        except VerificationError as fault:
            if "share elements of x" not in str(fault):
                raise
            return False
        return True

    def is_decided(self) -> bool:
        body = self.body()
        places = (
            SimpleNamespace(
                buffer=each.buffer,
                value=None if each.outer == "w" else each.outer,
                stride_nbytes=each.stride_nbytes,
            )
            for each in body.bindings
        )
        placed = SimpleNamespace(
            carries=(),
            places=tuple(places),
            schedule=SimpleNamespace(plan=body.plan),
            trip=self.trip,
            counters=body.counters,
        )
        region = SimpleNamespace(bodies=(SimpleNamespace(regions=()),))
        return not dependence(cast(Any, region), cast(Any, placed))

    def are_apart(self) -> bool:
        """Whether no two iterations share an element that one of them writes, by looking."""
        for stays in range(STAYS.high + 1):
            touched = [
                (number, writes, element)
                for number in range(self.trip)
                for writes, boxes in ((True, self.writes), (False, self.reads))
                for box in boxes
                for element in self._elements(box, number, stays)
            ]
            writers: dict[Any, set[int]] = {}
            for number, writes, element in touched:
                if writes:
                    writers.setdefault(element, set()).add(number)
            if any(writers.get(element, {number}) != {number} for number, _, element in touched):
                return False
        return True

    def _elements(self, box: Box, number: int, stays: int) -> set[tuple[int, ...]]:
        """All that may be touched."""
        found: set[tuple[int, ...]] = set()
        for varies in range(VARIES.high + 1):
            values: dict[Symbol, Int] = {
                COUNTS: self.first + number * self.step, STAYS: stays, VARIES: varies
            }  # fmt: skip
            lines = [
                [cast(int, substitute(offset, values)) + stride * i for i in range(size)]
                for offset, size, stride in box.dims()
            ]
            found.update(itertools.product(*lines))
        return found


NAMES = ("i", "stays", "varies")


@st.composite
def boxes(draw: st.DrawFn) -> Box:
    """Offsets that count, most of them once, and with what stays or varies now and then."""
    dims = []
    for _ in SHAPE:
        size, stride = draw(st.sampled_from([1, 1, 2, 3])), draw(st.sampled_from([1, 1, 2, 4]))
        offset: Int = draw(st.integers(0, 5))
        for symbol, factors in (
            (COUNTS, (0, 1, 1, 2, 3, -1)), (STAYS, (0, 0, 1, 2)), (VARIES, (0, 0, 0, 0, 1))
        ):  # fmt: skip
            offset = offset + draw(st.sampled_from(factors)) * expr(symbol)
        if draw(st.integers(0, 9)) == 0:
            offset = offset + expr(COUNTS) * expr(STAYS)
        dims.append((offset, size, stride))
    return Box.of(dims)


@st.composite
def cases(draw: st.DrawFn) -> Case:
    written = draw(boxes())
    beside = Box.of([(o + draw(st.integers(-1, 2)), n, s) for o, n, s in written.dims()])
    return Case(
        draw(st.integers(1, 6)),
        draw(st.integers(0, 9)),
        draw(st.sampled_from([1, 1, 1, 2, -1, 3])),
        (written,),
        (draw(st.sampled_from([written, beside])), *draw(st.lists(boxes(), max_size=1))),
    )


@settings(max_examples=200)
@given(cases())
def test_what_is_decided_is_verified_and_what_is_verified_is_so(case: Case) -> None:
    if case.is_decided():
        assert case.is_verified()
    if case.is_verified():
        assert case.are_apart()


def box_of(*offsets: Int, size: int = 1) -> Box:
    return Box.of([(offset, size, 1) for offset in offsets])


N, S, V = expr(COUNTS), expr(STAYS), expr(VARIES)


@pytest.mark.parametrize(("writes", "reads", "apart"), [
    (box_of(N, 0), box_of(N, 0), True),
    (box_of(N + S, 0), box_of(N + S, 0), True),
    (box_of(N * 2 + S, 0, size=2), box_of(N * 2 + S + 1, 0), True),
    (box_of(V, N + S), box_of(V, N + S), True),
    (box_of(N + S, 0), box_of(N, 0), False),
    (box_of(N + S, 0), box_of(N + S + 1, 0), False),
    (box_of(N + S, 0, size=2), box_of(N + S, 0), False),
    (box_of(N + V, 0), box_of(N + V, 0), False),
    (box_of(S, 0), box_of(0, 5), False),
    (box_of(V, 0), box_of(0, 5), False),
    (box_of(N * S, 0), box_of(0, 5), False),
])  # fmt: skip
def test_offsets_with_what_stays(writes: Box, reads: Box, apart: bool) -> None:
    for trip in (2, 5):
        case = Case(trip, 0, 1, (writes,), (reads,))
        assert case.is_verified() == case.is_decided() == case.are_apart() == apart


def test_many_iterations_cost_no_more_than_few() -> None:
    assert Case(1 << 30, 0, 1, (box_of(N + S, 0),), (box_of(N + S, 0),)).is_verified()
    assert not Case(1 << 30, 0, 1, (box_of(N + S, 0),), (box_of(N - 1, 0),)).is_verified()


W = np.random.default_rng(0).standard_normal((64, 64)).astype(np.float32) / 10


@pytest.mark.parametrize(("outer", "inner", "start"), [
    (1, 1, False), (24, 1, False), (1, 2, False), (-1, 1, False), (1, -1, True), (1, 1, True),
    (0, 2, True),
])  # fmt: skip
def test_loops_in_loops(outer: int, inner: int, start: bool) -> None:
    """Offsets of the inner loop are sums of both counters, and of where a call starts."""

    def f(x: Any, w: Any, at: Any) -> Any:
        def step(i: Any, x: Any) -> Any:
            def row(j: Any, x: Any) -> Any:
                k = outer * i + inner * j + 30 + (jnp.clip(at, 0, 9) if start else 0)
                return x.at[k].set(jnp.tanh(x[k] @ w) @ w)

            return lax.fori_loop(0, 24, row, x)

        return lax.fori_loop(0, 6, step, x)

    x = np.random.default_rng(1).standard_normal((190, 48, 64)).astype(np.float32)
    args = x, W, np.int32(7)
    loops = (body for d in stagejit.jit(f).plan(*args).all_dispatches() for body in d.bodies)
    assert max(body.threads for body in loops) == Target.host().cores
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("STAGEJIT_STRICT", "1")
        found = stagejit.jit(f, options=Options(verify=True))(*args)
    expected = np.array(x, np.float64)
    for i, j in itertools.product(range(6), range(24)):
        k = outer * i + inner * j + 30 + 7 * start
        expected[k] = np.tanh(expected[k] @ W.astype(np.float64)) @ W
    np.testing.assert_allclose(found, expected, 1e-4, 1e-5)

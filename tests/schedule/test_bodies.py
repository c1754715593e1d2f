"""Plans of loops and branches: where their buffers lie, and what the verifier refuses."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax

import stagejit
from stagejit.errors import ParseError, VerificationError
from stagejit.index.box import Box
from stagejit.options import Options
from stagejit.schedule.memory.packing import aligned
from stagejit.schedule.plans.parser import parse_plan
from stagejit.schedule.plans.plan import Access, Binding, Body, Buffer, Carry, Dispatch, Plan
from stagejit.schedule.verifier.bodies import verify_bodies, verify_body
from stagejit.schedule.verifier.plans import verify_plan
from stagejit.types import f32, u8
from tests.expected.left import left
from tests.schedule.planning import plan_of

X = np.linspace(-1, 1, 24, dtype=np.float32).reshape(4, 6)


def loop_of(plan: Plan) -> Dispatch:
    (loop,) = [d for d in plan.dispatches if d.kind in ("loop", "branch")]
    return loop


def with_body(plan: Plan, body: Body) -> Plan:
    loop = loop_of(plan)
    return replace(
        plan,
        dispatches=tuple(
            replace(d, bodies=(body, *loop.bodies[1:])) if d is loop else d for d in plan.dispatches
        ),
    )


def scan(x: Any) -> Any:
    return lax.scan(lambda c, row: (c[::-1] + row, jnp.tanh(c)), x[0], x)


def chain(x: Any) -> Any:
    """Two dispatches in the body, with a transient between them."""
    return lax.fori_loop(0, 3, lambda i, c: jnp.tanh(c @ (c.T @ c)), x)


def test_text_of_a_plan_with_bodies() -> None:
    plan = plan_of(scan, X)
    text = plan.as_text()
    parsed = parse_plan(text)
    assert parsed.as_text() == text
    body, again = loop_of(plan).bodies[0], loop_of(parsed).bodies[0]
    assert (again.trip, again.bindings, again.workspace, again.carries) == (
        body.trip,
        body.bindings,
        body.workspace,
        body.carries,
    )
    assert [d.name for d in parsed.all_dispatches()] == [d.name for d in plan.all_dispatches()]
    assert "body @body of @loop.1 4 times in w0 {" in text
    assert "bind x0 = arg0 + 24*i" in text


@pytest.mark.parametrize("line", ["bind a b", "carry a -> b moved", "body @b of @loop.1 {"])
def test_dont_parse_other_lines(line: str) -> None:
    text = plan_of(scan, X).as_text()
    with pytest.raises(ParseError):
        parse_plan(text.replace("    bind carry0", f"    {line}\n    bind carry0", 1))


def test_dont_parse_what_follows_the_end() -> None:
    with pytest.raises(ParseError, match="nothing follows the end"):
        parse_plan(plan_of(scan, X).as_text() + "\n}")


@pytest.mark.parametrize("f", [scan, chain])
def test_dont_accept_a_body_without_one_of_its_barriers(f: Callable[..., Any]) -> None:
    plan = plan_of(f, X)
    body = loop_of(plan).bodies[0]
    for barrier in body.plan.barriers:
        rest = tuple(other for other in body.plan.barriers if other is not barrier)
        with pytest.raises(VerificationError, match="does not wait"):
            verify_plan(with_body(plan, replace(body, plan=replace(body.plan, barriers=rest))))


def test_carries_without_elements_lie_anywhere() -> None:
    """Carries with elements lie in their own places, see the next test."""
    row, table = np.zeros((1, 0), np.float32), np.zeros((3, 1, 0), np.float32)

    def both(times: Any, other: Any, row: Any, table: Any) -> Any:
        def outer(carry: Any, x: Any) -> Any:
            a, b = carry
            resized = jnp.resize(other, table.shape)
            _, c, d, e = lax.while_loop(
                lambda c: c[0] < times, lambda c: (c[0] + 1, resized, a, a), (0, b, row, row)
            )
            return (d, b), (c, e)

        return lax.scan(outer, (row, table), jnp.zeros((3, 1, 0)))

    program = stagejit.jit(both, options=Options(verify=True, delegate=False))
    assert program(2, row, row, table)[0][0].shape == row.shape


def test_carries_without_elements_are_not_moved() -> None:
    """One buffer without elements may be several results, and the argument of another loop."""
    empty = np.zeros((1, 0), np.int32)

    def both(x: Any, times: Any, empty: Any) -> Any:
        def outer(_: Any, carry: Any) -> Any:
            a, b, c = carry
            resized = jnp.resize(b.astype(jnp.int32), (1, 0))
            _, d, e = lax.while_loop(
                lambda c: c[0] < times, lambda i: (i[0] + 1, c, resized), (0, a, c)
            )
            return e, b, d

        return lax.fori_loop(0, 2, outer, (empty, x, empty))[2]

    program = stagejit.jit(both, options=Options(verify=True, delegate=False))
    assert program(np.ones((1, 1), np.float32), 1, empty).shape == empty.shape


def dead_in_while(x: Any) -> Any:
    first = left(x)

    def body(carry: Any) -> Any:
        i, v = carry
        _ = v + first.sum()  # jit keeps what nobody reads
        return i + 1, v * 2

    return lax.while_loop(lambda carry: carry[0] < 3, body, (0, x))[1]


def dead_in_scan(x: Any) -> Any:
    first = left(x)

    def body(carry: Any, row: Any) -> Any:
        _ = row + first
        return carry * 2 + 1, carry

    return lax.scan(body, x, jnp.stack([first, first, first]))


def dead_in_condition(x: Any) -> Any:
    first = left(x)

    def goes_on(carry: Any) -> Any:
        _ = first + 1
        return carry[0] < 3

    return lax.while_loop(goes_on, lambda c: (c[0] + 1, c[1] * 2), (0, x))[1]


def dead_in_branch(x: Any) -> Any:
    first = lax.reduce_window(x, 0.0, lax.add, (2,), (1,), "SAME")

    def one(y: Any) -> Any:
        _ = y + first
        return y * 2

    return lax.cond(x[0] > 0, one, lambda y: y + 1, x)


def carried_and_dead(x: Any) -> Any:
    """A carry that a delegated equation makes, and that only itself is computed from."""
    first = left(x)
    return lax.fori_loop(0, 3, lambda i, c: (c[0] * 2, c[1] + 1), (x, first))[0]


@pytest.mark.parametrize(
    "f", [dead_in_while, dead_in_scan, dead_in_condition, dead_in_branch, carried_and_dead]
)
@pytest.mark.parametrize("disable", [(), ("simplify-loops", "simplify-branches")])
def test_what_a_body_takes_and_does_not_touch_needs_no_memory(
    f: Callable[..., Any], disable: tuple[str, ...]
) -> None:
    """Values of delegated equations come from another call, which may run later."""
    x = jnp.asarray(X[0])
    options = Options(verify=True, disable=disable)
    ours, theirs = stagejit.jit(f, options=options)(x), jax.jit(f)(x)
    jax.tree.map(np.testing.assert_allclose, ours, theirs)


def test_dont_accept_a_buffer_without_a_place() -> None:
    plan = plan_of(scan, X)
    body = loop_of(plan).bodies[0]
    for binding in body.bindings:
        rest = tuple(other for other in body.bindings if other is not binding)
        with pytest.raises(VerificationError, match=f"does not say where {binding.buffer} is"):
            verify_plan(with_body(plan, replace(body, bindings=rest)))


FLOATS = Buffer("b", (8,), f32, "argument", 0)
OUTER = {
    "x": Buffer("x", (64,), f32, "argument", 0),
    "r": Buffer("r", (64,), f32, "result", 0),
    "w": Buffer("w", (256,), u8, "transient", slot=0),
}


def body_with(
    *bindings: Binding,
    trip: int | None = 8,
    carries: tuple[Carry, ...] = (),
    slot: int | None = None,
    workspace: str = "w",
) -> Body:
    """A body that reads `b` and writes `c`."""
    out = Buffer("c", (8,), f32, "result", 0)
    buffers = [FLOATS, out]
    writes = [Access.of(out, Box.whole((8,)))]
    if slot is not None:
        buffers.append(Buffer("t", (8,), f32, "transient", slot=slot))
        writes.append(Access.of(buffers[2], Box.whole((8,))))
    inner = Dispatch("map.0", "map", (), (Access.of(FLOATS, Box.whole((8,))),), tuple(writes))
    return Body(Plan("body", (inner,), (), tuple(buffers)), trip, bindings, workspace, carries)


def dispatch_with(body: Body) -> Dispatch:
    reads = tuple(Access.of(OUTER[name], Box.whole((64,))) for name in ("x", "r"))
    writes = tuple(Access.of(OUTER[name], Box.whole(OUTER[name].shape)) for name in ("r", "w"))
    return Dispatch("loop.0", "loop", (), reads, writes, bodies=(body,))


SOURCE, PLACE = Binding("b", "x", 0, 32), Binding("c", "r", 224, -32)


def check(body: Body) -> None:
    verify_body(dispatch_with(body), body, OUTER)


def test_slices_forwards_and_backwards() -> None:
    check(body_with(SOURCE, PLACE))
    check(body_with(SOURCE, PLACE, slot=0))
    check(
        body_with(
            Binding("b", "r"),
            Binding("c", "w", 128),
            slot=0,
            carries=(Carry("c", "b", alternates=True),),
        )
    )


@pytest.mark.parametrize(("body", "reason"), [
    (body_with(SOURCE, SOURCE, PLACE), "binds a buffer twice"),
    (body_with(Binding("b", "x", 32, 32), PLACE), "leaves x"),
    (body_with(SOURCE, Binding("c", "r", 192, -32)), "leaves r"),
    (body_with(SOURCE, Binding("c", "q")), "unknown buffer q"),
    (body_with(SOURCE, PLACE, Binding("d", "r")), "binds d"),
    (body_with(SOURCE, Binding("c", "r", 0, 16)), "iterations overlap"),
    (body_with(SOURCE, Binding("c", "x", 0, 32)), "does not say that its body touches x"),
    (body_with(Binding("b", "r", 128), Binding("c", "r", 0, 32)), "written where b lies"),
    (body_with(SOURCE, PLACE, slot=0, workspace=""), "no workspace"),
    (body_with(SOURCE, PLACE, slot=256), "transients leave"),
    (body_with(SOURCE, Binding("c", "w", 16), slot=0), "transients leave"),
    (body_with(SOURCE, PLACE, carries=(Carry("c", "q", alternates=False),)), "does not fit"),
])  # fmt: skip
def test_dont_accept(body: Body, reason: str) -> None:
    with pytest.raises(VerificationError, match=reason):
        check(body)


def test_dont_accept_a_result_in_the_place_of_another_one() -> None:
    body = body_with(SOURCE, PLACE)
    inside = tuple(
        replace(buffer, result=1) if buffer is FLOATS else buffer for buffer in body.plan.buffers
    )
    with pytest.raises(VerificationError, match="result 1 lies in argument 0"):
        check(replace(body, plan=replace(body.plan, buffers=inside)))


def test_dont_accept_an_element_that_the_dispatch_does_not_declare() -> None:
    """Part of what a branch touches is not enough, and slices are those of all iterations."""

    def update(p: Any, x: Any) -> Any:
        return lax.cond(p, lambda x: x.at[1:3].set(x[:2]), lambda x: x, x)

    for plan in (
        plan_of(update, np.bool_(True), X, donated=(False, True)),
        plan_of(lambda x: lax.scan(lambda c, r: (c, r[1:3] * 2), 0, x)[1], X),
    ):
        loop = loop_of(plan)
        verify_plan(plan)
        for field in ("reads", "writes"):
            accesses = getattr(loop, field)
            for at, access in enumerate(accesses):
                if access.sizes == () or access.buffer == "w0":
                    continue
                buffer = plan.buffer(access.buffer)
                less = Box(access.offsets, (access.sizes[0] - 1, *access.sizes[1:]), access.strides)
                parts = [*accesses[:at], Access.of(buffer, less), *accesses[at + 1 :]]
                with pytest.raises(VerificationError, match=f"touches {access.buffer}"):
                    verify_body(
                        replace(loop, **{field: tuple(parts)}),
                        next(b for b in loop.bodies[::-1] if b.plan.dispatches),
                        {b.name: b for b in plan.buffers},
                    )


def test_dont_accept_branches_that_leave_their_results_apart() -> None:
    plan = plan_of(
        lambda p, x: lax.cond(p, lambda x: (jnp.exp(x), x * 2), lambda x: (x * 3, jnp.sin(x)), x),
        np.bool_(True),
        X,
    )
    branch = loop_of(plan)
    first, second = branch.bodies
    swapped = {"r0": "r1", "r1": "r0"}
    turned = tuple(replace(b, outer=swapped.get(b.outer, b.outer)) for b in second.bindings)
    bad = replace(branch, bodies=(first, replace(second, bindings=turned)))
    with pytest.raises(VerificationError, match="at other places than case0"):
        verify_bodies(bad, {b.name: b for b in plan.buffers})


def test_transients_of_bodies_share_a_workspace() -> None:
    plan = plan_of(chain, X)
    loop = loop_of(plan)
    (workspace,) = [b for b in plan.buffers if b.name == loop.bodies[0].workspace]
    inner = loop.bodies[0].plan
    second = [inner.buffer(carry.result).nbytes for carry in loop.bodies[0].carries]
    assert workspace.nbytes == aligned(inner.arena_nbytes) + sum(map(aligned, second))
    assert plan.arena_nbytes >= workspace.nbytes
    assert any(access.buffer == workspace.name for access in loop.writes)


def test_a_loop_waits_for_what_makes_its_operands() -> None:
    plan = plan_of(lambda x: lax.scan(lambda c, r: (c + r, c), jnp.exp(x[0]), jnp.tanh(x)), X)
    loop = loop_of(plan)
    waits = {barrier.src for barrier in plan.barriers if barrier.dst == loop.name}
    made = {d.name for d in plan.dispatches if {"exp", "tanh"} & set(d.ops)}
    assert waits == made

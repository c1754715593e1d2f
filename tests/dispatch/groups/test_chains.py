"""Where long chains are cut: programs of steps that repeat each other need few kernels and few
dispatches, whatever a step is made of."""

from __future__ import annotations

import random
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import stagejit
from stagejit.dispatch.groups import chains
from stagejit.graph.ir import Op, Value
from stagejit.options import Options
from stagejit.pipeline import Compilation
from stagejit.schedule.plans.plan import Plan
from stagejit.trace.translate import graph_of
from tests.schedule.planning import check

State = tuple[Any, ...]
Step = Callable[[State], State]


def f32(*shape: int, seed: int = 0) -> Any:
    return np.random.default_rng(seed).standard_normal(shape).astype(np.float32)


def repeated(step: Step, times: int) -> Callable[..., State]:
    def f(*state: Any) -> State:
        for _ in range(times):
            state = step(state)
        return state

    return f


def sizes(step: Step, times: int, args: State) -> tuple[int, int]:
    """How many kernels are generated for how many dispatches."""
    compiled = stagejit.jit(repeated(step, times), options=Options(cache_dir="")).trace(*args)
    compilation = Compilation(compiled.compilation.request)
    compilation.run_until("codegen")
    kernels = list(compilation.kernels.values())
    return len({kernel.symbol for kernel in kernels}), len(kernels)


def plan_of(step: Step, times: int, args: State) -> Plan:
    return check(repeated(step, times), *args)


# ------------------------------------------------------------------- steps of well-known methods


def runge_kutta(slope: Callable[[State], State]) -> Step:
    def moved(state: State, by: float, slopes: State) -> State:
        return tuple(x + by * k for x, k in zip(state, slopes, strict=True))

    def step(state: State) -> State:
        k1 = slope(state)
        k2 = slope(moved(state, 0.005, k1))
        k3 = slope(moved(state, 0.005, k2))
        k4 = slope(moved(state, 0.01, k3))
        mean = tuple(a + 2 * (b + c) + d for a, b, c, d in zip(k1, k2, k3, k4, strict=True))
        return moved(state, 0.01 / 6, mean)

    return step


def lorenz(state: State) -> State:
    x, y, z = state
    return 10 * (y - x), x * (28 - z) - y, x * y - 8 / 3 * z


def pendulums(state: State) -> State:
    place, speed = state
    return speed, jnp.sin(place) * -2 + (place.sum() - place) * 0.01


def adam(state: State) -> State:
    x, m, v = state
    slope = x**3 - x + jnp.cos(x)
    m, v = 0.9 * m + 0.1 * slope, 0.99 * v + 0.01 * slope * slope
    return x - 0.01 * m / (jnp.sqrt(v) + 0.1), m, v


def newton(state: State) -> State:
    (x,) = state
    return (x - (jnp.sin(x) - 0.3 * x * x) / (jnp.cos(x) - 0.6 * x + 3),)


def one_ahead(state: State) -> State:
    """What the first two values are does not depend on the third, which reads them all: program
    order and the order of what is finished differ."""
    x, y, s = state
    u = jnp.sin((x + 0.9 * y) * x * 0.5)
    return jnp.tanh(u + 0.5 * x), 0.9 * y + 0.1 * u, jnp.tanh(x + 0.8 * (s * s).mean() + 0.5 * s)


STEPS: dict[str, tuple[Step, State]] = {
    "Lorenz": (runge_kutta(lorenz), (f32(32), f32(32), f32(32))),
    "Lorenz, scalars": (runge_kutta(lorenz), (f32(), f32(), f32())),
    "pendulums": (runge_kutta(pendulums), (f32(32), f32(32))),
    "Adam": (adam, (f32(40), f32(40), f32(40))),
    "Newton": (newton, (f32(40),)),
}


@pytest.mark.parametrize("name", STEPS)
def test_more_steps_need_no_more_kernels(name: str) -> None:
    step, args = STEPS[name]
    (few, first), (more, second) = sizes(step, 60, args), sizes(step, 120, args)
    assert more <= few <= 8
    assert second <= 2 * first + 1


def test_what_is_alive_at_a_cut_is_stored_together() -> None:
    """Three values, of which two are less far than the third."""
    plan = plan_of(adam, 60, STEPS["Adam"][1])
    assert len(plan.dispatches) < 60 / 4
    assert all(len(d.writes) <= 4 for d in plan.dispatches)


def test_a_chain_is_cut_where_fewest_values_are_alive() -> None:
    """Between two steps of a method of fourth order, not amid its slopes."""
    step, args = STEPS["Lorenz"]
    plan = plan_of(step, 20, args)
    assert len(plan.dispatches) > 2
    assert all(len(d.writes) == len(d.reads) == 3 for d in plan.dispatches)


def test_nothing_is_evaluated_twice_where_the_order_is_another() -> None:
    plan = plan_of(one_ahead, 100, (f32(32), f32(32), f32(32)))
    assert sum(d.ops.count("sin") for d in plan.dispatches) <= 100


def cuts(f: Callable[..., Any], *args: Any) -> set[tuple[str, ...]]:
    """The functions of the ops that end together, for each cut."""
    graph = graph_of(f, *args)
    order = graph.ops()
    users: dict[Value, list[Op]] = {value: [] for value in graph.inputs}
    users.update((value, []) for op in order for value in op.results)
    for op in (*order, graph.return_op):
        for value in op.operands:
            users[value].append(op)
    found = chains.ends_of_chains(order, users)
    return {tuple(op.attrs.get("fn", op.kind) for op in ends) for ends in found.values()}


def test_what_is_dead_does_not_end() -> None:
    """Of a step only its three results."""
    assert {len(ends) for ends in cuts(repeated(adam, 60), *STEPS["Adam"][1])} == {3}


def test_views_are_no_ends() -> None:
    """What is stored is what they are views of, as long as somebody reads them."""

    def f(x: Any, y: Any) -> Any:
        for _ in range(100):
            x, y = (jnp.sin(x) * y + x)[::-1], jnp.cos(y) * x
        return x, y

    assert cuts(f, f32(32), f32(32)) == {("add", "mul")}


def test_a_long_chain_of_views_ends() -> None:
    """Each reshape divides indices: how many divisions an element takes is limited, too."""

    def f(x: Any, y: Any) -> Any:
        x = jnp.sin(x)
        for _ in range(8):
            x = x.reshape(3, 20).T.reshape(4, 15).T
        return x, jnp.cos(y)

    assert ("reshape",) in cuts(f, f32(60), f32(60))


def test_chains_across_a_cut_end_there_if_they_are_long_at_all() -> None:
    """One that would not get too long does, too: what it ends in is read by all that comes. One of
    ten ops does not."""

    def f(x: Any, y: Any, z: Any) -> Any:
        for k in range(100):
            x = jnp.sin(jnp.cos(x)) + x
            y = jnp.maximum(jnp.abs(y) * 2, y)[::-1] if k % 2 else y
            z = jnp.tanh(jnp.exp(z)) if k < 5 else z
        return x, y, z

    ends = {fn for ends in cuts(f, f32(32), f32(32), f32(32)) for fn in ends}
    assert ends == {"add", "max"}


def test_a_chain_that_fits_ends_where_others_do_only() -> None:
    """However long it is, if it would not get too long: with what comes after it."""

    def f(x: Any, y: Any) -> Any:
        for _ in range(33):
            y = jnp.maximum(jnp.abs(y) * jnp.cos(y), y)
        for _ in range(100):
            x = jnp.sin(jnp.cos(x)) + x
        return x, y

    assert {ends for ends in cuts(f, f32(32), f32(32)) if "max" in ends} == {("max", "add")}


def test_what_is_copied_from_one_element_is_no_end() -> None:
    def f(x: Any, s: Any) -> Any:
        for k in range(150):
            s = jnp.sin(s) * 0.9 if k % 2 else s + 0.5
        y = x * s
        for k in range(30):
            y = y + 0.5 if k % 2 else y * 0.99
        return y

    plan = check(f, f32(64, 64), f32())
    assert not any("fill" in d.ops for d in plan.dispatches)


def momentum(state: State) -> State:
    x, m = state
    m = 0.9 * m + jnp.sin(x)
    return x - 0.01 * m, m


def average(state: State) -> State:
    x, e, s = state
    x = x - 0.1 * jnp.sin(x) * s
    return x, 0.9 * e + 0.1 * x, s


def series(state: State) -> State:
    x, power, total, sign = state
    return x, power * x * 0.1, total + sign * power, -sign


def rate(state: State) -> State:
    x, by = state
    return x - by * x * 0.5, by * 0.99 + 0.0001


def leapfrog(state: State) -> State:
    q, p, t = state
    p = p - 0.05 * jnp.sin(q) * jnp.cos(t)
    return q + 0.1 * p, p, t + 0.1


BIG = f32(256, 256)
MOVED: dict[str, tuple[Step, State, float]] = {  # at most how many arrays are moved a step
    "momentum": (momentum, (BIG, BIG), 0.2),
    "average": (average, (BIG, BIG, f32()), 0.2),
    "series": (series, (BIG, BIG, BIG, f32()), 0.15),
    "rate": (rate, (BIG, f32()), 0.3),
    "leapfrog": (leapfrog, (BIG, BIG, f32()), 1.8),
}


@pytest.mark.parametrize("name", MOVED)
def test_how_much_is_moved_grows_with_the_steps(name: str, some_of: Any) -> None:
    """However many of them, also where a chain beside is a little shorter than what is cut."""
    step, args, most = MOVED[name]
    for times in some_of((50, 60, 70, 80, 90, 120), 2):
        plan = stagejit.jit(repeated(step, times)).plan(*args)
        moved = sum(d.nbytes for d in plan.dispatches) / BIG.nbytes
        assert moved <= 4 + most * times, times


def test_what_is_read_far_behind_counts_nowhere() -> None:
    """More and more is alive, and yet the fewest are between two steps."""

    def f(x: Any) -> Any:
        kept = []
        for _ in range(60):
            x = jnp.sin(jnp.exp(jnp.cos(jnp.abs(x) * x)) * jnp.abs(x)) + jnp.tanh(jnp.cos(x) * x)
            kept.append(x)
        for each in kept:
            x = jnp.maximum(x * 0.5, each)
        return x

    assert {fn for ends in cuts(f, f32(32)) for fn in ends} <= {"add", "max"}


def test_a_program_without_long_chains_is_not_cut() -> None:
    step, args = STEPS["Lorenz"]
    assert len(plan_of(step, 6, args).dispatches) == 1


# ---------------------------------------------------------------------------------- random steps


def random_step(rng: random.Random) -> tuple[Step, State]:
    """A step of up to four values of a shape, in which each is read by chance."""
    width = rng.randint(1, 4)
    count = rng.randint(3, 14)
    lines = [(rng.choice(sorted(KINDS)), rng.random(), rng.random()) for _ in range(count)]
    ends = [rng.random() < 0.7 for _ in range(width)]

    def step(state: State) -> State:
        pool = list(state)
        for kind, a, b in lines:
            pool.append(KINDS[kind](pool[int(a * len(pool))], pool[int(b * len(pool))]))
        made = [pool[-1 - at % count] for at in range(width)]
        return tuple(
            jnp.tanh(y + 0.5 * x) if end else 0.9 * x + 0.1 * y
            for x, y, end in zip(state, made, ends, strict=True)
        )

    shape = rng.choice([(32,), (3, 5), (64, 40)])
    return step, tuple(f32(*shape, seed=at) for at in range(width))


KINDS: dict[str, Callable[[Any, Any], Any]] = {
    "add": lambda x, y: x + 0.5 * y,
    "product": lambda x, y: x * y * 0.5,
    "difference": lambda x, y: x - 0.7 * y,
    "sine": lambda x, y: jnp.sin(x) * 0.8,
    "tanh": lambda x, y: jnp.tanh(x + y),
    "most": lambda x, y: jnp.maximum(x, 0.3 * y),
    "centred": lambda x, y: x - x.mean(-1, keepdims=True),
    "normal": lambda x, y: x + 0.5 * (y * y).mean(-1, keepdims=True),
}


@pytest.mark.some(2)
@pytest.mark.parametrize("seed", range(6))
def test_random_steps_need_few_kernels(seed: int) -> None:
    step, args = random_step(random.Random(seed))
    (few, first), (more, second) = sizes(step, 60, args), sizes(step, 120, args)
    assert more <= few + 2
    assert second <= 2 * first + 2


@pytest.mark.some(3)
@pytest.mark.parametrize("seed", range(8))
def test_random_steps_are_right_wherever_they_are_cut(
    seed: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    rng = random.Random(seed)
    step, args = random_step(rng)
    monkeypatch.setattr(chains, "LONGEST_CHAIN", rng.choice([2, 9, 30]))
    monkeypatch.setattr(chains, "_LONG_ENOUGH", rng.choice([1, 5, 12]))
    monkeypatch.setattr(chains, "_NEAR", rng.choice([1, 10, 64]))
    plan_of(step, 8, args)
    with jax.disable_jit():
        expected = repeated(step, 8)(*args)
    actual = stagejit.jit(repeated(step, 8), options=Options(verify=True))(*args)
    for ours, theirs in zip(actual, expected, strict=True):
        np.testing.assert_allclose(ours, theirs, rtol=2e-4, atol=2e-4)

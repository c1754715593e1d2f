"""tile-and-fuse of steps that put their results together: what goes through them together, what
stays outside, and that values stay: transforms of all kinds of lengths, on machines of all kinds.
"""

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
from stagejit import extending
from stagejit.base.machine import Machine
from stagejit.codegen.target import Target
from stagejit.graph.ir import Graph, Op
from stagejit.graph.meaning.interpreter import interpret
from stagejit.graph.ops.axes import separate
from stagejit.graph.text.parser import parse
from stagejit.options import Options
from stagejit.rewrites import rewrite_graph
from stagejit.rewrites.driving.driver import GraphStep, Log
from stagejit.rewrites.tiling import fuse
from stagejit.rewrites.tiling.assembled import is_assembled, steps_along
from stagejit.rewrites.tiling.surroundings import Surroundings
from stagejit.trace.translate import graph_of
from tests.expected.calls import calls_of
from tests.fuzz.kernels.running.targets import find_targets
from tests.randomness import RNG
from tests.rewrites.text_in_out import reasons, rewritten


def _tile(log: Log) -> None:
    """Once, without a look into the bodies."""
    fuse.tile_and_fuse(log)


STEP = GraphStep(fuse.NAME, _tile)
SMALL = Machine(l2_nbytes=1 << 12, l3_nbytes=16 << 10, bandwidth=1e8, core_bandwidth=1e8)

# Sums and differences of two halves, twice.
STEPS = """\
    graph @f(%x: f32[65536,8]) {
      %0: f32[65536,4] = extract_slice %x at (0, 0)
      %1: f32[65536,4] = extract_slice %x at (0, 4)
      %2: f32[65536,4] = map add %0, %1
      %3: f32[65536,4] = map sub %0, %1
      %4: f32[65536,8] = empty
      %5: f32[65536,8] = insert_slice %2 into %4 at (0, 0)
      %6: f32[65536,8] = insert_slice %3 into %5 at (0, 4)
      %7: f32[65536,4] = extract_slice %6 at (0, 0) strides (1, 2)
      %8: f32[65536,4] = extract_slice %6 at (0, 1) strides (1, 2)
      %9: f32[65536,4] = map add %7, %8
      %10: f32[65536,4] = map sub %7, %8
      %11: f32[65536,8] = empty
      %12: f32[65536,8] = insert_slice %9 into %11 at (0, 0)
      %13: f32[65536,8] = insert_slice %10 into %12 at (0, 4)
      REST
    }"""


def steps(rest: str = "return %13", **changes: str) -> str:
    text = STEPS.replace("REST", rest)
    for name, line in changes.items():
        old = next(each for each in text.split("\n") if each.strip().startswith(f"%{name[1:]}: "))
        text = text.replace(old, f"      {line}")
    return text


def cluster_of(text: str, axis: int = 0) -> tuple[Graph, Any]:
    graph = parse(text)
    seed = next(op for op in graph.ops() if is_assembled(graph, op))
    return graph, steps_along(graph, Surroundings(graph), seed, axis)


# ------------------------------------------------------------------ what it becomes


def test_places_go_through_all_steps() -> None:
    text = rewritten(STEP, steps())
    assert "loop %0 carries=0 reverse=false" in text
    assert "f32[65536,8] = insert_slice" not in text  # no step stores all of it
    assert text.count("insert_slice") == 4
    assert "= empty" in text.split("graph @tile")[1]


def test_a_rest_has_to_be_worth_its_copies() -> None:
    """A prime number of places: what the loop takes and gives is a part of memory only."""
    (reason,) = reasons(STEP, steps().replace("65536", "65521"))
    assert " and one of " in reason


def test_along_another_axis_of_each_step() -> None:
    """The places of an axis may be those of another one in the next step."""
    text = steps(
        _7="%7: f32[4,65536] = transpose %8 permutation=(1, 0)",
        _8="%8: f32[65536,4] = extract_slice %6 at (0, 1) strides (1, 2)",
        _9="%9: f32[4,65536] = map neg %7",
        _10="%10: f32[4,65536] = map exp %7",
        _11="%11: f32[8,65536] = empty",
        _12="%12: f32[8,65536] = insert_slice %9 into %11 at (0, 0)",
        _13="%13: f32[8,65536] = insert_slice %10 into %12 at (4, 0)",
    )
    lines = text.split("\n")
    lines[8], lines[9] = lines[9], lines[8]
    _, cluster = cluster_of("\n".join(lines))
    assert [x.shape for x in cluster.assembled] == [(65536, 8)]
    assert [x.shape for x in cluster.outputs] == [(8, 65536)]


def test_what_follows_the_last_step_stays_with_its_reader() -> None:
    rest = """%14: f32[65536,8] = map exp %13
      %15: f32[8] = reduce add %14 axes=(0)
      return %15"""
    _, cluster = cluster_of(steps(rest))
    assert not any(op.attrs.get("fn") == "exp" for op in cluster.ops)
    _, cluster = cluster_of(steps("%14: f32[65536,8] = map exp %13\n      return %14"))
    assert any(op.attrs.get("fn") == "exp" for op in cluster.ops)


def test_what_is_made_of_all_of_a_step_stays_outside() -> None:
    """Every place reads the largest one of the step before."""
    text = steps(
        _9="%9: f32[4] = reduce max %7 axes=(0)\n      %20: f32[65536,4] = broadcast %9 axes=(1)",
        _12="%12: f32[65536,8] = insert_slice %20 into %11 at (0, 0)",
    )
    assert "loop" not in rewritten(STEP, text)
    _, cluster = cluster_of(text)
    assert "puts something together again" in cluster


# ------------------------------------------------------------------ guards


def test_one_step_is_none() -> None:
    assert "loop" not in rewritten(STEP, steps("return %6"))
    assert reasons(STEP, steps("return %6")) == []


def test_a_step_that_others_read_is_stored() -> None:
    _, cluster = cluster_of(steps("return %6, %13"))
    assert "others read" in cluster


def test_the_axis_of_the_parts_is_no_such_axis() -> None:
    _, cluster = cluster_of(steps(), axis=1)
    assert "does not keep places apart" in cluster


def test_an_update_of_an_argument_is_not_put_together() -> None:
    text = steps(_12="%12: f32[65536,8] = insert_slice %9 into %x at (0, 0)")
    _, cluster = cluster_of(text)
    assert "others read" in cluster or "together again" in cluster


def test_small_values_and_workers_that_run_one_kernel_stay() -> None:
    assert "loop" not in rewritten(STEP, steps().replace("65536", "1024"))
    graph = parse(steps())
    rewrite_graph(graph, Options(), replace(Machine(), side_by_side=False))
    assert not loops_of(graph)


def test_values_that_fit_all_caches_are_not_handed_from_core_to_core() -> None:
    """Workers would take places of each step in any order; one worker finds all in its cache."""
    text = steps().replace("65536", "4096")
    assert "loop" in rewritten(STEP, text)
    graph = parse(text)
    rewrite_graph(graph, Options(), replace(Machine(), cores=1))
    assert not loops_of(graph)


def test_tiles_that_are_moved_do_not_pay() -> None:
    """Places that do not lie one after the other are copied before and after."""
    text = steps().replace("65536", "SIZE").replace("[SIZE,8]", "[8,32768]")
    text = (
        text.replace("[SIZE,4]", "[4,32768]")
        .replace("(0, 4)", "(4, 0)")
        .replace("(0, 1)", "(1, 0)")
    )
    text = text.replace("(1, 2)", "(2, 1)")
    assert "loop" not in rewritten(STEP, text)
    assert any("tiles" in reason for reason in reasons(STEP, text))


def test_inserts_keep_the_axes_of_which_they_have_all() -> None:
    graph = parse(steps())
    insert = next(op for op in graph.ops() if op.definition.is_insert)
    assert separate(insert, 0) == (0, 0)
    assert separate(insert, 1) is None


# ------------------------------------------------------------------ work

X = jax.ShapeDtypeStruct((64, 64), jnp.float32)


def swapped(x: Any) -> Any:
    return jnp.concatenate((x[:, 32:] + 1, x[:, :32] * 2), axis=1)


def steps_in_a_row(x: Any, n: int) -> Any:
    for _ in range(n):
        x = swapped(x)
    return x


def steps_side_by_side(x: Any, n: int) -> Any:
    return [swapped(swapped(x + k)) for k in range(n)]


def parts_that_are_multiplied(x: Any, n: int) -> Any:
    for _ in range(n):
        x = jnp.sin(swapped(x)) @ x
    return x


def parts_that_all_later_ones_read(x: Any, n: int) -> Any:
    found = [x]
    for _ in range(n):
        found.append(swapped(lax.cumsum(found[-1], axis=0)))
    return sum(found)


def sums_of_what_comes_before(x: Any, n: int) -> Any:
    for _ in range(n):
        x = swapped(x) + swapped(x).sum(0)
    return x


@pytest.mark.parametrize(
    "program",
    [
        steps_in_a_row,
        steps_side_by_side,
        parts_that_are_multiplied,
        parts_that_all_later_ones_read,
        sums_of_what_comes_before,
    ],
)
def test_work_is_near_linear(program: Callable[..., Any]) -> None:
    def calls(n: int) -> int:
        graph: Graph = graph_of(lambda x: program(x, n), X)
        machine = replace(SMALL, l2_nbytes=1 << 10)
        return calls_of(lambda: fuse.tile_and_fuse(Log(graph, Options(), machine)))

    calls(2)  # what is made once a process
    short, long = calls(24), calls(96)
    assert long < 4 * 1.3 * short


# ------------------------------------------------------------------ values


def loops_of(graph: Graph) -> list[Op]:
    return [op for op in graph.ops() if op.definition.is_loop]


def complex_normal(*shape: int) -> Any:
    return RNG.standard_normal(shape) + 1j * RNG.standard_normal(shape)


LENGTHS = (27, 32, 60, 64, 96, 100, 128, 101, 37)
KINDS: dict[str, tuple[Callable[..., Any], Callable[..., Any], bool]] = {
    "fft": (jnp.fft.fft, np.fft.fft, False),
    "ifft": (jnp.fft.ifft, np.fft.ifft, False),
    "rfft": (jnp.fft.rfft, np.fft.rfft, True),
    "irfft": (jnp.fft.irfft, np.fft.irfft, False),
}


@pytest.mark.some(6)
@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("length", LENGTHS)
@pytest.mark.parametrize("lines", [64, 61])
def test_transforms_of_any_length(kind: str, length: int, lines: int) -> None:
    """The graph, with and without tiles, against NumPy with doubles."""
    ours, theirs, is_real = KINDS[kind]
    x = RNG.standard_normal((lines, length)) if is_real else complex_normal(lines, length)
    narrow = x.astype(np.float32 if is_real else np.complex64)
    wanted = theirs(narrow.astype(x.dtype))
    for disable in ((), ("tile-and-fuse",)):
        graph = graph_of(ours, narrow)
        rewrite_graph(graph, Options(verify=True, disable=disable), SMALL)
        assert not (disable and loops_of(graph))
        (given,) = graph.inputs
        (made,) = interpret(graph, [pairs(narrow).reshape(given.shape)])
        made = np.asarray(made, np.float64)
        got = made if made.shape == wanted.shape else made[..., 0] + 1j * made[..., 1]
        assert np.abs(got - wanted).max() <= 2e-6 * np.abs(wanted).max()


def pairs(x: Any) -> Any:
    return np.stack([x.real, x.imag], -1) if np.iscomplexobj(x) else x


def affine(a: Any, b: Any) -> Any:
    return a[0] * b[0], a[1] * b[0] + b[1]


def haar(x: Any) -> Any:
    for level in range(3):
        n = x.shape[1] >> level
        a, b = x[:, :n:2], x[:, 1:n:2]
        x = jnp.concatenate((a + b, a - b, x[:, n:]), axis=1)
    return x


def spectrum(x: Any) -> Any:
    return (jnp.abs(jnp.fft.rfft(x)) ** 2).sum(0), jnp.fft.irfft(jnp.fft.rfft(x) * 0.5)


PROGRAMS: dict[str, tuple[Callable[..., Any], tuple[int, ...]]] = {
    "fft": (lambda x: jnp.fft.fft(lax.complex(x, -x)), (96, 64)),
    "columns": (lambda x: jnp.abs(jnp.fft.fft(x, axis=0)), (64, 96)),
    "spectrum": (spectrum, (90, 64)),
    "haar": (haar, (67, 64)),
    "running": (lambda x: lax.associative_scan(jnp.maximum, x, axis=1), (66, 64)),
    "affine": (lambda x: lax.associative_scan(affine, (x, x), axis=1)[1], (64, 32)),
}


@pytest.mark.some(3)
@pytest.mark.parametrize("name", PROGRAMS)
@pytest.mark.parametrize("like", ["avx512", "avx2", "sse2", "neon"])
def test_programs_on_each_machine(name: str, like: str) -> None:
    """What the graph means after all rewrites, and kernels where they can be run."""
    fn, shape = PROGRAMS[name]
    x = RNG.standard_normal(shape, dtype=np.float32)
    numbers: dict[str, Any] = {"l2_nbytes": 1 << 12, "l3_nbytes": 16 << 10, "cores": 2}
    numbers |= {"bandwidth": 1e8, "core_bandwidth": 1e8}
    graph = graph_of(fn, x)
    decisions = rewrite_graph(
        graph, Options(verify=True), replace(getattr(Target, like)(), **numbers)
    )
    tiled = any(each.applied for each in decisions if each.rewrite == fuse.NAME)
    assert tiled == (name != "affine")
    with jax.enable_x64(True):
        wanted = [np.asarray(y) for y in jax.tree.leaves(jax.jit(fn)(x.astype(np.float64)))]
    found = [*zip(interpret(graph, [x]), wanted, strict=True)]
    if like in find_targets(("avx2", "sse2", like) if like != "neon" else ()).names:
        machine = extending.cpu(f"small-{like}", like=like, **numbers)
        staged = stagejit.jit(fn, options=Options(extensions=machine, verify=True))
        found += zip(jax.tree.leaves(staged(x)), wanted, strict=True)
    for made, y in found:
        whole = np.asarray(made)
        same = whole if whole.shape == y.shape else whole[..., 0] + 1j * whole[..., 1]
        assert np.abs(same - y).max() <= 1e-5 * np.abs(y).max()

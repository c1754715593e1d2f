"""leave-bodies: loops that XLA runs keep their bodies where staging pieces of them cannot pay.

Input: a graph after its rewrites. Output: the delegated loops and branches whose bodies are left to
XLA, too, and a `Decision` for each loop and branch that XLA runs. Invariant: only bodies of
delegated control flow are asked about, so a program without any is as before.

Note [What a piece costs]: a loop stays with XLA where its body has an equation that we cannot
compile. Around it, the body would be cut into pieces, each of them a custom call in every turn.
Such a call takes `PIECE_SECONDS` more than the work in it (measured on Lotka-Volterra by Diffrax:
12 pieces a turn, 0.3 us each; NUTS: 0.13 to 0.2 us each), and XLA cannot fuse across it. Native
code saves a part of the work, `SAVED` of what the model below says. So pieces pay where
`work * SAVED > pieces * PIECE_SECONDS`. Work and pieces of loops inside are counted, too, as often
as they run.

Note [All or none]: a backward pass may run a loop again to know what it did (checkpointed loops of
Equinox), and a solver with adaptive steps then has to decide each step as before. It does where one
compiler makes both; with two, the last bit of a sum may add a step, and the gradient is wrong by
per cents. So the loops of a program are left together or not at all.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from stagejit.base.decisions import Decision
from stagejit.base.records import record
from stagejit.dispatch.groups import cost
from stagejit.graph.functions import TRANSCENDENTAL_FLOPS
from stagejit.graph.ir import Graph, Op
from stagejit.graph.ops.control import bodies_of
from stagejit.options import Options
from stagejit.runtime.lowering.seams import subjaxprs
from stagejit.runtime.lowering.snapshots import reads_weights
from stagejit.trace.calls.primitives import jax_name
from stagejit.trace.translate import trace_jaxpr

NAME = "leave-bodies"

PIECE_SECONDS = 0.3e-6
SAVED = 0.5
TYPICAL_TRIP = 8  # turns of a loop of which nobody knows how many it takes
_FLOP_SECONDS = 0.25e-9  # of one core, without all of its vector units
_BYTE_SECONDS = 0.1e-9
_TURN_SECONDS = 20e-9  # of a native op: its share of a launch
_ROUTINE_SECONDS = 1e-6  # of a routine of LAPACK on a small matrix

# The bodies of each kind of control flow that run many times, or on one side only. The condition of
# a while loop is not worth a call.
BODIES = {"scan": ("jaxpr",), "while": ("body_jaxpr",), "cond": ("branches",)}


@record
class Work:
    """Of one turn: modelled seconds of what we would compile, and into how many pieces it is
    cut."""

    seconds: float = 0.0
    pieces: int = 0

    def __add__(self, other: Work) -> Work:
        return Work(self.seconds + other.seconds, self.pieces + other.pieces)

    def times(self, count: int) -> Work:
        return Work(self.seconds * count, self.pieces * count)

    @property
    def pays(self) -> bool:
        return self.seconds * SAVED > self.pieces * PIECE_SECONDS


def bodies_in(equation: Any) -> list[Any]:
    """The closed jaxprs that a delegated equation runs in turns or on one side."""
    found: list[Any] = []
    for name in BODIES.get(jax_name(equation.primitive) or "", ()):
        body = equation.params[name]
        found += body if isinstance(body, tuple | list) else [body]
    return found


def left_bodies(graph: Graph, options: Options) -> tuple[frozenset[Op], list[Decision]]:
    """The delegated ops whose bodies XLA gets as they are, and why."""
    found = {
        op: _work_in(op.attrs["equation"], options)
        for op in graph
        if op.definition.is_left and op.attrs["equation"] and bodies_in(op.attrs["equation"])
    }
    applied, reason = _judge(list(found.values()), options)
    if applied and any(
        reads_weights(body) for op in found for body in subjaxprs(op.attrs["equation"])
    ):
        applied, reason = False, "in them weights are read, which are those of one moment"
    decisions = [
        Decision(
            NAME, f"{op} {op.attrs['equation'].primitive.name}", applied, reason, op.loc, graph
        )
        for op in found
    ]
    return frozenset(found if applied else ()), decisions


def _judge(works: Iterable[Work], options: Options) -> tuple[bool, str]:
    """Whether to leave all bodies, and why: see Note [All or none]."""
    if not options.enabled(NAME):
        return False, f"{NAME} is disabled"
    work = sum(works, Work())
    if not work.pieces:
        return True, "the bodies of XLA's loops have nothing for us to compile"
    calls = work.pieces * PIECE_SECONDS
    return not work.pays, (
        f"in the bodies of XLA's loops, a turn of each has {work.seconds * 1e6:.2g} us of work for"
        f" us, of which we would save {work.seconds * SAVED * 1e6:.2g} us, in {work.pieces} calls,"
        f" which cost {calls * 1e6:.2g} us more"
    )


def _work_in(equation: Any, options: Options) -> Work:
    """Of a turn; of a branch, of the side that has most of it."""
    works = [
        _work_of(
            trace_jaxpr(body, name="body", control_flow=options.enabled("native-control-flow")),
            options,
        )
        for body in bodies_in(equation)
    ]
    return max(works, key=lambda work: work.seconds, default=Work())


def _work_of(graph: Graph, options: Options) -> Work:
    inside = Work()
    levels: dict[Op, int] = {}  # how many delegated equations come one after the other before it
    native: set[int] = set()
    seconds = 0.0
    for op in graph:
        before = max((_level_behind(value.op, levels) for value in op.operands), default=0)
        levels[op] = before
        if op.definition.is_left:
            inside += _delegated(op, options)
        elif (own := _seconds(op)) > 0:
            seconds += own
            native.add(before)
    return inside + Work(seconds, len(native))


def _level_behind(op: Op, levels: dict[Op, int]) -> int:
    return levels.get(op, 0) + op.definition.is_left


def _delegated(op: Op, options: Options) -> Work:
    """Of the loops and branches inside a body that XLA would run."""
    equation = op.attrs["equation"]
    if equation is None or not bodies_in(equation):
        return Work()
    trip = {"scan": equation.params.get("length"), "while": TYPICAL_TRIP}
    return _work_in(equation, options).times(trip.get(jax_name(equation.primitive) or "") or 1)


def _seconds(op: Op) -> float:
    """Modelled time of a native op on one core; 0 for what only moves or names values."""
    if op.definition.is_loop:
        return (op.attrs["trip"] or TYPICAL_TRIP) * _sum(op.attrs["body"])
    if op.definition.is_branch:
        return max(map(_sum, bodies_of(op)), default=0.0)
    if op.definition.is_call:
        return _ROUTINE_SECONDS
    flops = op.definition.flops(op) * (TRANSCENDENTAL_FLOPS if cost.is_transcendental(op) else 1.0)
    moved = op.definition.is_indexed or op.definition.is_insert
    if not flops and not moved:
        return 0.0
    nbytes = op.operands[-1].type.nbytes if moved else op.results[0].type.nbytes
    return _TURN_SECONDS + flops * _FLOP_SECONDS + nbytes * _BYTE_SECONDS


def _sum(ops: Iterable[Op]) -> float:
    return sum(map(_seconds, ops))

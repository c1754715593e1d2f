"""simplify-loops: what does not change is no carry, what nobody wants is not computed, what each
iteration would compute again is computed once, what it would store again is repeated afterwards;
what turns once is no loop.

Input: the whole graph, whose bodies have been rewritten already. Output: loops with fewer carries,
slices, constants and results, and constants that are computed before them. Invariant: nothing is
computed before a loop that costs more memory than it saves work; ops are cloned, never moved, so a
body that is not used any more is left as it was.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

from stagejit.base.records import record
from stagejit.graph.ir import Graph, Op, Value
from stagejit.graph.ops import build
from stagejit.graph.ops.control import LoopOperands
from stagejit.graph.python_functions import TARGET
from stagejit.rewrites.cloning import cloned, copied, values_behind
from stagejit.rewrites.driving.driver import Log
from stagejit.rewrites.weights import evaluate
from stagejit.rewrites.weights.behind import is_determined
from stagejit.rewrites.weights.inside import tell_bound

NAME = "simplify-loops"

FEWEST_ELEMENTS = 64  # fewer are computed in the shadow of what the loop does anyway
MOST_GROWTH = 4  # times the bytes of what a hoisted value is computed from
FREE_NBYTES = 1 << 20


def simplify_loops(log: Log) -> None:
    """loop %w, %c body (%w, f %c, exp %w)  -->  loop %c body (f %c, %e), %e = exp %w before"""
    for op in log.graph.ops():
        if op.definition.is_loop and op in log.graph and not _inline(log, op):
            simplify_loop(log, op)


def _inline(log: Log, op: Op) -> bool:
    """loop %c, %x trip=1 body (f %c, g %x)  -->  f %c, reshape (g (reshape %x))"""
    body: Graph = op.attrs["body"]
    if op.attrs["trip"] != 1 or any(each.attrs.get("effects") for each in body):
        return False
    parts = LoopOperands.of(op)
    slices = [build(log.graph, "reshape", [x], op.loc, shape=x.shape[1:]) for x in parts.xs]
    outside = (*parts.inits, *slices, *parts.constants)
    known = dict(zip(body.inputs, outside, strict=True))
    used = sorted(log.graph.uses_by_result(op))
    made = cloned(log.graph, list(dict.fromkeys(body.outputs[at] for at in used)), known)
    values: list[Value | None] = [None] * len(op.results)
    for at in used:
        values[at] = value = made[body.outputs[at]]
        if at >= len(parts.inits):
            shape = op.results[at].shape
            values[at] = build(log.graph, "reshape", [value], op.loc, shape=shape)
    log.replace_results(NAME, op, values, "it turns once")
    return True


def simplify_loop(log: Log, op: Op) -> list[Op]:
    """The same for one loop. Returns the one that took its place, if there is any."""
    first_new = log.graph.next_id
    _Loop(log, op).run()
    return [made for made in log.graph.ops_since(first_new) if made.definition.is_loop]


def reads_twice(op: Op) -> bool:
    """Whether a loop has one value as two of its operands, for its slices or its constants."""
    parts = LoopOperands.of(op)
    return any(len({*values}) < len(values) for values in (parts.xs, parts.constants))


@record
class _Kept:
    """Numbers of what stays. carries: results that are carried; ys: of the outputs behind them."""

    carries: tuple[int, ...]
    ys: tuple[int, ...]


class _Loop:
    """One loop, and how it is built again."""

    def __init__(self, log: Log, op: Op) -> None:
        self.log, self.graph, self.op = log, log.graph, op
        self.body: Graph = op.attrs["body"]
        self.condition: Graph | None = op.attrs["condition"]
        self.parts = LoopOperands.of(op)
        self.carries = len(self.parts.inits)
        tell_bound(self.graph, op)
        self.is_evaluated = log.options.enabled(evaluate.NAME)
        inputs = self.body.inputs
        self._read_once()
        self.fixed = {at for at in range(self.carries) if self.body.outputs[at] is inputs[at]}
        # What each input of the body is that does not change from one iteration to the next.
        constants = inputs[self.carries + len(self.parts.xs) :]
        self.constant = dict(zip(constants, self.parts.constants, strict=True)) | {
            inputs[at]: self.parts.inits[at] for at in self.fixed
        }
        self.fixed_ops = self._fixed_ops()
        self.used = self.graph.uses_by_result(op)
        self.ready = dict(self._ready())

    def _read_once(self) -> None:
        """Slices and constants of the body that stand for one operand are read as the first."""
        first: dict[tuple[bool, Value], Value] = {}
        slices = len(self.parts.xs)
        outside = [*self.parts.xs, *self.parts.constants]
        for at, (inner, operand) in enumerate(
            zip(self.body.inputs[self.carries :], outside, strict=True)
        ):
            known = first.setdefault((at < slices, operand), inner)
            if known is not inner:
                self.body.replace_uses(inner, known)

    def run(self) -> None:
        hoisted = self._hoisted()
        kept = self._kept(hoisted)
        total = len(self.op.results) - len(self.fixed) - len(self.ready)
        fewer = len(kept.carries) + len(kept.ys) < total
        unread = self._unread()
        if not (hoisted or self.fixed or fewer or self.ready or unread):
            return
        said = [
            text
            for text, holds in (
                (f"{len(hoisted)} values are computed before it", hoisted),
                (f"{len(self.fixed)} carries do not change", self.fixed),
                (f"{len(self.ready)} results are the same in each iteration", self.ready),
                (f"{total - len(kept.carries) - len(kept.ys)} results have no use", fewer),
                (f"{unread} operands are read by nothing", unread),
            )
            if holds
        ]
        outside = cloned(self.graph, hoisted, self.constant)
        made = self._rebuilt(kept, outside)
        self.log.replace_results(NAME, self.op, self._values(kept, made), "; ".join(said))

    def _values(self, kept: _Kept, made: Op | None) -> list[Value | None]:
        """What stands for each result of the old loop."""
        values: list[Value | None] = [None] * len(self.op.results)
        for at in self.fixed:
            values[at] = self.parts.inits[at]
        for at, value in self.ready.items():
            values[at] = self._repeated(at, value)
        for result, at in zip(
            made.results if made is not None else (), (*kept.carries, *kept.ys), strict=True
        ):
            values[at] = result
        return values

    # ------------------------------------------------------------------- what stays

    def _kept(self, hoisted: Sequence[Value]) -> _Kept:
        """Results with uses, and the carries that they, or the condition, are computed from."""
        ys = tuple(sorted(at for at in self.used if at >= self.carries and at not in self.ready))
        carries = {at for at in self.used if at < self.carries}
        if self.condition is not None:
            needed = values_behind(self.condition.outputs)
            carries |= {at for at in range(self.carries) if self.condition.inputs[at] in needed}
        carries -= self.fixed
        while True:
            wanted = [self.body.outputs[at] for at in (*carries, *ys)]
            needed = values_behind(wanted, hoisted)
            more = {at for at in range(self.carries) if self.body.inputs[at] in needed}
            if more - self.fixed <= carries:
                return _Kept(tuple(sorted(carries)), ys)
            carries |= more - self.fixed

    def _unread(self) -> int:
        """How many slices and constants of the body, or of its condition, nothing is computed
        from."""
        behind = values_behind(self.body.outputs)
        unread = sum(value not in behind for value in self.body.inputs[self.carries :])
        if self.condition is not None:
            behind = values_behind(self.condition.outputs)
            unread += sum(value not in behind for value in self.condition.inputs[self.carries :])
        return unread

    # ------------------------------------------------------------- known without it

    def _fixed_ops(self) -> set[Op]:
        """Ops that give the same in each iteration, and could be cloned out of the loop: with
        checks, no NaN is made for a loop that may not turn."""
        fixed: set[Op] = {value.op for value in self.constant}
        if self.log.options.checks and not self.op.attrs["trip"]:
            return fixed
        for op in self.body.ops():
            stays = op.definition.has_bodies or op.definition.forwards
            stays |= op.definition.is_call and op.attrs["target"] == TARGET  # the loop may not turn
            if not stays and fixed.issuperset(value.op for value in op.operands):
                fixed.add(op)
        return fixed

    def _ready(self) -> Iterator[tuple[int, Value]]:
        """Stacked results of which each iteration stores the same, or the slice that it reads."""
        slices = {*self.body.inputs[self.carries : self.carries + len(self.parts.xs)]}
        for at in range(self.carries, len(self.op.results)):
            value = self.body.outputs[at]
            if at in self.used and (value.op in self.fixed_ops or value in slices):
                yield at, value

    def _repeated(self, at: int, value: Value) -> Value:
        """A stacked result without the loop."""
        if value not in self.constant and value.op.definition.is_input:
            return self.parts.xs[self.body.inputs.index(value) - self.carries]
        known = cloned(self.graph, [value], self.constant)[value]
        shape = self.op.results[at].shape
        if not value.shape:
            return build(self.graph, "fill", [known], self.op.loc, shape=shape)
        axes = tuple(range(1, len(shape)))
        return build(self.graph, "broadcast", [known], self.op.loc, shape=shape, axes=axes)

    # ------------------------------------------------------------------- hoisting

    def _hoisted(self) -> list[Value]:
        """Values of the body that are better computed once: results of ops on constants only."""
        fixed = self.fixed_ops
        dear: set[Op] = set()
        for op in self.body.ops():
            operands = [value.op for value in op.operands]
            if op not in fixed or (self.is_evaluated and _is_of_weights(self.body, op)):
                continue
            if _is_dear(op) or not dear.isdisjoint(operands):
                dear.add(op)
        found: dict[Value, None] = {}
        for op in self.body.links.nodes:
            if op not in fixed:
                read = [
                    value
                    for at, value in enumerate(op.operands)
                    if op is not self.body.return_op or at not in self.ready
                ]
                found.update((value, None) for value in read if value.op in dear)
        bases: dict[Value, None] = {}
        for value in found:
            while _is_view(value.op) and value.op.operands[0].op in dear:
                value = value.op.operands[0]
            if not _is_view(value.op) and self._is_small(value):
                bases[value] = None
        order = {op: at for at, op in enumerate(self.body.ops())}
        return sorted(bases, key=lambda value: (order[value.op], value.index))

    def _is_small(self, value: Value) -> bool:
        leaves = values_behind([value]) & set(self.constant)
        limit = MOST_GROWTH * sum(leaf.type.nbytes for leaf in leaves)
        return value.type.nbytes <= max(limit, FREE_NBYTES)

    # ------------------------------------------------------------------- building

    def _rebuilt(self, kept: _Kept, outside: Mapping[Value, Value]) -> Op | None:
        """The new loop; outside: hoisted values and what they are before the loop."""
        if not kept.carries and not kept.ys:
            return None
        inputs = self.body.inputs
        outputs = [self.body.outputs[at] for at in (*kept.carries, *kept.ys)]
        needed = values_behind(outputs, outside)
        xs = [at for at in range(len(self.parts.xs)) if inputs[self.carries + at] in needed]
        constants = [value for value in self.constant if value in needed]
        carried = [inputs[at] for at in kept.carries]
        slices = [inputs[self.carries + at] for at in xs]
        order = [*carried, *slices, *constants, *outside]
        body = copied(self.body, order, outputs, range(len(carried)))
        operands = [
            *(self.parts.inits[at] for at in kept.carries),
            *(self.parts.xs[at] for at in xs),
            *(self.constant[value] for value in constants),
            *outside.values(),
        ]
        condition = None
        if self.condition is not None:
            condition, more = self._new_condition(self.condition, kept)
            operands += more
        types = [self.op.results[at].type for at in (*kept.carries, *kept.ys)]
        return self.graph.add(
            "loop",
            operands,
            types,
            self.op.loc,
            body=body,
            condition=condition,
            trip=self.op.attrs["trip"],
            carries=len(carried),
            xs=len(xs),
            reverse=self.op.attrs["reverse"],
        )

    def _new_condition(self, condition: Graph, kept: _Kept) -> tuple[Graph, list[Value]]:
        """The condition over fewer carries, and the operands for its constants."""
        needed = values_behind(condition.outputs)
        constants = dict(
            zip(condition.inputs[self.carries :], self.parts.condition_constants, strict=True)
        )
        constants |= {condition.inputs[at]: self.parts.inits[at] for at in sorted(self.fixed)}
        used = [value for value in constants if value in needed]
        order = [*(condition.inputs[at] for at in kept.carries), *used]
        made = copied(condition, order, condition.outputs, ())
        return made, [constants[value] for value in used]


def _is_of_weights(body: Graph, op: Op) -> bool:
    """Whether it is computed before any call, or as cheap in the loop."""
    return any(is_determined(body, result) for result in op.results)


def _is_dear(op: Op) -> bool:
    known = op.definition
    if known.is_elementwise:
        return known.element_flops(op) > 1 and op.result.type.size >= FEWEST_ELEMENTS
    dear = known.accumulates or known.is_indexed
    return dear and op.operands[0].type.size >= FEWEST_ELEMENTS


def _is_view(op: Op) -> bool:
    return op.definition.is_view or op.definition.is_splat

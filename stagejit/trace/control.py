"""Translations of `scan`, `while` and `cond`: equations whose bodies are graphs of their own.

Input: a JAX equation of control flow, its operands, and how to trace a body. Output: one `loop` or
`branch` op, or Unsupported with a reason. Invariant: a body reads its own inputs only; those
of a loop are ordered as `graph/ops/control.py` says.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from stagejit.compat import ClosedJaxpr, scan_counts
from stagejit.graph.ir import Graph, Value
from stagejit.trace.emitter import Emitter
from stagejit.trace.reductions import reduce
from stagejit.trace.translation import Site, Translation, translation
from stagejit.types import TensorType, bool_, i32

# Runs a jaxpr inside of a body: (jaxpr, arguments) -> results.
Inline = Callable[[ClosedJaxpr, Sequence[Value]], Sequence[Value]]
# Makes the outputs of a body from its inputs.
Build = Callable[[Emitter, Inline, Sequence[Value]], Sequence[Value]]
# (name, inputs by name, how many of them are carries, build) -> graph of a body.
Nested = Callable[[str, Sequence[tuple[str, TensorType]], int, Build], Graph]

# Equations of all steps together: what is written out is compiled, a loop's body but once.
_MOST_UNROLLED = 2000


def is_unrolled(site: Site) -> bool:
    """Whether it is a scan of which all steps are to be written out, one after the other."""
    if site.primitive != "scan":
        return False
    trip, unroll = site.params["length"], site.params.get("unroll", 1)
    if not isinstance(trip, int) or not trip or unroll < max(trip, 2):
        return False
    return trip * len(site.params["jaxpr"].jaxpr.eqns) <= _MOST_UNROLLED


def unrolled(
    emit: Emitter, site: Site, inline: Inline, operands: Sequence[Value]
) -> Sequence[Value]:
    """The steps of such a scan. What several of them are made of may then be made at once, as by
    `jnp.polyval`, which asks for 16 steps, of the elements of a vector."""
    params, loc = site.params, emit.loc
    (first, count), trip = scan_counts(params, len(operands)), params["length"]
    constants, carries = operands[:first], operands[first : first + count]
    stacked = [emit.empty(type) for type in site.results[count:]]
    for at in reversed(range(trip)) if params["reverse"] else range(trip):
        given = [_row(emit, x, at) for x in operands[first + count :]]
        made = inline(params["jaxpr"], [*constants, *carries, *given])
        carries, rows = made[:count], made[count:]
        emit.loc = loc
        for number, row in enumerate(rows):
            place = (at, *(0 for _ in row.type.shape))
            row = emit.reshape(row, (1, *row.type.shape))
            stacked[number] = emit.insert(row, stacked[number], place)
    return [*carries, *stacked]


def _row(emit: Emitter, x: Value, at: int) -> Value:
    shape = x.type.shape[1:]
    offsets = (at, *(0 for _ in shape))
    return emit.reshape(emit.extract(x, offsets, (1, *shape)), shape)


def _scan(emit: Emitter, site: Site, nested: Nested, *operands: Value) -> Sequence[Value]:
    params = site.params
    (first, carries), trip = scan_counts(params, len(operands)), params["length"]
    constants = operands[:first]
    inits, xs = operands[first : first + carries], operands[first + carries :]
    if not trip:
        return [*inits, *(emit.empty(type) for type in site.results[carries:])]

    def build(_: Emitter, inline: Inline, inputs: Sequence[Value]) -> Sequence[Value]:
        end = len(inputs) - first
        return inline(params["jaxpr"], [*inputs[end:], *inputs[:end]])

    slices = [TensorType(x.type.dtype, x.type.shape[1:]) for x in xs]
    inputs = [
        *_named("carry", _types(inits)),
        *_named("x", slices),
        *_named("const", _types(constants)),
    ]
    return emit.emit_many(
        "loop", [*inits, *xs, *constants], site.results,
        body=nested("body", inputs, carries, build), condition=None, trip=trip, carries=carries,
        xs=len(xs), reverse=bool(params["reverse"]),
    )  # fmt: skip


def _while(emit: Emitter, site: Site, nested: Nested, *operands: Value) -> Sequence[Value]:
    params = site.params
    first, second = params["cond_nconsts"], params["body_nconsts"]
    of_condition, of_body = operands[:first], operands[first : first + second]
    inits, carries = operands[first + second :], len(operands) - first - second
    batched = len(params["cond_jaxpr"].out_avals[0].shape)

    def verdict(inline: Inline, inputs: Sequence[Value]) -> Value:
        """The condition of the carries and, last of all inputs, its constants."""
        end = len(inputs) - first
        (found,) = inline(params["cond_jaxpr"], [*inputs[end:], *inputs[:carries]])
        return found

    def condition(emit: Emitter, inline: Inline, inputs: Sequence[Value]) -> Sequence[Value]:
        found = verdict(inline, inputs)
        if not batched:
            return [found]
        return [reduce(emit, "or", found, tuple(range(batched)))]

    def body(emit: Emitter, inline: Inline, inputs: Sequence[Value]) -> Sequence[Value]:
        old = inputs[:carries]
        new = inline(params["body_jaxpr"], [*inputs[carries : carries + second], *old])
        if not batched:
            return new
        goes_on = verdict(inline, inputs)
        return [_selected(emit, goes_on, *pair) for pair in zip(new, old, strict=True)]

    named = _named("carry", _types(inits))
    of_body = (*of_body, *of_condition) if batched else of_body
    return emit.emit_many(
        "loop", [*inits, *of_body, *of_condition], site.results,
        body=nested("body", [*named, *_named("const", _types(of_body))], carries, body),
        condition=nested(
            "condition", [*named, *_named("const", _types(of_condition))], 0, condition
        ),
        trip=None, carries=carries, xs=0, reverse=False,
    )  # fmt: skip


def _selected(emit: Emitter, goes_on: Value, new: Value, old: Value) -> Value:
    """A carry of a loop under vmap: elements whose own loop has ended keep their value."""
    mask = emit.broadcast(goes_on, new.type.shape, range(goes_on.type.rank))
    return emit.map("select", mask, new, old)


def _cond(emit: Emitter, site: Site, nested: Nested, *operands: Value) -> Sequence[Value]:
    index, *arguments = operands
    if index.type.dtype not in (bool_, i32):
        index = emit.convert(index, i32)
    inputs = _named("x", _types(arguments))

    def case(at: int, jaxpr: ClosedJaxpr) -> Graph:
        return nested(f"case{at}", inputs, 0, lambda _, inline, values: inline(jaxpr, values))

    branches = tuple(case(at, jaxpr) for at, jaxpr in enumerate(site.params["branches"]))
    return emit.emit_many(
        "branch", [index, *arguments], site.results, branches=branches, carried=()
    )


def _types(values: Sequence[Value]) -> list[TensorType]:
    return [value.type for value in values]


def _named(stem: str, types: Sequence[TensorType]) -> list[tuple[str, TensorType]]:
    return [(f"{stem}{at}", type) for at, type in enumerate(types)]


TRANSLATIONS: dict[str, Translation] = {
    "scan": translation(
        _scan, "num_consts", "num_carry", "length", "jaxpr", "reverse",
        ignored=("linear", "unroll", "_split_transpose", "ft_in", "ft_out"),
    ),
    "while": translation(_while, "cond_nconsts", "cond_jaxpr", "body_nconsts", "body_jaxpr"),
    "cond": translation(_cond, "branches", ignored=("linear",)),
}  # fmt: skip

"""Checks the drafts of a graph.

Input: a graph and its drafts in order. Output: nothing, or a VerificationError. Invariant: accepts
what `formation.form` makes; a region list that passes computes every output and can be executed in
order.
"""

from __future__ import annotations

from collections.abc import Sequence

from stagejit.dispatch.outputs import stored_outputs, without_reshapes
from stagejit.dispatch.region import Draft, Store
from stagejit.dispatch.roots import Roots
from stagejit.errors import VerificationError
from stagejit.graph.ir import Graph, Op, Value, in_memory
from stagejit.graph.ops.control import bodies_of, read_operands

_WITHOUT_ANCHOR = frozenset({"map", "copy", "fill"})


def verify_drafts(graph: Graph, drafts: Sequence[Draft]) -> None:
    """Raises VerificationError for the first fault."""
    names = [region.name for region in drafts]
    _require(len(set(names)) == len(names), "two drafts have one name")
    roots = Roots(drafts)
    stored: set[Value] = set()
    for region in drafts:
        _check_kind(region)
        _check_ops(region)
        for value in region.reads:
            _require(
                in_memory(roots[value])
                or roots[value] in stored
                or roots[value].op.definition.is_input
                or not value.type.size,
                f"{region.name} reads {value} before a region stores it",
            )
        for store in region.stores:
            _check_store(region, store)
        stored.update(roots[value] for value in region.writes)
        _check_bodies(region)
    for value in stored_outputs(graph).values():
        _require(
            roots[value] in stored
            or not value.type.size
            or _uninitialised(value)
            or value.op.definition.is_input,
            f"no region stores the output {value}",
        )


def _require(holds: bool, fault: str) -> None:
    if not holds:
        raise VerificationError(f"drafts: {fault}")


def _uninitialised(value: Value) -> bool:
    return value.op.definition.is_empty or (
        value.op.definition.is_insert
        and not value.op.operands[0].type.size
        and _uninitialised(value.op.operands[1])
    )


def _check_kind(region: Draft) -> None:
    anchors = [
        op for op in region.ops if not op.definition.is_pointwise and not op.definition.is_insert
    ]
    if region.kind == "reduce":
        _check_reduces(region, anchors)
    elif region.anchor is not None:
        _require(anchors == [region.anchor], f"{region.name} does not have its one anchor")
        _require(region.kind == region.anchor.kind, f"{region.name} has another kind")
    else:
        known = region.kind in _WITHOUT_ANCHOR
        _require(known, f"{region.name} has the unknown kind {region.kind}")
        _require(not anchors, f"{region.name} has an anchor")
        shapes = {store.value.shape for store in region.stores}
        _require(len(shapes) == 1, f"{region.name} stores values of different shapes")


def _check_reduces(region: Draft, anchors: Sequence[Op]) -> None:
    _require(
        bool(anchors) and all(op.definition.is_reduce for op in anchors),
        f"{region.name} has another anchor than reduces",
    )
    _require(region.anchor is anchors[0], f"{region.name} has not its first reduce as anchor")
    spaces = {(op.operands[0].shape, tuple(op.attrs["axes"])) for op in anchors}
    _require(len(spaces) == 1, f"{region.name} reduces different rows")
    sizes = {anchors[0].operands[0].type.size, anchors[0].result.type.size}
    for store in region.stores:
        _require(
            store.value.type.size in sizes,
            f"{region.name} stores {store.value}, "
            "which is neither in its row space nor in its kept space",
        )


def _check_ops(region: Draft) -> None:
    known = set(region.inputs)
    _require(len(known) == len(region.inputs), f"{region.name} names an input twice")
    placing = {op for store in region.stores for op in store.inserts}
    for op in region.ops:
        if op.definition.is_insert:
            _require(op in placing, f"{region.name} has {op}, which places no store")
            operands = op.operands[2:]
        else:
            operands = read_operands(op)
            if op.definition.has_bodies or op.definition.is_call:
                operands = tuple(map(without_reshapes, operands))
            _require(not known & set(op.results), f"{region.name} evaluates an input, {op}")
            known.update(op.results)
        _require(known >= set(operands), f"{region.name}: {op} comes before its operands")


def _check_bodies(region: Draft) -> None:
    inside = bodies_of(region.anchor) if region.anchor is not None else ()
    _require(
        tuple(body.graph for body in region.bodies) == inside,
        f"{region.name} has not the bodies of its anchor",
    )
    for body in region.bodies:
        constants = [
            op for op in body.graph if op.definition.is_constant and op.result.type.size != 1
        ]
        _require(not constants, f"{region.name} has an array of constants in {body.graph.name}")
        verify_drafts(body.graph, body.drafts)


def _check_store(region: Draft, store: Store) -> None:
    evaluated = {result for op in region.ops for result in op.results} | set(region.inputs)
    _require(
        store.value in evaluated, f"{region.name} stores {store.value} but does not evaluate it"
    )
    placed = store.value
    for insert in store.inserts:
        _require(insert in region.ops, f"{region.name} lacks {insert}")
        _require(insert.operands[0].shape == placed.shape, f"{insert} places another value")
        placed = insert.result
    _require(
        placed is store.into or (not store.inserts and placed.type == store.into.type),
        f"{region.name} stores {store.value} into {store.into}",
    )

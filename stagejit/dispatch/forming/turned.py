"""store-transposes: what rows would read across its lines is transposed before.

Input: a state after the forward walk. Output: views to be stored, each with the reason. Invariant:
nothing changes here; a view that depends on a group is not found for that group.

Note [Rows across lines]: a reduction, or a running sum, of `x.T + y` has its vectors along the rows
of `x` or of `y`, and reads the other one across: a few elements of each line, every line from
another page. A map puts squares of both in order in registers and meets each line once; rows are
long, and gone over several times, so that nothing stays near. On two cores of a Cascade Lake,
f32[2048,3072]: softmax(x.T + y) takes 68 ms in one dispatch, 10 in two; the sum of x.T * y 50 ms
and 7; f32[512,512]: 1.1 ms and 0.31, 0.38 and 0.19. Memory that a dispatch makes lies as those who
write and read it like (`infer-layouts`): this is for what lies as it was given.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

from stagejit.base.records import record
from stagejit.dispatch.groups import cost
from stagejit.dispatch.groups.group import Group
from stagejit.dispatch.groups.state import State
from stagejit.graph.ir import Op, Value
from stagejit.graph.ops.moving.slices import pull_view
from stagejit.index.affine import Affine, Index, Var, linearize
from stagejit.index.coordinates import coordinates

SWITCH = "store-transposes"
_MOST_READS = 256  # that are looked at for one group: there are trees with a place for each element


@record
class _Read:
    """A value in memory that a group reads at `index`, which is in coordinates of its rows.
    turned: the first view, seen from the rows, behind which lines lie along another axis."""

    value: Value
    index: Index
    turned: Op | None

    @property
    def lines(self) -> Var | None:
        """The coordinate that moves from an element to the next one in memory, if one does."""
        return _unit(linearize(self.index, self.value.shape))


def turned_reads(state: State) -> dict[Op, str]:
    """Views that had better be stored, and why."""
    found: dict[Op, str] = {}
    if state.enabled(SWITCH):
        for group in state.groups:
            if group.definition.is_reduce or group.definition.is_cumulative:
                found.update(_of_group(state, group))
    return found


def _of_group(state: State, group: Group) -> Iterator[tuple[Op, str]]:
    if not all(isinstance(size, int) for size in group.shape):
        return  # what is far is not known for all sizes
    along = _unit(linearize(coordinates(group.shape), group.shape))
    if along is None:
        return
    reads = list(_reads(state, group, along))
    returned = (op for op in group.members if op.result in state.required)
    agrees = any(_lies_along(read, along) for read in reads)
    if not agrees and not any(_lies_in_rows(group, op) for op in returned):
        return  # vectors along the other axis suit all
    for read in reads:
        op = read.turned
        if op is None or not _is_given(state, read.value) or not _is_across(read, along):
            continue
        if op.result.type.nbytes >= cost.FAR_NBYTES and not state.deps[op] >> group.id & 1:
            yield op, f"rows of {group.kind} would read {read.value.type} across its lines"


def _reads(state: State, group: Group, along: Var) -> Iterator[_Read]:
    """What is read for elements of the row space of a group."""
    at = coordinates(group.shape)
    pending: list[_Read] = []
    for op in group.members:
        if op.definition.is_reduce or _lies_in_rows(group, op):
            pending += (_Read(v, at, None) for v in op.operands if v.shape == group.shape)
    seen: set[_Read] = set()
    while pending and len(seen) < _MOST_READS:
        read = pending.pop()
        if read in seen:
            continue
        seen.add(read)
        op = read.value.op
        if not state.is_floating(read.value):
            yield read
        elif op.definition.is_elementwise:
            pending += (_Read(v, read.index, read.turned) for v in op.operands)
        elif op.definition.is_view:
            behind = _Read(op.operands[0], pull_view(op, read.index), read.turned)
            if read.turned is None and behind.lines is not along:
                behind = replace(behind, turned=op)
            pending.append(behind)


def _unit(offset: Affine) -> Var | None:
    """The coordinate that an offset moves with, one by one."""
    for var, step in offset.terms:
        if step in (1, -1):
            if var.operand is None:
                return var if var.kind == "loop" else None
            return _unit(var.operand) if var.kind == "mod" else None
    return None


def _is_given(state: State, value: Value) -> bool:
    """Whether nobody chooses how it lies."""
    return value.op.definition.is_input or value in state.required


def _lies_along(read: _Read, along: Var) -> bool:
    return read.lines is along and read.value.type.nbytes >= cost.FAR_NBYTES


def _is_across(read: _Read, along: Var) -> bool:
    """Whether lines of it lie across those of the rows, both being as long as a line at least."""
    lines = read.lines
    if lines is None or lines is along:
        return False
    moves = any(along in part.loop_vars() for part in read.index)
    least = cost.LINE_NBYTES // read.value.type.dtype.itemsize
    return moves and min(lines.extent, along.extent) >= least


def _lies_in_rows(group: Group, op: Op) -> bool:
    """Whether the group evaluates an element of it for each of its rows, in their order."""
    if len(op.results) != 1 or op.result not in group.located:
        return False
    place = group.located[op.result]
    return place.space != "kept" and place.index == coordinates(group.shape)

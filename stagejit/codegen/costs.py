"""The cost model of generated kernels: flops, bytes, and seconds on one core.

Input: a region and a target description. Output: estimates that decide vector widths and forks.
Invariant: depends on shapes, dtypes and the target only.
"""

from __future__ import annotations

import math
from collections import Counter

from stagejit.base.machine import Machine
from stagejit.codegen.closed import ClosedRegion
from stagejit.codegen.math import functions as vmath
from stagejit.dispatch.regions import Region, Store
from stagejit.graph.dims import GatherDims
from stagejit.graph.ir import Op, Value
from stagejit.graph.ops.elementwise import function_of
from stagejit.index.box import Box

_CALLED = 4.0  # operations that a call takes


def region_flops(region: ClosedRegion | Region) -> float:
    """Scalar operations of the elementwise part; a transcendental counts as many."""
    total = 0.0
    for op in region.ops:
        if function := function_of(op):
            total += vmath.cost(function, op.result.type.dtype) * op.result.type.size
        elif op.definition.is_window or op.definition.code is not None:
            total += op.definition.flops(op)
        elif op.kind in ("reduce", "cumulative", "convert"):
            total += op.operands[0].type.size
    return total


def element_code(region: ClosedRegion) -> float:
    """Operations of one evaluation of all elementwise ops: what a copy of the loop's body takes.
    Long functions are short where they are called."""
    called = _CALLED if region.calls else math.inf
    known = [(op, op.definition) for op in region.ops]
    counted = [op for op, is_ in known if is_.is_window or is_.code is not None]
    evaluated = [
        op for op, is_ in known if (is_.is_elementwise and is_.code is None) or is_.is_gather
    ]
    return sum(min(operations(op), called) for op in evaluated) + sum(
        op.definition.element_flops(op) for op in counted
    )


def operations(op: Op) -> float:
    """Of one element of an elementwise op; one of any other."""
    function = function_of(op)
    return vmath.cost(function, op.result.type.dtype) if function else 1.0


def touched_nbytes(region: ClosedRegion | Region, machine: Machine) -> int:
    """Bytes that cross memory, each once: what is read of inputs, which may be a slice of an array
    or some rows of a table, by whole lines; and what is stored, of a scatter its updates."""
    if isinstance(region, Region):
        return _touched_nbytes(region, machine.line_nbytes)
    known = region.touched.get(machine.line_nbytes)
    if known is None:
        known = _touched_nbytes(region, machine.line_nbytes)
        region.touched[machine.line_nbytes] = known
    return known


def _touched_nbytes(region: ClosedRegion | Region, line_nbytes: int) -> int:
    wanted = Counter[Value]()  # elements
    for store in region.stores:
        wanted[store.value] += store.value.type.size
    for op in reversed(region.ops):
        known, made = op.definition, sum(wanted[result] for result in op.results)
        for number, operand in enumerate(op.operands):
            read = operand.type.size
            if known.is_elementwise:
                read = made
            elif number == 0 and (known.is_view or known.is_gather):
                read = _in_lines(made, _run(op), operand.type.dtype.itemsize, line_nbytes)
            wanted[operand] = min(wanted[operand] + read, operand.type.size)
    read = sum(wanted[value] * value.type.dtype.itemsize for value in region.inputs)
    return read + sum(map(_stored_nbytes, region.stores))


def _run(op: Op) -> int:
    """Elements of operand 0 that lie side by side, of those that an op picks; 0 where it picks none
    of them, but has all."""
    if op.definition.is_gather:
        return GatherDims.of(op.attrs).row_size(op.result.shape)
    if not op.definition.is_extract:
        return 0
    sizes = op.result.shape
    return Box((0,) * len(sizes), sizes, op.attrs["strides"]).run(op.operands[0].shape)


def _in_lines(count: int, run: int, itemsize: int, line_nbytes: int) -> int:
    """Elements on the lines that so many lie on, in runs."""
    if not run:
        return count
    line = max(line_nbytes // itemsize, 1)
    return -(-count // run) * -(-run // line) * line


def _stored_nbytes(store: Store) -> int:
    nbytes, op = store.value.type.nbytes, store.value.op
    return min(nbytes, op.operands[2].type.nbytes) if op.definition.is_scatter else nbytes


def region_seconds(region: ClosedRegion, target: Machine) -> float:
    """Time of the region's elementwise work on one core: the larger of arithmetic and traffic."""
    nbytes = touched_nbytes(region, target)
    return max(region_flops(region) / target.peak_flops, nbytes / target.rate_of_core(nbytes))


def widest_nbytes(region: ClosedRegion) -> int:
    """Bytes of the widest element that the region computes or moves; scalars do not count."""
    values = [result for op in region.ops for result in op.results]
    values += [*region.inputs, *(store.value for store in region.stores)]
    sizes = [v.type.dtype.itemsize for v in values if v.type.rank or len(values) == 1]
    return max(sizes, default=max(v.type.dtype.itemsize for v in values))

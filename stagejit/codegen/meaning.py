"""Whether code of a user's elementwise op, and a kernel of a user's, mean what `interpret` says.

Input: an op of a region, or a region with its kernel. Output: nothing, or an ExtensionError with an
element where they differ. Invariant: both are given the same elements: random ones, zeros, ones,
small and large integers. Kernels are run by the interpreter of the loop-nest IR, on a CPU's memory.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from stagejit.base.extension import Extension
from stagejit.codegen.closed import ClosedRegion
from stagejit.codegen.ir.builder import Builder
from stagejit.codegen.ir.interpreter.run import interpret
from stagejit.codegen.ir.nodes import Buffer, storage_type
from stagejit.codegen.ir.nodes import Value as Register
from stagejit.codegen.kernel import Kernel
from stagejit.errors import VerificationError
from stagejit.graph.ir import Graph, Op, Value
from stagejit.graph.meaning.evaluator import Evaluator
from stagejit.graph.ops.dispatches import destination, written
from stagejit.rewrites.driving.comparison import (
    Meaning,
    any_integers,
    element_text,
    first_apart,
    is_near,
    random_elements,
    rounding,
)
from stagejit.schedule.memory.host import aligned_copy
from stagejit.types import DType

Array = np.ndarray[Any, np.dtype[Any]]
MOST = 1 << 15  # elements that a kernel is compared at: thousands a second are run
_COMPARED = 64  # elements
_DIFFERENT = 1 << 16
_ROUNDINGS = {2: 8, 4: 64, 8: 64}  # by bytes: of code, where its meaning is rounded once


def require_its_meaning(op: Op, own: Extension) -> None:
    """own: whose op it is. Raises ExtensionError where an element differs by more than rounding."""
    random = np.random.default_rng(0)
    operands = [_elements(random, value.type.dtype, value.type.shape) for value in op.operands]
    with np.errstate(all="ignore"), own.running("failed in its interpret"):
        (result,) = Evaluator("declared").op(op, operands)
    given = [array.reshape(-1)[:_COMPARED] for array in operands]
    wanted = result.reshape(-1)[:_COMPARED]
    made = _by_code(op, given, wanted)
    for at in np.flatnonzero(~_alike(made, wanted)):
        elements = ", ".join(str(array[at]) for array in given)
        raise own.fault(
            f"has code that does not do what its interpret does: of {elements} the code makes "
            f"{made[at]}, interpret {wanted[at]}"
        )


def require_its_result(kernel: Kernel, region: ClosedRegion, part: Graph, own: Extension) -> None:
    """own: whose kernel it is. Raises ExtensionError where what it leaves in memory differs by more
    than rounding from what the graph of the region says. Larger ones are not run, nor those that
    need memory of their own, or read what lies in an order of its own."""
    types = [value.type for value in (*part.inputs, *part.outputs)]
    if not all(type.is_plain for type in types) or sum(type.size for type in types) > MOST:
        return
    meaning = Meaning(part, part.outputs)
    if not meaning.is_known or kernel.workspaces:
        return
    for draw, wanted in enumerate(meaning.results):
        inputs = {
            value: random_elements(value.type, at, draw) for at, value in enumerate(part.inputs)
        }
        _require_stored(kernel, region, part, inputs, wanted, own)


def _require_stored(
    kernel: Kernel,
    region: ClosedRegion,
    part: Graph,
    inputs: Mapping[Value, Array],
    wanted: Sequence[Sequence[Array]],
    own: Extension,
) -> None:
    outputs = [at for at in range(len(part.outputs)) for _ in written(part, at)]
    memory = [_memory_of(part, at, inputs) for at in range(len(part.outputs))]
    known = {value: aligned_copy(array) for value, array in inputs.items()}
    known |= {store.into: memory[at] for store, at in zip(region.stores, outputs, strict=True)}
    given = [_stored(known[arg.value].reshape(-1)[arg.offset :]) for arg in kernel.args]
    try:
        for params in kernel.passes:
            interpret(kernel.function, given, params, 0, kernel.total)
    except VerificationError as fault:
        raise own.fault(f"made a kernel of a {region.kind} that is none: {fault.what}") from fault
    for array, declared, ideal in zip(memory, *wanted, strict=True):
        near = _near(array, declared, ideal, list(inputs.values()))
        if not near.all():
            at = first_apart(near)
            raise own.fault(
                "made a kernel that does not do what interpret does: at random operands "
                f"{element_text(at)} of {region.kind} is {array[at]}, by interpret {declared[at]}"
            )


def _memory_of(part: Graph, output: int, inputs: Mapping[Value, Array]) -> Array:
    """What is there before the kernel runs."""
    into, type = destination(part, output), part.outputs[output].type
    return aligned_copy(np.zeros(type.shape, type.dtype.numpy) if into is None else inputs[into])


def _near(made: Array, declared: Array, ideal: Array, inputs: Sequence[Array]) -> Array:
    """Sums in the order of a kernel are rounded as their largest terms are, and what rounding makes
    of a value before shows in how far `declared` is from `ideal`."""
    if made.dtype.kind in "biu":
        return np.asarray(made == declared)
    other = declared.astype(np.float64)
    terms = max(array.size for array in (*inputs, made)) / max(made.size, 1)
    with np.errstate(all="ignore"):
        rounded = np.nan_to_num(np.abs(other - ideal), nan=0.0, posinf=0.0)
        room = np.maximum(np.abs(other), 1.0) * rounding(made.dtype) * max(terms, 1.0)
        room = 64 * np.maximum(room, rounded.max(initial=0.0))
    return is_near(made, declared, absolute=room)


def _elements(random: np.random.Generator, dtype: DType, shape: Sequence[int]) -> Array:
    count = min(int(np.prod(shape)), _DIFFERENT)
    made: Array
    if dtype.kind == "bool":
        made = random.random(count) < 0.5
    elif dtype.is_float:
        made = random.standard_normal(count) * 4
        made[:2] = (0.0, 1.0)[:count]
    else:
        made = any_integers(random, dtype, count)
        made[::2] = random.integers(0, 9, made[::2].shape)
    return np.resize(made.astype(dtype.numpy), shape)


def _by_code(op: Op, operands: Sequence[Array], like: Array) -> Array:
    """What the code makes of elements, one by one."""
    b, code = Builder(), op.definition.code
    assert code is not None
    sources = [
        b.buffer("in", storage_type(value.type.dtype), readonly=True) for value in op.operands
    ]
    result = b.buffer("out", storage_type(op.result.type.dtype))
    is_bool = [value.type.dtype.kind == "bool" for value in (*op.operands, op.result)]

    def loaded(buffer: Buffer, i: Register, *, as_bool: bool) -> Register:
        element = b.load(buffer, i)
        return b.compare("ne", element, 0) if as_bool else element

    def element(i: Register) -> None:
        pairs = zip(sources, is_bool, strict=False)
        made = code(b, op, [loaded(buffer, i, as_bool=yes) for buffer, yes in pairs])
        b.store(b.cast("zext", made, result.elem.elem) if is_bool[-1] else made, result, i)

    b.loop(0, like.size, 1, (), element)
    made = np.zeros_like(like)
    interpret(b.finish(), [*map(_stored, operands), _stored(made)])
    return made


def _stored(array: Array) -> Array:
    """A bool is a byte in memory."""
    return np.ascontiguousarray(array).view(np.uint8) if array.dtype == bool else array


def _alike(made: Array, wanted: Array) -> Array:
    if wanted.dtype.kind in "biu":
        return np.asarray(made == wanted)
    return is_near(made, wanted, _ROUNDINGS[wanted.itemsize] * rounding(wanted.dtype))

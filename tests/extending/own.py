"""Extensions that tests, and nothing of the package, declare: an elementwise op, a recurrence."""

from __future__ import annotations

from typing import Any

import numpy as np
from jax.extend.core import Primitive

from stagejit import extending
from stagejit.extending import writing as w

Array = np.ndarray[Any, Any]


def primitive(name: str) -> Primitive:
    """Of operands of one type, which is that of the result."""
    made = Primitive(name)
    made.def_abstract_eval(lambda *operands: operands[-1])
    return made


def alike(operands: Any, attrs: Any) -> w.TensorType:
    """The type of all operands."""
    w.require(len(set(operands)) == 1, "operands have one type")
    result: w.TensorType = operands[0]
    return result


# -- softsign: x / (1 + |x|)


def softsign(evaluator: Any, op: Any, x: Array) -> Array:
    return np.asarray(x / (1 + np.abs(x)))


def softsign_code(b: Any, op: Any, elements: Any) -> Any:
    (x,) = elements
    return x / (1.0 + w.scalar(b, "abs", op.result.type.dtype, x))


softsign_p = primitive("softsign")
SOFTSIGN = extending.OpDef(
    kind="softsign",
    infer=alike,
    interpret=softsign,
    is_elementwise=True,
    code=softsign_code,
    flops=lambda op: 3 * op.result.type.size,
    element_flops=lambda op: 9.0,
)


# -- a linear recurrence along the last axis: y[i] = a[i] * y[i - 1] + x[i]


def recurrence(evaluator: Any, op: Any, a: Array, x: Array) -> Array:
    made, carry = np.zeros_like(x), np.zeros_like(x[..., 0])
    for at in range(x.shape[-1]):
        carry = a[..., at] * carry + x[..., at]
        made[..., at] = carry
    return made


def recurrence_kernel(region: Any, machine: Any) -> w.Kernel:
    """an item has a line, each element of which waits for the one before"""
    type = region.anchor_op.result.type
    loops = w.lines_of(region, machine, axis=type.rank - 1)
    before, along, _ = loops.groups

    def tree(loops: Any, emitter: Any, memory: Any) -> w.Parallel:
        line, carry = w.Line(loops, emitter.elements, memory), w.Cell("carry")
        zero = emitter.b.const(0.0, w.element_type(type.dtype))

        def step() -> list[Any]:
            (last,) = emitter.cells[carry]
            made = line.operand(0) * last + line.operand(1)
            line.store(made)
            return [made]

        start = emitter.set_cell("start", carry, lambda: [zero])
        each = emitter.set_cell("step", carry, step)
        return w.items([(var, 1) for var in before], (start, w.serial(along, each)), emitter)

    return w.kernel(region, machine, loops, tree)


recurrence_p = primitive("linear_recurrence")
RECURRENCE = extending.OpDef(
    kind="linear_recurrence",
    infer=alike,
    interpret=recurrence,
    accumulates=True,
    flops=lambda op: 2 * op.result.type.size,
)

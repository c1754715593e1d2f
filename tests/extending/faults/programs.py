"""What tests of faults compile."""

from __future__ import annotations

from typing import Any

import jax.numpy as jnp
import numpy as np

from stagejit import extending
from stagejit.extending import writing as w
from tests.extending.own import alike, primitive

X = np.linspace(-1, 1, 12, dtype=np.float32).reshape(3, 4)
OTHER = "graph @g(%x: f32[3,4]) {\n  %0: f32[3,4] = map neg %x\n  return %0\n}"


def f(x: Any) -> Any:
    return jnp.exp(-x) * 2 + x.sum(1, keepdims=True)


def own_op(**fields: Any) -> tuple[Any, Any]:
    prim = primitive("wrong")
    more = {name: fields.pop(name) for name in ("cpu", "translate") if name in fields}
    usual = {"is_elementwise": True, "code": lambda b, op, elements: elements[0] * 2.0}
    definition = w.OpDef(
        kind="wrong", infer=alike, interpret=lambda _, op, x: 2 * x, **(fields or usual)
    )
    own = extending.op(definition, primitive=prim, **more)
    return own, lambda x: prim.bind(x + 1)


def twice(graph: w.Graph, op: w.Op) -> Any:
    """map add %x, %x  -->  map mul 2, %x"""
    two = w.filled(graph, 2, op.result.type)
    return w.build(graph, "map", [two, op.operands[0]], fn="mul", dtype=op.attrs["dtype"])

"""What a declaration promises and its ops do not keep: an error that names it, and no memory that
is another's."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from typing import Any

import jax.numpy as jnp
import numpy as np
import pytest
from jax.core import ShapedArray
from jax.extend.core import Primitive

import stagejit
from stagejit import extending
from stagejit.errors import ExtensionError
from stagejit.extending import writing as w
from tests.extending.faults.programs import X

TEXT = "graph @g(%x: f32[3,4], %s: f32[1,4]) {\n  %0: f32[3,4] = promising %x, %s\n  return %0\n}"


def shaped(type: Any, shape: tuple[int, ...]) -> Any:
    return dataclasses.replace(type, shape=shape)


def promising(
    shape: tuple[int, ...] | None = None, primitive: bool = True, **fields: Any
) -> tuple[Any, Any]:
    """An op whose result has this shape, by default that of operand 0."""
    prim = Primitive("promising")
    prim.def_abstract_eval(lambda x, *more: ShapedArray(shape or x.shape, x.dtype))
    made_by = {name: fields.pop(name) for name in ("cpu", "translate") if name in fields}
    usual: dict[str, Any] = {
        "kind": "promising",
        "infer": lambda types, attrs: shaped(types[0], shape or types[0].shape),
        "interpret": lambda _, op, x, *more: np.zeros(op.result.type.shape, x.dtype),
    }
    own = extending.op(
        w.OpDef(**(usual | fields)), **({"primitive": prim} if primitive else {}), **made_by
    )
    return own, prim.bind


ADDING = {"is_elementwise": True, "code": lambda b, op, elements: elements[0] + elements[-1]}


@pytest.mark.parametrize("made", [False, True], ids=["arguments", "made"])
@pytest.mark.parametrize(
    "shape", [(), (1, 1), (1, 4), (3, 1), (4,), (5, 6), (4, 3), (1, 3, 4)], ids=str
)
def test_operands_of_elementwise_ops(
    fault: Callable[..., str], shape: tuple[int, ...], made: bool
) -> None:
    own, bind = promising(**ADDING)
    other = np.ones(shape, np.float32)
    said = fault(own, lambda x: bind(x * 2, jnp.sin(other) if made else other))
    assert "is an elementwise op, and operand 1 of promising." in said
    assert f"is {w.TensorType(w.f32, shape)} where the result is f32[3,4]" in said
    assert "test_promises.py:" in said  # the equation's line, beside that of the declaration


@pytest.mark.parametrize("shape", [(6, 8), (2, 2), (12,), (4, 3)], ids=str)
def test_a_result_of_an_elementwise_op(fault: Callable[..., str], shape: tuple[int, ...]) -> None:
    own, bind = promising(shape, **ADDING)
    assert "operand 0 of promising." in fault(own, bind)


def test_what_to_do_is_said_and_does() -> None:
    own, bind = promising(**ADDING)
    with pytest.raises(ExtensionError, match=r"Next: broadcast it first, in extending.op") as told:
        stagejit.jit(bind, options=stagejit.Options(extensions=own))(X, X[:1])
    assert "(emit, site, *operands)" in str(told.value)

    def translate(emit: Any, site: Any, x: Any, s: Any) -> Any:
        row = emit.build("reshape", [s], shape=(4,))
        return emit.build(
            "promising", [x, emit.build("broadcast", [row], shape=x.type.shape, axes=(1,))]
        )

    own, bind = promising(translate=translate, interpret=lambda _, op, x, s: x + s, **ADDING)
    made = stagejit.jit(bind, options=stagejit.Options(extensions=own, verify=True))
    np.testing.assert_array_equal(made(X, X[:1]), X + X[:1])


def test_graphs_of_tests() -> None:
    own, _ = promising(primitive=False, **ADDING)
    with pytest.raises(ExtensionError, match=r"operand 1 of promising"):
        extending.rewritten(TEXT, own)


@pytest.mark.parametrize("adds", [False, True], ids=["build", "add"])
def test_ops_of_rewrites(fault: Callable[..., str], adds: bool) -> None:
    own, _ = promising(primitive=False, **ADDING)

    @extending.rewrite("broad", roots="map", functions="add")
    def broad(graph: Any, op: Any) -> Any:
        """map add %x, (broadcast %s)  -->  promising %x, %s"""
        pair = [op.operands[0], op.operands[1].op.operands[0]]
        if adds:
            return graph.add("promising", pair, op.result.type).result
        return w.build(graph, "promising", pair)

    bundle = dataclasses.replace(own, of=(*own.parts, *broad.parts))
    said = fault(bundle, lambda x: jnp.add(x, jnp.broadcast_to(jnp.sin(x[0]), (3, 4))))
    assert "is an elementwise op, and operand 1" in said


def test_ops_that_a_translation_adds_itself(fault: Callable[..., str]) -> None:
    """Those of the package, too."""

    def translate(emit: Any, site: Any, x: Any) -> Any:
        return emit.graph.add("map", [x], site.results[0], fn="neg", dtype=w.f32).result

    own, bind = promising((6, 8), translate=translate, **ADDING)
    assert "VerificationError: op map." in fault(own, bind)


def test_types_that_infer_and_jax_disagree_in(fault: Callable[..., str]) -> None:
    own, bind = promising((4, 3), infer=lambda types, attrs: types[0], **ADDING)
    assert "translated `promising` to f32[3,4] instead of f32[4,3]" in fault(own, bind)
    own, bind = promising(infer=lambda types, attrs: [types[0], types[0]], **ADDING)
    assert "infer returned 2 types: an elementwise op, or a view, has one result" in fault(
        own, bind
    )


def pull(*parts: Callable[..., Any]) -> dict[str, Any]:
    return {"pull": lambda op, index, strict, start: tuple(part(index) for part in parts)}


@pytest.mark.parametrize(
    ("shape", "fields"),
    [
        ((3, 4), pull(lambda i: i[0] + 1, lambda i: i[1])),
        ((3, 4), pull(lambda i: i[0], lambda i: i[1] * 2)),
        ((3, 4), pull(lambda i: i[0] - 1, lambda i: i[1])),
        ((6, 8), pull(lambda i: i[0], lambda i: i[1])),
        ((12,), pull(lambda i: i[0].divmod(4)[0], lambda i: i[0])),
        ((9, 2), pull(lambda i: i[0].divmod(2)[0], lambda i: i[1])),
        ((12,), pull(lambda i: i[0])),
    ],
    ids=["behind", "twice", "before", "larger", "whole", "quotient", "rank"],
)
def test_index_maps(
    fault: Callable[..., str], shape: tuple[int, ...], fields: dict[str, Any]
) -> None:
    own, bind = promising(shape, **fields)
    said = fault(own, lambda x: bind(x + 1))
    assert "is a view, and its pull says that element" in said
    assert "of operand 0, which is f32[3,4]" in said


def test_index_maps_whose_range_is_only_wide() -> None:
    """i - 2 * (i // 2) is 0 or 1, and more by the ends of its parts."""
    parts = pull(lambda i: i[0] - i[0].divmod(2)[0] * 2, lambda i: i[1])
    own, bind = promising((9, 4), interpret=lambda _, op, x: x[np.arange(9) % 2], **parts)
    made = stagejit.jit(bind, options=stagejit.Options(extensions=own))
    np.testing.assert_array_equal(made(X), X[np.arange(9) % 2])


def test_views_have_the_elements_of_their_operand(fault: Callable[..., str]) -> None:
    prim = Primitive("promising")
    prim.def_abstract_eval(lambda x: ShapedArray(x.shape, np.float64))
    own = extending.op(
        w.OpDef(
            kind="promising",
            infer=lambda types, attrs: dataclasses.replace(types[0], dtype=w.i32),
            interpret=lambda _, op, x: x.astype(np.int32),
            **pull(lambda i: i[0], lambda i: i[1]),
        ),
        primitive=prim,
        translate=lambda emit, site, x: emit.build("promising", [x]),
    )
    said = fault(own, lambda x: prim.bind(x + 1))
    assert "is a view, and operand 0 of promising" in said


@pytest.mark.parametrize(
    ("fields", "said"),
    [
        ({"tied_operand": lambda op, number: 0}, "takes over the memory of an operand"),
        ({"forwards": True}, "takes over the memory of an operand"),
        ({"keeps_order": True}, "keeps the elements of operand 0 in their order"),
    ],
    ids=["tie", "forward", "order"],
)
def test_memory_that_is_taken_over(
    fault: Callable[..., str], fields: dict[str, Any], said: str
) -> None:
    own, bind = promising((30, 40), stands_alone=True, cpu=lambda *given: None, **fields)
    assert said in fault(own, lambda x: bind(x + 1))


def transposed(**fields: Any) -> tuple[Any, Any]:
    return promising(
        (4, 3),
        interpret=lambda _, op, x: x.T,
        **pull(lambda i: i[1], lambda i: i[0]),
        **fields,
    )


def test_inverses_and_orders_of_views(fault: Callable[..., str]) -> None:
    own, bind = transposed(push=lambda op, index: index)
    assert "and its push brings that to [" in fault(own, bind)
    own, bind = transposed(keeps_order=True)
    assert "keeps the elements of operand 0 in their order, and element [" in fault(own, bind)
    own, bind = transposed(push=lambda op, index: (index[1], index[0]))
    made = stagejit.jit(bind, options=stagejit.Options(extensions=own, verify=True))
    np.testing.assert_array_equal(made(X), X.T)

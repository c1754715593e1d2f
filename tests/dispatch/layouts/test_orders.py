"""Orders of values, one rule a trait: text in, the order of what is returned out."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import pytest
from jax import lax

from stagejit.dispatch.layouts.orders import Orders, completed, layout_of, order_of, row_major
from stagejit.graph.ir import Graph
from stagejit.graph.text.parser import parse
from stagejit.index.layout import Layout
from stagejit.trace.translate import graph_of

Order = tuple[int, ...]


def order(text: str, *given: Order | None) -> Order | None:
    """Of the only result, where inputs lie as given."""
    graph = parse(text)
    known = {v: o for v, o in zip(graph.inputs, given, strict=False) if o is not None}
    return Orders(graph, known).known.get(graph.outputs[0])


def body(*lines: str, inputs: str, result: str) -> str:
    made = "".join(f"  %{at}: {line}\n" for at, line in enumerate(lines))
    return f"graph @f({inputs}) {{\n{made}  return %{result}\n}}\n"


def test_arguments_are_row_major_without_axes_of_one_element() -> None:
    assert order("graph @f(%x: f32[4,1,6]) {\n  return %x\n}\n") == (0, 2)


def test_a_transpose_leaves_elements_where_they_are() -> None:
    text = body(
        "f32[2,16,8,9] = transpose %x permutation=(0, 3, 1, 2)",
        inputs="%x: f32[2,8,9,16]",
        result="0",
    )
    assert order(text) == (0, 2, 3, 1)


def test_a_broadcast_adds_no_axis_to_memory() -> None:
    text = body("f32[5,4] = broadcast %x axes=(1)", inputs="%x: f32[4]", result="0")
    assert order(text) == (1,)


def test_a_box_and_a_reverse_keep_the_order() -> None:
    text = body(
        "f32[2,6] = extract_slice %x at (1, 0) strides (2, 1)",
        "f32[2,6] = reverse %0 axes=(1)",
        inputs="%x: f32[4,6]",
        result="1",
    )
    assert order(text, (1, 0)) == (1, 0)


@pytest.mark.parametrize(
    ("source", "given", "shape", "expected"),
    [
        ((4, 6), None, (24,), (0,)),  # row-major all the way
        ((4, 6), (1, 0), (24,), None),  # memory has rows the other way
        ((4, 6), (1, 0), (4, 1, 6), (2, 0)),  # an axis of one element more
        ((4, 6), (1, 0), (2, 2, 6), (2, 0, 1)),  # an axis in two
        ((4, 2, 3), (1, 2, 0), (4, 6), (1, 0)),  # two that follow each other are one
        ((4, 2, 3), (2, 1, 0), (4, 6), None),  # two that do not
        ((4, 6), (1, 0), (8, 3), None),
    ],
)
def test_reshapes(source: Order, given: Order | None, shape: Order, expected: Order | None) -> None:
    def of(shape: Order) -> str:
        return f"f32[{','.join(map(str, shape))}]"

    text = body(f"{of(shape)} = reshape %x", inputs=f"%x: {of(source)}", result="0")
    assert order(text, given) == expected


def test_a_reduction_keeps_the_order_of_what_is_left() -> None:
    lines = [
        "f32[16,8,9] = reduce add %x axes=(1)",
        "f32[16,1,8,9] = reshape %0",
    ]
    inputs = "%x: f32[16,2,8,9]"
    assert order(body(lines[0], inputs=inputs, result="0"), (1, 2, 3, 0)) == (1, 2, 0)
    kept = order(body(*lines, inputs=inputs, result="1"), (1, 2, 3, 0))
    assert kept is not None
    assert completed(kept, 4) == (1, 2, 3, 0)


ADD = body("f32[4,6] = map add %x, %y", inputs="%x: f32[4,6], %y: f32[4,6]", result="0")


def test_the_reference_has_most_axes() -> None:
    text = body(
        "f32[4,6,5] = broadcast %x axes=(1, 0, 2)",
        "f32[4,6,5] = broadcast %y axes=(1)",
        "f32[4,6,5] = map mul %0, %1",
        inputs="%x: f32[6,4,5], %y: f32[6]",
        result="2",
    )
    assert order(text) == (1, 0, 2)


def test_axes_that_only_others_have_follow_by_number() -> None:
    text = body(
        "f32[4,6,5] = broadcast %x axes=(1, 0)",
        "f32[4,6,5] = broadcast %y axes=(2)",
        "f32[4,6,5] = map mul %0, %1",
        inputs="%x: f32[6,4], %y: f32[5]",
        result="2",
    )
    assert order(text) == (1, 0, 2)


def test_ties_agree_or_there_is_no_order() -> None:
    assert order(ADD, (1, 0), (1, 0)) == (1, 0)
    graph = parse(ADD)
    found = Orders(graph, {graph.inputs[0]: (1, 0)})
    assert graph.outputs[0] not in found.known
    assert [op.kind for op in found.ambiguous] == ["map"]


def test_what_has_no_order_gives_none() -> None:
    text = body(
        "f32[4,6] = map add %x, %y",
        "f32[4,6] = map exp %0",
        "f32[6] = reduce add %1 axes=(0)",
        "f32[6] = reverse %2 axes=(0)",
        inputs="%x: f32[4,6], %y: f32[4,6]",
        result="3",
    )
    assert order(text, (1, 0), (0, 1)) is None


def test_what_repeats_a_number_has_no_say() -> None:
    text = body(
        "f32[] = const 2.0",
        "f32[4,6] = fill %0",
        "f32[4,6] = map mul %x, %1",
        inputs="%x: f32[4,6]",
        result="2",
    )
    assert order(text, (1, 0)) == (1, 0)


def test_a_product_numbers_its_axes_itself() -> None:
    text = body(
        "f32[3,4,6] = contract %x, %w batch=((), ()) contracting=((2), (1))",
        inputs="%x: f32[3,4,5], %w: f32[6,5]",
        result="0",
    )
    assert order(text) == (0, 1, 2)
    assert order(text, (1, 2, 0), (1, 0)) == (0, 1, 2)


def convolution(split: str = "") -> Graph:
    shape = "3,2,7,8,9" if split else "2,7,8,9"
    dims = "lhs_spec=(0, 1, 2, 3) rhs_spec=(0, 1, 2, 3) out_spec=(0, 1, 2, 3) strides=(1, 1)"
    more = "padding=((1, 1), (1, 1)) lhs_dilation=(1, 1) rhs_dilation=(1, 1)"
    line = f"f32[{shape}] = conv %x, %w {dims} {more} feature_groups=1 batch_groups=1{split}"
    return parse(body(line, inputs="%x: f32[2,5,8,9], %w: f32[7,5,3,3]", result="0"))


def test_a_convolution_has_features_where_the_image_has_them() -> None:
    graph = convolution()
    image, result = graph.inputs[0], graph.outputs[0]
    assert Orders(graph, {image: (0, 2, 3, 1)}).known[result] == (0, 2, 3, 1)
    parts = convolution(" split=(1, 2)")
    found = Orders(parts, {parts.inputs[0]: (0, 2, 3, 1)})
    assert found.known[parts.outputs[0]] == (0, 1, 2, 3, 4)


@pytest.mark.parametrize("given", [(0, 2), (2, 0)])
@pytest.mark.parametrize(
    ("axis", "window", "padding"), [(0, 4, 0), (1, 1, 0), (1, 2, 1), (2, 6, 0), (2, 3, 0)]
)
def test_a_window_keeps_the_order_of_axes_with_several_elements(
    given: Order, axis: int, window: int, padding: int
) -> None:
    """Also where it leaves one element of an axis, or makes several of one; a view knows both."""
    sizes = tuple(window if at == axis else 1 for at in range(3))
    pads = tuple((padding, padding) if at == axis else (0, 0) for at in range(3))

    def function(x: jax.Array) -> jax.Array:
        y = lax.reduce_window(x, -jnp.inf, lax.max, sizes, (1, 1, 1), pads)
        return jnp.flip(y, axis)

    graph = graph_of(function, jnp.zeros((4, 1, 6)))
    (x,), (result,) = graph.inputs, graph.outputs
    expected = tuple(at for at in completed(given, 3) if result.shape[at] != 1)
    assert Orders(graph, {x: given}).known[result] == expected


def test_what_nobody_has_a_rule_for_is_row_major() -> None:
    text = body("f32[4,6] = cumulative add %x axis=0 reverse=false", inputs="%x: f32[4,6]",
                result="0")  # fmt: skip
    assert order(text, (1, 0)) == (1, 0)
    text = body(
        "i32[] = const 2",
        "f32[4,6] = insert_slice %x into %y at (0, 0)",
        inputs="%x: f32[4,6], %y: f32[4,6] donated",
        result="1",
    )
    assert order(text, (1, 0)) == (0, 1)  # where its destination lies


def test_layouts_of_orders() -> None:
    assert layout_of((1, 2, 0), (3, 4, 5)) == Layout((1, 2, 0))
    assert layout_of((0, 2), (3, 1, 5)).is_row_major
    assert order_of(Layout((2, 0, 1), (1, 4, 8)), (3, 1, 5)) == (2, 0)
    assert row_major((1, 1)) == ()

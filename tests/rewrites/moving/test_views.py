"""fold-views: each rule, each guard."""

from __future__ import annotations

from typing import Any

import pytest

from stagejit.graph.ir import Graph, Value
from stagejit.rewrites.driving.driver import Rule
from stagejit.rewrites.moving import views
from tests.rewrites.text_in_out import reasons, rewritten, unchanged


def graph(*lines: str, inputs: str = "%x: f32[2,3]") -> str:
    return "\n".join([f"graph @f({inputs}) {{", *lines, "}"])


@pytest.mark.parametrize(
    ("inputs", "op"),
    [
        ("%x: f32[2,3]", "%0: f32[2,3] = reshape %x"),
        ("%x: f32[2,3]", "%0: f32[2,3] = transpose %x permutation=(0, 1)"),
        ("%x: f32[1,1]", "%0: f32[1,1] = transpose %x permutation=(1, 0)"),
        ("%x: f32[2,3]", "%0: f32[2,3] = broadcast %x axes=(0, 1)"),
        ("%x: f32[1,3]", "%0: f32[1,3] = reverse %x axes=(0)"),
        ("%x: f32[2,3]", "%0: f32[2,3] = extract_slice %x at (0, 0)"),
        ("%x: f32[2,3], %i: i32[]", "%0: f32[2,3] = extract_slice %x at (%i, 0)"),
    ],
)
def test_identity_views_disappear(inputs: str, op: str) -> None:
    assert rewritten(views.identity_view, graph(op, "return %0", inputs=inputs)) == "return %x"


@pytest.mark.parametrize(
    "op",
    ["%0: f32[3,3] = transpose %x permutation=(1, 0)", "%0: f32[3,3] = reverse %x axes=(0)",
     "%0: f32[3,3] = broadcast %x axes=(1, 0)"],
)  # fmt: skip
def test_dont_drop_a_view_that_moves_elements(op: str) -> None:
    assert unchanged(views.identity_view, graph(op, "return %0", inputs="%x: f32[3,3]"))


@pytest.mark.parametrize(
    "op",
    ["%1: f32[3,2] = transpose %0 permutation=(1, 0)", "%1: f32[6] = reshape %0",
     "%1: f32[2,3,4] = broadcast %0 axes=(0, 1)", "%1: f32[2,3] = reverse %0 axes=(1)",
     "%1: f32[1,2] = extract_slice %0 at (1, 1)"],
)  # fmt: skip
def test_a_view_of_a_fill_is_a_fill(op: str) -> None:
    text = graph("%0: f32[2,3] = fill %s", op, "return %1", inputs="%s: f32[]")
    shape = op.split(" = ")[0].removeprefix("%1: ")
    assert rewritten(views.view_of_fill, text) == f"%0: {shape} = fill %s\nreturn %0"


def test_a_scalar_view_of_a_fill_is_the_scalar() -> None:
    text = graph("%0: f32[1] = fill %s", "%1: f32[] = reshape %0", "return %1",
                 inputs="%s: f32[]")  # fmt: skip
    assert rewritten(views.view_of_fill, text) == "return %s"


def test_dont_touch_a_view_of_another_op() -> None:
    text = graph("%0: f32[2,3] = map exp %x", "%1: f32[6] = reshape %0", "return %1")
    for rule in (views.view_of_fill, views.reshape_of_reshape):
        assert unchanged(rule, text)


def test_reshape_of_reshape() -> None:
    text = graph("%0: f32[6] = reshape %x", "%1: f32[3,2] = reshape %0", "return %1")
    assert rewritten(views.reshape_of_reshape, text) == ("%0: f32[3,2] = reshape %x\nreturn %0")


def test_transpose_of_transpose() -> None:
    text = graph(
        "%0: f32[4,2,3] = transpose %x permutation=(2, 0, 1)",
        "%1: f32[2,4,3] = transpose %0 permutation=(1, 0, 2)",
        "return %1", inputs="%x: f32[2,3,4]",
    )  # fmt: skip
    assert rewritten(views.transpose_of_transpose, text) == (
        "%0: f32[2,4,3] = transpose %x permutation=(0, 2, 1)\nreturn %0"
    )


@pytest.mark.parametrize(
    "op",
    ["%0: f32[3,1,2] = transpose %x permutation=(2, 0, 1)",
     "%0: f32[3,1,1,2] = broadcast %x axes=(0, 1, 3)"],
)  # fmt: skip
def test_dont_reshape_what_moves_elements(op: str) -> None:
    text = graph(
        op, "return %0", inputs="%x: f32[1,2,3]" if "transpose" in op else "%x: f32[3,1,2]"
    )
    assert unchanged(views.unit_dims_only, text) is ("transpose" in op)


def test_only_unit_dims_move() -> None:
    text = graph("%0: f32[3,1,4] = transpose %x permutation=(1, 0, 2)", "return %0",
                 inputs="%x: f32[1,3,4]")  # fmt: skip
    assert rewritten(views.unit_dims_only, text) == "%0: f32[3,1,4] = reshape %x\nreturn %0"


def test_dont_reshape_a_broadcast_that_repeats() -> None:
    assert unchanged(
        views.unit_dims_only, graph("%0: f32[2,3,2] = broadcast %x axes=(0, 1)", "return %0")
    )


def test_broadcast_of_broadcast() -> None:
    text = graph(
        "%0: f32[4,3] = broadcast %x axes=(1)", "%1: f32[4,5,3] = broadcast %0 axes=(0, 2)",
        "return %1", inputs="%x: f32[3]",
    )  # fmt: skip
    assert rewritten(views.broadcast_of_view, text) == (
        "%0: f32[4,5,3] = broadcast %x axes=(2)\nreturn %0"
    )


def test_broadcast_of_transpose_and_transpose_of_broadcast_agree() -> None:
    inner = graph(
        "%0: f32[3,2] = transpose %x permutation=(1, 0)",
        "%1: f32[3,2,4] = broadcast %0 axes=(0, 1)", "return %1",
    )  # fmt: skip
    outer = graph(
        "%0: f32[2,3,4] = broadcast %x axes=(0, 1)",
        "%1: f32[3,2,4] = transpose %0 permutation=(1, 0, 2)", "return %1",
    )  # fmt: skip
    expected = "%0: f32[3,2,4] = broadcast %x axes=(1, 0)\nreturn %0"
    assert rewritten(views.broadcast_of_view, inner) == expected
    assert rewritten(views.transpose_of_broadcast, outer) == expected


@pytest.mark.parametrize(
    ("first", "second", "rest"), [("0", "1", "(0, 1)"), ("0, 1", "1", "(0)"), ("0", "0", None)]
)
def test_reverse_of_reverse(first: str, second: str, rest: str | None) -> None:
    text = graph(f"%0: f32[2,3] = reverse %x axes=({first})",
                 f"%1: f32[2,3] = reverse %0 axes=({second})", "return %1")  # fmt: skip
    expected = f"%0: f32[2,3] = reverse %x axes={rest}\nreturn %0" if rest else "return %x"
    assert rewritten(views.reverse_of_reverse, text) == expected


def test_extract_of_extract() -> None:
    text = graph(
        "%0: f32[8] = extract_slice %x at (3) strides (2)",
        "%1: f32[3] = extract_slice %0 at (1) strides (3)", "return %1", inputs="%x: f32[20]",
    )  # fmt: skip
    assert rewritten(views.extract_of_extract, text) == (
        "%0: f32[3] = extract_slice %x at (5) strides (6)\nreturn %0"
    )


def test_dont_compose_slices_with_a_computed_start() -> None:
    for first, second in (("%i", "1"), ("1", "%i")):
        text = graph(
            f"%0: f32[8] = extract_slice %x at ({first})",
            f"%1: f32[3] = extract_slice %0 at ({second})", "return %1",
            inputs="%x: f32[20], %i: i32[]",
        )  # fmt: skip
        assert reasons(views.extract_of_extract, text) == [
            "a computed start is clamped to its own operand"
        ]


# ----------------------------------------------------------------- forwarding

INSERTED = "%x: f32[8,8], %s: f32[4,8], %i: i32[]"


def extract_after_insert(insert: str, extract: str) -> str:
    return graph(f"%0: f32[8,8] = insert_slice %s into %x at {insert}", extract, "return %1",
                 inputs=INSERTED)  # fmt: skip


@pytest.mark.parametrize(
    ("insert", "extract", "expected"),
    [
        ("(2, 0)", "%1: f32[4,8] = extract_slice %0 at (2, 0)",
         "%0: f32[4,8] = extract_slice %s at (0, 0)"),
        ("(2, 0)", "%1: f32[2,3] = extract_slice %0 at (3, 1)",
         "%0: f32[2,3] = extract_slice %s at (1, 1)"),
        ("(2, 0)", "%1: f32[2,8] = extract_slice %0 at (0, 0)",
         "%0: f32[2,8] = extract_slice %x at (0, 0)"),
        ("(2, 0)", "%1: f32[2,8] = extract_slice %0 at (6, 0)",
         "%0: f32[2,8] = extract_slice %x at (6, 0)"),
        ("(0, 0) strides (2, 1)", "%1: f32[2,8] = extract_slice %0 at (2, 0) strides (4, 1)",
         "%0: f32[2,8] = extract_slice %s at (1, 0) strides (2, 1)"),
        ("(0, 0) strides (2, 1)", "%1: f32[4,8] = extract_slice %0 at (1, 0) strides (2, 1)",
         "%0: f32[4,8] = extract_slice %x at (1, 0) strides (2, 1)"),
        ("(2, 0)", "%1: f32[0,8] = extract_slice %0 at (3, 0)",
         "%0: f32[0,8] = extract_slice %x at (3, 0)"),
    ],
)  # fmt: skip
def test_a_slice_read_is_forwarded_to_what_was_written(
    insert: str, extract: str, expected: str
) -> None:
    text = extract_after_insert(insert, extract)
    assert rewritten(views.extract_of_insert, text) == f"{expected}\nreturn %0"


@pytest.mark.parametrize(
    ("insert", "extract"),
    [
        ("(2, 0)", "%1: f32[4,8] = extract_slice %0 at (1, 0)"),
        ("(0, 0) strides (2, 1)", "%1: f32[3,8] = extract_slice %0 at (0, 0)"),
        ("(0, 0) strides (2, 1)", "%1: f32[2,8] = extract_slice %0 at (0, 0) strides (3, 1)"),
    ],
)
def test_dont_forward_a_box_that_is_partly_inserted(insert: str, extract: str) -> None:
    assert reasons(views.extract_of_insert, extract_after_insert(insert, extract)) == [
        "the box is partly inserted, partly not"
    ]


def test_dont_forward_across_a_computed_start() -> None:
    text = extract_after_insert("(%i, 0)", "%1: f32[4,8] = extract_slice %0 at (0, 0)")
    assert reasons(views.extract_of_insert, text) == ["the boxes of a computed start are not known"]


def inserts(first: str, second: str) -> str:
    return graph(
        f"%0: f32[8,8] = insert_slice %s into %x at {first}", "%1: f32[4,8] = map neg %s",
        f"%2: f32[8,8] = insert_slice %1 into %0 at {second}", "return %2", inputs=INSERTED,
    )  # fmt: skip


@pytest.mark.parametrize("place", ["(2, 0)", "(%i, 0)", "(1, 0) strides (2, 1)"])
def test_an_overwritten_insert_disappears(place: str) -> None:
    assert rewritten(views.insert_over_insert, inserts(place, place)) == (
        f"%0: f32[4,8] = map neg %s\n%1: f32[8,8] = insert_slice %0 into %x at {place}\nreturn %1"
    )


@pytest.mark.parametrize(("first", "second"), [("(2, 0)", "(1, 0)"), ("(%i, 0)", "(2, 0)"),
                                               ("(0, 0) strides (2, 1)", "(0, 0)")])  # fmt: skip
def test_dont_drop_an_insert_at_another_place(first: str, second: str) -> None:
    assert unchanged(views.insert_over_insert, inserts(first, second))


@pytest.mark.parametrize("rule", views.RULES, ids=lambda rule: rule.function.__name__)
def test_every_rule_says_before_and_after(rule: Rule) -> None:
    assert " --> " in rule.before_after.replace("  ", " ")


@pytest.mark.parametrize("fn", ["add", "mul", "max", "min"])
def test_a_reduction_over_unit_dims_is_a_reshape(fn: str) -> None:
    text = graph(
        f"%0: f32[2,3] = reduce {fn} %x axes=(1, 3)", "return %0", inputs="%x: f32[2,1,3,1]"
    )
    assert rewritten(views.reduce_of_unit_axes, text) == "%0: f32[2,3] = reshape %x\nreturn %0"


@pytest.mark.parametrize(
    ("inputs", "op"),
    [
        ("%x: f32[2,1,3]", "%0: f32[1,3] = reduce add %x axes=(0)"),
        ("%x: f32[2,1,3]", "%0: f32[3] = reduce add %x axes=(0, 1)"),
        ("%x: f32[2,1,3]", "%0: i32[2,3] = reduce argmax %x axes=(1)"),
        ("%x: f32[2,1,3]", "%0: i32[2,3] = reduce argmin %x axes=(1)"),
        ("%x: f32[2,0]", "%0: f32[2] = reduce add %x axes=(1)"),
    ],
)
def test_dont_reshape_what_a_reduction_computes(inputs: str, op: str) -> None:
    """Sums of several or of no elements; positions, which are indices and no elements."""
    assert unchanged(views.reduce_of_unit_axes, graph(op, "return %0", inputs=inputs))


def test_disjoint_inserts_in_a_row_are_passed_in_one_step(monkeypatch: pytest.MonkeyPatch) -> None:
    """Reading what a chain of updates left takes work by the number of reads, not of pairs."""
    lines = ["%0: f32[1] = extract_slice %x at (0)"]
    for k in range(1, 40):
        into = "%x" if k == 1 else f"%{k - 1}"
        lines.append(f"%{k}: f32[64] = insert_slice %0 into {into} at ({k})")
    lines += ["%40: f32[1] = extract_slice %39 at (50)", "return %40"]
    built: list[str] = []
    real = views.build

    def counted(graph: Graph, kind: str, *args: Any, **attrs: Any) -> Value:
        built.append(kind)
        return real(graph, kind, *args, **attrs)

    monkeypatch.setattr(views, "build", counted)
    result = rewritten(views.extract_of_insert, graph(*lines, inputs="%x: f32[64]"))
    assert result == "%0: f32[1] = extract_slice %x at (50)\nreturn %0"
    assert built == ["extract_slice"]


def test_dont_pass_an_insert_at_a_computed_place() -> None:
    text = graph(
        "%0: f32[1] = extract_slice %x at (0)",
        "%1: f32[64] = insert_slice %0 into %x at (%i)",
        "%2: f32[64] = insert_slice %0 into %1 at (3)",
        "%3: f32[1] = extract_slice %2 at (50)",
        "return %3",
        inputs="%x: f32[64], %i: i32[]",
    )
    expected = "%2: f32[1] = extract_slice %1 at (50)\nreturn %2"
    assert rewritten(views.extract_of_insert, text).endswith(expected)

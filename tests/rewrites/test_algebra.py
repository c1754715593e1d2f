"""simplify-algebra: each rule, each guard, and the bits that IEEE says must stay."""

from __future__ import annotations

import numpy as np
import pytest

from stagejit.graph.ir import Graph
from stagejit.graph.meaning.interpreter import interpret
from stagejit.graph.ops import build, filled
from stagejit.graph.text.parser import parse
from stagejit.options import Options
from stagejit.rewrites import algebra
from stagejit.rewrites.driving.driver import LocalStep, Rule, run_steps
from stagejit.rewrites.subexpressions import SHARING
from stagejit.types import TensorType, dtype_named, f32
from tests.rewrites.text_in_out import reasons, rewritten, unchanged


def binary(fn: str, constant: str, dtype: str = "f32", *, swap: bool = False) -> str:
    operands = "%1, %x" if swap else "%x, %1"
    return "\n".join([
        f"graph @f(%x: {dtype}[3]) {{",
        f"%0: {dtype}[] = const {constant}",
        f"%1: {dtype}[3] = fill %0",
        f"%2: {dtype}[3] = map {fn} {operands}",
        "return %2",
        "}",
    ])  # fmt: skip


IDENTITIES = [
    ("mul", "1.0", "f32"), ("div", "1.0", "f32"), ("add", "-0.0", "f32"), ("sub", "0.0", "f32"),
    ("pow", "1.0", "f32"), ("max", "-inf", "f32"), ("min", "inf", "f32"), ("mul", "1.0", "bf16"),
    ("mul", "1", "i32"), ("div", "1", "i32"), ("add", "0", "i32"), ("sub", "0", "u8"),
    ("or", "0", "u8"), ("xor", "0", "i32"), ("and", "-1", "i32"), ("and", "255", "u8"),
    ("shift_left", "0", "i32"), ("max", "-128", "i8"), ("min", "255", "u8"),
    ("or", "false", "bool"), ("and", "true", "bool"), ("xor", "false", "bool"),
]  # fmt: skip


@pytest.mark.parametrize(("fn", "constant", "dtype"), IDENTITIES)
def test_an_identity_disappears(fn: str, constant: str, dtype: str) -> None:
    assert rewritten(algebra.operand_and_identity, binary(fn, constant, dtype)) == "return %x"


@pytest.mark.parametrize(("fn", "constant", "dtype"), IDENTITIES)
def test_an_identity_on_the_left_only_where_order_does_not_matter(
    fn: str, constant: str, dtype: str
) -> None:
    text = binary(fn, constant, dtype, swap=True)
    if fn in ("sub", "div", "pow", "shift_left"):
        assert unchanged(algebra.operand_and_identity, text)
    else:
        assert rewritten(algebra.operand_and_identity, text) == "return %x"


@pytest.mark.parametrize(("fn", "constant"), [("add", "0.0"), ("sub", "-0.0")])
def test_dont_add_a_zero_that_changes_a_sign(fn: str, constant: str) -> None:
    assert reasons(algebra.operand_and_identity, binary(fn, constant)) == [
        "adding this zero turns a zero of the other sign into it"
    ]


@pytest.mark.parametrize(
    ("fn", "constant", "dtype"),
    [("mul", "0.0", "f32"), ("mul", "2", "i32"), ("max", "inf", "f32"), ("max", "0", "i32"),
     ("and", "1", "i32"), ("add", "true", "bool"), ("mul", "-1.0", "f32")],
)  # fmt: skip
def test_dont_drop_a_constant_that_is_no_identity(fn: str, constant: str, dtype: str) -> None:
    assert unchanged(algebra.operand_and_identity, binary(fn, constant, dtype))


def test_dont_drop_an_operand_of_another_shape_or_type() -> None:
    text = """graph @f(%x: bool[3]) {
      %0: bool[] = const true
      %1: bool[3] = fill %0
      %2: bool[3] = map eq %x, %1
      return %2
    }"""
    assert unchanged(algebra.operand_and_identity, text)


@pytest.mark.parametrize(("fn", "constant", "dtype"), IDENTITIES)
def test_special_values_keep_every_bit(fn: str, constant: str, dtype: str) -> None:
    numpy = dtype_named(dtype).numpy
    x = np.array([0.0, -0.0, np.nan] if dtype in ("f32", "bf16") else [0, 1, 5]).astype(numpy)
    graph = parse(binary(fn, constant, dtype))
    (before,) = interpret(graph, [x])
    run_steps(graph, (LocalStep("test", algebra.RULES),), Options(verify=True))
    (after,) = interpret(graph, [x])
    wide, again = before.astype(np.float64), after.astype(np.float64)
    np.testing.assert_array_equal(wide, again)
    number = ~np.isnan(wide)
    np.testing.assert_array_equal(np.signbit(wide)[number], np.signbit(again)[number])


def twice(first: str, second: str, dtype: str = "f32") -> str:
    return "\n".join([
        f"graph @f(%x: {dtype}[3]) {{", f"%0: {dtype}[3] = map {first.replace('$', '%x')}",
        f"%1: {dtype}[3] = map {second.replace('$', '%0')}", "return %1", "}",
    ])  # fmt: skip


def test_involutions_cancel() -> None:
    assert rewritten(algebra.repeated_function, twice("neg $", "neg $")) == "return %x"
    assert rewritten(algebra.repeated_function, twice("not $", "not $", "i32")) == "return %x"


@pytest.mark.parametrize("fn", ["abs $", "floor $", "ceil $", 'round $ rounding="even"'])
def test_idempotent_functions_apply_once(fn: str) -> None:
    assert rewritten(algebra.repeated_function, twice(fn, fn)).count("map") == 1


@pytest.mark.parametrize(
    ("first", "second"),
    [("exp $", "exp $"), ("abs $", "floor $"),
     ('round $ rounding="even"', 'round $ rounding="away"')],
)  # fmt: skip
def test_dont_merge_different_functions(first: str, second: str) -> None:
    assert unchanged(algebra.repeated_function, twice(first, second))


def power(y: int) -> str:
    return f"graph @f(%x: f32[3]) {{\n%0: f32[3] = map integer_pow %x y={y}\nreturn %0\n}}"


def test_small_powers() -> None:
    assert rewritten(algebra.small_power, power(1)) == "return %x"
    assert rewritten(algebra.small_power, power(2)) == "%0: f32[3] = map square %x\nreturn %0"


@pytest.mark.parametrize("y", [-1, 0, 3])
def test_dont_expand_other_powers(y: int) -> None:
    assert unchanged(algebra.small_power, power(y))


@pytest.mark.parametrize(
    ("divisor", "factor", "dtype"),
    [("8.0", "0.125", "f32"), ("-0.5", "-2.0", "f32"), ("4.0", "0.25", "bf16"),
     ("16384.0", "6.104e-05", "f16"), ("1.0842021724855044e-19", "9.223372e+18", "f32")],
)  # fmt: skip
def test_division_by_a_power_of_two_is_a_multiplication(
    divisor: str, factor: str, dtype: str
) -> None:
    text = binary("div", divisor, dtype)
    assert rewritten(algebra.division_by_power_of_two, text) == (
        f"%0: {dtype}[] = const {factor}\n"
        f"%1: {dtype}[3] = fill %0\n"
        f"%2: {dtype}[3] = map mul %x, %1\n"
        "return %2"
    )
    x = np.array([3.7, -1e-5, np.inf]).astype(dtype_named(dtype).numpy)
    graph = parse(text)
    (before,) = interpret(graph, [x])
    run_steps(graph, (LocalStep("test", algebra.RULES),), Options(verify=True))
    np.testing.assert_array_equal(before, interpret(graph, [x])[0])


def test_many_divisions_have_one_factor() -> None:
    """Nothing is left to eliminate-common-subexpressions."""
    graph = Graph()
    for shape in ((4,), (2, 3), ()):
        type = TensorType(f32, shape)
        x, sixteen = graph.add_input("x", type), filled(graph, 16, type)
        for _ in range(20):
            quotient = build(graph, "map", [x, sixteen], fn="div", dtype=f32)
            x = build(graph, "map", [quotient], fn="sin", dtype=f32)
        graph.set_outputs([*graph.outputs, x])
    decisions = run_steps(graph, [LocalStep("both", algebra.RULES, SHARING)], Options(verify=True))
    assert {decision.rewrite for decision in decisions} == {algebra.NAME}
    assert [op.attrs["value"] for op in graph if op.kind == "const"] == [1 / 16]


@pytest.mark.parametrize(
    ("divisor", "dtype"), [("1.7014118e+38", "f32"), ("32768.0", "f16"), ("1e-45", "f32")]
)
def test_dont_multiply_by_a_reciprocal_that_is_denormal_or_infinite(
    divisor: str, dtype: str
) -> None:
    assert reasons(algebra.division_by_power_of_two, binary("div", divisor, dtype)) == [
        "the reciprocal of the divisor is no normal number"
    ]


@pytest.mark.parametrize(
    ("divisor", "dtype"), [("3.0", "f32"), ("0.0", "f32"), ("inf", "f32"), ("4", "i32")]
)
def test_dont_touch_other_divisions(divisor: str, dtype: str) -> None:
    assert unchanged(algebra.division_by_power_of_two, binary("div", divisor, dtype))


def select(predicate: str, on_false: str) -> str:
    return f"""graph @f(%p: bool[3], %x: f32[3], %y: f32[3]) {{
      %0: bool[] = const true
      %1: bool[3] = fill %0
      %2: f32[3] = map select {predicate}, %x, {on_false}
      return %2
    }}"""


def test_a_known_selection() -> None:
    assert rewritten(algebra.select_of_known, select("%1", "%y")) == "return %x"
    assert rewritten(algebra.select_of_known, select("%p", "%x")) == "return %x"
    false = select("%1", "%y").replace("const true", "const false")
    assert rewritten(algebra.select_of_known, false) == "return %y"


def test_dont_choose_for_a_computed_predicate() -> None:
    text = """graph @f(%p: bool[3], %x: f32[3], %y: f32[3]) {
      %0: f32[3] = map select %p, %x, %y
      return %0
    }"""
    assert unchanged(algebra.select_of_known, text)


def test_elementwise_ops_move_inside_fills() -> None:
    text = """graph @f(%a: f32[], %b: f32[]) {
      %0: f32[4] = fill %a
      %1: f32[4] = fill %b
      %2: f32[4] = map add %0, %1
      %3: i32[4] = convert %2
      return %3
    }"""
    assert rewritten(algebra.elementwise_of_fills, text) == (
        "%0: f32[] = map add %a, %b\n%1: i32[] = convert %0\n%2: i32[4] = fill %1\nreturn %2"
    )


def test_dont_move_inside_a_fill_what_reads_an_array() -> None:
    text = """graph @f(%a: f32[], %x: f32[4]) {
      %0: f32[4] = fill %a
      %1: f32[4] = map add %0, %x
      return %1
    }"""
    assert unchanged(algebra.elementwise_of_fills, text)


def convert_back(narrow: str, wide: str) -> str:
    return "\n".join([f"graph @f(%x: {narrow}[3]) {{", f"%0: {wide}[3] = convert %x",
                      f"%1: {narrow}[3] = convert %0", "return %1", "}"])  # fmt: skip


@pytest.mark.parametrize(
    ("narrow", "wide"),
    [("f32", "f64"), ("bf16", "f32"), ("f16", "f64"), ("i8", "i32"), ("u8", "i16"), ("i8", "f16"),
     ("u8", "bf16"), ("i16", "f32"), ("bool", "u8"), ("bool", "f16"), ("u32", "i64"),
     ("i32", "f64"), ("i8", "u8"), ("i32", "u32")],
)  # fmt: skip
def test_there_and_back_through_a_wider_type(narrow: str, wide: str) -> None:
    assert rewritten(algebra.needless_convert, convert_back(narrow, wide)) == "return %x"


@pytest.mark.parametrize(
    ("narrow", "wide"),
    [("f32", "bf16"), ("f16", "bf16"), ("bf16", "f16"), ("f32", "i32"), ("i32", "f32"),
     ("i32", "u16"), ("i8", "bool"), ("i16", "f16"), ("i16", "bf16"), ("i64", "f64"),
     ("bf16", "u8")],
)  # fmt: skip
def test_dont_skip_a_type_that_loses_values(narrow: str, wide: str) -> None:
    assert reasons(algebra.needless_convert, convert_back(narrow, wide)) == [
        f"{wide} does not hold every {narrow}"
    ]


def test_dont_skip_a_conversion_to_a_third_type() -> None:
    text = convert_back("bf16", "f32").replace("%1: bf16", "%1: f16")
    assert unchanged(algebra.needless_convert, text)


@pytest.mark.parametrize("narrow", ["bool", "i8", "u8", "i16", "u16", "f16", "bf16"])
@pytest.mark.parametrize(
    "wide", ["bool", "i8", "u8", "i16", "u16", "i32", "u32", "f16", "bf16", "f32", "f64"]
)
def test_holding_all_values_is_exactly_that(narrow: str, wide: str) -> None:
    """Against every value of the narrow type there is."""
    from stagejit.graph.meaning.scalar import convert

    dtype, target = dtype_named(narrow), dtype_named(wide)
    if narrow == "bool":
        values = np.array([False, True])
    else:
        count = 1 << dtype.bits
        values = np.arange(count, dtype=np.dtype(f"u{dtype.itemsize}")).view(dtype.numpy)
    with np.errstate(all="ignore"):
        back = convert(convert(values, target.numpy), dtype.numpy)
        same = (back == values) | ((back != back) & (values != values))
    assert bool(same.all()) is algebra.holds_all_values(target, dtype)


@pytest.mark.parametrize("rule", algebra.RULES, ids=lambda rule: rule.function.__name__)
def test_every_rule_says_before_and_after(rule: Rule) -> None:
    assert " --> " in rule.before_after.replace("  ", " ")

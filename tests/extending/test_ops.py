"""Ops from outside of the package go through every stage, on a CPU and on an emulated GPU."""

from __future__ import annotations

import dataclasses
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import stagejit
from stagejit import extending
from stagejit.errors import ExtensionError, OptionsError, VerificationError
from stagejit.extending import writing as w
from stagejit.graph.meaning.interpreter import interpret
from stagejit.graph.text.parser import parse
from stagejit.graph.text.printer import as_text
from stagejit.graph.verifier import verify
from tests.extending.own import (
    RECURRENCE,
    SOFTSIGN,
    alike,
    primitive,
    recurrence,
    recurrence_kernel,
    recurrence_p,
    softsign,
    softsign_code,
    softsign_p,
)

OWN = (
    extending.op(SOFTSIGN, primitive=softsign_p),
    extending.op(RECURRENCE, primitive=recurrence_p, cpu=recurrence_kernel, cuda=recurrence_kernel),
)
TARGETS = ("native", "cuda-emulated")
TEXT = """graph @f(%x: f32[2,5]) {
  %0: f32[2,5] = softsign %x
  %1: f32[2,5] = linear_recurrence %0, %x
  return %1
}"""


def options(target: str = "native", **more: Any) -> stagejit.Options:
    return stagejit.Options(extensions=OWN, target=target, verify=True, delegate=False, **more)


def program(a: Any, x: Any) -> Any:
    return 2 * recurrence_p.bind(a * 0.5, jnp.exp(softsign_p.bind(x))) + 1


def wanted(a: np.ndarray[Any, Any], x: np.ndarray[Any, Any]) -> np.ndarray[Any, Any]:
    a, x = a.astype(np.float64), x.astype(np.float64)
    return 2 * recurrence(None, None, a * 0.5, np.exp(softsign(None, None, x))) + 1


def arguments(*shape: int) -> tuple[np.ndarray[Any, Any], np.ndarray[Any, Any]]:
    random = np.random.default_rng(len(shape))
    a, x = random.uniform(-1, 1, (2, *shape)).astype(np.float32)
    return a, x


def test_types_text_and_meaning() -> None:
    with pytest.raises(VerificationError, match="unknown op kind 'softsign'"):
        parse(TEXT)
    with extending.declaring(*OWN):
        graph = parse(TEXT)
        verify(graph)
        x = arguments(2, 5)[1]
        np.testing.assert_allclose(
            interpret(graph, [x])[0], recurrence(None, None, softsign(None, None, x), x), rtol=1e-6
        )
    assert as_text(graph) == TEXT
    with pytest.raises(VerificationError, match="unknown op kind"):
        parse(TEXT)


@pytest.mark.parametrize("target", TARGETS)
@pytest.mark.parametrize("shape", [(5, 37), (7,), (2, 3, 64), (1, 1), (0, 4)])
def test_they_run(target: str, shape: tuple[int, ...]) -> None:
    a, x = arguments(*shape)
    f = stagejit.jit(program, options=options(target))
    np.testing.assert_allclose(f(a, x), wanted(a, x), rtol=2e-6)


@pytest.mark.parametrize("target", TARGETS)
def test_what_surrounds_them_is_fused_and_they_are_in_plan_and_explanation(target: str) -> None:
    f = stagejit.jit(program, options=options(target))
    plan = f.plan(*arguments(5, 37))
    (dispatch,) = plan.dispatches
    assert dispatch.kind == "linear_recurrence"
    assert dispatch.ops == ("mul", "softsign", "exp", "linear_recurrence", "mul", "add")
    assert dispatch.flops == 5 * 37 * (1 + 3 + 1 + 2 + 1 + 1)
    text = f.explain(*arguments(5, 37)).as_text(kernels=True)
    assert "+ softsign @ softsign: f32[5,37]: becomes softsign" in text
    assert "schedule: by linear_recurrence: an item has a line" in text
    assert ("for c1 of 37" in f.lower(*arguments(5, 37)).as_text("loops")) == (target != "")


@pytest.mark.parametrize("target", TARGETS)
def test_an_op_that_stands_alone(target: str) -> None:
    """What it reads and makes lies in memory; its kernel is the same."""
    alone = extending.OpDef(
        kind="recurrence_alone", infer=alike, interpret=recurrence, stands_alone=True
    )
    alone_p = primitive("recurrence_alone")
    own = extending.op(alone, primitive=alone_p, cpu=recurrence_kernel, cuda=recurrence_kernel)
    a, x = arguments(4, 9)
    made = stagejit.Options(extensions=own, target=target, verify=True, delegate=False)
    f = stagejit.jit(lambda a, x: alone_p.bind(a, x * 2).sum(1), options=made)
    np.testing.assert_allclose(
        f(a, x), recurrence(None, None, a, x * 2).sum(1), rtol=1e-5, atol=1e-6
    )
    assert "recurrence_alone" in [dispatch.kind for dispatch in f.plan(a, x).dispatches]


def test_they_are_native_in_loops_and_in_other_transformations() -> None:
    def looped(a: Any, x: Any) -> Any:
        return jax.lax.fori_loop(0, 3, lambda i, y: recurrence_p.bind(a, softsign_p.bind(y)), x)

    a, x = arguments(3, 8)
    f = stagejit.jit(looped, options=options())
    want = x
    for _ in range(3):
        want = recurrence(None, None, a, softsign(None, None, want))
    np.testing.assert_allclose(f(a, x), want, rtol=1e-5, atol=1e-6)
    assert not f.plan(a, x).delegated


def test_elsewhere_the_primitive_is_what_it_was() -> None:
    """No table of the process knows the op, and one may be switched off by its name."""
    _, x = arguments(3, 8)
    for made in (
        stagejit.Options(),
        options(disable=("softsign", "linear_recurrence")),
    ):
        f = stagejit.jit(lambda x: softsign_p.bind(x), options=made)
        if made.delegate:
            (left,) = f.plan(x).delegated
            assert "softsign" in left.equation
        else:
            with pytest.raises(stagejit.StagejitError, match="cannot lower `softsign"):
                f(x)


def test_a_primitive_of_jax_is_translated_anew() -> None:
    from jax.extend.core.primitives import tanh_p

    @extending.translation("rational-tanh", tanh_p)
    def rational(emit: Any, site: Any, x: w.Value) -> Any:
        if x.type.dtype is not w.f32:
            raise w.Unsupported("only f32")
        squared = emit.map("mul", x, x)
        top = emit.map("mul", x, emit.map("add", squared, emit.const(27.0, w.f32)))
        bottom = emit.map(
            "add", emit.map("mul", squared, emit.const(9.0, w.f32)), emit.const(27.0, w.f32)
        )
        return emit.map("div", top, bottom)

    f = stagejit.jit(jnp.tanh, options=stagejit.Options(extensions=rational, verify=True))
    x = np.linspace(-1, 1, 33, dtype=np.float32)
    np.testing.assert_allclose(f(x), x * (27 + x**2) / (27 + 9 * x**2), rtol=1e-6)
    half = x.astype(np.float16)
    np.testing.assert_allclose(f(half), np.tanh(half), rtol=1e-2, atol=1e-3)
    reasons = [d.reason for d in f.plan(half).decisions if d.rewrite == "rational-tanh"]
    assert reasons == ["only f32"]


# -- faults


def broken(definition: Any = SOFTSIGN, f: Any = softsign_p.bind, **given: Any) -> ExtensionError:
    own = extending.op(definition, **{"primitive": softsign_p, **given})
    with pytest.raises(ExtensionError) as caught:
        stagejit.jit(f, options=stagejit.Options(extensions=own))(arguments(3, 8)[1])
    assert __file__ in caught.value.loc.file
    return caught.value


@pytest.mark.parametrize(
    ("code", "what"),
    [
        (lambda b, op, elements: 1.0, "returned a float as the code of softsign"),
        (lambda b, op, elements: b.cast("bitcast", elements[0], "i32"), "returned code of type"),
        (lambda b, op, elements: b.binary("maximise", *elements, 1.0), "there is no `maximise`"),
        (lambda b, op, elements: elements[3], "IndexError"),
    ],
)
def test_code_that_is_none(code: Any, what: str) -> None:
    definition = extending.OpDef(
        kind="softsign", infer=alike, interpret=softsign, is_elementwise=True, code=code
    )
    assert what in broken(definition).what


def test_a_translation_of_another_type() -> None:
    fault = broken(translate=lambda emit, site, x: emit.reshape(x, (24,)))
    assert "translated `softsign` to f32[24] instead of f32[3,8]" in fault.what


def test_operands_that_do_not_fit_are_refused_where_they_are() -> None:
    def infer(operands: Any, attrs: Any) -> Any:
        w.require(operands[0].rank == 1, "one axis only")
        return operands[0]

    definition = extending.OpDef(
        kind="softsign", infer=infer, interpret=softsign, is_elementwise=True, code=lambda *_: None
    )
    assert "one axis only" in broken(definition).what


@pytest.mark.parametrize(
    "types",
    [
        lambda type: w.TensorType(type.shape, type.dtype),
        lambda type: type.shape,
        lambda type: (type, "f32[3,8]"),
    ],
)
def test_a_result_type_that_is_none(types: Any) -> None:
    definition = extending.OpDef(
        kind="softsign",
        infer=lambda operands, attrs: types(operands[0]),
        interpret=softsign,
        is_elementwise=True,
        code=softsign_code,
    )
    assert "infer returned no type of a value, which is TensorType(" in broken(definition).what


def test_an_op_without_a_kernel_says_what_it_lacks() -> None:
    fault = broken(RECURRENCE, lambda x: recurrence_p.bind(x, x), primitive=recurrence_p)
    assert fault.what == "op 'linear_recurrence' has no kernel for a CPU"
    assert "give extending.op(..., cpu=...)" in str(fault)
    assert "report" not in str(fault)


def test_an_op_that_says_not_how_it_is_computed() -> None:
    definition = extending.OpDef(kind="softsign", infer=alike, interpret=softsign)
    fault = broken(definition, cpu=lambda region, machine: None)
    assert fault.what.startswith("op 'softsign' has no kernel: ")
    assert "is_elementwise=True" in str(fault)
    assert "report" not in str(fault)


def both_ways(definition: Any, f: Any, *args: Any) -> tuple[Any, ExtensionError | None]:
    """Without verification, which says nothing, and with it."""
    own = extending.op(definition, primitive=softsign_p)
    found = stagejit.jit(f, options=stagejit.Options(extensions=own))(*args)
    try:
        stagejit.jit(f, options=stagejit.Options(extensions=own, verify=True))(*args)
    except ExtensionError as error:
        return found, error
    return found, None


DTYPES = ("float32", "float16", "bfloat16", "int32", "uint8", "int8", "bool")


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("shape", [(), (1,), (3, 8), (40, 70), (0, 4)])
def test_code_that_means_what_interpret_says_is_taken(dtype: str, shape: Any) -> None:
    definition = extending.OpDef(
        kind="softsign", infer=alike, is_elementwise=True,
        interpret=lambda evaluator, op, x: np.where(x == 0, x, x), code=lambda b, op, e: e[0],
    )  # fmt: skip
    x = jnp.ones(shape, dtype)
    found, fault = both_ways(definition, softsign_p.bind, x)
    np.testing.assert_array_equal(found, x)
    assert fault is None


@pytest.mark.parametrize("dtype", ["float32", "float16", "bfloat16", "int32", "uint8"])
def test_code_that_means_something_else_is_refused_where_it_is_verified(dtype: str) -> None:
    definition = extending.OpDef(
        kind="softsign", infer=alike, is_elementwise=True,
        interpret=lambda evaluator, op, x: x + x, code=lambda b, op, e: e[0],
    )  # fmt: skip
    _, fault = both_ways(definition, lambda x: softsign_p.bind(x * 2), jnp.ones((3, 8), dtype))
    assert fault is not None
    assert "has code that does not do what its interpret does: of " in fault.what


def test_a_bool_is_compared_too() -> None:
    definition = extending.OpDef(
        kind="softsign", infer=alike, is_elementwise=True,
        interpret=lambda evaluator, op, x: ~x, code=lambda b, op, e: e[0],
    )  # fmt: skip
    _, fault = both_ways(definition, softsign_p.bind, jnp.ones((3, 8), bool))
    assert fault is not None


def test_two_ops_of_one_kind_do_not_meet() -> None:
    first, second = (extending.op(SOFTSIGN, primitive=softsign_p) for _ in range(2))
    with pytest.raises(OptionsError, match="two extensions are called 'softsign'"):
        stagejit.Options(extensions=(first, second))
    with pytest.raises(OptionsError, match="there is an op kind 'map' already"):
        extending.op(extending.OpDef(kind="map", infer=alike, interpret=softsign))


@pytest.mark.parametrize("dtype", ["uint8", "uint16", "uint32", "uint64", "int8", "int32"])
@pytest.mark.parametrize("by_type", [True, False])
def test_integers_beyond_half_of_their_range_are_compared(dtype: str, by_type: bool) -> None:
    """Registers do not know whether their integers have a sign."""

    def code(b: Any, op: Any, elements: Any) -> Any:
        (x,) = elements
        small = w.scalar(b, "lt", op.result.type.dtype, x, 3) if by_type else x < 3
        return b.select(small, x, x + 1)

    definition = extending.OpDef(
        kind="softsign", infer=alike, is_elementwise=True, code=code,
        interpret=lambda evaluator, op, x: np.where(x < 3, x, x + x.dtype.type(1)),
    )  # fmt: skip
    with jax.enable_x64():
        _, fault = both_ways(definition, softsign_p.bind, jnp.ones((3, 8), dtype))
    assert (fault is None) == (by_type or dtype.startswith("int"))


@pytest.mark.parametrize(
    "wrong",
    [
        lambda y: y[:1],
        lambda y: y.reshape(-1)[0],
        lambda y: y.reshape(-1),
        lambda y: np.concatenate([y, y]),
        lambda y: y[None],
        lambda y: None,
        lambda y: [],
        lambda y: [y, y],
        lambda y: y.astype(np.complex64),
        lambda y: y.astype(str),
    ],
)
@pytest.mark.parametrize("has_code", [True, False])
def test_what_interpret_returns_has_the_shape_of_the_result(wrong: Any, has_code: bool) -> None:
    declared = SOFTSIGN if has_code else RECURRENCE
    definition = dataclasses.replace(
        declared, kind="unfit", interpret=lambda *given: wrong(declared.interpret(*given))
    )
    kernel = {} if has_code else {"cpu": recurrence_kernel}
    own = extending.op(definition, primitive=recurrence_p, **kernel)
    operands = ("%x",) if has_code else ("%x", "%x")
    text = (
        f"graph @f(%x: f32[3,8]) {{\n  %0: f32[3,8] = unfit {', '.join(operands)}\n  return %0\n}}"
    )
    with pytest.raises(ExtensionError, match="failed in its interpret: ValueError: it returned"):
        extending.rewritten(text, own)
    x = arguments(3, 8)[1]
    f = stagejit.jit(
        lambda x: recurrence_p.bind(*[x * 2] * len(operands)),
        options=stagejit.Options(extensions=own, verify=True),
    )
    with pytest.raises(ExtensionError, match=r"it returned .* for f32\[3,8\]"):
        f(x)


def test_elements_alone_are_as_many_as_interpret_is_given() -> None:
    """What a constant makes of one element, where all are one."""
    own = extending.op(SOFTSIGN, primitive=softsign_p)
    options = stagejit.Options(extensions=own, check_nans=True)
    f = stagejit.jit(lambda x: x + softsign_p.bind(jnp.full((3, 8), 2.0)), options=options)
    np.testing.assert_allclose(f(jnp.ones((3, 8))), 1 + 2 / 3, rtol=1e-6)

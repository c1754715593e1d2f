"""What ops, schedules and machines of a user's may do wrong: an ExtensionError names it."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax.numpy as jnp
import numpy as np
import pytest

import stagejit
from stagejit import extending
from stagejit.errors import ExtensionError
from stagejit.extending import writing as w
from tests.extending.faults.programs import OTHER, X, f, own_op
from tests.extending.own import alike, primitive


@pytest.mark.parametrize(
    "fields",
    [
        {"flops": lambda op: "many", "is_elementwise": True, "code": lambda b, op, e: e[0]},
        {"flops": lambda op: None, "is_elementwise": True, "code": lambda b, op, e: e[0]},
        {"accumulates": True, "cpu": lambda region, machine: None},
        {"stands_alone": True, "cpu": lambda region, machine: extending.declined("too small")},
        {"translate": lambda emit, site, x: 5},
        {"translate": lambda emit, site, x: w.parse(OTHER).outputs[0]},
    ],
    ids=["flops", "no-flops", "no-kernel", "declined", "a-number", "another-graph"],
)
def test_ops(fault: Callable[..., str], fields: dict[str, Any]) -> None:
    own, function = own_op(**fields)
    fault(own, function)


def misread(region: Any, machine: Any) -> w.Kernel:
    """a cell that nobody has set"""
    loops = w.lines_of(region, machine, axis=1)
    before, along, _ = loops.groups

    def tree(loops: Any, emitter: Any, memory: Any) -> w.Parallel:
        line, last = w.Line(loops, emitter.elements, memory), w.Cell("last")

        def step() -> list[Any]:
            made = line.operand(0) + emitter.cells[last][0]
            line.store(made)
            return [made]

        each = w.serial(along, emitter.set_cell("step", last, step))
        return w.items([(var, 1) for var in before], each, emitter)

    return w.kernel(region, machine, loops, tree)


@pytest.mark.parametrize(
    ("fields", "said"),
    [
        ({"accumulates": True, "cpu": lambda *given: None}, "returned None for a wrong, no Kernel"),
        (
            {"accumulates": True, "cpu": lambda *given: extending.declined("too small")},
            "declined a wrong, of which nobody else has a kernel: too small",
        ),
        (
            {"accumulates": True, "cpu": misread},
            "the cell 'last' is read where it has no registers",
        ),
        (
            {"is_elementwise": True, "code": lambda b, op, e: w.scalar(b, "max", w.f32, e[0], "0")},
            "element 1 of 'max' is '0', of type str",
        ),
    ],
    ids=["none", "declined", "cell", "text"],
)
def test_what_ops_lack_is_said(
    fault: Callable[..., str], fields: dict[str, Any], said: str
) -> None:
    own, function = own_op(**fields)
    assert said in fault(own, function)


@pytest.mark.parametrize(
    "code",
    [
        lambda b, op, e: max(e[0], e[0] * 2.0),
        lambda b, op, e: e[0] if e[0] > 0.0 else -e[0],
        lambda b, op, e: e[0] if e[0] != 0.0 else e[0] + 1.0,
        lambda b, op, e: e[0] and -e[0],
        lambda b, op, e: -e[0] if e[0] * 2.0 in e else e[0],
    ],
    ids=["max", "greater", "unequal", "and", "in"],
)
def test_registers_have_no_truth(fault: Callable[..., str], code: Callable[..., Any]) -> None:
    """It would choose one way for all elements."""
    own, function = own_op(is_elementwise=True, code=code)
    assert "is true or false only when its kernel runs" in fault(own, function)


def test_registers_are_compared_in_the_kernel() -> None:
    prim = primitive("nonzero")
    nonzero = w.OpDef(
        kind="nonzero", infer=alike, interpret=lambda _, op, x: np.where(x == 0, 2, x),
        is_elementwise=True, code=lambda b, op, e: b.select(e[0] == 0.0, 2.0, e[0]),
    )  # fmt: skip
    options = stagejit.Options(extensions=extending.op(nonzero, primitive=prim), verify=True)
    made = stagejit.jit(lambda x: prim.bind(x), options=options)
    np.testing.assert_array_equal(made(np.float32([0, 1, np.nan])), np.float32([2, 1, np.nan]))


def test_an_infer_that_returns_nothing(fault: Callable[..., str]) -> None:
    prim = primitive("wrong")
    forgetful = w.OpDef(
        kind="wrong", infer=lambda operands, attrs: None, interpret=lambda _, op, x: x,
        is_elementwise=True, code=lambda b, op, elements: elements[0],
    )  # fmt: skip
    own = extending.op(forgetful, primitive=prim)
    assert "infer of wrong returned None" in fault(own, lambda x: prim.bind(x))


@pytest.mark.parametrize("zero", [0, 0.0, False, np.float32(0), np.int64(0)])
def test_numbers_are_elements(zero: Any) -> None:
    prim = primitive("relu")
    relu = w.OpDef(
        kind="relu", infer=alike, interpret=lambda _, op, x: np.maximum(x, 0),
        is_elementwise=True, code=lambda b, op, e: w.scalar(b, "max", w.f32, e[0], zero),
    )  # fmt: skip
    options = stagejit.Options(extensions=extending.op(relu, primitive=prim), verify=True)
    made = stagejit.jit(lambda x: prim.bind(x), options=options)
    np.testing.assert_array_equal(made(X), np.maximum(X, 0))


def scheduled(tree: Any, *, backend: str = "cpu", **more: Any) -> Any:
    @extending.schedule("wrong", kinds="map", backend=backend)
    def schedule(region: Any, machine: Any) -> Any:
        loops = w.loops_of_stores(region, machine)
        return w.kernel(region, machine, loops, tree, **more)

    return schedule


def of_fewer_than_none(loops: Any, emitter: Any, memory: Any) -> Any:
    (var,) = loops.groups[0]
    return w.items([(var, -5)], w.serial([var], w.stored(loops, emitter, memory)), emitter)


def one_of_five(loops: Any, emitter: Any, memory: Any) -> Any:
    (var,) = loops.groups[0]
    return w.items([(var, 5)], w.stored(loops, emitter, memory), emitter)


def one_of_a_block(loops: Any, emitter: Any, memory: Any) -> Any:
    (var,) = loops.groups[0]
    store = w.stored(loops, emitter, memory)
    return w.items([(var, 6)], w.blocks(var, 3, store), emitter)


def none_at_all(loops: Any, emitter: Any, memory: Any) -> Any:
    return w.items([(var, 1) for var in loops.groups[0]], w.Do("nothing", lambda: None), emitter)


def an_element_each(loops: Any, emitter: Any, memory: Any) -> Any:
    variables = [(var, 1) for group in loops.groups for var in group]
    return w.items(variables, w.stored(loops, emitter, memory), emitter)


def test_schedules(fault: Callable[..., str]) -> None:
    fault(scheduled(of_fewer_than_none), jnp.exp)
    fault(scheduled(lambda *given: None), jnp.exp)
    assert "one is stored" in fault(scheduled(one_of_five), jnp.exp)
    assert "one is stored" in fault(scheduled(one_of_a_block), jnp.exp)
    assert "stores nothing in" in fault(scheduled(none_at_all), jnp.exp)
    fewer = scheduled(an_element_each, backend="cuda", threads=-3)
    fault(fewer, jnp.exp, target="cuda-emulated")


def test_a_kernel_of_another_region(fault: Callable[..., str]) -> None:
    kept: list[Any] = []

    @extending.schedule("wrong", kinds="map")
    def first_one(region: Any, machine: Any) -> Any:
        loops = w.loops_of_stores(region, machine)
        kept.append(w.kernel(region, machine, loops, an_element_each))
        return kept[0]

    fault(first_one, lambda x: (jnp.exp(x), jnp.sin(x[:2].T) * 3))


@pytest.mark.parametrize("order", [1, -1])
def test_two_machines_of_one_kind(fault: Callable[..., str], order: int) -> None:
    pair = (extending.cpu("one", cores=1), extending.cpu("many", cores=64))[::order]
    options = stagejit.Options(extensions=pair)
    with pytest.raises(ExtensionError, match=f"'{pair[1].name}' is a second machine beside") as e:
        stagejit.jit(f, options=options).plan(X)
    assert str(e.value.loc).startswith(__file__)
    stagejit.jit(f, options=stagejit.Options(extensions=(pair[0], extending.gpu("other")))).plan(X)

"""What code of a user's may do wrong: each is an ExtensionError that names it, with and without
`verify`, and none is covered by a fallback to XLA."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import stagejit
from stagejit import extending
from stagejit.base.blaming import blaming
from stagejit.errors import ExtensionError, UnsupportedOpError
from stagejit.extending import writing as w
from tests.extending.own import alike, primitive

X = np.linspace(-1, 1, 12, dtype=np.float32).reshape(3, 4)
OTHER = "graph @g(%x: f32[3,4]) {\n  %0: f32[3,4] = map neg %x\n  return %0\n}"
Rewriting = Callable[[w.Graph, w.Op], Any]
OfGraphs = Callable[..., Any]


def f(x: Any) -> Any:
    return jnp.exp(-x) * 2 + x.sum(1, keepdims=True)


@pytest.fixture(autouse=True)
def _as_users_run_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("STAGEJIT_STRICT", raising=False)


@pytest.fixture(params=[False, True], ids=["plain", "verify"])
def fault(request: pytest.FixtureRequest) -> Callable[..., str]:
    """What is said of a call with an extension."""

    def of(extension: Any, function: Any = f, **options: Any) -> str:
        options = {"verify": request.param} | options
        made = stagejit.jit(function, options=stagejit.Options(extensions=extension, **options))
        with pytest.raises(ExtensionError) as caught:
            made(X)
        assert f"extension {extension.name!r}" in caught.value.what
        assert str(caught.value.loc).startswith(__file__)
        return caught.value.what

    return of


# -- rewrites of ops


def negated(graph: w.Graph, value: w.Value) -> w.Value:
    made: w.Value = w.build(graph, "map", [value], fn="neg", dtype=w.f32)
    return made


def of_another_graph(graph: w.Graph, op: w.Op) -> Any:
    return w.parse(OTHER).outputs[0]


def of_itself(graph: w.Graph, op: w.Op) -> Any:
    return negated(graph, op.result)


def of_itself_once_more(graph: w.Graph, op: w.Op) -> Any:
    return w.build(graph, "map", op.operands, fn="exp", dtype=w.f32)


def of_more_and_more(graph: w.Graph, op: w.Op) -> Any:
    """The package takes two negations away again."""
    twice = negated(graph, negated(graph, op.operands[0]))
    return w.build(graph, "map", [twice], fn="exp", dtype=w.f32)


def of_another_type(graph: w.Graph, op: w.Op) -> Any:
    return w.filled(graph, 1.0, w.TensorType(w.f64, (3, 4)))


def of_nothing_returned(graph: w.Graph, op: w.Op) -> Any:
    graph.set_outputs([])


def of_less_returned(graph: w.Graph, op: w.Op) -> Any:
    graph.set_outputs([w.filled(graph, 1.0, w.TensorType(w.f32, (3,)))])


def of_a_missing_op(graph: w.Graph, op: w.Op) -> Any:
    graph.nx.remove_node(op)


@pytest.mark.parametrize(
    ("rewriting", "said"),
    [
        (of_another_graph, "returned a value of another graph"),
        (of_itself, ""),
        (of_itself_once_more, "do not end"),
        (of_more_and_more, "do not end"),
        (of_another_type, "replaced a f32"),
        (of_nothing_returned, "returns nothing instead of f32[3,4]"),
        (of_less_returned, "returns f32[3] instead of f32[3,4]"),
        (of_a_missing_op, ""),
    ],
)
def test_rules(fault: Callable[..., str], rewriting: Rewriting, said: str) -> None:
    def rule(graph: w.Graph, op: w.Op) -> Any:
        """map exp %x  -->  something wrong"""
        return rewriting(graph, op)

    assert said in fault(extending.rewrite("wrong", roots="map", functions="exp")(rule))


def test_a_rule_of_ops_with_several_results(fault: Callable[..., str]) -> None:
    @extending.rewrite("wrong", roots="sort")
    def first(graph: w.Graph, op: w.Op) -> Any:
        """sort %x, %y  -->  %x"""
        return op.operands[0]

    said = fault(first, lambda x: jax.lax.sort((x, 2 * x), num_keys=1))
    assert "which has 2 results" in said


@pytest.mark.parametrize("operand", [1, 9, -3])
def test_an_operand_that_some_ops_have_not_is_none_of_them(operand: int) -> None:
    @extending.rewrite("of-a-sum", roots="map", of="map", operand=operand)
    def of_a_sum(graph: w.Graph, op: w.Op) -> Any:
        """map %x, (map %y)  -->  itself"""
        return extending.declined("seen")

    made = stagejit.jit(f, options=stagejit.Options(extensions=of_a_sum, delegate=False))
    np.testing.assert_allclose(made(X), jax.jit(f)(X), rtol=1e-6)


# -- rewrites of graphs


def replaces_by_another_type(log: w.Log) -> None:
    for op in log.graph.ops():
        if op.kind == "reduce":
            log.replace("wrong", op, op.operands[0], "it is larger")


def replaces_by_what_needs_it(log: w.Log) -> None:
    op = next(op for op in log.graph.ops() if op.attrs.get("fn") == "exp")
    log.replace("wrong", op, negated(log.graph, op.result), "it needs itself")


def returns_nothing(log: w.Log) -> None:
    log.graph.set_outputs([])


def takes_an_op_away(log: w.Log) -> None:
    log.graph.nx.remove_node(log.graph.ops()[0])


def loses_the_graph(log: Any) -> None:
    log.graph = None


def returns_its_argument(log: Any, views: Any) -> None:
    log.graph.set_outputs(log.graph.inputs)


def takes_a_dispatch_away(log: w.Log, views: Any) -> None:
    op = next(op for op in log.graph.ops() if op.definition.is_dispatch)
    log.graph.nx.remove_node(op)


@pytest.mark.parametrize(
    "rewriting",
    [
        replaces_by_another_type,
        replaces_by_what_needs_it,
        returns_nothing,
        takes_an_op_away,
        loses_the_graph,
    ],
)
def test_rewrites_of_graphs(fault: Callable[..., str], rewriting: OfGraphs) -> None:
    fault(extending.graph_rewrite("wrong", after="simplify")(rewriting))


@pytest.mark.parametrize(
    "rewriting",
    [
        lambda log, views: log.graph.set_outputs([]),
        returns_its_argument,
        takes_a_dispatch_away,
    ],
)
@pytest.mark.parametrize("at", [0, -1])
def test_rewrites_of_dispatches(fault: Callable[..., str], rewriting: OfGraphs, at: int) -> None:
    place = extending.steps()["dispatch"][at]
    fault(extending.dispatch_rewrite("wrong", after=place)(rewriting))


# -- ops, schedules, machines


def own_op(**fields: Any) -> tuple[Any, Any]:
    prim = primitive("wrong")
    more = {name: fields.pop(name) for name in ("cpu", "translate") if name in fields}
    usual = {"is_elementwise": True, "code": lambda b, op, elements: elements[0] * 2.0}
    definition = w.OpDef(
        kind="wrong", infer=alike, interpret=lambda _, op, x: 2 * x, **(fields or usual)
    )
    own = extending.op(definition, primitive=prim, **more)
    return own, lambda x: prim.bind(x + 1)


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


def of_a_number(graph: w.Graph, op: w.Op) -> Any:
    """a  -->  b"""
    return extending.declined(3)  # type: ignore[arg-type]


def test_reasons_are_texts(fault: Callable[..., str]) -> None:
    made = extending.rewrite("mine", roots="map")(of_a_number)
    assert "a reason is a text that says why, not 3" in fault(made)
    for reason in (None, "", 7):

        def whole(log: Any, reason: Any = reason) -> None:
            log.decline("mine", next(op for op in log.graph.ops() if op.results), reason)

        said = fault(extending.graph_rewrite("mine", after="simplify")(whole))
        assert f"a reason is a text that says why, not {reason!r}" in said


def test_decisions_have_the_name_of_whose_they_are(fault: Callable[..., str]) -> None:
    def whole(log: Any, views: Any = None) -> None:
        log.decline("fuse-insert", next(op for op in log.graph.ops() if op.results), "so")

    said = fault(extending.graph_rewrite("mine", after="simplify")(whole))
    assert "recorded a decision of 'fuse-insert'; its name is 'mine'" in said
    step = extending.steps()["dispatch"][-1]
    said = fault(extending.dispatch_rewrite("mine", after=step)(whole))
    assert "recorded a decision of 'fuse-insert'" in said


# -- wrong values, which only `verify` sees


def added(graph: w.Graph, op: w.Op) -> Any:
    """map mul %x, %y  -->  map add %x, %y"""
    return w.build(graph, "map", op.operands, fn="add", dtype=op.attrs["dtype"])


def adds(log: w.Log) -> None:
    for op in log.graph.ops():
        if op.attrs.get("fn") == "mul":
            log.replace("wrong", op, added(log.graph, op), "so")


def twice(graph: w.Graph, op: w.Op) -> Any:
    """map add %x, %x  -->  map mul 2, %x"""
    two = w.filled(graph, 2, op.result.type)
    return w.build(graph, "map", [two, op.operands[0]], fn="mul", dtype=op.attrs["dtype"])


@pytest.mark.parametrize(
    "extension",
    [
        extending.rewrite("wrong", roots="map", functions="mul")(added),
        extending.rewrite("wrong", roots="map", functions="mul", before="simplify")(added),
        extending.graph_rewrite("wrong", after="simplify")(adds),
    ],
    ids=["rule", "step", "graph"],
)
@pytest.mark.parametrize("dtype", [np.float32, np.int32, np.float16])
def test_a_rewrite_that_changes_values_is_found(extension: Any, dtype: Any) -> None:
    options = stagejit.Options(extensions=extension, verify=True)
    made = stagejit.jit(lambda x: x * x - x, options=options)
    with pytest.raises(ExtensionError, match=r"changed what the graph computes.* was .* and is "):
        made(X.astype(dtype))


def test_a_rewrite_that_changes_no_values_is_none() -> None:
    own = extending.rewrite("double", roots="map", functions="add")(twice)
    alone = stagejit.jit(lambda x: jnp.sin(jnp.exp(20 * (x + x))), options=made_options(own))
    wanted = stagejit.jit(lambda x: jnp.sin(jnp.exp(20 * (x + x))))(X)
    np.testing.assert_array_equal(alone(X), wanted)


def made_options(own: Any) -> stagejit.Options:
    return stagejit.Options(extensions=own, verify=True)


@pytest.mark.parametrize("rows", [3, 40_000])
def test_a_kernel_that_does_something_else_is_found_where_it_is_small(rows: int) -> None:
    def thrice(region: Any, machine: Any) -> w.Kernel:
        """a line of elements an item"""
        loops = w.lines_of(region, machine, axis=1)
        before, along, _ = loops.groups

        def tree(loops: Any, emitter: Any, memory: Any) -> w.Parallel:
            line = w.Line(loops, emitter.elements, memory)
            store = w.Do("store", lambda: line.store(line.operand(0) * 3.0))
            return w.items([(var, 1) for var in before], w.serial(along, store), emitter)

        return w.kernel(region, machine, loops, tree)

    own, function = own_op(accumulates=True, cpu=thrice)
    made = stagejit.jit(function, options=made_options(own))
    x = np.ones((rows, 4), np.float32)
    if rows > 3:
        np.testing.assert_array_equal(made(x), 3 * (x + 1))
        return
    with pytest.raises(ExtensionError, match=r"made a kernel that .* element \[0, 0\] of wrong is"):
        made(x)


# -- the last resort


def test_who_is_guilty_of_what_fails_late() -> None:
    one, other, third = (extending.tile(name, rows=1, vectors=1) for name in "abc")
    tried: list[tuple[str, ...]] = []
    hm = ValueError("hm")

    def guilty(*names: str, step: Exception = hm) -> str:
        def again(name: str, options: stagejit.Options) -> None:
            left = tuple(each.name for each in options.extensions)
            tried.append(left)
            if set(names) & set(left) or names == ("",):
                raise ValueError("hm")

        options = stagejit.Options(extensions=(one, other, third))
        with pytest.raises((ExtensionError, type(step))) as caught, blaming("form", options, again):
            raise step
        return str(caught.value)

    assert "extension 'b' made something that step 'form' cannot use" in guilty("b")
    assert "ValueError: hm" in guilty("b")
    assert "extension 'a' and 'b' and 'c' made" in guilty("a", "b")
    assert guilty("") == "hm"  # it fails without any, too
    tried.clear()
    assert guilty("a", step=UnsupportedOpError("no")) == "no"
    assert tried == []  # that is what the user asked for

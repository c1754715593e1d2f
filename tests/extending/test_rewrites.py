"""Rewrites from outside of the package: they fire, at their places, and are known by name."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax

import stagejit
from stagejit import extending
from stagejit.errors import ExtensionError
from stagejit.extending import writing as w

X = np.linspace(-2, 2, 96, dtype=np.float32).reshape(8, 12)
TWO_NEGATIONS = """graph @f(%x: f32[3]) {
  %0: f32[3] = map neg %x
  %1: f32[3] = map abs %0
  return %1
}"""


@extending.rewrite("abs-of-negation", roots="map", functions="abs")
def abs_of_negation(graph: w.Graph, op: w.Op) -> Any:
    """map abs (map neg %x)  -->  map abs %x"""
    inner = op.operands[0].op
    if inner.attrs.get("fn") != "neg":
        return None
    if op.result.type.dtype.kind == "int":
        return extending.declined("the least integer has no negation")
    return w.build(graph, "map", inner.operands, fn="abs", dtype=op.attrs["dtype"])


def kinds_of(f: Any, *extensions: Any, **options: Any) -> list[str]:
    lowered = stagejit.jit(f, options=stagejit.Options(extensions=extensions, **options)).lower(X)
    return [op.attrs.get("fn", op.kind) for op in lowered.graph.ops()]


def test_it_is_tried_on_a_text() -> None:
    text, decisions = extending.rewritten(TWO_NEGATIONS, abs_of_negation)
    assert text == "graph @f(%x: f32[3]) {\n  %0: f32[3] = map abs %x\n  return %0\n}"
    assert [(d.rewrite, d.applied) for d in decisions] == [("abs-of-negation", True)]
    text, decisions = extending.rewritten(TWO_NEGATIONS.replace("f32", "i32"), abs_of_negation)
    assert [d.reason for d in decisions] == ["the least integer has no negation"]


def test_it_fires_in_a_program_and_says_so() -> None:
    f = stagejit.jit(lambda x: jnp.abs(-x), options=stagejit.Options(extensions=abs_of_negation))
    np.testing.assert_array_equal(f(X), np.abs(X))
    told = [d for d in f.plan(X).decisions if d.rewrite == "abs-of-negation"]
    assert [d.applied for d in told] == [True]
    assert told[0].loc.file == __file__
    assert "+ abs-of-negation @ map" in str(f.explain(X))
    assert f.plan(X).dispatches[0].ops == ("abs",)


def test_it_is_switched_off_by_name_and_unknown_elsewhere() -> None:
    def f(x: Any) -> Any:
        return jnp.abs(-x)

    assert "neg" not in kinds_of(f, abs_of_negation)
    assert "neg" in kinds_of(f)
    assert "neg" in kinds_of(f, abs_of_negation, disable=("abs-of-negation",))
    with pytest.raises(stagejit.StagejitError, match="unknown rewrite 'abs-of-negation'"):
        stagejit.Options(disable=("abs-of-negation",))


def test_it_fires_in_the_bodies_of_loops() -> None:
    def f(x: Any) -> Any:
        return jax.lax.fori_loop(0, 3, lambda i, y: jnp.abs(-y) * 0.5 + x, x)

    f_ours = stagejit.jit(f, options=stagejit.Options(extensions=abs_of_negation, verify=True))
    np.testing.assert_allclose(f_ours(X), jax.jit(f)(X), rtol=1e-6)
    assert any(d.rewrite == "abs-of-negation" and d.applied for d in f_ours.plan(X).decisions)


def test_what_it_makes_meets_the_rules_of_its_step() -> None:
    """transpose (neg) --> neg (transpose), and then two transposes are none."""

    @extending.rewrite("negate-last", roots="transpose", of="map", within="simplify")
    def negate_last(graph: w.Graph, op: w.Op) -> Any:
        """transpose (map neg %x)  -->  map neg (transpose %x)"""
        inner = op.operands[0].op
        if inner.attrs["fn"] != "neg":
            return None
        moved = w.build(graph, "transpose", inner.operands, **op.attrs)
        return w.build(graph, "map", [moved], fn="neg", dtype=w.f32)

    def f(x: Any) -> Any:
        return (-(x.T)).T

    assert kinds_of(f, negate_last) == ["neg"]
    assert "transpose" in kinds_of(f)


@pytest.mark.parametrize(
    ("place", "fires"), [({"before": "simplify"}, True), ({"after": "simplify"}, False)]
)
def test_a_step_of_its_own_stands_where_it_says(place: dict[str, str], fires: bool) -> None:
    """x * 1 is there before the rules for it, and not after."""

    @extending.rewrite("see-ones", roots="map", functions="mul", **place)
    def see_ones(graph: w.Graph, op: w.Op) -> Any:
        """map mul %x, 1  -->  itself"""
        return extending.declined("seen")

    f = stagejit.jit(lambda x: x * 1.0, options=stagejit.Options(extensions=see_ones))
    assert any(d.rewrite == "see-ones" for d in f.plan(X).decisions) is fires


def test_a_rewrite_of_a_whole_graph() -> None:
    @extending.graph_rewrite("doubles", after="simplify")
    def doubles(log: w.Log) -> None:
        for op in log.graph.ops():
            if op.attrs.get("fn") == "add" and op.operands[0] is op.operands[1]:
                two = w.filled(log.graph, 2.0, op.result.type)
                made = w.build(log.graph, "map", [op.operands[0], two], fn="mul", dtype=w.f32)
                log.replace("doubles", op, made, "twice the same is two of it")

    f = stagejit.jit(lambda x: x + x, options=stagejit.Options(extensions=doubles, verify=True))
    np.testing.assert_array_equal(f(X), X + X)
    assert f.plan(X).dispatches[0].ops == ("mul",)
    text = "graph @f(%x: f32[3]) {\n  %0: f32[3] = map add %x, %x\n  return %0\n}"
    assert "map mul" in extending.rewritten(text, doubles)[0]


@extending.dispatch_rewrite("share-dispatches", before="elide-copy")
def share(log: w.Log, views: Any) -> None:
    """Equal dispatches become one, where equal ops were left apart."""
    seen: dict[Any, w.Op] = {}
    for op in log.graph.ops():
        if op.definition.is_dispatch and not op.attrs["carried"]:
            text = "".join(map(w.as_text, op.definition.bodies(op)))
            first = seen.setdefault((text, *op.operands), op)
            if first is not op:
                log.replace_results("share-dispatches", op, first.results, f"equal to {first}")


APART = ("eliminate-common-subexpressions", "fuse-rows")


def two_sums(x: Any, *, returned: bool = False) -> Any:
    y, z = jnp.cumsum(x, 1), jnp.cumsum(x, 1)
    return (y.sum(1), z.max(1), *([y, z] if returned else []))


def test_a_rewrite_of_dispatches() -> None:
    both = {
        name: stagejit.jit(
            two_sums, options=stagejit.Options(extensions=own, disable=APART, verify=True)
        )
        for name, own in (("alone", ()), ("shared", (share,)))
    }
    counts = {
        name: [d.kind for d in made.plan(X).dispatches].count("cumulative")
        for name, made in both.items()
    }
    assert counts == {"alone": 2, "shared": 1}
    for got, wanted in zip(both["shared"](X), both["alone"](X), strict=True):
        np.testing.assert_array_equal(got, wanted)
    assert "+ share-dispatches" in str(both["shared"].explain(X))


def test_dispatches_that_do_not_fit_are_found_under_verify() -> None:
    """Here both results are returned, and one buffer cannot be two results."""
    fault = _fault(share, lambda x: two_sums(x, returned=True), disable=APART, verify=True)
    assert "left dispatches that do not fit" in fault.what


# -- faults


def _fault(extension: Any, f: Any = lambda x: jnp.abs(-x), **options: Any) -> ExtensionError:
    made = stagejit.jit(f, options=stagejit.Options(extensions=extension, **options))
    with pytest.raises(ExtensionError) as caught:
        made(X)
    assert f"{__file__}:{caught.value.loc.line}" in str(caught.value)
    assert "Next:" in str(caught.value)
    return caught.value


def test_an_exception_is_the_extensions_at_its_line(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("STAGEJIT_STRICT")  # nor is it covered by a fallback

    @extending.rewrite("broken", roots="map")
    def broken(graph: w.Graph, op: w.Op) -> Any:
        """map  -->  nothing"""
        return op.operands[17]  # the line

    fault = _fault(broken)
    assert "extension 'broken' failed at map" in fault.what
    assert "IndexError" in fault.what
    assert "return op.operands[17]  # the line" in str(fault)
    assert isinstance(fault.__cause__, IndexError)


@pytest.mark.parametrize(("returned", "what"), [(3, "returned an int"), ("", "returned a str")])
def test_what_is_no_outcome_is_refused(returned: Any, what: str) -> None:
    @extending.rewrite("odd", roots="map")
    def odd(graph: w.Graph, op: w.Op) -> Any:
        """map  -->  something else"""
        return returned

    assert what in _fault(odd).what


def test_a_replacement_of_another_type_is_refused() -> None:
    @extending.rewrite("flatten", roots="map", functions="abs")
    def flatten(graph: w.Graph, op: w.Op) -> Any:
        """map abs  -->  a flat one"""
        return w.build(graph, "reshape", op.operands, shape=(96,))

    assert "replaced a f32[8,12]" in _fault(flatten).what


def test_rules_that_never_end_are_theirs() -> None:
    @extending.rewrite("again", roots="map", functions="abs", before="simplify")
    def again(graph: w.Graph, op: w.Op) -> Any:
        """map abs  -->  the same"""
        return w.build(graph, "map", op.operands, **op.attrs)

    assert "extension 'again' is one of those" in _fault(again).what


def test_a_graph_that_is_none_is_found_under_verify() -> None:
    @extending.rewrite("bad-axis", roots="map", functions="abs", after="simplify")
    def bad_axis(graph: w.Graph, op: w.Op) -> Any:
        """map abs  -->  a reverse along an axis that there is not"""
        return graph.add("reverse", op.operands, [op.result.type], axes=(7,)).result

    assert "left a graph that is none" in _fault(bad_axis, verify=True).what


def test_a_rewrite_that_changes_values_is_found_on_a_text() -> None:
    @extending.rewrite("wrong", roots="map", functions="abs")
    def wrong(graph: w.Graph, op: w.Op) -> Any:
        """map abs %x  -->  %x"""
        return op.operands[0]

    with pytest.raises(ExtensionError, match="extension 'wrong' changed what the graph computes"):
        extending.rewritten(TWO_NEGATIONS, wrong)


def _map(graph: w.Graph, fn: str, *operands: Any) -> Any:
    """Of values, and of numbers where those are like the first."""
    type = operands[0].type
    made = [w.filled(graph, x, type) if isinstance(x, int) else x for x in operands]
    is_test = fn in ("lt", "ge")
    return w.build(graph, "map", made, fn=fn, dtype=w.bool_ if is_test else type.dtype)


def _halved(graph: w.Graph, op: w.Op) -> Any:
    kind = "arithmetic" if op.result.type.dtype.kind == "int" else "logical"
    return _map(graph, f"shift_right_{kind}", op.operands[0], 1)


INTEGERS: dict[str, Any] = {  # what stands there, by what it is replaced; with signs, and without
    "doubled, then halved": (
        lambda x, y: lax.div(x * 2, lax.full_like(x, 2)),
        ("div", lambda g, op: op.operands[0].op.operands[0]),
        (False, False),
    ),
    "rest": (
        lambda x, y: lax.rem(x, lax.full_like(x, 16)),
        ("rem", lambda g, op: _map(g, "and", op.operands[0], 15)),
        (False, True),
    ),
    "half": (
        lambda x, y: lax.div(x, lax.full_like(x, 2)),
        ("div", _halved),
        (False, True),
    ),
    "one": (
        lambda x, y: lax.div(x, x),
        ("div", lambda g, op: w.filled(g, 1, op.result.type)),
        (False, False),
    ),
    "next is larger": (
        lambda x, y: x + 1 > x,
        ("gt", lambda g, op: _map(g, "ge", op.operands[1], op.operands[1])),
        (False, False),
    ),
    "sign of a difference": (
        lambda x, y: x - y < 0,
        ("lt", lambda g, op: _map(g, "lt", *op.operands[0].op.operands)),
        (False, False),
    ),
    "shift": (
        lambda x, y: x * 2,
        ("mul", lambda g, op: _map(g, "shift_left", op.operands[0], 1)),
        (True, True),
    ),
}


@pytest.mark.parametrize("dtype", ["int8", "uint8", "int32", "uint32", "int64", "uint64"])
@pytest.mark.parametrize("shape", [(), (3,), (5, 7)])
@pytest.mark.parametrize("what", INTEGERS)
def test_rewrites_of_integers_are_compared_over_all_of_them(
    what: str, shape: Any, dtype: str
) -> None:
    f, (root, replacement), (with_signs, without) = INTEGERS[what]

    @extending.rewrite("own", roots="map", functions=root, before="simplify")
    def own(graph: w.Graph, op: w.Op) -> Any:
        """some integers  -->  others"""
        return replacement(graph, op)

    with jax.enable_x64():
        x, y = jnp.ones(shape, dtype), jnp.ones(shape, dtype)
        ours = stagejit.jit(f, options=stagejit.Options(extensions=own, verify=True))
        if without if dtype.startswith("u") else with_signs:
            assert any(d.rewrite == "own" and d.applied for d in ours.plan(x, y).decisions)
        else:
            with pytest.raises(ExtensionError, match="'own' changed what the graph computes"):
                ours.plan(x, y)


def test_a_failing_rewrite_of_dispatches_is_named() -> None:
    @extending.dispatch_rewrite("lost", after="fuse-pad")
    def lost(log: w.Log, views: Any) -> None:
        raise KeyError("gone")

    assert (
        "extension 'lost' failed as it rewrote a graph of dispatches: KeyError" in _fault(lost).what
    )


@pytest.mark.parametrize("given", [{"roots": "mapp"}, {"roots": "map mapp"}])
@pytest.mark.parametrize("place", [{}, {"after": "simplify"}, {"before": "simplify"}])
def test_a_kind_that_no_op_has_is_refused(given: dict[str, str], place: dict[str, str]) -> None:
    @extending.rewrite("odd", **given, **place)
    def odd(graph: w.Graph, op: w.Op) -> Any:
        """mapp  -->  map"""
        return None

    fault = _fault(odd)
    assert fault.what == "rewrite 'odd' asks for ops of kind 'mapp', which there is not"
    assert "did you mean 'map'?" in str(fault)


def test_a_function_of_maps_is_no_kind() -> None:
    @extending.rewrite("odd", roots="mul")
    def odd(graph: w.Graph, op: w.Op) -> Any:
        """mul  -->  add"""
        return None

    assert 'ask for roots="map", functions="mul"' in _fault(odd).next_step


def test_a_kind_of_what_makes_operands_is_refused_too() -> None:
    @extending.rewrite("odd", roots="map", of="transposes")
    def odd(graph: w.Graph, op: w.Op) -> Any:
        """map (transpose)  -->  map"""
        return None

    assert "did you mean 'transpose'?" in str(_fault(odd))


@pytest.mark.parametrize(
    ("made", "number"),
    [
        ("%v: f32[2,3] = fill %c", 1.5),
        ("%v: f32[2,3] = const splat(1.5)", None),
        ("%v: f32[2,3] = map neg %x", None),
    ],
)
def test_the_number_of_a_value(made: str, number: Any) -> None:
    graph = w.parse(f"""graph @f(%x: f32[2,3]) {{
      %c: f32[] = const 1.5
      {made}
      %y: f32[2,3] = map add %x, %v
      return %y
    }}""")
    (op,) = [each for each in graph.ops() if each.attrs.get("fn") == "add"]
    assert w.number_of(op.operands[1]) == number
    assert w.number_of(graph.inputs[0]) is None

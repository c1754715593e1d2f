"""What does not fit is refused where it is registered: at the user's line, with the next step."""

from __future__ import annotations

import inspect
import math
from collections.abc import Callable
from typing import Any

import pytest

import stagejit
from stagejit import extending
from stagejit.base.extension import Extension
from stagejit.errors import OptionsError
from tests.extending.own import SOFTSIGN, softsign_p


def documented(*args: Any) -> None:
    """before  -->  after"""


CASES: dict[str, Callable[[], Any]] = {
    "is no name of an extension": lambda: extending.rewrite("two words", roots="map")(documented),
    "is a rewrite of stagejit's own": lambda: extending.graph_rewrite("fuse-pad", after="simplify")(
        documented
    ),
    "has no roots": lambda: extending.rewrite("mine", roots="")(documented),
    "has no kinds": lambda: extending.schedule("mine", kinds=" ")(documented),
    "has no docstring": lambda: extending.rewrite("mine", roots="map")(lambda graph, op: None),
    "there is no step 'simplfy'": lambda: extending.rewrite("mine", roots="map", within="simplfy")(
        documented
    ),
    "there is no step 'elide-copy'": lambda: extending.graph_rewrite("mine", after="elide-copy")(
        documented
    ),
    "there is no step 'simplify'": lambda: extending.dispatch_rewrite("mine", after="simplify")(
        documented
    ),
    "has one place, not 2": lambda: extending.graph_rewrite(
        "mine", before="simplify", after="simplify"
    )(documented),
    "has one place, not 0": lambda: extending.dispatch_rewrite("mine")(documented),
    "is no function": lambda: extending.schedule("mine", kinds="map")(17),  # type: ignore[arg-type]
    "there is no backend 'gpu'": lambda: extending.resolver("mine", backend="gpu")(documented),
    "a tile of 0 rows": lambda: extending.tile("mine", rows=0, vectors=1),
    "there is no CPU 'vax'": lambda: extending.cpu("mine", like="vax"),
    "has no number 'core'": lambda: extending.cpu("mine", core=3),
    "cores is 'many'": lambda: extending.cpu("mine", cores="many"),
    "cores is -1": lambda: extending.cpu("mine", cores=-1),
    "cores is True": lambda: extending.cpu("mine", cores=True),
    "bandwidth is nan": lambda: extending.cpu("mine", bandwidth=math.nan),
    "bandwidth is inf": lambda: extending.gpu("mine", bandwidth=math.inf),
    "clock is -1.0": lambda: extending.cpu("mine", clock=-1.0),
    "l2_nbytes is -5": lambda: extending.cpu("mine", l2_nbytes=-5),
    "turn_seconds is -1.0": lambda: extending.cpu("mine", turn_seconds=-1.0),
    "shared_nbytes is -1": lambda: extending.gpu("mine", shared_nbytes=-1),
    "vector_nbytes is 3": lambda: extending.cpu("mine", vector_nbytes=3),
    "vector_nbytes is 24": lambda: extending.cpu("mine", vector_nbytes=24),
    "a tile of 2.5 rows": lambda: extending.tile("mine", rows=2.5, vectors=2),  # type: ignore[arg-type]
    "a tile of True vectors": lambda: extending.tile("mine", rows=2, vectors=True),
    "a tile of -1 vectors": lambda: extending.tile("mine", rows=2, vectors=-1),
    "unknown GPU": lambda: extending.gpu("mine", like="V100"),
    "is declared by an OpDef": lambda: extending.op(17),  # type: ignore[arg-type]
    "op 'bare' is elementwise and has no code": lambda: extending.op(
        extending.OpDef(kind="bare", infer=documented, interpret=documented, is_elementwise=True)
    ),
    "a map has no function 'sqroot'": lambda: extending.rewrite(
        "mine", roots="map", functions="sqroot"
    )(documented),
    r"kinds is \('map',\)": lambda: extending.schedule(
        "mine",
        kinds=("map",),  # type: ignore[arg-type]
    )(documented),
    r"roots is \['map'\]": lambda: extending.rewrite(
        "mine",
        roots=["map"],  # type: ignore[arg-type]
    )(documented),
    "is translated to from no primitive": lambda: extending.op(SOFTSIGN, translate=documented),
}


@pytest.mark.parametrize("what", CASES)
def test_it_is_refused_at_the_users_line(what: str) -> None:
    with pytest.raises(OptionsError, match=what) as caught:
        CASES[what]()
    if what != "unknown GPU":
        assert caught.value.loc.file == __file__
        assert f"--> {__file__}:" in str(caught.value)
    assert caught.value.next_step


@pytest.mark.parametrize("given", [3, ("mine",), lambda: None])
def test_options_take_extensions_only(given: Any) -> None:
    with pytest.raises(OptionsError, match=r"(?s)extensions is .*stagejit\.extending"):
        stagejit.Options(extensions=given)


def test_places_are_those_that_there_are() -> None:
    from stagejit.dispatch.rewrites import STEPS as OF_DISPATCHES
    from stagejit.rewrites import STEPS

    places = extending.steps()
    assert set(places["graph"]) == {step.name for step in STEPS}
    assert places["dispatch"] == tuple(name for name, _ in OF_DISPATCHES)
    assert set(places["within"]) <= set(places["graph"])


def test_an_extension_says_where_it_is_from() -> None:
    own = extending.op(SOFTSIGN, primitive=softsign_p)
    line = inspect.currentframe()
    assert line is not None
    assert (own.loc.file, own.loc.line) == (__file__, line.f_lineno - 3)
    assert str(own) == f"'softsign' ({own.loc})"
    decorated = extending.rewrite("mine", roots="map")(documented)
    assert isinstance(decorated, Extension)
    assert decorated.loc.line == documented.__code__.co_firstlineno


def test_names_of_functions_and_types_are_looked_at_where_ops_are_written() -> None:
    graph = extending.writing.parse("graph @f(%x: f32[4]) {\n  return %x\n}\n")
    (x,) = graph.inputs
    build, f32 = extending.writing.build, extending.writing.f32
    with pytest.raises(stagejit.StagejitError, match="unknown function 'sqroot': did you mean"):
        build(graph, "map", [x], fn="sqroot", dtype=f32)
    with pytest.raises(stagejit.StagejitError, match=r"the string 'f32': give .* writing\.f32"):
        build(graph, "map", [x], fn="sqrt", dtype="f32")
    with pytest.raises(OptionsError, match="did you mean 'max'"):
        extending.writing.scalar(None, "maxx", f32)  # type: ignore[arg-type]
    with pytest.raises(OptionsError, match="dtype is 'f32'"):
        extending.writing.scalar(None, "max", "f32")  # type: ignore[arg-type]

"""`why`, and what it answers from: over many programs every two dispatches of which one reads what
the other one makes have a reason, and every name that an explanation prints is found in a text that
its reader can print."""

from __future__ import annotations

import re
from collections.abc import Iterator
from itertools import islice, product
from typing import Any

import jax
import jax.numpy as jnp
import pytest

import stagejit
from stagejit.base.decisions import path_inside
from stagejit.bench.workloads.catalogue import WORKLOADS
from stagejit.dispatch.origins.naming import named_values
from stagejit.explaining import texts_of
from stagejit.inspect.explain import Explanation
from stagejit.inspect.explain.notes import Facts
from stagejit.pipeline import Compilation
from stagejit.schedule.conflicts.hazards import hazard_graph
from stagejit.schedule.plans.plan import Plan
from tests.fuzz.programs.generate import random_program
from tests.inspect.explain.test_complete import PROGRAMS
from tests.sampling import budget

SEEDS = range(48)
SEEDS_SOMETIMES = [pytest.param(seed, marks=pytest.mark.some(3, of="made")) for seed in SEEDS]
SMALL = ("transformer_block_256", "map_solver_64x128", "densenet_6x12", "bound_resnet_32x32")


def _of_seed(seed: int) -> Any:
    program = random_program(seed)
    with jax.enable_x64(program.x64):
        args, kwargs = program.given()
        options, jit = program.options, program.defined["JIT"]
        traced = stagejit.jit(program.defined["f"], options=options, **jit).trace(*args, **kwargs)
        return traced.explanation, traced.compilation


def _made(name: str | int) -> tuple[Explanation, Compilation]:
    if isinstance(name, int):
        made: tuple[Explanation, Compilation] = _of_seed(name)
        return made
    known = {w.name: (w.function, w.shapes) for w in WORKLOADS.values()} | PROGRAMS
    function, arguments = known[name]
    traced = stagejit.jit(function).trace(*arguments())
    return traced.explanation, traced.compilation


# Of producers that write where an insert places their value, which became something else.
FOUND = (430, 518, 571, 611, 669)


@pytest.mark.parametrize("seed", FOUND)
def test_who_reads_behind_an_insert_has_a_reason(seed: int) -> None:
    explanation, compilation = _made(seed)
    test_every_two_dispatches_with_data_between_have_a_reason((explanation, compilation))


@pytest.fixture(name="made", params=[*PROGRAMS, *SMALL, *SEEDS_SOMETIMES], scope="module")
def _fixture(request: pytest.FixtureRequest) -> tuple[Explanation, Compilation]:
    return _made(request.param)


def levels(plan: Plan, path: str = "") -> Iterator[tuple[str, Plan]]:
    yield path, plan
    for dispatch in plan.dispatches:
        for body in dispatch.bodies:
            yield from levels(body.plan, path_inside(path, dispatch.name, body.plan.name))


def read_from(plan: Plan) -> Iterator[tuple[str, str]]:
    """Who reads what another one makes, of the plan itself."""
    for path, level in levels(plan):
        names = [f"{path}{dispatch.name}" for dispatch in level.dispatches]
        for first, second, conflicts in hazard_graph(level.dispatches).edges():
            if any(conflict.hazard == "RAW" for conflict in conflicts):
                yield names[first], names[second]


def test_every_two_dispatches_with_data_between_have_a_reason(
    made: tuple[Explanation, Compilation],
) -> None:
    explanation, compilation = made
    if explanation.left_to_xla:
        return
    said = {(each.first, each.second): each for each in explanation.between}
    assert said.keys() == set(read_from(compilation.plan))
    for each in said.values():
        assert all(map(str, each.reasons)), each
        assert "hand it on like this" not in str(each), "nothing was said where it was decided"


def test_what_is_applied_where_something_stores_is_evaluated_there(
    made: tuple[Explanation, Compilation],
) -> None:
    """No two applied decisions put one op into different places. (A map that only moves is called
    a copy in the end.)"""
    explanation, _ = made
    called = {"copy": "map", "fill": "map"}
    kinds = {each.dispatch: called.get(each.kind, each.kind) for each in explanation.dispatches}
    homes = {home.op: {kinds.get(name) for name in home.dispatches} for home in explanation.homes}
    for each in explanation.decisions:
        found = re.fullmatch(r"applied where (\w+) stores", each.reason)
        op = each.op.split(maxsplit=1)[0]
        if each.applied and found and homes.get(op):
            assert called.get(found[1], found[1]) in homes[op], f"{each}, but it is in {homes[op]}"


def test_why_answers_for_all_dispatches_lines_and_ops(
    made: tuple[Explanation, Compilation],
) -> None:
    explanation, _ = made
    names = [f"@{each.dispatch}" for each in explanation.dispatches]
    lines = dict.fromkeys(home.loc.line for home in explanation.homes if home.loc)
    ops = [home.op for home in explanation.homes if home.op]
    for a, b in islice(product([*names, *lines, *ops], repeat=2), 400):
        assert explanation.why(a, b)
    for each in islice(explanation.between, 40):
        text = explanation.why(each.first, each.second)
        assert str(each.reasons[0]) in text
        assert f"@{each.second} reads {each.what}, which @{each.first} makes" in text


_OF_NOTHING = re.compile(r" in  | in \.| in $|made by \.|\(\)")


def test_no_sentence_of_two_lines_is_about_nothing(made: tuple[Explanation, Compilation]) -> None:
    explanation, _ = made
    assert all(home.dispatches for home in explanation.homes)
    lines = dict.fromkeys(home.loc.line for home in explanation.homes if home.loc)
    for a, b in islice(product(lines, repeat=2), 400):
        said = explanation.why(a, b)
        assert not any(map(_OF_NOTHING.search, said.splitlines())), said


def test_the_line_of_a_border_is_where_the_border_is_written() -> None:
    def f(x: Any, y: Any) -> Any:
        c = jnp.concatenate((x * 2, jnp.sin(y)), axis=1)
        p = jnp.pad(c, ((2, 0), (0, 0)))
        return p[2:] + p[1:-1] + p[:-2]

    x = jnp.ones((64, 8))
    explanation = stagejit.jit(f).explain(x, x)
    line = f.__code__.co_firstlineno + 2
    said = explanation.why(line - 1, line)
    assert re.search(rf"line {line} is evaluated in @.+ \(.*fill.*\)", said), said
    assert "Both are in @" in said


_NAMED = re.compile(r"(%[^\s:,()]+): ")  # where a text of the graph says what a name is


def test_why_answers_for_every_name_of_the_texts(
    made: tuple[Explanation, Compilation],
) -> None:
    explanation, compilation = made
    if explanation.left_to_xla:
        return
    names = [name for _, name in named_values(compilation.graph)]
    text = texts_of(compilation)["graph"]()
    assert {name.rpartition("/")[2] for name in names} == {*_NAMED.findall(text)}
    for path, plan in levels(compilation.plan):
        names += [f"{path}{buffer.name}" for buffer in plan.buffers]
        names += [buffer.name for buffer in plan.buffers]
        names += [f"@{path}{dispatch.name}" for dispatch in plan.dispatches]
    different = [*dict.fromkeys(names)]
    for name in different[:: -(-len(different) // budget(400, of=len(different)))]:
        said = explanation.why(name, name)
        assert said.startswith(f"{name} "), said


# -- names ---------------------------------------------------------------------------------------

_OP = re.compile(r"(?<![\w%])(%\d+(?:/\w+/%\d+)*)")
_DISPATCH = re.compile(r"@((?:[a-z_]\w*\.\d+/(?:\w+/)?)*[a-z_]\w*\.\d+)")
_BUFFER = re.compile(r"(?<![\w.])([a-z]+\d+)(?=\[)")
_OTHER = re.compile(r"(?<![\w@./])(?:map|reduce|contract|conv|dispatch|insert_slice)\.\d+")
_TYPE = re.compile(r"(?:bool|[fuic]\d+|bf16)\Z")


def names_in(text: str) -> Iterator[tuple[str, str]]:
    for pattern, kind in ((_OP, "op"), (_DISPATCH, "dispatch"), (_BUFFER, "buffer")):
        yield from ((kind, found) for found in pattern.findall(text))
    assert not _OTHER.findall(text), _OTHER.findall(text)


def said_by(facts: Facts) -> str:
    lines = [f"{d.rewrite} @ {d.op}: {d.reason}" for d in facts.decisions]
    lines += [str(note) for note in (*facts.between, *facts.placements)]
    return "\n".join(lines)


def finds(text: str, name: str, op: str, body: str) -> bool:
    """Whether a name is found in a text, each part of it in the lines under the one before.

    op, body: patterns of the lines of the parts, which alternate.
    """
    lines = text.splitlines()
    for at, part in enumerate(name.split("/")):
        pattern = re.compile((body if at % 2 else op).replace("NAME", re.escape(part)))
        depth = 2 * at + 2
        here = (n for n, line in enumerate(lines) if _indent(line) == depth and pattern.match(line))
        found = next(here, None)
        if found is None:
            return False
        lines = lines[found + 1 :]
        end = next((n for n, line in enumerate(lines) if _indent(line) <= depth), len(lines))
        lines = lines[:end]
    return True


def _indent(line: str) -> int:
    return len(line) - len(line.lstrip())


OP_LINE = r" *(%\d+: \S+, )*NAME: "
GRAPH_LINE = r" *graph @NAME\("
DISPATCH_LINE = r" *dispatch @NAME "


def test_finding_is_strict() -> None:
    text = """graph @f(%x: f32[4]) {
  %0: f32[4], %1: f32[4] = loop %x
    graph @body(%y: f32[4]) {
      %3: f32[4] = map sin %y
      %5: f32[4] = map cos %3
      return %5
    }
  %4: f32[4] = map sin %1
}"""
    found = [finds(text, name, OP_LINE, GRAPH_LINE) for name in ("%1", "%0/body/%3", "%4")]
    assert found == [True, True, True]
    for name in ("%2", "%3", "%5", "%0/body/%4", "%4/body/%3", "%1/cond/%3", "%0/body/%1"):
        assert not finds(text, name, OP_LINE, GRAPH_LINE), name


def test_every_name_that_is_printed_can_be_looked_up(
    made: tuple[Explanation, Compilation],
) -> None:
    explanation, compilation = made
    if explanation.left_to_xla:
        return
    texts = {name: text() for name, text in texts_of(compilation).items() if name in PRINTED}
    buffers = {each.name for _, plan in levels(compilation.plan) for each in plan.buffers}
    lost = []
    for kind, name in dict.fromkeys(names_in(said_by(explanation))):
        if kind == "op" and not finds(texts["graph"], name, OP_LINE, GRAPH_LINE):
            lost.append(name)
        if kind == "dispatch" and not finds(
            texts["plan"], _with_bodies(name), DISPATCH_LINE, BODY_LINE
        ):
            lost.append(f"@{name}")
        if kind == "buffer" and not _TYPE.match(name) and name not in buffers:
            lost.append(name)
    assert lost == []


PRINTED = ("graph", "plan")
BODY_LINE = r" *body @NAME of "


def _with_bodies(path: str) -> str:
    """Of dispatches in the body of a loop its name is left out."""
    made: list[str] = []
    for part in path.split("/"):
        if made and ("." in part) == ("." in made[-1]):
            made.append("body")
        made.append(part)
    return "/".join(made)

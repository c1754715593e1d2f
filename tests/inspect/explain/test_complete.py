"""Explanations leave nothing out: of a corpus of programs, everything that their compilations
decided, left to XLA, copied, packed and chose stands in the text, in the page and in the data."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import types
import typing
from collections.abc import Callable, Iterator
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax

import stagejit
from stagejit.bench.workloads.catalogue import WORKLOADS
from stagejit.inspect.explain import Explanation
from stagejit.inspect.explain.glossary import glossary_of, meaning_of
from stagejit.inspect.explain.notes import Between, Facts, Note
from stagejit.inspect.explain.rendering.lines import THE_PROGRAM, blocks_of
from stagejit.inspect.explain.rendering.wording import moot_of, said_of
from stagejit.inspect.explain.schema import ExplanationData
from stagejit.pipeline import Compilation
from stagejit.schedule.plans.plan import Plan
from tests.expected.left import left
from tests.inspect.pages import rows_of

X = np.ones((64, 64), np.float32)


def loop_with_a_piece_left(x: Any) -> Any:
    def step(carry: Any, row: Any) -> Any:
        big = jnp.tanh(carry @ carry) @ carry
        return left(jnp.sin(big) + row), big.sum()

    return lax.scan(step, x, x)


def branch_with_a_piece_left(x: Any) -> Any:
    def first(y: Any) -> Any:
        return left(jnp.tanh(y @ y) @ y)

    return lax.cond(x.sum() > 0, first, lambda y: jnp.cos(y @ y) @ y, x)


def loops_in_a_loop(x: Any) -> Any:
    def inner(_: Any, c: Any) -> Any:
        return jnp.concatenate((c[1:], jnp.sin(c[:1])))

    return lax.while_loop(
        lambda c: c.sum() < 0, lambda c: lax.fori_loop(0, 3, inner, c) * 2, lax.sort(x)
    )


def layers(x: Any) -> Any:
    for _ in range(4):
        x = jnp.concatenate((x[:, :32], jnp.maximum(x @ x, 0)), axis=1)[:, :64]
    return left(x)


Program = tuple[Callable[..., Any], Callable[[], tuple[Any, ...]]]
PROGRAMS: dict[str, Program] = {
    **{f.__name__: (f, lambda: (X,)) for f in (loops_in_a_loop, layers)},
    **{f.__name__: (f, lambda: (X,)) for f in (loop_with_a_piece_left, branch_with_a_piece_left)},
    **{
        w.name: (w.function, w.shapes)
        for w in WORKLOADS.values()
        if w.name
        in (
            *("transformer_grad_256", "rrdb_3", "unet_64", "lstm_256x16x128", "tiny_mlp_grad"),
            *("decode_step_512", "map_solver_64x128", "fft_64x1024", "adam_step_200"),
            *("splitk_123x51234x456", "sort_rows_4096x256", "maxpool_grad_2x2_nhwc"),
        )
    },
}


@pytest.fixture(name="made", params=PROGRAMS, scope="module")
def _made(request: pytest.FixtureRequest) -> tuple[Explanation, Compilation]:
    function, arguments = PROGRAMS[request.param]
    traced = stagejit.jit(function).trace(*arguments())
    return traced.explanation, traced.compilation.run_until("codegen")


def plans(plan: Plan) -> Iterator[Plan]:
    yield plan
    for dispatch in plan.dispatches:
        for body in dispatch.bodies:
            yield from plans(body.plan)


def everything(c: Compilation) -> Iterator[str]:
    """What the compilation made, in words of its own."""
    for decision in c.plan.decisions:
        sign = "+" if decision.applied else "-"
        yield f"{sign} {decision.rewrite} @ {decision.op}: {decision.reason}"
    for plan in plans(c.plan):
        for item in plan.delegated:
            yield f"@{item.dispatch} is left to XLA: {item.reason}"
        for dispatch in plan.dispatches:
            if dispatch.kind != "delegate":
                yield f"{dispatch.name} {dispatch.kind} ("[: -2 if not dispatch.ops else None]
    for pack in c.plan.packs:
        yield f"s operand {pack.operand} "
    for generated in c.kernels.values():
        for choice in generated.kernel.choices:
            yield f" {choice.name}: {choice.reason}"


def test_the_text_has_everything(made: tuple[Explanation, Compilation]) -> None:
    explanation, compilation = made
    text = explanation.as_text(kernels=True, collapse=False)
    assert [what for what in everything(compilation) if what not in text] == []
    assert "<unknown>" not in text


def test_copies_are_those_of_the_plan(made: tuple[Explanation, Compilation]) -> None:
    explanation, compilation = made
    plan = compilation.plan
    assert len(explanation.copies) == len(plan.copies)
    assert len(explanation.dispatches) == sum(
        dispatch.kind != "delegate" for dispatch in plan.all_dispatches()
    )
    assert explanation.copied_nbytes == plan.totals().copied_nbytes


def test_what_is_collapsed_is_counted(made: tuple[Explanation, Compilation]) -> None:
    explanation, _ = made
    notes = explanation.notes()
    blocks = blocks_of(notes)
    assert sorted(map(repr, notes)) == sorted(repr(note) for b in blocks for note in b.notes)
    text = explanation.as_text(kernels=True)
    for block in blocks:
        for item in block.items:
            said = said_of(item.first, kernels=True)
            if item.is_moot:
                said = moot_of(item)
            elif isinstance(item.first, Between):
                said = f" to @{item.first.second}: {item.first.reasons[0]}"
            assert said in text


def test_the_page_has_a_row_for_each_item(made: tuple[Explanation, Compilation]) -> None:
    explanation, _ = made
    rows = rows_of(explanation.as_html())
    items = sum(len(block.items) for block in _all_blocks(explanation))
    body = [row for row in rows if len(row) in (4, 8) and row[0] != "dispatch"]
    assert len(body) == items


def _all_blocks(facts: Facts) -> Iterator[Any]:
    yield from blocks_of(facts.notes())
    for inside in facts.inside:
        yield from _all_blocks(inside.facts)


def test_every_name_has_a_meaning(made: tuple[Explanation, Compilation]) -> None:
    explanation, _ = made
    for note in _all_notes(explanation):
        known = meaning_of(note)
        assert known is None or known[1], f"{known} has no meaning"
    assert glossary_of(explanation)


def _all_notes(facts: Facts) -> Iterator[Note]:
    yield from facts.notes()
    for inside in facts.inside:
        yield from _all_notes(inside.facts)


NOTES = ("dispatches", "delegated", "packs", "between", "decisions", "placements", "choices")


def test_the_data_is_as_described(made: tuple[Explanation, Compilation]) -> None:
    explanation, _ = made
    data = explanation.as_json()
    check(json.loads(json.dumps(data)), ExplanationData, "explanation")
    notes = [
        note
        for line in data["lines"]
        for kind in NOTES
        for note in line[kind]  # type: ignore[literal-required]
    ]
    parts = sum(len(each.also) for each in explanation.dispatches)
    assert len(notes) == len(explanation.notes()) - parts


def check(value: Any, kind: Any, path: str) -> None:
    """That data has the type that the schema says, and no fields besides."""
    if typing.is_typeddict(kind):
        hints = typing.get_type_hints(kind)
        assert value.keys() == hints.keys(), path
        for name, inner in hints.items():
            check(value[name], inner, f"{path}.{name}")
        return
    origin, args = typing.get_origin(kind), typing.get_args(kind)
    if origin is list:
        for number, each in enumerate(value):
            check(each, args[0], f"{path}[{number}]")
    elif origin is dict:
        for name, each in value.items():
            check(each, args[1], f"{path}.{name}")
    elif origin in (typing.Union, types.UnionType) and typing.is_typeddict(args[0]):
        assert args[1:] == (types.NoneType,)
        if value is not None:
            check(value, args[0], path)
    elif origin in (typing.Union, types.UnionType):
        described = [each for each in args if typing.is_typeddict(each)]
        if described and isinstance(value, dict):
            check(value, described[0], path)
            return
        plain = tuple(each for each in args if not typing.is_typeddict(each))
        assert isinstance(value, plain), f"{path} is {value!r}"
    else:
        assert isinstance(value, kind), f"{path} is {value!r}"


def test_pieces_inside_of_what_xla_runs_are_explained() -> None:
    explanation = stagejit.jit(loop_with_a_piece_left).explain(X)
    (item,) = explanation.delegated
    assert "its body has left" in item.reason
    (inside,) = explanation.inside
    assert inside.dispatch == item.dispatch
    assert inside.which == "body"
    assert [each.equation for each in inside.facts.delegated] == ["left"]
    assert any(each.kind == "contract" for each in inside.facts.dispatches)
    text = str(explanation)
    assert f"inside @{item.dispatch}, which XLA runs: its body" in text
    assert "left (not JAX's): no kernels for this primitive yet" in text
    branches = stagejit.jit(branch_with_a_piece_left).explain(X)
    assert [each.which for each in branches.inside] == ["branch 0", "branch 1"]


def test_bodies_that_are_left_whole_are_not_opened() -> None:
    def small(x: Any) -> Any:
        return lax.scan(lambda c, _: (left(c + 1), None), x, None, 3)[0]

    explanation = stagejit.jit(small).explain(X[0, :2])
    assert explanation.inside == ()
    assert any(d.rewrite == "leave-bodies" and d.applied for d in explanation.decisions)


def test_packs_in_loops_are_told_at_their_product() -> None:
    def f(x: Any, w: Any) -> Any:
        y = x @ w
        return lax.fori_loop(0, 2, lambda _, c: jnp.tanh(c @ w), y)

    big = jax.ShapeDtypeStruct((512, 512), np.float32)
    explanation = stagejit.jit(f).explain(big, big)
    products = {d.dispatch: d.loc for d in explanation.dispatches if d.kind == "contract"}
    assert len(products) == 2
    packs = {pack.dispatch: pack.loc for pack in explanation.packs}
    assert packs == products
    assert "packs operand 1 in each call: 1 MiB" in str(explanation)


def test_blocks_that_are_widened_are_no_packs_of_weights() -> None:
    w = np.ones((512, 512), np.float32)
    stored = stagejit.bind(lambda w, x: x @ w, w, weights="int8").explain(np.ones((64, 512)))
    text = str(stored)
    assert "1 pack in each call (1 of blocks that are widened in scratch)" in text
    assert "~ @contract.0 widens blocks of operand 1 in scratch, in each call: i8 in mem" in text
    assert "widens blocks of operand 1" in stored._repr_html_()
    both = stagejit.jit(jnp.matmul).explain(w, w)
    assert [pack.widens for pack in both.packs if pack.packs] in ([""], ["", ""])
    assert "widen" not in str(both)


def test_a_weight_that_is_packed_once_is_not_told_as_a_refusal() -> None:
    w = np.ones((512, 512), np.float32)
    bound = stagejit.bind(lambda w, x: x @ w, w).explain(np.ones((64, 512)))
    (line,) = [line for line in str(bound).splitlines() if "packed once" in line]
    assert line.startswith("  = elide-packs @ ")
    (row,) = [
        row
        for row in rows_of(bound._repr_html_())
        if "elide-packs" in row and "constant" in str(row)
    ]
    assert "packed once" in str(row)
    assert "declined" not in str(row)


def test_native_loops_are_opened() -> None:
    explanation = stagejit.jit(loops_in_a_loop).explain(X)
    inner = [each for each in explanation.dispatches if each.dispatch.count("/loop.") == 1]
    assert inner
    assert all(each.times is None for each in inner)  # the outer loop ends by a condition
    assert "as often as the call decides" in str(explanation)


def test_what_has_no_line_has_a_heading() -> None:
    text = str(stagejit.jit(jnp.argmax).explain(X))
    assert f"\n{THE_PROGRAM}\n" in text


ON_TWO_DEVICES = """
import jax, numpy as np, stagejit
from jax.sharding import Mesh, NamedSharding, PartitionSpec
x = np.ones((64, 64), np.float32)
mesh = Mesh(np.array(jax.devices()), ("i",))
sharded = jax.device_put(x, NamedSharding(mesh, PartitionSpec("i")))
f = stagejit.jit(lambda x: jax.numpy.tanh(x) @ x)
explanation = f.explain(sharded)
assert explanation.left_to_xla == "XLA partitions it over several devices"
assert explanation.notes() == ()
assert "JAX runs this call without stagejit" in explanation.as_html()
assert explanation.as_json()["left_to_xla"]
assert "left to XLA" in explanation.as_json()["glossary"]
f(x)
f(sharded)
(*_, last) = f.explain(sharded).past.compiled
assert last.left_to_xla == explanation.left_to_xla
assert last.causes[0].startswith("x is on 2 devices by ")
print(explanation)
"""


def test_a_call_that_jax_runs_alone_says_so() -> None:
    done = subprocess.run(
        [sys.executable, "-c", ON_TWO_DEVICES],
        env={**os.environ, "XLA_FLAGS": "--xla_force_host_platform_device_count=2"},
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    assert "JAX runs this call without stagejit: XLA partitions it" in done.stdout


def test_a_function_that_fell_back_says_so(monkeypatch: pytest.MonkeyPatch) -> None:
    from stagejit import pipeline

    def fails(_: Any) -> None:
        raise RuntimeError("a fault")

    monkeypatch.setenv("STAGEJIT_STRICT", "0")
    monkeypatch.setattr(pipeline, "kernel_cache", lambda *_, **__: fails(None))
    f = stagejit.jit(lambda x: jnp.sinh(x) * 3 + 1)
    with pytest.warns(stagejit.FallbackWarning):
        f(X)
    assert "compiling it failed: RuntimeError: a fault" in str(f.explain(X))
    assert f.explain(X).past.compiled[-1].left_to_xla.startswith("compiling it failed")

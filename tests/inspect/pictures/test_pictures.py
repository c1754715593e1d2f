"""Pictures say what plans and graphs say. How they look in a browser: see test_browser.py."""

from __future__ import annotations

import os
import re
import stat
from pathlib import Path
from xml.etree import ElementTree

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import stagejit
from stagejit.errors import OptionsError, UnsupportedOpError
from stagejit.inspect.pictures.drawing import gantt
from stagejit.inspect.pictures.drawing.nodes import MOST, Edge, Line, Node, draw
from stagejit.inspect.pictures.views import NAMES
from stagejit.schedule.memory import lifetimes
from stagejit.schedule.plans.parser import parse_plan
from stagejit.stages import Lowered
from tests.schedule.memory.test_peak import PLAN

SVG = "{http://www.w3.org/2000/svg}"


def chain(x: jax.Array, ws: list[jax.Array]) -> jax.Array:
    for w in ws:
        x = jnp.tanh(x @ w) + x
    return x.sum(0)


def controlled(x: jax.Array, n: jax.Array) -> tuple[jax.Array, jax.Array]:
    y, total = jax.lax.scan(lambda c, _: (jnp.tanh(c @ x), c.sum()), x, None, length=3)
    z = jax.lax.while_loop(lambda v: v.max() > n, lambda v: v @ x * 0.5, y)
    return jax.lax.cond(n > 0, lambda v: jnp.exp(v) @ x, lambda v: v * 2, z), total


def lowered(layers: int = 2, **options: object) -> Lowered:
    made = stagejit.jit(chain, options=stagejit.Options(**options))  # type: ignore[arg-type]
    one: Lowered = made.lower(jnp.ones((8, 8)), [jnp.ones((8, 8))] * layers)
    return one


def with_control() -> Lowered:
    one: Lowered = stagejit.jit(controlled).lower(jnp.ones((8, 8)), jnp.float32(1))
    return one


def texts(document: str) -> list[str]:
    root = ElementTree.fromstring(document)
    return [each.text or "" for each in root.iter(f"{SVG}text")]


@pytest.mark.parametrize("what", NAMES)
@pytest.mark.parametrize("make", [lowered, with_control])
def test_each_picture_is_one_document_without_network(what: str, make) -> None:  # type: ignore[no-untyped-def]
    picture = make().picture(what)
    root = ElementTree.fromstring(picture.svg)
    assert root.tag == f"{SVG}svg"
    assert not re.search(r"https?:(?!//www.w3.org/2000/svg)|@import|url\(|\bid=", picture.html)
    assert picture.html.startswith("<!DOCTYPE html>")
    assert "sj-view" in picture._repr_html_()
    box = [float(part) for part in root.attrib["viewBox"].split()]
    for each in root.iter(f"{SVG}text"):
        assert float(each.attrib["x"]) <= box[2]


def test_dispatches_are_boxes_and_barriers_are_on_edges_with_their_ranges() -> None:
    made = lowered()
    words = texts(made.picture("dispatches").svg)
    for dispatch in made.plan.dispatches:
        assert f"@{dispatch.name}" in words
    for barrier in made.plan.barriers:
        for box in barrier.ranges:
            assert any(f"{barrier.hazard} {barrier.buffer}{box}" in each for each in words)


def test_layers_that_repeat_are_drawn_once_and_can_be_unfolded() -> None:
    made = lowered(12)
    picture = made.picture("dispatches")
    words = texts(picture.svg)
    assert any(re.fullmatch(r"× 1\d", each) for each in words)
    assert sum(each.startswith("@") for each in words) < len(made.plan.dispatches)
    (whole,) = [panel for panel in picture.panels if panel.title == "all dispatches"]
    assert not whole.is_open
    assert whole.drawing is not None
    for dispatch in made.plan.dispatches:
        assert f">@{dispatch.name}<" in whole.drawing.body


def test_bodies_of_loops_and_branches_have_panels() -> None:
    titles = [panel.title for panel in with_control().picture("dispatches").panels]
    assert any("the body of @loop" in title and "3 times" in title for title in titles)
    assert any("the condition of @loop" in title for title in titles)
    assert any("branch 1 of @branch" in title for title in titles)


def test_thousands_of_different_things_are_cut_with_a_sentence() -> None:
    made = [Node(f"n{at}", (Line(f"n{at}"),), "blue", (), at) for at in range(4000)]
    edges = [Edge(at // 2, at) for at in range(1, 4000)]
    drawn = draw(made, edges)
    assert drawn.note == f"the first {MOST} of 4000 are drawn"
    assert drawn.drawing.body.count("<rect") == 2 * MOST
    long = [Edge(0, at, (f"range {at}",)) for at in range(1, 4000)]
    assert draw(made, long).drawing.body.count("◂ n0 range") > 300  # far ends are text


def test_the_peak_is_where_most_transients_are_in_use() -> None:
    plan = parse_plan(PLAN)
    found = lifetimes.lives_of(plan)
    assert {life.buffer.name: (life.first, life.last) for life in found} == {
        "x": (0, 0),
        "r0": (3, 3),
        "t0": (0, 1),
        "t1": (1, 2),
        "t2": (2, 3),
    }
    peak = plan.peak
    assert (peak.position, peak.dispatch, peak.nbytes) == (1, "b", 3072)
    assert [each.name for each in peak.buffers] == ["t1", "t0"]
    page = plan._repr_html_()
    assert "peak of transients 3,072 bytes at @b" in page
    assert "3,072 bytes while @b runs; 1,024 more are idle then" in page


def test_a_buffer_that_is_written_over_another_one_is_counted_once() -> None:
    plan = parse_plan(PLAN.replace("slot 3072", "slot 1024 over t1"))
    assert plan.peak.nbytes == 3072
    halves = lifetimes.live_nbytes(lifetimes.owned(lifetimes.lives_of(plan)), 4)
    assert halves == [1024, 3072, 2048, 1024]


def test_memory_is_attributed_to_the_lines_that_write_it() -> None:
    page = lowered().picture("memory").html
    assert "x = jnp.tanh(x @ w) + x" in page


def test_the_timeline_has_every_wave_and_what_it_waits_for() -> None:
    made = lowered()
    picture = made.picture("timeline")
    assert "by the model" in picture.panels[0].note
    for dispatch in made.plan.dispatches:
        assert f"@{dispatch.name}" in picture.html
    for barrier in made.plan.barriers:
        assert f"@{barrier.src}: {barrier.hazard} {barrier.buffer}" in picture.html


def test_a_gpu_has_streams_and_events() -> None:
    def f(x: jax.Array) -> jax.Array:
        big = [jnp.tanh(x @ x.T * float(at + 1)) @ x for at in range(3)]
        return jnp.concatenate(big)

    made = stagejit.jit(f, options=stagejit.Options(target="cuda-emulated"))
    lowered = made.lower(np.ones((512, 512), np.float32))
    words = texts(lowered.picture("timeline").svg)
    assert "stream 0" in words
    program = lowered.compilation.run_until("host").cuda
    assert program.streams > 1
    assert "stream 1" in words
    assert "after @" in lowered.picture("timeline").html


def test_rewrites_show_what_they_removed_and_added() -> None:
    def f(x: jax.Array) -> jax.Array:
        return jnp.pad(x.reshape(4, 4).reshape(16).reshape(2, 8), 1)

    picture = stagejit.jit(f).lower(jnp.ones(16)).picture("rewrites")
    simplify = next(panel for panel in picture.panels if panel.title == "simplify")
    assert "removed" in simplify.note
    assert simplify.drawing is not None
    assert "sj-removed" in simplify.drawing.body
    assert "fold-views" in simplify.details
    assert any(panel.title == "after assemble" for panel in picture.panels)


def test_rewrites_that_are_watched_give_the_same_graph() -> None:
    made = lowered()
    before = made.as_text("dispatches")
    made.picture("rewrites")
    assert made.as_text("dispatches") == before


def test_files_are_written_as_a_whole_or_not_at_all(tmp_path: Path, monkeypatch) -> None:  # type: ignore[no-untyped-def]
    picture = lowered().picture("memory")
    target = picture.save(tmp_path / "memory.svg")
    assert target.read_text(encoding="utf-8") == picture.svg
    assert stat.S_IMODE(target.stat().st_mode) & 0o077 == 0o077 & 0o666 & ~_umask()
    assert picture.save(tmp_path / "memory.html").read_text(encoding="utf-8") == picture.html

    def fails(*_: object) -> None:
        raise OSError("no room")

    monkeypatch.setattr(os, "replace", fails)
    target.write_text("old")
    with pytest.raises(OSError, match="no room"):
        picture.save(target)
    assert target.read_text() == "old"
    assert sorted(path.name for path in tmp_path.iterdir()) == ["memory.html", "memory.svg"]


def _umask() -> int:
    mask = os.umask(0)
    os.umask(mask)
    return mask


def test_other_names_and_endings_are_refused_with_the_next_step() -> None:
    made = lowered()
    with pytest.raises(OptionsError, match="choose one of graph, rewrites"):
        made.picture("everything")
    with pytest.raises(OptionsError, match=r"ends with .html or .svg"):
        made.picture("memory").save("memory.png")


def test_symbolic_sizes_have_dispatches_but_no_memory() -> None:
    (n,) = jax.export.symbolic_shape("n")
    made = stagejit.jit(lambda x: jnp.tanh(x).sum()).lower(jax.ShapeDtypeStruct((n,), jnp.float32))
    assert "sj-picture" in made.picture("dispatches").html
    assert "sj-picture" in made.plan._repr_html_()
    with pytest.raises(UnsupportedOpError, match="sizes"):
        made.picture("memory")


def test_a_call_that_is_not_ours_says_so() -> None:
    made = lowered()
    made.compilation.run_until("schedule").left_to_xla = "it is on two devices"
    for what in ("graph", "dispatches", "memory"):
        note = made.picture(what).note
        assert note.startswith("JAX runs this call without stagejit: it is on two devices; ")
    assert "without stagejit: it is on two devices" in made._repr_html_()


def test_graphs_plans_and_lowered_functions_show_themselves() -> None:
    made = lowered()
    for shown in (made, made.graph, made.plan):
        page = shown._repr_html_()
        assert page.count("<svg") >= 1
        assert " id=" not in page


def test_ticks_are_round_and_few() -> None:
    for end in (3e-9, 1.7e-5, 0.4, 1.0, 99.0):
        found = gantt.ticks(end, 8)
        assert 2 <= len(found) <= 9
        assert found[-1] <= end * (1 + 1e-9)


def bar(name: str, lane: int, start: float, end: float) -> gantt.Bar:
    return gantt.Bar(name, lane, 1, start, end, f"@{name}", (), "blue")


def test_a_folded_timeline_leaves_out_later_copies_and_moves_what_follows() -> None:
    bars = [bar("a", 0, 0, 1), *(bar(f"b{at}", 0, 1 + at, 2 + at) for at in range(4))]
    bars.append(bar("c", 1, 5, 7))
    copies = (("b0", "b1", "b2", "b3", "c"),)
    joins = tuple(gantt.Join(at, at + 1, "", ()) for at in (1, 3, 5))
    links = (gantt.Link(0, 2, 0, 3, ()), gantt.Link(0, 5, 1, 5, ()))
    folded = gantt.Gantt(("x", "y"), tuple(bars), joins, links, copies=copies).folded()
    times = [(each.dispatch, each.start, each.end) for each in folded.bars]
    assert times == [("a", 0, 1), ("b0", 1, 2), ("c", 2, 4)]
    assert [each.time for each in folded.joins] == [1, 2]
    assert [(each.start, each.end) for each in folded.links] == [(2, 2)]
    assert folded.told == ("× 4, 3 s more",)
    assert folded.end == 4


def test_copies_that_run_at_the_same_time_stay() -> None:
    bars = tuple(bar(f"b{at}", at % 2, at // 2, at // 2 + 1) for at in range(100))
    names = tuple(each.dispatch for each in bars)
    whole = gantt.Gantt(("x", "y"), bars, copies=((*names, ""),))
    assert whole.folded().bars == bars


def test_text_of_the_user_is_escaped() -> None:
    plan = parse_plan(PLAN.replace("(exp)", "(exp)"))
    ops = ("<b>&",)
    changed = stagejit.Plan(
        "f<x>",
        tuple(stagejit.Dispatch(d.name, d.kind, ops, d.reads, d.writes) for d in plan.dispatches),
        plan.barriers,
        plan.buffers,
    )
    page = changed._repr_html_()
    assert "<b>&" not in page
    assert "&lt;b&gt;&amp;" in page
    assert "f&lt;x&gt;" in page

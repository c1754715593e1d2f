"""What shares a fork stands in one frame of the timeline; wide graphs stand below each other."""

from __future__ import annotations

import re
from dataclasses import replace
from typing import Any

import jax.numpy as jnp
import numpy as np
import pytest

import stagejit
from stagejit.codegen.target import Target
from stagejit.inspect.pictures import rewrites
from stagejit.inspect.pictures.drawing.gantt import Bar, Frame, Gantt
from stagejit.inspect.pictures.threads import Waves
from stagejit.options import Options
from stagejit.pipeline import Compilation

X = np.ones((300, 300), np.float32)


def several(x: Any) -> Any:
    return tuple(jnp.tanh(x * float(at)) @ x for at in range(2, 5))


def gantt(**options: Any) -> Gantt:
    made = stagejit.jit(several, options=Options(**options)).trace(X).compilation
    target = replace(Target.host(), cores=2)
    made = Compilation(made.request, made.left_to_xla, target).run_until("host")
    return Waves.of(made.schedule, made.kernels, target).gantt()


def test_what_shares_a_fork_is_framed() -> None:
    drawn = gantt()
    assert drawn.frames
    for frame in drawn.frames:
        assert frame.text.startswith("one fork: ")
        inside = [bar for bar in drawn.bars if frame.start <= bar.start < frame.end]
        assert len({bar.dispatch for bar in inside}) > 1
        assert all(bar.end <= frame.end + 1e-9 for bar in inside)
    body = drawn.drawing().body
    assert body.count('class="sj-frame"') == len(drawn.frames)
    assert "one fork: 3 kernels" in body


def test_without_sharing_there_is_no_frame() -> None:
    drawn = gantt(disable=("share-forks",))
    assert not drawn.frames
    assert "sj-frame" not in drawn.drawing().body


def test_frames_are_folded_with_what_they_are_around() -> None:
    bars = tuple(Bar(f"{at}", 0, 1, at, at + 1.0, f"@{at}", (), "blue") for at in range(6))
    frames = tuple(Frame(at, at + 1.0, "one fork: 2 kernels", ()) for at in range(6))
    folded = Gantt(("thread 0",), bars, frames=frames, copies=(("0", "2", "4", "5"),)).folded()
    assert [frame.start for frame in folded.frames] == [0.0, 1.0, 2.0]
    assert [bar.start for bar in folded.bars] == [0.0, 1.0, 2.0]


@pytest.mark.parametrize(("limit", "beside"), [(1e9, True), (10.0, False)])
def test_wide_graphs_stand_below_each_other(
    monkeypatch: pytest.MonkeyPatch, limit: float, beside: bool
) -> None:
    monkeypatch.setattr(rewrites, "_WIDEST_BESIDE", limit)
    picture = stagejit.jit(lambda x: jnp.tanh(x * 1.0) @ x).lower(X).picture("rewrites")
    widths = [panel.drawing.width for panel in picture.panels if panel.drawing is not None]
    monkeypatch.setattr(rewrites, "_WIDEST_BESIDE", 1e9 if not beside else 10.0)
    others = stagejit.jit(lambda x: jnp.tanh(x * 1.0) @ x).lower(X).picture("rewrites")
    wide = [panel.drawing.width for panel in others.panels if panel.drawing is not None]
    assert (max(widths) > max(wide)) is beside


def test_ops_before_and_after_rewrites_have_the_names_of_the_text() -> None:
    """What is gone has the name that decisions beside it give it."""
    lowered = stagejit.jit(lambda x: jnp.tanh(x * 1.0) @ x).lower(X)
    (product,) = (line for line in lowered.as_text("graph").splitlines() if "contract" in line)
    name = product.split(":")[0].strip()
    panels = {panel.title: panel for panel in lowered.picture("rewrites").panels}
    simplified = panels["simplify"]
    assert simplified.drawing is not None
    assert f">{name}<" in simplified.drawing.body
    (gone,) = re.findall(r">(%map\.\d+)<", simplified.drawing.body)
    assert f"{gone} map mul" in simplified.details

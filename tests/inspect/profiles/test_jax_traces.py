"""Dispatches in the traces that JAX's own profiler writes."""

from __future__ import annotations

import gzip
import json
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
from jax.profiler import ProfileData

import stagejit
from stagejit.base.loc import UNKNOWN
from stagejit.inspect.profiles.spans import Span
from stagejit.inspect.profiles.views.xspace import PLANE, xspace


def staged_work(x: Any) -> Any:
    return jnp.cumsum(jnp.tanh(x @ x), axis=0)


def test_the_wire_format_is_what_jaxlib_reads() -> None:
    spans = [
        Span("f", "call", "f", UNKNOWN, 0.5, 0.25, "MainThread"),
        Span("loop.1/map.0", "dispatch", "f", UNKNOWN, 0.5, 0.125, "MainThread"),
        Span("loop.1/map.0", "dispatch", "f", UNKNOWN, 0.5625, 0.0625, "XLA thread ä"),
    ]
    data = ProfileData.from_serialized_xspace(xspace(spans, 10**9))
    (plane,) = data.planes
    assert plane.name == PLANE
    found = [
        (line.name, event.name, event.start_ns - 1e9, event.duration_ns)
        for line in plane.lines
        for event in line.events
    ]
    assert found == [
        ("MainThread", "f", 5e8, 2.5e8),
        ("MainThread", "f: loop.1/map.0", 5e8, 1.25e8),
        ("XLA thread ä", "f: loop.1/map.0", 5.625e8, 6.25e7),
    ]
    assert xspace([], 0) == b""


def test_dispatches_are_in_a_trace(tmp_path: Path) -> None:
    staged, x = stagejit.jit(staged_work), jnp.ones((300, 300))
    staged(x).block_until_ready()
    dispatches = {dispatch.name for dispatch in staged.plan(x).dispatches}
    with jax.profiler.trace(tmp_path, create_perfetto_trace=True):
        for _ in range(2):
            staged(x).block_until_ready()
    (written,) = tmp_path.rglob("*.xplane.pb")
    data = ProfileData.from_file(str(written))
    (plane,) = [plane for plane in data.planes if plane.name == PLANE]
    names = [event.name for line in plane.lines for event in line.events]
    assert {f"staged_work: {name}" for name in dispatches} <= set(names)
    assert names.count("staged_work") == 2
    (trace,) = tmp_path.rglob("perfetto_trace.json.gz")
    with gzip.open(trace) as file:
        events = json.load(file)["traceEvents"]
    shown = {event.get("name") for event in events}
    assert {f"staged_work: {name}" for name in dispatches} <= shown
    calls = [event for event in events if event.get("name") == "staged_work"]
    host = [event for event in events if event.get("cat") != "M" and "ts" in event]
    assert all(call["ts"] >= 0 for call in calls)
    assert max(e["ts"] + e.get("dur", 0) for e in host) >= max(c["ts"] for c in calls)


def test_a_trace_without_calls_has_no_plane(tmp_path: Path) -> None:
    with jax.profiler.trace(tmp_path):
        jnp.ones(3).block_until_ready()
    (written,) = tmp_path.rglob("*.xplane.pb")
    names = [plane.name for plane in ProfileData.from_file(str(written)).planes]
    assert PLANE not in names


def test_a_profile_and_a_trace_see_the_same_calls(tmp_path: Path) -> None:
    staged, x = stagejit.jit(staged_work), jnp.ones((30, 30))
    staged(x).block_until_ready()
    with jax.profiler.trace(tmp_path), stagejit.profile() as profile:
        staged(x).block_until_ready()
    assert profile.calls == 1
    (written,) = tmp_path.rglob("*.xplane.pb")
    (plane,) = [p for p in ProfileData.from_file(str(written)).planes if p.name == PLANE]
    assert [e.name for line in plane.lines for e in line.events].count("staged_work") == 1

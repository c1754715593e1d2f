"""A profile as text, as a page, and as a file of a trace."""

from __future__ import annotations

import json
import re
from pathlib import Path

import jax.numpy as jnp
import pytest

from stagejit.errors import OptionsError
from stagejit.inspect.profiles.views import pages
from tests.inspect.profiles.profiling import layer, profiled


def test_the_page_says_what_each_column_is() -> None:
    page = (Path(pages.__file__).parents[2] / "README.md").read_text(encoding="utf-8")
    cells = re.findall(r"^\| (`.*?) \|", page[page.index("| Column | is |") :], re.MULTILINE)
    assert [name for cell in cells for name in re.findall("`(.*?)`", cell)] == [
        "dispatch", "kind", "line", *pages._HEAD[2:-1]
    ]  # fmt: skip


def test_a_trace_file_is_for_perfetto(tmp_path: Path) -> None:
    x = jnp.ones((300, 300))
    profile = profiled(layer, x, x)
    path = tmp_path / "trace.json"
    profile.save(path)
    assert [path] == list(tmp_path.iterdir())
    events = json.loads(path.read_text())["traceEvents"]
    complete = [event for event in events if event["ph"] == "X"]
    assert len(complete) == len(profile.spans)
    threads = {e["tid"] for e in events if e["ph"] == "M" and e["name"] == "thread_name"}
    assert {event["tid"] for event in complete} == threads
    call = next(event for event in complete if event["cat"] == "call")
    inside = [
        e
        for e in complete
        if e["tid"] == call["tid"] and call["ts"] <= e["ts"] <= call["ts"] + call["dur"]
    ]
    assert all(e["ts"] + e["dur"] <= call["ts"] + call["dur"] + 1e-3 for e in inside)
    names = {dispatch.dispatch for dispatch in profile.dispatches}
    assert {e["name"] for e in inside if e["cat"] == "dispatch"} <= names


def test_the_ending_of_a_name_decides_what_a_file_has(tmp_path: Path) -> None:
    profile = profiled(layer, jnp.ones((30, 30)), jnp.ones((30, 30)))
    texts = {name: profile.save(tmp_path / name).read_text() for name in ("p.html", "p.HTM")}
    assert all(text.startswith("<!DOCTYPE html>") for text in texts.values())
    assert profile.save(str(tmp_path / "p.txt")).read_text() == str(profile)
    assert "traceEvents" in json.loads(profile.save(tmp_path / "p.json").read_text())
    for name in ("p.svg", "p", "p.json.gz"):
        with pytest.raises(OptionsError, match=r"\.json \(for Perfetto\), \.html or \.txt"):
            profile.save(tmp_path / name)
    assert len(list(tmp_path.iterdir())) == 4


def test_a_file_that_cannot_be_written_leaves_the_old_one(tmp_path: Path) -> None:
    x = jnp.ones((30, 30))
    profile = profiled(layer, x, x)
    with pytest.raises(OSError, match="No such file"):
        profile.save(tmp_path / "missing" / "trace.json")
    assert not list(tmp_path.iterdir())


def test_text_and_html_have_all_rows() -> None:
    x = jnp.ones((300, 300))
    profile = profiled(layer, x, x)
    text, page, part = str(profile), profile.as_html(), profile._repr_html_()
    for row in (*profile.dispatches, *profile.around):
        assert row.dispatch in text
        assert row.dispatch in page
        assert row.dispatch in part
    assert "Timeline" in page
    assert "src=" not in page
    one = profile.as_text(rows=1)
    assert f"{len(profile.dispatches) - 1} others" in one

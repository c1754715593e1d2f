"""`stagejit.profile`: every dispatch has a row, counts are exact, and times add up."""

from __future__ import annotations

import gc
import itertools
import json
import pickle
import re
import subprocess
import sys
import textwrap
import threading
import time
from collections import Counter
from dataclasses import replace
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import stagejit
from stagejit.errors import OptionsError, StagejitError
from stagejit.inspect.profiles import session
from stagejit.inspect.profiles.pieces_of_xla import outside
from stagejit.inspect.profiles.rows import FORK_JOIN, HOST, XLA
from stagejit.inspect.profiles.views import pages
from stagejit.runtime.compilations import compile_times
from stagejit.runtime.cpu import recording
from stagejit.runtime.cpu.recording import Clock, Event, ProgramTimes, Slot
from stagejit.runtime.hosting.program import HostProgram
from stagejit.runtime.peaks import Peaks

PEAKS = Peaks(2, 100.0, 50.0, 10.0, 10.0, 512)


def profiled(function: Any, *args: Any, calls: int = 3) -> stagejit.Profile:
    """The profile of calls of a function that is compiled before."""
    staged = stagejit.jit(function)
    expected = jax.block_until_ready(staged(*args))
    with stagejit.profile() as profile:
        for _ in range(calls):
            found = jax.block_until_ready(staged(*args))
    for one, other in zip(jax.tree.leaves(expected), jax.tree.leaves(found), strict=True):
        np.testing.assert_array_equal(one, other)
    assert profile.calls
    rows = (*profile.dispatches, *profile.around)
    assert sum(row.seconds for row in rows) == pytest.approx(profile.seconds)
    assert {row.kind for row in profile.around} <= {HOST, FORK_JOIN}
    assert list(profile.dispatches) == sorted(profile.dispatches, key=lambda row: -row.seconds)
    whole = sum(span.seconds for span in profile.spans if span.kind in ("call", "xla"))
    assert profile.lost_spans or whole == pytest.approx(profile.seconds)
    for row in rows:
        assert row.seconds > 0 or row.kind == HOST
        assert 0 < row.balance <= 1
        assert row.waiting_seconds <= row.seconds * 1.001
        if row.count and row.is_dispatch:
            assert 0 <= row.seconds_min <= row.seconds_mean * 1.001
    return profile


def counts(profile: stagejit.Profile) -> Counter[str]:
    found: Counter[str] = Counter()
    for row in profile.dispatches:
        assert row.kind not in (HOST, FORK_JOIN)
        found[row.dispatch] += row.count
    return found


def layer(x: Any, w: Any) -> Any:
    return jnp.sum(jnp.tanh(x @ w), axis=1)


def test_each_dispatch_of_the_plan_has_a_row() -> None:
    x = jnp.ones((300, 300))
    profile = profiled(layer, x, x, calls=4)
    plan = stagejit.jit(layer).plan(x, x)
    assert counts(profile) == {dispatch.name: 4 for dispatch in plan.dispatches}
    rows = {row.dispatch: row for row in profile.dispatches}
    for dispatch in plan.dispatches:
        row = rows[dispatch.name]
        assert (row.kind, row.ops, row.loc) == (dispatch.kind, dispatch.ops, dispatch.loc)
        assert (row.flops, row.nbytes) == (dispatch.flops, dispatch.nbytes)
        assert row.gflops == pytest.approx(4e-9 * row.flops / row.seconds)
        floor = max(row.flops / 100e9, row.nbytes / 10e9)
        assert row.floor_seconds(PEAKS) == pytest.approx(floor)
        assert row.times_floor(PEAKS) == pytest.approx(row.seconds_min / floor)
    assert profile.calls == 4
    (host,) = [row for row in profile.around if row.kind == HOST]
    assert host.count == 4


def test_seconds_are_those_of_the_block() -> None:
    x = jnp.ones((300, 300))
    profile = profiled(layer, x, x)
    spans = profile.spans
    assert all(span.start_seconds >= 0 for span in spans)
    calls = [span for span in spans if span.kind == "call"]
    assert sorted(s.start_seconds for s in calls) == [s.start_seconds for s in calls]
    for first, second in itertools.pairwise(calls):
        assert first.stop_seconds <= second.start_seconds + 1e-6  # a call waits for the one before


def repeated(x: Any) -> Any:
    def body(x: Any, _: None) -> Any:
        x = jnp.sin(x @ x)
        return x, x.sum()

    x, sums = jax.lax.scan(body, x, None, length=7)
    return jax.lax.while_loop(lambda s: s[1] < 5, lambda s: (s[0] * 0.5, s[1] + 1), (x, 0)), sums


def test_turns_of_loops_are_counted() -> None:
    found = counts(profiled(repeated, jnp.ones((80, 80)), calls=2))
    turns = {name: count for name, count in found.items() if "/" in name}
    assert turns
    assert {count for name, count in turns.items() if "contract" in name} == {14}
    conditions = {count for name, count in turns.items() if "condition" in name}
    assert conditions == {12}


def test_only_the_branch_that_runs_has_a_row() -> None:
    def either(x: Any) -> Any:
        return jax.lax.cond(x[0] > 0, lambda x: jnp.sort(x), lambda x: jnp.cumsum(x), x)

    names = set(counts(profiled(either, jnp.ones(5000))))
    assert any("case1" in name for name in names)
    assert not any("case0" in name for name in names)


def test_iterations_that_threads_share_are_rows_of_their_dispatches() -> None:
    def rows(x: Any) -> Any:
        return jax.lax.map(lambda row: jnp.sin(row @ row.T) @ row, x)

    x = jnp.ones((64, 40, 40))
    plan = stagejit.jit(rows).plan(x)
    assert any(body.threads > 1 for d in plan.dispatches for body in d.bodies)
    profile = profiled(rows, x, calls=2)
    inner = {name: n for name, n in counts(profile).items() if "/" in name}
    assert inner
    assert set(inner.values()) == {128}
    shared = [row for row in profile.dispatches if row.dispatch in inner]
    assert all(row.threads > 1 for row in shared)
    assert any(row.kind == FORK_JOIN for row in profile.around)


def test_pieces_of_xla_between_programs_are_rows() -> None:
    def solved(x: Any) -> Any:
        return jnp.abs(jnp.linalg.eigvals(jnp.sin(x) + 2.0 * x)) * 2.0

    profile = profiled(solved, jnp.eye(40) + 0.1)
    (row,) = [row for row in profile.dispatches if row.kind == XLA]
    assert row.count == 3
    assert row.ops == ("eig",)
    assert row.loc.line
    assert profile.calls == 6


def _slow(x: Any) -> Any:
    time.sleep(0.01)
    return x


def called_back(x: Any) -> Any:
    return jax.pure_callback(_slow, jax.ShapeDtypeStruct(x.shape, x.dtype), x)


# Where XLA runs what no program of ours comes before, or after; no two have a program in common, by
# which one would be taken for the other while both are alive.
AT_THE_ENDS: dict[str, Any] = {
    "last": lambda x: called_back(jnp.sin(x) @ x),
    "first": lambda x: jnp.cos(called_back(x)) @ x,
    "both": lambda x: called_back(jnp.sin(called_back(x)) @ x),
}


@pytest.mark.parametrize("name", AT_THE_ENDS)
def test_what_xla_runs_at_the_ends_is_outside_and_named(name: str) -> None:
    profile = profiled(AT_THE_ENDS[name], jnp.ones((20, 20)))
    outside = profile.outside
    assert len(outside.ops) == (2 if name == "both" else 1)
    assert all("delegate." in each for each in outside.ops)
    assert outside.loc.line
    assert outside.seconds > 3 * 0.01 * len(outside.ops)  # the sleeps
    assert profile.block_seconds == pytest.approx(profile.seconds + outside.seconds)
    rows = len(profile.dispatches) + len(profile.around)
    *_, last, _, told = str(profile).split("\n")[: rows + 5]
    assert last.split()[:3] == ["outside", "of", "calls"]
    assert told.startswith("outside of calls: Python, JAX's way to a call and back, and what XLA")
    assert outside.ops[0] in told
    assert outside.ops[0] in profile.as_html()


def test_without_pieces_at_the_ends_nothing_is_named() -> None:
    profile = profiled(layer, jnp.ones((20, 20)), jnp.ones((20, 20)))
    assert profile.outside.ops == ()
    assert profile.block_seconds == pytest.approx(profile.seconds + profile.outside.seconds)
    assert "outside of calls: Python, JAX's way to a call and back\n" in str(profile)


def test_what_is_between_two_programs_is_not_outside() -> None:
    def both(x: Any) -> Any:
        return jnp.sin(called_back(jnp.sin(x) @ x)) @ x

    profile = profiled(both, jnp.ones((20, 20)))
    assert profile.outside.ops == ()
    (row,) = [row for row in profile.dispatches if row.kind == XLA]
    assert row.seconds > 3 * 0.01
    assert profile.block_seconds == pytest.approx(profile.seconds + profile.outside.seconds)


def test_calls_beside_each_other_are_not_outside_twice() -> None:
    program = HostProgram("f", (), (), ())
    calls = [Event(10, 30, 1, 0, 0), Event(20, 40, 2, 0, 0), Event(60, 70, 1, 0, 0)]
    inner = Event(12, 14, 1, 128, 0)
    slots = {0: [Slot(3, 50, 10, 20, 0, 0, 0)]}
    clock = Clock(0, 0.0, 0.5)
    times = ProgramTimes("f_1", program, slots, [*calls, inner], 0, 1)
    assert outside([times], [], [], clock, 50.0).seconds == 50.0 - 0.5 * 40
    lost = replace(times, events=calls[2:], lost_events=3)
    assert outside([lost], [], [], clock, 50.0).seconds == 50.0 - 0.5 * 50
    assert outside([lost], [], [], clock, 20.0).seconds == 0.0


def test_the_page_says_what_each_column_is() -> None:
    page = (Path(pages.__file__).parents[2] / "README.md").read_text(encoding="utf-8")
    cells = re.findall(r"^\| (`.*?) \|", page[page.index("| Column | is |") :], re.MULTILINE)
    assert [name for cell in cells for name in re.findall("`(.*?)`", cell)] == [
        "dispatch", "kind", "line", *pages._HEAD[2:-1]
    ]  # fmt: skip


def test_calls_of_several_threads_are_all_counted() -> None:
    staged, x = stagejit.jit(layer), jnp.ones((64, 64))
    jax.block_until_ready(staged(x, x))

    def call() -> None:
        for _ in range(50):
            jax.block_until_ready(staged(x, x))

    threads = [threading.Thread(target=call) for _ in range(4)]
    with stagejit.profile() as profile:
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    assert profile.calls == 200
    assert set(counts(profile).values()) == {200}


def test_profiles_overlap() -> None:
    staged, x = stagejit.jit(layer), jnp.ones((32, 32))
    staged(x, x)
    with stagejit.profile() as outer:
        staged(x, x)
        with stagejit.profile() as inner:
            staged(x, x)
            staged(x, x)
        staged(x, x)
    assert (outer.calls, inner.calls) == (4, 2)
    assert inner.seconds < outer.seconds


def test_what_is_compiled_in_the_block_is_told() -> None:
    def fresh(x: Any) -> Any:
        return jnp.cos(x * 1.25) + jnp.sin(x[::-1] / 3.5)

    with stagejit.profile() as profile:
        stagejit.jit(fresh)(jnp.ones(100))
    assert profile.calls == 1
    (times,) = profile.compiled
    assert times.name == "fresh"
    assert next(iter(times.seconds_by_step)) == "trace"
    assert list(times.seconds_by_step)[-1] == "load"
    assert times.kernels == times.compiled_kernels + times.cached_kernels > 0
    assert "compiled fresh" in str(profile)


def test_calls_are_counted_whose_results_nobody_keeps() -> None:
    """Operands that are not there yet have JAX run a call on a thread of its own, later."""
    slow = jax.jit(lambda x: jax.lax.fori_loop(0, 20, lambda _, x: jnp.sin(x @ x), x))
    inner = stagejit.jit(layer)
    around = jax.jit(lambda x: inner(x @ x, x)[:, None] * x)
    x = jnp.ones((300, 300))
    jax.block_until_ready((inner(slow(x), x), around(x), inner(np.ones(x.shape, x.dtype), x)))
    for _ in range(2):
        with stagejit.profile() as profile:
            for _ in range(5):
                inner(slow(x), x)
                around(x)
                inner(np.ones(x.shape, x.dtype), x)
        assert profile.calls == 15


def test_a_function_that_goes_in_the_block_is_counted() -> None:
    with stagejit.profile() as profile:
        staged = stagejit.jit(lambda x: jnp.cos(x + 0.75))
        staged(jnp.ones(10)).block_until_ready()
        del staged
        gc.collect()
    assert profile.calls == 1


def test_nothing_is_timed_outside_of_a_block() -> None:
    staged, x = stagejit.jit(layer), jnp.ones((32, 32))
    with stagejit.profile() as profile:
        staged(x, x)
    staged(x, x).block_until_ready()
    with stagejit.profile() as other:
        pass
    assert profile.calls == 1
    assert other.calls == 0
    assert other.dispatches == ()
    assert "no staged function" in str(other)


def test_an_error_in_the_block_ends_the_profile() -> None:
    staged, x = stagejit.jit(layer), jnp.ones((32, 32))
    profile = stagejit.profile()

    def failing() -> None:
        with profile:
            staged(x, x)
            raise ValueError("of the user's")

    with pytest.raises(ValueError, match="of the user's"):
        failing()
    assert profile.calls == 1


def test_what_a_profile_does_not_have_is_an_error() -> None:
    profile = stagejit.profile()
    with pytest.raises(StagejitError, match="has not ended"):
        _ = profile.dispatches
    with profile, pytest.raises(StagejitError, match="has not ended"):
        str(profile)
    with pytest.raises(StagejitError, match="begun already"), profile:
        pass


def test_the_last_spans_are_kept(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(recording, "EVENTS", 16)
    staged = stagejit.jit(repeated)
    staged(jnp.ones((40, 40)))
    with stagejit.profile() as profile:
        for _ in range(20):
            jax.block_until_ready(staged(jnp.ones((40, 40))))
    assert profile.lost_spans
    assert len(profile.spans) <= 16 * profile.peaks.cores * 2
    assert max(counts(profile).values()) >= 140  # sums lose nothing


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


def test_a_profile_that_has_ended_is_data() -> None:
    profile = profiled(layer, jnp.ones((8, 8)), jnp.ones((8, 8)))
    kept = pickle.loads(pickle.dumps(profile))
    assert kept.dispatches == profile.dispatches
    assert kept.spans == profile.spans
    assert str(kept).splitlines()[0] == str(profile).splitlines()[0]
    with pytest.raises(StagejitError, match="has begun already"), kept:
        pass


IN_A_CHILD = """
    import os, sys, warnings
    warnings.simplefilter("ignore")
    import jax.numpy as jnp, stagejit
    f, x = stagejit.jit(lambda x: jnp.tanh(x) * 2 + x), jnp.ones(8)
    f(x).block_until_ready()
    if "before" in sys.argv:
        with stagejit.profile():
            f(x).block_until_ready()
    child = os.fork()
    if not child:
        with stagejit.profile() as profile:
            f(x).block_until_ready()
        os._exit(profile.calls)
    print(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]))
"""


@pytest.mark.parametrize("when", ["", "before"])
def test_in_a_child_of_a_fork(when: str) -> None:
    """What XLA would compile there would wait for ever."""
    command = [sys.executable, "-c", textwrap.dedent(IN_A_CHILD), when]
    found = subprocess.run(command, capture_output=True, text=True, timeout=300, check=True)
    assert found.stdout == "1\n"


def _squared(x: Any) -> Any:
    return jnp.tanh(x @ x)


def _alike(kind: str) -> list[tuple[Any, Any]]:
    """Functions and arguments whose dispatches have one name, and do not do the same."""
    small, large = jnp.ones((16, 16)), jnp.ones((160, 160))
    if kind == "sizes of one function":
        f = stagejit.jit(_squared)
        return [(f, small), (f, large)]
    if kind == "functions of one name":
        return [
            (stagejit.jit(lambda x, n=n: _squared(x[:n, :n]), static_argnums=1), large)
            for n in (16, 160)
        ]
    if kind == "element types":
        f = stagejit.jit(_squared)
        return [(f, large), (f, large.astype(jnp.bfloat16))]
    assert kind == "pieces of XLA"
    f = stagejit.jit(lambda x: jnp.sin(jnp.linalg.eigh(jnp.cos(x))[0]))
    return [(f, small), (f, large)]


@pytest.mark.parametrize("order", [1, -1])
@pytest.mark.parametrize(
    "kind", ["sizes of one function", "functions of one name", "element types", "pieces of XLA"]
)
def test_rows_of_dispatches_that_differ_stay_apart(kind: str, order: int) -> None:
    cases = _alike(kind)[::order]
    for f, x in cases:
        jax.block_until_ready(f(x))
    with stagejit.profile() as profile:
        for calls, (f, x) in enumerate(cases, 2):
            for _ in range(calls):
                jax.block_until_ready(f(x))
    known: Counter[tuple[str, int, int]] = Counter()
    for calls, (f, x) in enumerate(cases, 2):
        for dispatch in f.plan(x).dispatches:
            if dispatch.kind != "delegate":
                known[dispatch.name, dispatch.flops, dispatch.nbytes] += calls
    found = [row for row in profile.dispatches if row.kind != XLA]
    assert {(row.dispatch, row.flops, row.nbytes): row.count for row in found} == known
    assert len(found) == len(known)
    for row in found:
        assert row.gflops * row.seconds == pytest.approx(row.flops * row.count / 1e9)
    names = [cells[0] for cells in pages._table(profile.dispatches, profile.seconds, PEAKS)]
    if kind != "element types":
        assert len({*names}) == len(names)


def test_one_program_is_one_row_for_all_who_call_it() -> None:
    x = jnp.ones((32, 32))
    both = [stagejit.jit(_squared) for _ in range(2)]
    for f in both:
        f(x)
    with stagejit.profile() as profile:
        for f in both:
            jax.block_until_ready(f(x))
    assert [row.count for row in profile.dispatches] == [2]


@pytest.mark.parametrize("size", [8, 700])
def test_an_argument_that_the_result_lies_in_is_not_copied(size: int) -> None:
    f = stagejit.jit(lambda x: jnp.sin(x) + 1, donate_argnums=0)
    f(jnp.ones((size, size)))
    x = jnp.ones((size, size)).block_until_ready()
    with stagejit.profile() as profile:
        jax.block_until_ready(f(x))
    assert [row.kind for row in profile.dispatches] == ["map"]


def test_an_argument_that_was_not_given_up_is_copied() -> None:
    f = stagejit.jit(lambda x: x.at[3].set(1.0), donate_argnums=0)
    x = jnp.ones((500, 8))
    outer = jax.jit(lambda x: (f(x), x.sum()))
    outer(x)
    with stagejit.profile() as profile:
        jax.block_until_ready(outer(x))
    copies = [row for row in profile.dispatches if row.dispatch == "arguments"]
    assert not copies or all(row.nbytes == 2 * x.nbytes for row in copies)


def test_an_interrupt_while_the_block_ends_leaves_what_there_is(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    f, x = stagejit.jit(_squared), jnp.ones((8, 8))
    jax.block_until_ready(f(x))
    profile = stagejit.profile()

    def interrupted() -> None:
        raise KeyboardInterrupt

    profile.__enter__()
    jax.block_until_ready(f(x))
    monkeypatch.setattr(session, "wait_for_calls", interrupted)
    with pytest.raises(KeyboardInterrupt):
        profile.__exit__(None, None, None)
    assert counts(profile) == {"contract.0": 1}


@pytest.mark.parametrize("what", ["recorder", "timing"])
def test_a_profile_that_does_not_begin_leaves_nothing_open(
    monkeypatch: pytest.MonkeyPatch, what: str
) -> None:
    def fails() -> None:
        raise MemoryError

    place = session.recorder() if what == "recorder" else session.timing
    with monkeypatch.context() as patch:
        patch.setattr(place, "begin", fails)
        with pytest.raises(MemoryError):
            stagejit.profile().__enter__()
    assert not compile_times._noting
    assert not session.recorder()._open
    assert not session.timing.is_on()

"""split-reduce: into how many parts, by machine, options and budget."""

from __future__ import annotations

import itertools
from typing import Any

import jax.numpy as jnp
import numpy as np
import pytest

from stagejit.base.machine import Machine
from stagejit.codegen.cuda.device import device_named
from stagejit.errors import OptionsError
from stagejit.graph.functions import REDUCE_FUNCTIONS
from stagejit.options import Options
from stagejit.rewrites.driving.driver import run_steps
from stagejit.trace.translate import graph_of
from tests.rewrites.split.reducing import STEP, decision
from tests.rewrites.text_in_out import rewritten


def test_fewer_parts_within_the_memory_budget() -> None:
    assert decision((1000, 6), 0, split={"reduce": 77}, memory_budget=24 * 10) == (
        "10 parts of 100: 77 asked for, no more are within the memory budget of 240 bytes"
    )


def test_no_part_is_empty() -> None:
    assert decision((10,), 0, split={"reduce": 7}) == "5 parts of 2: 7 asked for"
    assert decision((4099,), 0, split={"reduce": 64}) == (
        "64 parts of 65, the last of 4: 64 asked for"
    )
    assert decision((3, 2), 0, split={"reduce": 77}) == "3 parts of 1: 77 asked for"


def test_the_outer_axis_that_is_long_enough() -> None:
    for shape, parts, expected in (
        ((40, 50), 7, "7 parts of 6, the last of 4"),
        ((4, 50), 7, "7 parts of 8, the last of 2"),
        ((6, 5), 7, "6 parts of 1"),
    ):
        reason = decision(shape, None, split={"reduce": parts})
        assert reason == f"{expected}: {parts} asked for"


def test_more_cores_more_parts() -> None:
    x = np.zeros(1 << 24, np.float32)
    counts = []
    for cores in (1, 2, 64):
        graph = graph_of(lambda x: x.sum(), x)
        (made,) = run_steps(graph, (STEP,), Options(verify=True), Machine(cores=cores))
        counts.append(int(made.reason.split()[0]))
    assert counts == [16, 32, 258]  # of 64 MiB in parts of at least 6.5 us of reading


@pytest.mark.parametrize(("rows", "parts"), [(512, False), (132, False), (64, True), (3, True)])
def test_rows_of_a_gpu_are_shared_by_the_threads_of_a_block(rows: int, parts: bool) -> None:
    """A block for each multiprocessor is enough: no row of more is read in parts."""
    graph = graph_of(lambda x: x.sum(1), np.zeros((rows, 50_257), np.float32))
    decisions = run_steps(graph, (STEP,), Options(verify=True), device_named("H200"))
    assert any(made.applied for made in decisions) == parts


def product(cores: int, m: int, k: int, n: int) -> str:
    """The reason of a decision; empty where it is not split."""
    graph = graph_of(jnp.dot, np.zeros((m, k), np.float32), np.zeros((k, n), np.float32))
    machine = Machine(cores=cores, bandwidth=min(20e9 * cores, 45e9 + 10e9 * cores))
    decisions = run_steps(graph, (STEP,), Options(verify=True), machine)
    return next((made.reason for made in decisions if made.applied), "")


def test_products_that_are_split() -> None:
    """Those with few results; those of which cores would read the same again and again."""
    for k in (51234, 51229):
        assert product(2, 123, k, 456).startswith("10 parts of ")
        assert product(64, 123, k, 456).startswith("64 parts of ")
    assert product(2, 123, 51234, 456) == (
        "10 parts of 5124, the last of 5118: as it is, 496764864 bytes are read for 118657944"
    )
    assert product(2, 1, 1 << 20, 1) == ("32 parts of 32768: 1 block of results for 2 cores")
    assert product(2, 64, 32768, 64) == (
        "8 parts of 4096: as it is, 142606336 bytes are read for 16777216"
    )


@pytest.mark.parametrize(("kind", "options", "parts"), [
    (" bound", {}, False), ("", {}, True), (" bound", {"disable": ("data-tiling",)}, True),
])  # fmt: skip
def test_dont_split_what_cores_read_in_panels(
    kind: str, options: dict[str, Any], parts: bool
) -> None:
    text = f"""\
        graph @f(%x: f32[1,3072], %w: f32[3072,768]{kind}) {{
          %0: f32[1,768] = contract %x, %w batch=((), ()) contracting=((1), (0))
          return %0
        }}"""
    assert ("split_axis %w" in rewritten(STEP, text, **options)) == parts


def test_longer_sums_have_more_parts() -> None:
    """What all parts make is written and read again; a late core costs a share of a part."""
    counts = [int(product(2, 64, k, 64).split()[0]) for k in (1 << 15, 1 << 17, 1 << 19)]
    assert counts == sorted(set(counts))
    assert all(count % 2 == 0 for count in counts)


def test_products_that_are_not_split() -> None:
    """Two cores spend their time on arithmetic where 64 would on reading."""
    for m, k, n in ((256, 4096, 256), (100, 200, 300), (1024, 1024, 1024), (4096, 4096, 4096),
                    (1, 4096, 4096), (4096, 4096, 1), (128, 1024, 16), (64, 64, 64)):  # fmt: skip
        assert not product(2, m, k, n)


def test_what_split_may_say() -> None:
    assert Options(split={"reduce": 3}) == Options(split=(("reduce", 3),))
    assert hash(Options(split={"b.py:3": 3, "a.py:1": 2})) is not None
    chosen = Options(split={"reduce": 3, "reduce max": 4, "b.py:12": 5, "conv": 6})
    assert chosen.asked_parts("reduce", "add", "/a/b.py:1") == 3
    assert chosen.asked_parts("reduce", "max", "/a/b.py:1") == 4
    assert chosen.asked_parts("reduce", "max", "/a/b.py:12") == 5
    assert chosen.asked_parts("reduce", "max", "/a/bb.py:12") == 4
    assert chosen.asked_parts("contract", "", "/a/b.py:1") is None
    assert Options(split={"my model.py:3": 3}).asked_parts("reduce", "max", "/my model.py:3") == 3
    for wrong in ({"reduce": 0}, {"reduce": True}, {3: 3}, 7):
        with pytest.raises(OptionsError, match="split is"):
            Options(split=wrong)  # type: ignore[arg-type]


def test_what_split_names_exists() -> None:
    """A key that nothing can match is a mistake."""
    for fn in REDUCE_FUNCTIONS:
        assert Options(split={f"reduce {fn}": 3}).asked_parts("reduce", fn, "a.py:1") == 3
    words = ["", "reduce", "contract", "conv", "dot", "cumulative", "add", "max", "bogus", "sum"]
    words += ["a.py", "12", "0", "x:y"]
    known = {"reduce", "contract", "conv", *(f"reduce {fn}" for fn in REDUCE_FUNCTIONS)}
    for first, second, by in itertools.product(words, words, " :\t"):
        for key in {first, first + by, by + first, first + by + second}:
            if key in known or (":12" in key and key[0] != ":"):
                Options(split={key: 3})
                continue
            with pytest.raises(OptionsError, match=r"unknown .* in Options"):
                Options(split={key: 3})
    with pytest.raises(OptionsError, match=r"unknown 'reduce maxx' in Options"):
        Options(split={"reduce maxx": 3})

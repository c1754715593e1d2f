"""split-scan: what is cut into parts, when it pays on which machine, and that values stay."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import jax
import jax.numpy as jnp
import ml_dtypes
import numpy as np
import pytest
from jax import lax

import stagejit
from stagejit.base.machine import Machine
from stagejit.codegen.cuda.device import device_named
from stagejit.graph.ir import Op
from stagejit.options import Options
from stagejit.rewrites.driving.driver import run_steps
from stagejit.rewrites.split import scans as split_scan
from stagejit.trace.translate import graph_of
from tests.rewrites.text_in_out import reasons, rewritten, unchanged

STEP = split_scan.STEP


def test_a_long_line() -> None:
    assert rewritten(STEP, """\
        graph @f(%x: f32[1048576]) {
          %0: f32[1048576] = cumulative add %x axis=0 reverse=false
          return %0
        }""") == "\n".join([
            "%0: f32[32,32768] = reshape %x",
            "%1: f32[32] = reduce add %0 axes=(1)",
            "%2: f32[] = const -0.0",
            "%3: f32[33] = fill %2",
            "%4: f32[33] = insert_slice %1 into %3 at (1)",
            "%5: f32[33] = cumulative add %4 axis=0 reverse=false",
            "%6: f32[32,32768] = cumulative add %0 axis=1 reverse=false",
            "%7: f32[32] = extract_slice %5 at (0)",
            "%8: f32[32,32768] = broadcast %7 axes=(0)",
            "%9: f32[32,32768] = map add %8, %6",
            "%10: f32[1048576] = reshape %9",
            "return %10",
        ])  # fmt: skip


def test_what_is_left_over_in_reverse_comes_first() -> None:
    text = rewritten(STEP, """\
        graph @f(%x: i32[1000003]) {
          %0: i32[1000003] = cumulative max %x axis=0 reverse=true
          return %0
        }""")  # fmt: skip
    assert "extract_slice %x at (16963)" in text
    assert "i32[30,32768] = cumulative max" in text
    assert "i32[16963] = cumulative max" in text
    assert "%17 into %18 at (0)" in text
    assert "into %19 at (16963)" in text


def test_sixteen_bits_round_once() -> None:
    text = rewritten(STEP, """\
        graph @f(%x: bf16[1048576]) {
          %0: bf16[1048576] = cumulative add %x axis=0 reverse=false
          return %0
        }""")  # fmt: skip
    assert text.count("= convert") == 2
    assert "f32[16,65536] = cumulative add" in text


@pytest.mark.parametrize("shape", ["4096", "0", "1", "4096,1024", "64,65536", "128,32,1024"])
def test_dont_cut_what_is_short_or_many(shape: str) -> None:
    assert unchanged(STEP, f"""\
        graph @f(%x: f32[{shape}]) {{
          %0: f32[{shape}] = cumulative add %x axis=0 reverse=false
          return %0
        }}""")  # fmt: skip


def test_dont_read_twice_what_one_core_reads_as_fast() -> None:
    (reason,) = reasons(STEP, """\
        graph @f(%x: f32[131072]) {
          %0: f32[131072] = cumulative add %x axis=0 reverse=false
          return %0
        }""")  # fmt: skip
    assert reason == "42.1 us in one piece, 51.1 in 4 parts"


def applied(x: Any, axis: int, on: Machine | None = None, **machine: Any) -> str:
    graph = graph_of(lambda x: lax.cumsum(x, axis), x)
    decisions = run_steps(graph, (STEP,), Options(verify=True), on or Machine(**machine))
    return next((made.reason for made in decisions if made.applied), "")


def test_the_machine_decides() -> None:
    """Parts are of a size; cores and bandwidths say whether they pay."""
    line, rows = np.zeros(1 << 24, np.float32), np.zeros((8, 1 << 21), np.float32)
    assert not applied(line, 0, cores=1)
    for cores in (2, 8, 64, 128):
        bandwidth = min(20e9 * cores, 45e9 + 10e9 * cores)
        assert applied(line, 0, cores=cores, bandwidth=bandwidth).endswith("in 512 parts")
    assert not applied(line, 0, cores=2, bandwidth=20e9)  # that of one core, for both
    assert not applied(rows, 1, cores=8, bandwidth=125e9)
    assert applied(rows, 1, cores=64, bandwidth=685e9).endswith("in 64 parts")
    columns = np.zeros((1 << 20, 16), np.float32)
    assert applied(columns, 0, cores=8, bandwidth=125e9).endswith("in 512 parts")


def test_lines_of_a_gpu_are_cut_where_blocks_would_go_along_them_alone() -> None:
    for cores in (16, 132):
        gpu = replace(device_named("H200"), cores=cores)
        assert applied(np.zeros((100_000, 32), np.float32), 0, gpu).endswith("in 100 parts")
        assert applied(np.zeros((4, 1 << 20), np.float32), 1, gpu).endswith("in 32 parts")
        assert not applied(np.zeros((4096, 1024), np.float32), 1, gpu)
        assert not applied(np.zeros((512, 64), np.float32), 0, gpu)


@pytest.mark.parametrize("extent", [16_000_001, 16_000_004])
def test_parts_of_a_gpu_begin_at_whole_accesses(extent: int) -> None:
    """16,000,001 is 641 times 24,961."""
    on_gpu = split_scan._Line.of(_cumsum(extent), device_named("A100"))
    assert on_gpu.tile % 4 == 0
    assert split_scan._Line.of(_cumsum(16_000_001), Machine()).tile == 24_961


def _cumsum(extent: int) -> Op:
    graph = graph_of(lambda x: lax.cumsum(x, 0), jax.ShapeDtypeStruct((extent,), np.float32))
    return next(op for op in graph.ops() if op.definition.is_cumulative)


@pytest.fixture
def short_parts(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(split_scan, "_PART_NBYTES", 256)
    monkeypatch.setattr(split_scan, "_WORTH", float("inf"))


FUNCTIONS = {
    "add": (lax.cumsum, np.cumsum),
    "mul": (lax.cumprod, np.cumprod),
    "max": (lax.cummax, np.maximum.accumulate),
    "min": (lax.cummin, np.minimum.accumulate),
    "logaddexp": (lax.cumlogsumexp, np.logaddexp.accumulate),
}
CASES = [((997,), 0, False), ((2, 211, 5), 1, True), ((3, 500), 1, False), ((640,), 0, True)]


def expected(fn: str, x: Any, axis: int, reverse: bool) -> Any:
    wide = np.asarray(x, np.float64 if x.dtype.kind not in "iu" else x.dtype)
    wide = np.flip(wide, axis) if reverse else wide
    if fn in ("add", "mul"):
        made = FUNCTIONS[fn][1](wide, axis=axis, dtype=wide.dtype)
    else:
        made = FUNCTIONS[fn][1](wide, axis=axis)
    return np.flip(made, axis) if reverse else made


def check(fn: str, xs: list[Any], tolerance: float) -> None:
    def scans(*xs: Any) -> list[Any]:
        cases = zip(xs, CASES, strict=True)
        return [FUNCTIONS[fn][0](x, axis, reverse) for x, (_, axis, reverse) in cases]

    jitted = stagejit.jit(scans)
    decisions = [d for d in jitted.plan(*xs).decisions if d.rewrite == "split-scan"]
    assert [d.applied for d in decisions] == [True] * len(CASES)
    for got, x, (_, axis, reverse) in zip(jitted(*xs), xs, CASES, strict=True):
        made = np.asarray(got).astype(np.float64 if x.dtype.kind not in "iu" else x.dtype)
        wanted = expected(fn, x, axis, reverse)
        np.testing.assert_allclose(made, wanted, tolerance, tolerance)


@pytest.mark.usefixtures("short_parts")
@pytest.mark.parametrize("fn", FUNCTIONS)
def test_values(fn: str) -> None:
    rng = np.random.default_rng(0)
    xs = [rng.standard_normal(shape).astype(np.float32) for shape, *_ in CASES]
    check(fn, [np.exp(x / 32) for x in xs] if fn == "mul" else xs, 2e-5)


@pytest.mark.usefixtures("short_parts")
@pytest.mark.parametrize("dtype", [np.int32, np.uint8, ml_dtypes.bfloat16, np.float16])
def test_types(dtype: Any) -> None:
    rng = np.random.default_rng(1)
    xs = [(rng.standard_normal(shape) * 8).astype(dtype) for shape, *_ in CASES]
    check("add", xs, 0.0 if np.dtype(dtype).kind in "iu" else 1e-2)


@pytest.mark.usefixtures("short_parts")
@pytest.mark.parametrize("fn", FUNCTIONS)
def test_special_values_stay_where_they_begin(fn: str) -> None:
    scan = stagejit.jit(lambda x: FUNCTIONS[fn][0](x))
    for special in ([np.nan], [np.inf], [-np.inf], [np.inf, -np.inf], [-0.0]):
        x = np.full(700, -0.0 if special == [-0.0] else 1.0, np.float32)
        x[300 : 300 + len(special)] = special
        got = np.asarray(scan(x))
        with np.errstate(all="ignore"):
            np.testing.assert_allclose(got, expected(fn, x, 0, False), 1e-5)
        if fn == "add" and special == [-0.0]:
            assert np.signbit(got).all()


def test_the_error_is_not_that_of_a_long_sum() -> None:
    x = np.random.default_rng(2).random(1 << 20).astype(np.float32)
    exact = np.cumsum(x.astype(np.float64))
    whole = stagejit.jit(jnp.cumsum, options=Options(disable=("split-scan",)))(x)
    apart = stagejit.jit(jnp.cumsum, options=Options())(x)
    assert np.abs(apart - exact).max() <= 1.5 * np.abs(whole - exact).max()

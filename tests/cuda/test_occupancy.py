"""Residency against NVIDIA's occupancy calculator (its table for compute capability 9.0), and what
the model makes of it."""

from __future__ import annotations

import math

import pytest

from stagejit.codegen.cuda.device import device_named
from stagejit.codegen.cuda.occupancy import Work, occupancy, resident_seconds, work_floor_seconds

H200 = device_named("H200")


@pytest.mark.parametrize(("threads", "registers", "shared", "blocks", "limit"), [
    (256, 32, 0, 8, "threads"),
    (256, 40, 0, 6, "registers"),
    (256, 128, 0, 2, "registers"),
    (256, 255, 0, 1, "registers"),
    (128, 32, 48 << 10, 4, "shared memory"),
    (32, 16, 0, 32, "blocks"),
    (1024, 64, 0, 1, "registers"),
    (32, 80, 0, 24, "registers"),  # of 25 warps
    (96, 56, 0, 12, "registers"),
])  # fmt: skip
def test_residency(threads: int, registers: int, shared: int, blocks: int, limit: str) -> None:
    held = occupancy(H200, threads, registers, shared)
    assert (held.blocks, held.limit) == (blocks, limit)
    assert held.warps == blocks * threads // 32


def test_nothing_fits_what_asks_for_too_much() -> None:
    held = occupancy(H200, 1024, 128, 0)
    assert held.blocks == 0
    assert math.isinf(resident_seconds(H200, Work(1.0, 1.0, 1), held))


def test_wide_accesses_stream_faster() -> None:
    held = occupancy(H200, 256, 32, 0)
    work = [Work(0, 1e9, 1 << 20, asked_nbytes=nbytes) for nbytes in (4.0, 16.0)]
    narrow, wide = (resident_seconds(H200, each, held) for each in work)
    assert wide < narrow
    assert wide == pytest.approx(work_floor_seconds(H200, work[1]), rel=0.1)


def test_a_last_wave_counts_as_a_full_one() -> None:
    held = occupancy(H200, 256, 128, 0)
    full, more = (
        resident_seconds(H200, Work(1e12, 0, blocks, independent=64), held)
        for blocks in (4 * 264, 4 * 264 + 1)
    )
    assert more == pytest.approx(1.25 * full, rel=0.01)


def test_few_blocks_leave_multiprocessors_idle() -> None:
    held = occupancy(H200, 256, 128, 0)
    one = resident_seconds(H200, Work(1e12, 0, 264, independent=64), held)
    half = resident_seconds(H200, Work(1e12, 0, 132, independent=64), held)
    assert half == pytest.approx(2 * one, rel=0.01)

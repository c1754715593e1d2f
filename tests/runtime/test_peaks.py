"""The measured peaks are of a plausible size, and the floor follows from them."""

from __future__ import annotations

import pytest

from stagejit.runtime import peaks


def test_measured_peaks() -> None:
    found = peaks.measure(seconds=0.1)
    assert found.cores >= 1
    assert found.vector_bits in (128, 256, 512)
    assert 1 < found.gflops_one_core < 1000
    assert 0.5 < found.gbytes_one_core < 1000
    assert found.gbytes >= found.gbytes_one_core


def test_floor_is_the_larger_of_both_times() -> None:
    machine = peaks.Peaks(2, 200.0, 100.0, 50.0, 40.0, 512)
    assert machine.floor_seconds(flops=2_000_000_000, nbytes=0) == pytest.approx(0.01)
    assert machine.floor_seconds(flops=0, nbytes=100_000_000) == pytest.approx(0.002)
    assert machine.floor_seconds(flops=2_000_000_000, nbytes=100_000_000) == pytest.approx(0.01)

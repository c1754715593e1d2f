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


def test_a_process_keeps_the_best_that_it_measured(monkeypatch: pytest.MonkeyPatch) -> None:
    measured = [(80.0, 9.0), (120.0, 7.0), (90.0, 8.0), (10.0, 11.0), (70.0, 6.0), (999.0, 99.0)]
    found = iter([peaks.Peaks(2, f, f / 2, b, b, 512) for f, b in measured])
    now = 100.0
    monkeypatch.setattr(peaks, "measure", lambda seconds=1.0: next(found))
    monkeypatch.setattr(peaks.time, "monotonic", lambda: now)
    monkeypatch.setattr(peaks, "_known", peaks._Known())
    rates = []
    for _ in range(7):
        told = peaks.of_this_machine()
        assert peaks.of_this_machine() is told  # in the same moment it does not measure again
        assert told.gflops_one_core == told.gflops / 2
        rates.append((told.gflops, told.gbytes))
        now += peaks._APART_SECONDS + 1
    assert rates == [(80.0, 9.0), (120.0, 9.0), (120.0, 9.0), *[(120.0, 11.0)] * 4]

"""The table of a profile: what its columns say, and when it doubts its times."""

from __future__ import annotations

from dataclasses import replace

from stagejit.base.loc import Loc
from stagejit.codegen.target import Target
from stagejit.inspect.profiles.doubts import warnings
from stagejit.inspect.profiles.rows import HOST, DispatchTimes
from stagejit.inspect.profiles.views import pages as views
from stagejit.runtime.peaks import Peaks

PEAKS = Peaks(2, 100.0, 50.0, 10.0, 10.0, 512)


def row(flops: int = 0, nbytes: int = 0, *, mean: float, least: float) -> DispatchTimes:
    """Of ten executions, times in microseconds."""
    return DispatchTimes(
        "f",
        "map.0",
        "map",
        count=10,
        seconds=1e-5 * mean,
        seconds_min=1e-6 * least,
        flops=flops,
        nbytes=nbytes,
        different_nbytes=nbytes,
    )


def cells(told: DispatchTimes) -> dict[str, str]:
    return dict(zip(views._HEAD, views.cells(told, 1.0, PEAKS), strict=True))


def test_a_row_tells_its_floor_and_how_often_it_fits() -> None:
    slow = cells(row(flops=1_000_000, mean=90.0, least=18.0))  # 1e6 / 100e9 are 10 us
    assert (slow["us each"], slow["min us"]) == ("90.0", "18.0")
    assert (slow["floor us"], slow["x floor"]) == ("10.0", "1.8x")  # by what was disturbed least
    cached = cells(row(nbytes=100_000, mean=5.0, least=5.0))  # 1e5 / 10e9 are 10 us
    assert (cached["floor us"], cached["x floor"]) == ("10.0", "0.5x")
    tiny = cells(row(nbytes=80, mean=4.0, least=4.0))
    assert (tiny["floor us"], tiny["x floor"]) == ("0.008", "500.0x")


def test_cells_with_nothing_to_say_are_blank() -> None:
    host = cells(DispatchTimes("f", HOST, HOST, count=3, seconds=0.5))
    blank = {"min us", "floor us", "x floor", "GFLOP/s", "GB/s", "threads", "balance", "waiting ms"}
    assert {name for name, text in host.items() if not text} == {*blank, "line"}


def test_a_busy_machine_is_told_of() -> None:
    even = row(flops=1_000_000, mean=18.0, least=15.0)
    assert warnings([even], PEAKS) == []
    (line,) = warnings([row(flops=1_000_000, mean=40.0, least=20.0), even], PEAKS)
    assert "busy" in line
    assert "2.0 times their minimum" in line
    assert "Trust `min us` and `x floor`; other times are too long, rates too low" in line
    (line,) = warnings([even, row(flops=2_000_000, mean=12.0, least=12.0)], PEAKS)
    assert "f map.0 ran faster than the floor" in line
    assert "Trust only `min us`; `floor us` is too long" in line


def test_small_rows_and_caches_are_no_sign_of_a_busy_machine() -> None:
    even, uneven = row(mean=90.0, least=80.0), row(mean=10.0, least=1.0)
    assert warnings([even, uneven], PEAKS) == []
    assert warnings([row(nbytes=1_000_000, mean=2.0, least=2.0)], PEAKS) == []


def test_more_bytes_than_caches_have_are_a_sign() -> None:
    large = 4 * (Target.host().l3s_nbytes + Target.host().cores * Target.host().l2_nbytes)
    floor = 1e6 * PEAKS.floor_seconds(0, large)
    (line,) = warnings([row(nbytes=large, mean=floor / 2, least=floor / 2)], PEAKS)
    assert "ran faster than the floor" in line
    assert warnings([row(nbytes=large, mean=floor * 0.8, least=floor * 0.8)], PEAKS) == []
    again = replace(row(nbytes=large, mean=1.0, least=1.0), different_nbytes=large // 8)
    assert warnings([again], PEAKS) == []  # the same bytes, several times


def test_what_is_under_its_floor_is_not_to_be_trusted_blindly() -> None:
    uneven = row(nbytes=100_000, mean=9.0, least=4.0)  # 1e5 / 10e9 are 10 us: 0.4x
    (line,) = warnings([uneven], PEAKS)
    assert "Trust `min us` and `x floor`, but where it is under 1x (caches, or" in line


def test_lines_that_dispatches_share_have_their_sum() -> None:
    first, other = (Loc("net.py", 7), Loc("net.py", 8))
    rows = [
        replace(row(mean=1.0, least=1.0), loc=other, seconds=0.25),
        replace(row(mean=1.0, least=1.0), loc=first, seconds=0.125),
        replace(row(mean=1.0, least=1.0), loc=first, seconds=0.375),
        replace(row(mean=1.0, least=1.0), seconds=0.25),
    ]
    assert views.by_line(rows, 1.0) == [
        ("net.py:7", "2", "500.000", "50.0"),
        ("net.py:8", "1", "250.000", "25.0"),
        ("no line", "1", "250.000", "25.0"),
    ]
    assert views.by_line(rows[:2], 1.0) == []  # each has a line of its own: the table says it
    assert views.by_line(rows[3:] * 2, 1.0) == []


def test_one_core_is_one() -> None:
    assert "on 1 core;" in views.peaks_text(replace(PEAKS, cores=1))

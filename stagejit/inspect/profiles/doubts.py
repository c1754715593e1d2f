"""Whether times can be believed: signs that other work ran on the machine meanwhile.

Input: rows, slowest first, and the peaks that floors come from. Output: at most one line.
Invariant: what a cache makes faster than memory is no sign.
"""

from __future__ import annotations

from collections.abc import Sequence

from stagejit.codegen.target import Target
from stagejit.inspect.profiles.rows import DispatchTimes
from stagejit.runtime.peaks import Peaks

_MEAN_TO_MINIMUM = 1.5
_BELOW = 0.95  # of a floor: peaks are measured, and not to a percent


def warnings(rows: Sequence[DispatchTimes], peaks: Peaks) -> list[str]:
    """One line, or none."""
    low, uneven = _peaks_too_low(rows, peaks), _uneven(rows)
    if not low and not uneven:
        return []
    signs = "; ".join(filter(None, (low, uneven)))
    trusted = "only `min us`" if low else f"`min us` and `x floor`{_except(rows, peaks)}"
    others = "`floor us` is too long, and other times may be" if low else "other times are too long"
    return [f"the machine seems busy: {signs}. Trust {trusted}; {others}, rates too low"]


def _peaks_too_low(rows: Sequence[DispatchTimes], peaks: Peaks) -> str:
    """Bytes that caches may have had come faster than those of memory."""
    machine = Target.host()
    cached = machine.l3s_nbytes + machine.cores * machine.l2_nbytes

    def least(row: DispatchTimes) -> float:
        return peaks.floor_seconds(row.flops, max(row.different_nbytes - cached, 0))

    found = [row for row in rows if 0 < (row.seconds_min or row.seconds_mean) < _BELOW * least(row)]
    if not found:
        return ""
    first = found[0].name
    others = f" and {len(found) - 1} more" if len(found) > 1 else ""
    return f"{first}{others} ran faster than the floor, so the peaks were measured too low"


def _except(rows: Sequence[DispatchTimes], peaks: Peaks) -> str:
    """Under its floor is what lies in caches, or has a bandwidth that was measured too low: nobody
    knows which."""
    under = any(0 < row.times_floor(peaks) < _BELOW for row in rows)
    return ", but where it is under 1x (caches, or a bandwidth measured too low)" if under else ""


def _uneven(rows: Sequence[DispatchTimes]) -> str:
    """Executions of the rows that make up half of the time took longer than one could."""
    told = [row for row in rows if row.count > 1 and row.seconds_min]
    half, seconds, least = sum(row.seconds for row in told) / 2, 0.0, 0.0
    for row in told:
        if seconds < half:
            seconds += row.seconds
            least += row.count * row.seconds_min
    if not least or seconds <= _MEAN_TO_MINIMUM * least:
        return ""
    return (
        f"the slowest rows take {seconds / least:.1f} times their minimum on average"
        " (or their executions differ)"
    )

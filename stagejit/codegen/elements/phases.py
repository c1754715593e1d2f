"""`WaitingStores`: stores whose lanes stand apart wait for each other and leave as whole vectors.

Input: registers of which lane k goes to element `k * stride + phase` of a place, one phase at a
time. Output: IR that stores them: whole vectors where all phases of a place have come, lane by lane
where some did not. Invariant: every register that waited is written when the wait is over, or the
kernel is refused.
"""

from __future__ import annotations

from typing import NamedTuple

from stagejit.codegen.ir.builder import Builder
from stagejit.codegen.ir.nodes import Buffer
from stagejit.codegen.ir.nodes import Value as Register
from stagejit.codegen.ir.strides import WIDEST_PICKED, interleaved, squares
from stagejit.codegen.ir.transposes import transpose_registers
from stagejit.errors import InternalError


class Place(NamedTuple):
    """Where lane 0 of phase 0 goes, and which lanes exist: the first `used` of `lanes`. A tuple,
    since a register is equal to itself in one: as fields, `==` would compare what they hold."""

    buffer: Buffer
    at: Register
    lanes: int
    used: int


class WaitingStores:
    """The stores that wait. `stride`: from lane to lane, that is, how many phases a place has."""

    def __init__(self, b: Builder, stride: int) -> None:
        self.b, self.stride = b, stride
        self._phases: dict[Place, dict[int, Register]] = {}
        self._waiting = 0

    def add(self, place: Place, phase: int, register: Register) -> None:
        phases = self._phases.setdefault(place, {})
        if phase in phases or not 0 <= phase < self.stride:
            raise InternalError(
                f"phase {phase} of {self.stride} in {place.buffer} is stored twice or is none",
                step="codegen",
            )
        phases[phase] = register
        self._waiting += 1

    def write(self) -> None:
        """Writes all that waits."""
        for place, phases in self._phases.items():
            if len(phases) < self.stride:
                self._lane_by_lane(place, phases)
            elif self.stride <= WIDEST_PICKED:
                self._alternating(place, [phases[k] for k in range(self.stride)])
            else:
                self._transposed(place, [phases[k] for k in range(self.stride)])
        if self._waiting:
            raise InternalError(f"{self._waiting} stores were never written", step="codegen")
        self._phases = {}

    def _lane_by_lane(self, place: Place, phases: dict[int, Register]) -> None:
        b, lanes = self.b, place.lanes
        mask = None if place.used == lanes else b.active(place.used, lanes)
        for phase, register in phases.items():
            where = b.splat(place.at + phase, lanes) + b.lane_ids(lanes) * self.stride
            b.scatter(register, place.buffer, where, mask=mask)
            self._waiting -= 1

    def _alternating(self, place: Place, phases: list[Register]) -> None:
        b, lanes, count = self.b, place.lanes, self.stride
        mask = None if place.used == lanes else b.active(place.used * count, lanes * count)
        b.store(interleaved(b, phases), place.buffer, place.at, mask=mask)
        self._waiting -= count

    def _transposed(self, place: Place, phases: list[Register]) -> None:
        """Squares of `lanes` phases; each row of one is a run of memory."""
        b, lanes = self.b, place.lanes
        for first, width in squares(self.stride, lanes):
            mask = None if width == lanes else b.active(width, lanes)
            rows = transpose_registers(b, phases[first : first + width], lanes, place.used)
            for row, register in enumerate(rows):
                b.store(register, place.buffer, place.at + (row * self.stride + first), mask=mask)
            self._waiting -= width

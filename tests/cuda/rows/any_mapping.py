"""Rows and lines shared by threads in any of the ways that there are, not in the cheapest.

Input: a seed. Output: a context in which kernels are made so. Invariant: which way a kernel takes
depends on the seed and on the ways alone.
"""

from __future__ import annotations

import random
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace

import pytest

from stagejit.codegen.choices import Ranked
from stagejit.codegen.cuda.device import Device
from stagejit.codegen.cuda.rows.mapping import Mapping, fitting
from stagejit.codegen.cuda.scans.cumulative import ways
from stagejit.codegen.kernel import Choice
from stagejit.codegen.places.loops import Loops
from stagejit.codegen.rows.nest import RowNest


@contextmanager
def any_mapping(seed: object) -> Iterator[None]:
    """Inside, rows and lines go to threads in any of the ways that there are."""

    def drawn(found: list[Mapping]) -> Ranked[Mapping]:
        choose = random.Random(f"{seed}/{list(map(str, found))}")
        return Ranked(choose.choice(found), Choice("rows", "any"))

    def of_rows(nest: RowNest, device: Device, threads: int = 0, room: int = 0) -> Ranked[Mapping]:
        found = fitting(nest, device, threads, room)
        return drawn([*found, *(replace(one, held=0) for one in found)])

    def of_lines(loops: Loops, device: Device) -> Ranked[Mapping]:
        return drawn(list(ways(loops, device)))

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("stagejit.codegen.cuda.rows.reduce.best_mapping", of_rows)
        patch.setattr("stagejit.codegen.cuda.scans.cumulative.best_scan", of_lines)
        yield

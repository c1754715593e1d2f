"""Machines that have the instructions of a target and other numbers, from far too little to far too
much: what decides how kernels are cut.

Input: a target and a number. Output: the target with the caches, cores and rates of that number.
Invariant: they choose blocks, items and streams, never values, so that what only large arrays would
bring about comes of small ones here.
"""

from __future__ import annotations

import random
from dataclasses import replace
from typing import Any

from stagejit.codegen.target import Target

COUNT = 24  # of those that the lab draws: few, so that cases meet in a cache of kernels
FIELDS: dict[str, tuple[float, ...]] = {
    "cores": (1, 2, 3, 7, 64, 200), "fma_ports": (1, 2, 4), "vector_registers": (8, 16, 32),
    "l1_nbytes": (256, 4 << 10, 48 << 10), "l2_nbytes": (512, 32 << 10, 1 << 20),
    "l3_nbytes": (1 << 10, 1 << 20, 32 << 20), "l3s": (1, 2, 8), "lines_ahead": (0, 1, 3, 16),
    "l1_misses": (2, 12, 24), "line_nbytes": (64, 128), "page_nbytes": (256, 4096, 16 << 10),
    "clock": (1e3, 1e9, 3e9), "peak_flops": (1e9, 1e11, 1e13), "core_bandwidth": (1e8, 2e10),
    "bandwidth": (1e8, 4e10), "cache_bandwidth": (1e8, 1e12), "l2_bandwidth": (1e8, 7e10),
    "asks_pages": (False, True),
}  # fmt: skip


def machine_of(target: Target, number: int) -> Target:
    """Of number 0 it is the target itself."""
    if not number:
        return target
    draw = random.Random(f"{target.name}/{number}")
    odd: dict[str, Any] = {name: draw.choice(of) for name, of in FIELDS.items()}
    return replace(target, **odd)

"""What the kernels of a program would take on a GPU, by the model; no GPU is needed.

Input: a program, a device. Output: a row for each kernel: what NVRTC says it takes of a
multiprocessor, and seconds by the compiler's model (`runtime/modelled`), by occupancy
(`codegen/cuda/occupancy.py`), and at least. Invariant: everything but resources is a model, and
tables say so.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

from rich.table import Table

import stagejit
from stagejit.bench.programs import Workload
from stagejit.codegen.cuda.device import Device
from stagejit.codegen.cuda.occupancy import (
    Occupancy,
    Work,
    occupancy,
    resident_seconds,
    work_floor_seconds,
)
from stagejit.codegen.generate import Generated
from stagejit.codegen.ir.grid.shared_memory import dynamic_nbytes
from stagejit.codegen.ir.nodes import Block, Function
from stagejit.dispatch.regions import Region
from stagejit.pipeline import Compilation
from stagejit.runtime.cuda.code.nvrtc import compile_cubin
from stagejit.runtime.cuda.code.resources import Resources, resources
from stagejit.runtime.modelled.kernels import launch_seconds
from stagejit.schedule.schedule import Schedule, Step


@dataclass(frozen=True)
class Row:
    """One kernel of a program. launches: how often a call launches it, where that is known.
    modelled: seconds by the compiler's model, as `explain` says; seconds: by what a multiprocessor
    holds; floor: the least."""

    program: str
    dispatch: str
    kind: str
    launches: int
    taken: Resources
    held: Occupancy
    work: Work
    modelled: float
    seconds: float
    floor: float

    @property
    def percent(self) -> float:
        """Of the roofline."""
        return 100 * self.floor / self.seconds


def rows_of(workload: Workload, device: Device) -> list[Row]:
    """The kernels of a program, in the order of its schedule, each once."""
    jitted = stagejit.jit(workload.function, donate_argnums=workload.donated)
    request = jitted.trace(*workload.shapes()).compilation.request
    made = Compilation(request, target=device).run_until("codegen")
    seen: dict[str, Row] = {}
    for step, region, launches in _kernels(made.schedule, 1):
        generated = made.kernels[region]
        if generated.kernel.total and generated.symbol not in seen:
            row = _row(workload.name, step, region, generated, device, launches)
            seen[generated.symbol] = row
    return list(seen.values())


def _kernels(schedule: Schedule, times: int) -> Iterator[tuple[Step, Region, int]]:
    for step in schedule.steps():
        for body, inner in zip(step.dispatch.bodies, step.bodies, strict=True):
            yield from _kernels(inner, times * (body.trip or 1))
        if step.region.has_kernel:
            for part in step.region.parts:
                yield step, part, times


def _row(
    program: str, step: Step, region: Region, made: Generated, device: Device, launches: int
) -> Row:
    kernel, threads = made.kernel, made.kernel.function.threads
    taken = resources(compile_cubin(made.text, device.arch).log)[made.symbol]
    asked = dynamic_nbytes(kernel.function.buffers)
    taken = replace(taken, shared_nbytes=taken.shared_nbytes + asked)
    held = occupancy(device, math.prod(threads), taken.registers, taken.shared_nbytes)
    work = _work(step, region, kernel.function, kernel.total)
    modelled = len(kernel.passes) * launch_seconds(kernel, device)
    seconds, floor = resident_seconds(device, work, held), work_floor_seconds(device, work)
    return Row(
        program, step.dispatch.name, region.kind, launches * len(kernel.passes), taken, held, work,
        modelled, seconds, floor,
    )  # fmt: skip


def _work(step: Step, region: Region, function: Function, blocks: int) -> Work:
    main = region is step.region.parts[0]
    flops = step.dispatch.flops if main else 0
    nbytes = step.dispatch.nbytes if main else sum(s.value.type.nbytes for s in region.stores)
    asked = max((_asked(block) for block in _blocks(function)), default=4)
    tensor = any(op.opcode in ("tile_product", "wgmma") for op in function.walk())
    return Work(flops, nbytes, blocks, max(asked, 4), _independent(function), tensor)


def _blocks(function: Function) -> Iterator[Block]:
    yield function.body
    for op in function.walk():
        yield from op.blocks


def _asked(block: Block) -> int:
    """Bytes that a thread loads from global memory in a block, which do not wait for each other."""
    loads = (op for op in block.ops if op.opcode in ("load", "gather"))
    return sum(
        op.results[0].type.bits * max(op.results[0].type.lanes, 1) // 8
        for op in loads
        if op.attrs["buffer"].space == "arg"
    )


def _independent(function: Function) -> int:
    """Values that the innermost loops carry: sums of a thread that do not wait for each other."""
    carried = [
        sum(max(value.type.lanes, 1) for value in op.results)
        for op in function.walk()
        if op.opcode == "for" and not any(inner.opcode == "for" for inner in op.blocks[0].ops)
    ]
    return max([1, *carried])


def table_of(rows: Sequence[Row], device: Device) -> Table:
    """For people."""
    title = f"{device.name} ({device.arch}): a model; registers and spills are NVRTC's"
    table = Table(title=title, title_justify="left")
    for name in ("program", "kernel"):
        table.add_column(name, no_wrap=True)
    for name in (
        "launches", "blocks", "regis-\nters", "shared\nKiB", "spills\nB", "occu-\npancy %",
        "limit", "floor\nus", "compiler's\nmodel us", "by occu-\npancy us", "% of\nroofline",
    ):  # fmt: skip
        table.add_column(name, justify="right")
    for row in rows:
        taken = row.taken
        spilled = taken.spill_store_nbytes + taken.spill_load_nbytes
        table.add_row(
            row.program, f"{row.dispatch} {row.kind}", str(row.launches), str(row.work.blocks),
            str(taken.registers), f"{taken.shared_nbytes / 1024:.1f}", str(spilled),
            f"{100 * row.held.share:.0f}", row.held.limit, f"{1e6 * row.floor:.3g}",
            f"{1e6 * row.modelled:.3g}", f"{1e6 * row.seconds:.3g}", f"{row.percent:.0f}",
        )  # fmt: skip
    return table

"""Poison mode: carries out a schedule with its machine code, each dispatch over its own memory.

Input, output: as `Executor`, whose randomized orders it inherits. Invariant: a kernel gets copies
of its buffers that hold NaN patterns wherever its dispatch declares nothing, before them and after
them; what it changes there, and what its verifying build reports, is an error.
"""

from __future__ import annotations

import ctypes
import random
import time
from collections.abc import Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from functools import cache
from typing import Any

import numpy as np

from stagejit.codegen.generate import Generated, kernel_cache
from stagejit.codegen.target import Target
from stagejit.dispatch.regions import Region
from stagejit.runtime.objects.engine import engine
from stagejit.schedule.schedule import Step
from tests.codegen.regions import sizes_of_workspaces
from tests.schedule.execution.executor import POISON, Array, Executor, declared

GUARD_NBYTES = 256
MOST_SECONDS = 1e-3  # a delay


class Machine(Executor):
    """Runs the kernels of one schedule one by one."""

    def _part(
        self,
        region: Region,
        step: Step,
        reads: Sequence[str],
        writes: Sequence[str],
        memory: dict[str, Any],
    ) -> None:
        generated = self._generated(region)
        shadows: dict[tuple[str, bool], _Shadow] = {}
        addresses = []
        dispatch = self.dispatches[step.dispatch.name]  # with numbers for the symbols of offsets
        for arg in generated.kernel.args:
            name = self.schedule.buffer_of[arg.value]
            written = dispatch.writes if arg.written else ()
            parts = len(step.region.parts)  # of which each writes some of it
            maybe = [access for access in written if parts > 1 or not access.must]
            if (name, arg.written) not in shadows:
                array, buffer = self._array(memory, name, arg.value), self.buffers[name]
                seen = declared(buffer, array.shape, (*dispatch.reads, *written))
                found = declared(buffer, array.shape, (*dispatch.reads, *maybe))
                shadows[name, arg.written] = _Shadow(array, seen, found)
            itemsize = arg.value.type.dtype.itemsize
            addresses.append(shadows[name, arg.written].address + arg.offset * itemsize)
        self._call(generated, addresses)
        for (name, written), shadow in shadows.items():
            assert shadow.intact(), f"undeclared write of {step.dispatch.name} to {name}"
            if written:
                shadow.settle()

    def _generated(self, region: Region) -> Generated:
        return kernel_cache(Target.host(), verify=True).generate(region)

    def _call(self, generated: Generated, addresses: Sequence[int]) -> None:
        call(generated, addresses)


class Concurrent(Machine):
    """Every dispatch on a thread of its own, which starts when those are done that barriers name,
    and then waits for a random time."""

    def _steps(self, steps: Sequence[Step], memory: dict[str, Any]) -> None:
        waits = self._waits(steps)
        order = self.order or random.Random(0)
        delays = {step.dispatch.name: order.uniform(0, MOST_SECONDS) for step in steps}
        done: dict[str, Future[None]] = {}

        def run(step: Step) -> None:
            for name in waits[step.dispatch.name]:
                done[name].result()
            time.sleep(delays[step.dispatch.name])
            self._step(step, memory)

        with ThreadPoolExecutor(max(len(steps), 1)) as threads:
            for step in steps:  # in the order of the plan: those that it waits for are there
                done[step.dispatch.name] = threads.submit(run, step)
        for future in done.values():
            future.result()


class _Shadow:
    """A copy of `array`, poisoned where `found` is false and around it; as aligned as `array`.
    seen: where it may be changed."""

    def __init__(self, array: Array, seen: Array, found: Array) -> None:
        self.array, self.seen = array, seen
        self.memory = np.full(array.nbytes + 2 * GUARD_NBYTES + 64, POISON, np.uint8)
        misaligned = array.ctypes.data - self.memory.ctypes.data
        self.start = GUARD_NBYTES + misaligned % 64
        inside = self.memory[self.start : self.start + array.nbytes]
        self.copy = inside.view(array.dtype).reshape(array.shape)
        self.copy[found] = array[found]
        if array.dtype == np.bool_:  # a boolean of 255 is no boolean: the other one
            self.copy[~found] = ~array[~found]
        self.before = self.memory.copy()

    @property
    def address(self) -> int:
        return self.memory.ctypes.data + self.start

    def intact(self) -> bool:
        """Whether all bytes outside of what may be seen are as they were."""
        nbytes = self.array.dtype.itemsize
        outside = np.ones(self.memory.size, bool)
        outside[self.start : self.start + self.array.nbytes] = np.repeat(~self.seen, nbytes)
        return bool(np.all((self.memory == self.before) | ~outside))

    def settle(self) -> None:
        self.array[self.seen] = self.copy[self.seen]


def call(generated: Generated, addresses: Sequence[int]) -> None:
    kernel, fault = generated.kernel, np.zeros(1, np.int64)
    if not kernel.total:
        return
    scratch = np.full(kernel.function.scratch_nbytes + 128, POISON, np.uint8)
    workspace = np.full(kernel.workspace_nbytes + 64, POISON, np.uint8)
    at = -(-workspace.ctypes.data // 64) * 64
    limits = [arg.value.type.size - arg.offset for arg in kernel.args]
    limits += sizes_of_workspaces(kernel)
    places = [*addresses, *(at + place for place in kernel.workspace_places)]
    pointers = (ctypes.c_void_p * (len(places) + 1))(*places, fault.ctypes.data)
    aligned = -(-scratch.ctypes.data // 64) * 64
    for params in kernel.passes:
        words = (ctypes.c_int64 * (len(params) + len(limits) + 1))(*params, *limits, 0)
        _entry(generated.symbol, generated.text)(
            ctypes.addressof(pointers), ctypes.addressof(words), 0, kernel.total, aligned
        )
    assert fault[0] == 0, f"the kernel left the buffer of its argument {fault[0] - 1}"


@cache
def _entry(symbol: str, llvm: str) -> Any:
    address = engine().load({symbol: llvm})[symbol]
    kind = ctypes.CFUNCTYPE(
        None, ctypes.c_void_p, ctypes.c_void_p, ctypes.c_int64, ctypes.c_int64, ctypes.c_void_p
    )
    return kind(address)  # machine code stays for the life of the process

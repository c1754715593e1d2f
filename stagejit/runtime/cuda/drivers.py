"""Which driver and which device an option means.

Input: `Options.target`. Output: a `Driver` of this process, or the `Device` that kernels are made
for. Invariant: there is one driver of each kind; plans and texts need none.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from functools import cache

from stagejit.codegen.cuda.device import Device, device_like, device_named
from stagejit.errors import NoDriverError
from stagejit.options import EMULATED
from stagejit.runtime.cuda.driver import Driver
from stagejit.runtime.cuda.emulation.driver import EmulatedDriver
from stagejit.runtime.cuda.pycuda import pycuda_driver
from stagejit.runtime.objects.object_cache import cache_in

_DEFAULT = "H200"

_used: list[Driver] = []  # in the place of those of the process


def device_of(target: str) -> Device:
    """What kernels are made for: the GPU that is named, else the one that is there."""
    kind, _, name = target.partition(":")
    if name or kind == EMULATED:
        return device_named(name or _DEFAULT)
    try:
        driver = driver_of(target)
    except NoDriverError:
        return device_named(_DEFAULT)
    return device_like(driver.name, driver.arch, driver.cores, driver.limits)


def driver_of(target: str) -> Driver:
    """Raises NoDriverError."""
    if _used:
        return _used[-1]
    return _emulated() if target.partition(":")[0] == EMULATED else _real()


@contextlib.contextmanager
def using(driver: Driver) -> Iterator[None]:
    """Inside, what is compiled runs on this driver, on all threads."""
    _used.append(driver)
    try:
        yield
    finally:
        _used.remove(driver)


@cache
def _emulated() -> Driver:
    return EmulatedDriver(cache=cache_in(None))


def _real() -> Driver:
    return pycuda_driver(store=cache_in(None))

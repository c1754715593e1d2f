"""Programs on the GPU of this machine, in one run with all that they are compared with.

Input: programs, a driver. Output: what a copy and cuBLAS's products reach on this device now, and a
row for each program: its time beside that of jax.jit on the same GPU (where JAX has it) and beside
the floor. Invariants: a time is that of a call among many that are queued one behind the other,
waited for once; contenders take turns; the floor is what was measured here, not what a data sheet
says; each result is held against float64.
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

import stagejit
from stagejit.base.machine import floor_seconds
from stagejit.bench.accuracy import error_against, reference_of
from stagejit.bench.cost import Cost, cost_of
from stagejit.bench.gpus.cublas import Cublas, NoCublasError
from stagejit.bench.programs import Workload
from stagejit.crossing import from_user, to_user
from stagejit.options import Options
from stagejit.runtime.cuda.driver import Driver
from stagejit.runtime.cuda.drivers import using

_COPIED_NBYTES = 1 << 28
_ROUNDS, _LEAST_SECONDS, _MOST_CALLS = 7, 5e-3, 4096
PRODUCTS = (("float32", 1024), ("float32", 4096), ("bfloat16", 1024), ("bfloat16", 4096))

Run = Callable[[int], float]  # so many calls, one behind the other: seconds of all


@dataclass(frozen=True)
class Peaks:
    """What this device reached. bytes_a_second: of a copy, read and written; flops: of cuBLAS's
    products, by element type; products: by whom they were, "" where by nobody."""

    device: str
    bytes_a_second: float
    flops: dict[str, float]
    products: str

    def floor_seconds(self, cost: Cost, dtype: str) -> float:
        """The least that a program takes if it moves data as a copy and multiplies as cuBLAS."""
        flops = self.flops.get(dtype) or self.flops.get("float32") or float("inf")
        return floor_seconds(cost.flops, cost.nbytes, flops, self.bytes_a_second)


@dataclass(frozen=True)
class Row:
    """seconds: of a call; theirs: of jax.jit's or cuBLAS's, None where there is none; failure: why
    there is no time."""

    name: str
    cost: Cost
    dtype: str
    seconds: float = 0.0
    theirs: float | None = None
    against: str = ""
    floor: float = 0.0
    error: float = 0.0
    tolerance: float = 0.0
    failure: str = ""

    @property
    def right(self) -> bool:
        return not self.failure and self.error <= self.tolerance

    @property
    def percent_of_floor(self) -> float:
        return 100 * self.floor / self.seconds


# -------------------------------------------------------------------- what the device reaches


def peaks(driver: Driver, nbytes: int = _COPIED_NBYTES, sizes: Sequence[Any] = PRODUCTS) -> Peaks:
    """Measured now."""
    flops: dict[str, float] = {}
    for dtype, size in sizes:
        cost = Cost(2 * size**3, 0)
        found = product_seconds(driver, dtype, (size, size, size))
        if found is not None:
            flops[dtype] = max(flops.get(dtype, 0.0), cost.flops / found)
    by = "" if not flops else "jax.numpy" if jax_has_it() else "cuBLAS"
    return Peaks(driver.name, copied_a_second(driver, nbytes), flops, by)


def copied_a_second(driver: Driver, nbytes: int) -> float:
    """Bytes that a copy inside of the device reads and writes in a second."""
    with driver.current():
        source, to = driver.allocate(nbytes), driver.allocate(nbytes)
        driver.fill(source, 0, nbytes, driver.main)
        (seconds,) = _medians(
            [_queued(driver, lambda: driver.copy(to, source, nbytes, driver.main))]
        )
        driver.free(to)
        driver.free(source)
    return 2 * nbytes / seconds


def product_seconds(driver: Driver, dtype: str, sizes: tuple[int, int, int]) -> float | None:
    """Of a product by cuBLAS, through JAX where JAX has the GPU; None where there is neither."""
    m, k, n = sizes
    arrays = [np.ones(shape, np.float32).astype(dtype) for shape in ((m, k), (k, n))]
    if jax_has_it():
        return _medians([_run_of_jax(jnp.matmul, tuple(arrays), ())])[0]
    with driver.current():
        try:
            library = Cublas(driver.handle(driver.main))
        except NoCublasError:
            return None
        a, b = (_placed(driver, array) for array in arrays)
        c = driver.allocate(m * n * arrays[0].itemsize)
        run = _queued(driver, lambda: library.product(c, a, b, sizes, dtype))
        (seconds,) = _medians([run])
        driver.synchronize(driver.main)
        library.close()
        for address in (c, b, a):
            driver.free(address)
    return seconds


def jax_has_it() -> bool:
    """Whether JAX runs on a GPU in this process."""
    return bool(jax.default_backend() == "gpu")


# -------------------------------------------------------------------- programs


def measure(workload: Workload, driver: Driver, reached: Peaks) -> Row:
    """An exception becomes the row's `failure`."""
    cost, dtype = Cost(0, 0), ""
    try:
        args = workload.make_args()
        cost = cost_of(workload.function, args, workload.donated, workload.read_nbytes)
        dtype = _dtype_of(args)
        with using(driver):
            return _measured(workload, driver, reached, args, cost, dtype)
    except Exception as error:
        headline = (str(error).splitlines() or [""])[0]
        return Row(workload.name, cost, dtype, failure=f"{type(error).__name__}: {headline}")


def _measured(
    workload: Workload, driver: Driver, reached: Peaks, args: Any, cost: Cost, dtype: str
) -> Row:
    function, donated = workload.function, workload.donated
    ours = _Ours(workload, driver, args)
    error = error_against(reference_of(function, args), ours.result())
    runs: list[Run] = [ours.run]
    against = ""
    if jax_has_it():
        runs.append(_run_of_jax(function, args, donated))
        against = "jax.jit"
    seconds, *others = _medians(runs)
    ours.close()
    sizes = _product_of(workload.name, args)
    theirs = others[0] if others else None
    if theirs is None and sizes is not None:
        theirs = product_seconds(driver, dtype, sizes)
        against = "" if theirs is None else "cuBLAS"
    return Row(
        workload.name, cost, dtype, seconds, theirs, against,
        reached.floor_seconds(cost, dtype), error, workload.tolerance,
    )  # fmt: skip


class _Ours:
    """A program with its arguments in the memory of the device. What it may write into of those
    that are donated it does, so that each call goes on with what the one before has left."""

    def __init__(self, workload: Workload, driver: Driver, args: Any) -> None:
        self.driver = driver
        jitted = stagejit.jit(
            workload.function, options=Options(target="cuda"), donate_argnums=workload.donated
        )
        traced = jitted.trace(*args)
        compilation = traced.compilation.run_until("load")
        self.loaded = compilation.executable.on(driver)
        closed = compilation.request.jaxpr
        avals = closed.in_avals
        self.arrays = [
            np.ascontiguousarray(from_user(jnp.asarray(leaf, aval.dtype), aval))
            for leaf, aval in zip(jax.tree.leaves(args), avals, strict=True)
        ]
        self.avals = closed.out_avals
        given = compilation.request.donated
        written = self.loaded.program.overwritten
        self.donors = {at: self for at in written if at < len(given) and given[at]}
        self.types = [(type.shape, type.dtype.numpy) for type in compilation.executable.outputs]
        with driver.current():
            self.places = [_placed(driver, array) for array in self.arrays]

    def result(self) -> list[Any]:
        """Of a call with arrays of the host."""
        made = self.loaded.on_host(self.arrays)
        return [np.asarray(to_user(x, aval)) for x, aval in zip(made, self.avals, strict=True)]

    def run(self, calls: int) -> float:
        return _queued(self.driver, self._call)(calls)

    def _call(self) -> None:
        self.loaded.on_device(lambda _: list(self.places), self.types, self.donors)

    def close(self) -> None:
        with self.driver.current():
            for address in self.places:
                self.driver.free(address)


def _run_of_jax(function: Any, args: Any, donated: tuple[int, ...]) -> Run:
    compiled, current = jax.jit(function, donate_argnums=donated), list(jax.device_put(args))
    for number in donated:
        current[number] = jax.tree.map(jnp.copy, current[number])

    def run(calls: int) -> float:
        start = time.perf_counter()
        for _ in range(calls):
            made = compiled(*current)
            for number, successor in zip(donated, made if donated else (), strict=False):
                current[number] = successor
        jax.block_until_ready(made)  # type: ignore[no-untyped-call]
        return time.perf_counter() - start

    return run


def _queued(driver: Driver, call: Callable[[], object]) -> Run:
    """By the clock of the device, from before the first call to behind the last."""

    def run(calls: int) -> float:
        with driver.current():
            start, end = driver.new_event(), driver.new_event()
            driver.record(start, driver.main)
            for _ in range(calls):
                call()
            driver.record(end, driver.main)
            return driver.seconds(start, end)

    return run


def _medians(runs: Sequence[Run]) -> list[float]:
    """Seconds of a call of each, in turns."""
    counts = [_calls(run) for run in runs]
    samples: list[list[float]] = [[] for _ in runs]
    for _ in range(_ROUNDS):
        for run, count, found in zip(runs, counts, samples, strict=True):
            found.append(run(count) / count)
    return [max(statistics.median(found), 1e-9) for found in samples]


def _calls(run: Run) -> int:
    """How many make a sample."""
    count = 3
    run(count)  # a graph is captured at the second call with the same memory
    while count < _MOST_CALLS and run(count) < _LEAST_SECONDS:
        count *= 4
    return count


def _placed(driver: Driver, array: Any) -> int:
    address = driver.allocate(array.nbytes)
    if array.nbytes:
        driver.copy_in(address, np.ascontiguousarray(array), driver.main)
    return address


def _dtype_of(args: Any) -> str:
    """Of the largest argument of floating point."""
    leaves = list(map(jnp.asarray, jax.tree.leaves(args)))
    floats = [leaf for leaf in leaves if jnp.issubdtype(leaf.dtype, jnp.floating)]
    return str(max(floats, key=lambda leaf: leaf.nbytes).dtype) if floats else "float32"


def _product_of(name: str, args: Any) -> tuple[int, int, int] | None:
    """The sizes of a program that is a product and nothing else, by its name in the registry."""
    if not name.startswith(("gemm_", "gemv_")) or len(args) != 2:
        return None
    a, b = args
    return (a.shape[0], a.shape[1], b.shape[1]) if a.ndim == b.ndim == 2 else None

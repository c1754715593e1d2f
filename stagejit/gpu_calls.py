"""`GpuFunction`: what `stagejit.jit(f, backend="cuda")` returns.

Input: JAX's jitted function, whose programs our compiler runs on a GPU. Output: the same, whose
calls with arrays that lie on the GPU stay there. Invariant: everything else (tracing, other
arguments, transformations) is the jitted function's.

Note [Two ways]: where JAX itself runs on the CPU, a program is a call of XLA's CPU that copies
arrays to the GPU and back, so it works inside of whatever JAX makes of the function. A call from
Python with an array that is on the GPU (PyCUDA's, torch's, anything with
`__cuda_array_interface__`) needs none of that: it goes to the driver, and its results stay there.
Other arguments of such a call are copied. What is donated is written in place where the plan says
so, and an array of PyCUDA's is invalid from then on, as in JAX; what is not donated, or is an
argument twice, is copied where it is written.
Where JAX itself runs on the GPU, a program is a call of XLA's there, on its stream
(`runtime/cuda/xla_calls.py`); only calls with arrays of somebody else's go to the driver, and their
results are copied to arrays of JAX's.

Note [Quick calls]: what a call works out is remembered by what arrays say of themselves, so that
the next one with arrays like them does the least that the host has to do: it takes addresses, asks
the pool for memory, and launches one graph. `python -m stagejit overhead` measures it.

Note [Who waits]: the results of a call are there in the order of the driver's main stream, with
which the legacy default stream is in order; the host does not wait. Who names a stream of its own
for an argument waits for the call on that one, as memory of theirs may be used again.
"""

from __future__ import annotations

import functools
import time
from collections import OrderedDict
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import jax
import numpy as np

from stagejit.base.threads.importing import importing
from stagejit.base.threads.locks import new_lock
from stagejit.compat import hide_frames, physical_aval, trace_context
from stagejit.crossing import from_user
from stagejit.errors import StagejitError
from stagejit.options import Options
from stagejit.runtime.cuda.arrays.device_arrays import (
    ALIGNED,
    IN_ORDER,
    INTERFACE,
    DeviceArray,
    device_array,
    donors,
    is_device_array,
    row_by_row,
)

if TYPE_CHECKING:
    from stagejit.runtime.cuda.driver import Driver
    from stagejit.runtime.cuda.programs.executor import Executable, Loaded

hide_frames(__file__)
_MOST_KNOWN = 256  # kinds of arguments of a function
_LAST_BITS = ALIGNED - 1
_NUMBERS = frozenset((bool, int, float, complex))


@dataclass(frozen=True)
class _Known:
    """A function for arguments of some kind. dynamic: which of all leaves are its arguments, flat;
    avals: theirs; results: shapes and dtypes; donated: arguments that it may write into."""

    executable: Executable
    dynamic: tuple[int, ...]
    avals: tuple[Any, ...]
    results: tuple[tuple[tuple[int, ...], np.dtype[Any]], ...]
    out_tree: Any
    donated: tuple[int, ...]


@dataclass(frozen=True)
class _Quick:
    """A function on a device for device arrays alone, none of which it may write into. strides: of
    such arrays without gaps; driver_of: the driver of now."""

    loaded: Loaded
    strides: tuple[tuple[int, ...], ...]
    results: tuple[tuple[tuple[int, ...], np.dtype[Any]], ...]
    unflatten: Callable[[list[Any]], Any]
    driver_of: Callable[[str], Driver]


class GpuFunction:
    """See the module's docstring; attributes are the jitted function's."""

    def __init__(self, jitted: Any, options: Options) -> None:
        functools.update_wrapper(self, jitted, updated=())
        self._jitted, self._options = jitted, options
        self._known: OrderedDict[Any, _Known] = OrderedDict()
        self._quick: tuple[Any, dict[Any, _Quick]] = (None, {})
        self._lock = new_lock()

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        leaves, tree = jax.tree.flatten((args, kwargs))
        found = self._quickly(leaves, tree)
        if found is not None:
            quick, given = found
            return quick.unflatten(quick.loaded.on_device(lambda _: given, quick.results))
        if any(isinstance(leaf, jax.core.Tracer) for leaf in leaves):
            return self._jitted(*args, **kwargs)
        driver = _driver(self._options.target)  # or what is missing
        told = [device_array(leaf) if is_device_array(leaf) else None for leaf in leaves]
        if any(one and not isinstance(one.owner, jax.Array) for one in told):
            return self._on_device(driver, leaves, told, tree)
        return self._jitted(*args, **kwargs)

    def __deepcopy__(self, memo: dict[int, Any]) -> GpuFunction:
        return self  # as functions do

    def __get__(self, instance: Any, owner: Any = None) -> Any:
        return self if instance is None else functools.partial(self, instance)

    def __getattr__(self, name: str) -> Any:
        if name == "_jitted":  # while it is copied or unpickled
            raise AttributeError(name)
        return getattr(self._jitted, name)

    def __repr__(self) -> str:
        return f"<{type(self).__name__} of {self._jitted!r}>"

    @property
    def executables(self) -> tuple[Executable, ...]:
        """The programs of calls with arrays on the device, one for each kind of arguments."""
        with self._lock:
            return tuple(known.executable for known in self._known.values())

    # ---------------------------------------------------------------- on the device

    def _quickly(self, leaves: list[Any], tree: Any) -> tuple[_Quick, list[int]] | None:
        """What is known of such a call, and the addresses of its arguments, see Note [Quick calls];
        None where somebody has to look closer."""
        try:
            return self._known_quick(leaves, tree)
        except (KeyError, TypeError):  # a shape that is a list, no address
            return None

    def _known_quick(self, leaves: list[Any], tree: Any) -> tuple[_Quick, list[int]] | None:
        context, quick_ones = self._quick
        if context != trace_context():
            return None
        key, places = [tree], []
        for leaf in leaves:
            told = getattr(leaf, INTERFACE, None)
            if told is None or isinstance(leaf, jax.Array):
                return None
            places.append(told)
            key += (told["shape"], told["typestr"])
        quick = quick_ones.get(tuple(key))
        if quick is None or quick.driver_of(self._options.target) is not quick.loaded.driver:
            return None
        given: list[int] = []
        for told, strides in zip(places, quick.strides, strict=True):
            address, lies = told["data"][0], told.get("strides")
            if not address or address & _LAST_BITS:
                return None
            if told.get("stream") not in IN_ORDER or told.get("mask"):
                return None
            if lies is not None and lies != strides:
                return None
            given.append(address)
        return quick, given

    def _remember_quick(self, key: Any, known: _Known, driver: Driver) -> None:
        from stagejit.runtime.cuda.drivers import driver_of  # which is imported by now

        shapes = [physical_aval(aval) for aval in known.avals]
        made = _Quick(
            known.executable.on(driver),
            tuple(row_by_row(aval.shape, aval.dtype.itemsize) for aval in shapes),
            known.results,
            known.out_tree.unflatten,
            driver_of,
        )
        with self._lock:
            context, known_ones = self._quick
            if context != trace_context():
                context, known_ones = self._quick = trace_context(), {}
            known_ones[key] = made
            if len(known_ones) > _MOST_KNOWN:
                del known_ones[next(iter(known_ones))]

    def _on_device(
        self, driver: Driver, leaves: list[Any], told: list[DeviceArray | None], tree: Any
    ) -> Any:
        values = self._values(leaves, tree)
        kinds = [_kind(x, one) for x, one in zip(values, told, strict=True)]
        key = tree, trace_context(), tuple(kinds)
        with self._lock:
            known = self._known.get(key)
        if known is None:
            known = self._remembered(key, self._compile(leaves, told, tree))
        of_jax = jax.default_backend() == "gpu"  # what is to be returned
        whole = not known.donated and len(known.dynamic) == len(leaves)
        if whole and all(told) and not of_jax:
            typed = (part for shape, dtype in kinds for part in (shape, dtype.str))
            self._remember_quick((tree, *typed), known, driver)
        arguments = [told[at] for at in known.dynamic]

        def addresses(allocate: Callable[[int], int]) -> list[int]:
            pairs = zip(known.dynamic, arguments, known.avals, strict=True)
            return [_address(driver, leaves[at], one, aval, allocate) for at, one, aval in pairs]

        here = {at: one for at, one in enumerate(arguments) if one is not None}
        giving = donors(here, known.donated)
        made = known.executable.on(driver).on_device(addresses, known.results, giving)
        for at in giving:
            driver.delete(here[at].owner)
        self._let_others_follow(driver, here.values())
        if of_jax:  # copies: nobody tells JAX how long the memory lives
            with driver.current():
                driver.synchronize(driver.main)
            made = [_settled(jax.numpy.array(x)) for x in made]
        return jax.tree.unflatten(known.out_tree, made)

    def _let_others_follow(self, driver: Driver, arrays: Iterable[DeviceArray]) -> None:
        """Whose arrays are read may give their memory to others as soon as this call is over: in
        the order of their stream, if they have told of one; JAX does not."""
        streams = {one.stream for one in arrays if one.stream not in IN_ORDER}
        if any(isinstance(one.owner, jax.Array) for one in arrays):
            with driver.current():
                driver.synchronize(driver.main)
        elif streams:
            with driver.current():
                for stream in streams:
                    driver.lead(stream, driver.main)

    def _remembered(self, key: Any, made: _Known) -> _Known:
        with self._lock:
            self._known[key] = made
            if len(self._known) > _MOST_KNOWN:
                self._known.popitem(last=False)
        return made

    def _compile(self, leaves: list[Any], told: list[DeviceArray | None], tree: Any) -> _Known:
        with importing:
            from stagejit.pipeline import Compilation  # see Note [Import time]
        from stagejit.runtime.lowering.staged import Request

        struct: Any = jax.ShapeDtypeStruct
        abstract = [
            x if one is None else struct(one.shape, jax.dtypes.canonicalize_dtype(one.dtype))
            for x, one in zip(leaves, told, strict=True)
        ]
        args, kwargs = jax.tree.unflatten(tree, abstract)
        traced = self._jitted.trace(*args, **kwargs)
        dynamic = jax.tree.leaves(self._dynamic(*jax.tree.unflatten(tree, range(len(leaves)))))
        avals = tuple(traced.jaxpr.in_avals)
        for at, aval in zip(dynamic, avals, strict=True):
            _require_as_it_is(told[at], aval)
        donated = tuple(info.donated for info in jax.tree.leaves(traced.args_info))
        request = Request(traced.fun_name, traced.jaxpr, self._options, donated)
        start = time.perf_counter()
        compilation = Compilation.of(request).run_until("load")
        traced.remember(time.perf_counter() - start)
        outs, out_tree = jax.tree.flatten(traced.out_avals)
        results = tuple((tuple(aval.shape), np.dtype(aval.dtype)) for aval in outs)
        written = compilation.executable.program.overwritten
        return _Known(
            compilation.executable,
            tuple(dynamic),
            avals,
            results,
            out_tree,
            tuple(at for at in written if at < len(donated) and donated[at]),
        )

    def _values(self, leaves: list[Any], tree: Any) -> list[Any]:
        """The leaves, but types in the place of Python's numbers, of which values do not matter
        where they are no static arguments."""
        numbers = {at for at, leaf in enumerate(leaves) if type(leaf) in _NUMBERS}
        if not numbers:
            return leaves
        dynamic = self._dynamic(*jax.tree.unflatten(tree, range(len(leaves))))
        numbers.intersection_update(jax.tree.leaves(dynamic))
        return [type(leaf) if at in numbers else leaf for at, leaf in enumerate(leaves)]

    def _dynamic(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """Arguments without static ones, as JAX flattens them."""
        info = self._jitted._jit_info
        count = len(args)
        static = {n % count for n in info.static_argnums if -count <= n < count}
        positional = tuple(x for number, x in enumerate(args) if number not in static)
        return positional, {k: x for k, x in kwargs.items() if k not in info.static_argnames}


def _driver(target: str) -> Driver:
    with importing:
        from stagejit.runtime.cuda.drivers import driver_of  # see Note [Import time]

    return driver_of(target)


def _kind(leaf: Any, told: DeviceArray | None) -> Any:
    """What a compilation depends on: types of arrays, and values of anything else."""
    if told is not None:
        return told.shape, told.dtype
    if isinstance(leaf, np.ndarray | np.generic | jax.Array):
        return jax.typeof(leaf)
    return type(leaf), leaf


def _address(
    driver: Driver, leaf: Any, told: DeviceArray | None, aval: Any, allocate: Callable[[int], int]
) -> int:
    """Where an argument is on the device."""
    if told is None:
        array = np.ascontiguousarray(from_user(jax.numpy.asarray(leaf, aval.dtype), aval))
        address = allocate(array.nbytes)
        if array.nbytes:
            driver.copy_in(address, array, driver.main)
        return address
    if told.strides is not None:
        raise StagejitError(
            f"{_named(told)} has gaps, or lies in another order (strides {told.strides})",
            next_step="give a contiguous copy of it",
        )
    if told.stream not in IN_ORDER:
        driver.follow(driver.main, told.stream)
    if told.address % ALIGNED == 0:
        return told.address
    address = allocate(told.nbytes)
    driver.copy(address, told.address, told.nbytes, driver.main)
    return address


def _require_as_it_is(told: DeviceArray | None, aval: Any) -> None:
    """That JAX takes an array's elements for what they are."""
    if told is not None and told.dtype != physical_aval(aval).dtype:
        raise StagejitError(
            f"{_named(told)} would be taken for {aval.dtype}",
            next_step='convert it, or call jax.config.update("jax_enable_x64", True)',
        )


def _settled(array: Any) -> Any:
    return array.block_until_ready()


def _named(told: DeviceArray) -> str:
    return f"a {type(told.owner).__name__} of {told.dtype}{list(told.shape)} on a GPU"

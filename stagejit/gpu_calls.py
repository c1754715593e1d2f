"""`GpuFunction`: what `stagejit.jit(f, backend="cuda")` returns.

Input: JAX's jitted function, whose programs our compiler runs on a GPU. Output: the same, whose
calls with arrays that lie on the GPU stay there. Invariant: everything else (tracing, other
arguments, transformations) is the jitted function's.

Note [Two ways]: where JAX itself runs on the CPU, a program is a call of XLA's CPU that copies
arrays to the GPU and back, so it works inside of whatever JAX makes of the function. A call from
Python with an array that is on the GPU (PyCUDA's, torch's, anything with
`__cuda_array_interface__`) needs none of that: it goes to the driver, and its results stay there.
Other arguments of such a call are copied. What is donated is copied, too, where it is written.
Where JAX itself runs on the GPU every call from Python goes this way, and results are JAX's arrays;
inside of other functions of JAX's such a function is XLA's.
"""

from __future__ import annotations

import functools
from collections import OrderedDict
from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import jax
import numpy as np

from stagejit.compat import hide_frames, physical_aval
from stagejit.crossing import from_user
from stagejit.errors import StagejitError
from stagejit.importing import importing
from stagejit.locks import new_lock
from stagejit.options import Options
from stagejit.runtime.cuda.device_arrays import DeviceArray, device_array, is_device_array

if TYPE_CHECKING:
    from stagejit.runtime.cuda.driver import Driver
    from stagejit.runtime.cuda.programs.executor import Executable

hide_frames(__file__)
_MOST_KNOWN = 256  # kinds of arguments of a function
_ALIGNED = 16  # bytes of the widest access


@dataclass(frozen=True)
class _Known:
    """A function for arguments of some kind. dynamic: which of all leaves are its arguments, flat;
    avals: theirs; results: shapes and dtypes."""

    executable: Executable
    dynamic: tuple[int, ...]
    avals: tuple[Any, ...]
    results: tuple[tuple[tuple[int, ...], np.dtype[Any]], ...]
    out_tree: Any


class GpuFunction:
    """See the module's docstring; attributes are the jitted function's."""

    def __init__(self, jitted: Any, options: Options) -> None:
        functools.update_wrapper(self, jitted, updated=())
        self._jitted, self._options = jitted, options
        self._known: OrderedDict[Any, _Known] = OrderedDict()
        self._lock = new_lock()

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        leaves, tree = jax.tree.flatten((args, kwargs))
        if any(isinstance(leaf, jax.core.Tracer) for leaf in leaves):
            return self._jitted(*args, **kwargs)
        driver = _driver(self._options.target)  # or what is missing
        told = [device_array(leaf) if is_device_array(leaf) else None for leaf in leaves]
        if any(told) or jax.default_backend() != "cpu":
            return self._on_device(driver, leaves, told, tree)
        return self._jitted(*args, **kwargs)

    def __get__(self, instance: Any, owner: Any = None) -> Any:
        return self if instance is None else functools.partial(self, instance)

    def __getattr__(self, name: str) -> Any:
        if name == "_jitted":  # while it is copied or unpickled
            raise AttributeError(name)
        return getattr(self._jitted, name)

    def __repr__(self) -> str:
        return f"<{type(self).__name__} of {self._jitted!r}>"

    # ---------------------------------------------------------------- on the device

    def _on_device(
        self, driver: Driver, leaves: list[Any], told: list[DeviceArray | None], tree: Any
    ) -> Any:
        kinds = [_kind(x, one) for x, one in zip(leaves, told, strict=True)]
        # With 64-bit types or without, see `_compile`.
        key = tree, jax.dtypes.canonicalize_dtype(np.float64), tuple(kinds)
        with self._lock:
            known = self._known.get(key)
        if known is None:
            known = self._remembered(key, self._compile(leaves, told, tree))

        def addresses(allocate: Callable[[int], int]) -> list[int]:
            pairs = zip(known.dynamic, known.avals, strict=True)
            return [_address(driver, leaves[at], told[at], aval, allocate) for at, aval in pairs]

        made = known.executable.on(driver).on_device(addresses, known.results)
        if jax.default_backend() == "gpu":  # copies: nobody tells JAX how long the memory lives
            made = [jax.numpy.array(x) for x in made]
        return jax.tree.unflatten(known.out_tree, made)

    def _remembered(self, key: Any, made: _Known) -> _Known:
        with self._lock:
            self._known[key] = made
            if len(self._known) > _MOST_KNOWN:
                self._known.popitem(last=False)
        return made

    def _compile(self, leaves: list[Any], told: list[DeviceArray | None], tree: Any) -> _Known:
        with importing:
            from stagejit.pipeline import Compilation  # see Note [Import time]
        from stagejit.runtime.staged import Request

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
        compilation = Compilation.of(request).run_until("load")
        outs, out_tree = jax.tree.flatten(traced.out_avals)
        results = tuple((tuple(aval.shape), np.dtype(aval.dtype)) for aval in outs)
        return _Known(compilation.executable, tuple(dynamic), avals, results, out_tree)

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
    if told.stream is not None:
        driver.follow(driver.main, told.stream)
    if told.address % _ALIGNED == 0:
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


def _named(told: DeviceArray) -> str:
    return f"a {type(told.owner).__name__} of {told.dtype}{list(told.shape)} on a GPU"

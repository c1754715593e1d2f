"""`GpuFunction`: what `stagejit.jit(f, backend="cuda")` returns.

Input: JAX's jitted function, whose programs our compiler runs on a GPU. Output: the same, whose
calls with arrays that lie on the GPU stay there. Invariant: everything else (tracing, other
arguments, transformations) is the jitted function's.

Note [Two ways]: where JAX itself runs on the CPU, a program is a call of XLA's CPU that copies
arrays to the GPU and back, so it works inside of whatever JAX makes of the function. A call from
Python with an array that is on the GPU (PyCUDA's, torch's, anything with
`__cuda_array_interface__`) needs none of that: it goes to the driver, and its results stay there.
Other arguments of such a call are copied. What is donated is copied, too, where it is written.
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
    """A function for arguments of some kind. avals: of arguments, flat."""

    executable: Executable
    avals: tuple[Any, ...]
    out_avals: tuple[Any, ...]
    out_tree: Any


class GpuFunction:
    """See the module's docstring; attributes are the jitted function's."""

    def __init__(self, jitted: Any, options: Options) -> None:
        functools.update_wrapper(self, jitted, updated=())
        self._jitted, self._options = jitted, options
        self._known: OrderedDict[Any, _Known] = OrderedDict()
        self._lock = new_lock()

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        leaves = jax.tree.leaves((args, kwargs))
        if any(isinstance(leaf, jax.core.Tracer) for leaf in leaves):
            return self._jitted(*args, **kwargs)
        driver = _driver(self._options.target)  # or what is missing
        if any(map(is_device_array, leaves)):
            return self._on_device(driver, args, kwargs)
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

    def _on_device(self, driver: Driver, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        known = self._compiled(args, kwargs)
        leaves = jax.tree.leaves(self._dynamic(args, kwargs))

        def addresses(allocate: Callable[[int], int]) -> list[int]:
            return [
                _address(driver, leaf, aval, allocate)
                for leaf, aval in zip(leaves, known.avals, strict=True)
            ]

        made = known.executable.on(driver).on_device(addresses, known.out_avals)
        return jax.tree.unflatten(known.out_tree, made)

    def _compiled(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> _Known:
        key = _key(args, kwargs)
        with self._lock:
            if key in self._known:
                self._known.move_to_end(key)
                return self._known[key]
        abstract = jax.tree.map(_abstract, (args, kwargs))
        made = self._compile(self._jitted.trace(*abstract[0], **abstract[1]))
        with self._lock:
            self._known[key] = made
            if len(self._known) > _MOST_KNOWN:
                self._known.popitem(last=False)
        return made

    def _compile(self, traced: Any) -> _Known:
        with importing:
            from stagejit.pipeline import Compilation  # see Note [Import time]
        from stagejit.runtime.staged import Request

        donated = tuple(info.donated for info in jax.tree.leaves(traced.args_info))
        request = Request(traced.fun_name, traced.jaxpr, self._options, donated)
        compilation = Compilation.of(request).run_until("load")
        leaves, tree = jax.tree.flatten(traced.out_avals)
        return _Known(compilation.executable, tuple(traced.jaxpr.in_avals), tuple(leaves), tree)

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


def _abstract(leaf: Any) -> Any:
    if not is_device_array(leaf):
        return leaf
    told = device_array(leaf)
    struct: Any = jax.ShapeDtypeStruct
    return struct(told.shape, told.dtype)


def _key(args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """What a compilation depends on: types of arrays, and values of anything else."""
    leaves, tree = jax.tree.flatten((args, kwargs))
    return tree, jax.dtypes.canonicalize_dtype(np.float64), tuple(map(_kind, leaves))


def _kind(leaf: Any) -> Any:
    if is_device_array(leaf):
        told = device_array(leaf)
        return told.shape, told.dtype
    if isinstance(leaf, np.ndarray | np.generic | jax.Array):
        return jax.typeof(leaf)
    return type(leaf), leaf


def _address(driver: Driver, leaf: Any, aval: Any, allocate: Callable[[int], int]) -> int:
    """Where an argument is on the device."""
    if is_device_array(leaf):
        told = device_array(leaf)
        _require_usable(told, aval)
        driver.follow(driver.main, told.stream)
        if told.address % _ALIGNED == 0:
            return told.address
        address = allocate(told.nbytes)
        driver.copy(address, told.address, told.nbytes, driver.main)
        return address
    array = np.ascontiguousarray(from_user(jax.numpy.asarray(leaf, aval.dtype), aval))
    address = allocate(array.nbytes)
    if array.nbytes:
        driver.copy_in(address, array, driver.main)
    return address


def _require_usable(told: DeviceArray, aval: Any) -> None:
    kind = f"a {type(told.owner).__name__} of {told.dtype}{list(told.shape)} on a GPU"
    if told.strides is not None:
        raise StagejitError(
            f"{kind} has gaps, or lies in another order (strides {told.strides})",
            next_step="give a contiguous copy of it",
        )
    if told.dtype != physical_aval(aval).dtype:
        raise StagejitError(
            f"{kind} would be taken for {aval.dtype}",
            next_step='convert it, or call jax.config.update("jax_enable_x64", True)',
        )

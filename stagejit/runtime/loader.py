"""Host programs and kernels -> FFI targets that JAX can call.

Input: a `HostProgram` and the LLVM IR of its kernels. Output: a `LoadedProgram`, whose `target`
is a registered XLA FFI target of platform cpu. Invariant: names are content hashes, so the same
program is loaded and registered once, and its name is the same in every process.
"""

from __future__ import annotations

import ctypes
import threading
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache

import jax

from stagejit.errors import InternalError
from stagejit.runtime import foreign, support
from stagejit.runtime.engine import HANDLER_LEVEL, engine
from stagejit.runtime.handler import handler_ir
from stagejit.runtime.object_cache import ObjectCache
from stagejit.runtime.program import HostProgram


@dataclass(frozen=True)
class LoadedProgram:
    """A program that can be called. `ir` is its handler's text."""

    target: str
    program: HostProgram
    ir: str
    _counter: ctypes.c_int64

    @property
    def call_count(self) -> int:
        """How often the handler ran its steps, on all threads, since it was loaded."""
        return self._counter.value


_LOADED: dict[str, LoadedProgram] = {}
_LOCK = threading.Lock()


def load_program(
    program: HostProgram, kernels: Mapping[str, str], cache: ObjectCache | None = None
) -> LoadedProgram:
    """Compile (or take from `cache`), link and register `program`.

    kernels: LLVM IR text of each kernel, by symbol; those of other programs are reused.
    Raises InternalError for a kernel without text, or text that LLVM refuses.
    """
    handler = handler_ir(program)
    with _LOCK:
        if handler.symbol in _LOADED:
            return _LOADED[handler.symbol]
        imports = {
            **support.addresses(cache),
            **_kernel_addresses(program, kernels, cache),
            **foreign.addresses(program.targets()),
        }
        found = engine().load(
            {handler.symbol: handler.ir},
            imports,
            exports={handler.symbol: (handler.counter,)},
            cache=cache,
            level=HANDLER_LEVEL,
        )
        _register(handler.symbol, found[handler.symbol])
        counter = ctypes.c_int64.from_address(found[handler.counter])
        loaded = LoadedProgram(handler.symbol, program, handler.ir, counter)
        _LOADED[handler.symbol] = loaded
        return loaded


def loaded_programs() -> tuple[LoadedProgram, ...]:
    """Every program of this process, in the order of loading."""
    return tuple(_LOADED.values())


def call_count() -> int:
    """Calls of all programs so far: the difference over a call shows whether our code ran."""
    return sum(loaded.call_count for loaded in loaded_programs())


def trim_arenas() -> None:
    """Give the memory of idle arenas back to the system; the next calls allocate it again."""
    ctypes.CFUNCTYPE(None)(support.addresses()["sj_arena_trim"])()


def _kernel_addresses(
    program: HostProgram, kernels: Mapping[str, str], cache: ObjectCache | None
) -> dict[str, int]:
    wanted = program.kernels()
    lost = [name for name in wanted if name not in kernels and engine().address(name) is None]
    if lost:
        raise InternalError(f"no code for {', '.join(lost)}", step="load")
    fresh = engine().load({n: kernels[n] for n in wanted if n in kernels}, cache=cache)
    return {name: fresh.get(name) or engine().address(name) or 0 for name in wanted}


def _register(name: str, address: int) -> None:
    _start_cpu_client()
    capsule = jax.ffi.pycapsule(ctypes.c_void_p(address))  # type: ignore[no-untyped-call]
    jax.ffi.register_ffi_target(name, capsule, platform="cpu", api_version=1)


@cache
def _start_cpu_client() -> None:
    """A target registered before JAX has started the platform is not found later."""
    jax.devices("cpu")

"""The one place where machine code is made and kept: LLVM IR text in, addresses out.

Input: modules of LLVM IR text, each named by one content-addressed symbol that it defines, and
the addresses of the symbols they import. Output: the address of each symbol. Invariants: one
LLJIT for the process, never closed, and every library tracker is kept for ever, because JAX may
call a registered address until the process ends; a symbol is loaded once; the IR is the caller's
last word (no IR pass pipeline runs, see Note [No IR passes]).

Note [No IR passes]: kernels arrive with explicit vectors, unrolled tiles and hoisted addresses,
so the middle end finds nothing: same speed, half the compile time (KERNELS.md, "LLVM"). Code
generation stays at level 2 for them, since level 0 is five times slower code; handlers, which
only fill in addresses and call, are compiled at level 0 in a quarter of the time.

Note [Position-independent code]: libraries are mapped wherever there is room. With the default JIT
relocation model the address of an imported function is a 32-bit constant, which cannot reach it.
"""

from __future__ import annotations

import ctypes
import itertools
import threading
from collections.abc import Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
from functools import cache
from os import cpu_count
from typing import Any

import llvmlite
import llvmlite.binding as llvm
from llvmlite.binding import ffi

from stagejit.errors import InternalError
from stagejit.runtime.object_cache import ObjectCache, digest

# Part of each cache key: raise it when the meaning of cached objects changes (the kernel ABI, say).
ABI_VERSION = 1
KERNEL_LEVEL = 2
HANDLER_LEVEL = 0


@cache
def host_cpu() -> tuple[str, str]:
    """Name and feature string of this processor, as LLVM wants them."""
    return llvm.get_host_cpu_name(), llvm.get_host_cpu_features().flatten()


def cache_key(ir: str, level: int = KERNEL_LEVEL) -> str:
    """What identifies the object code of `ir`, at a code generation level, on this machine."""
    cpu, features = host_cpu()
    version = ".".join(map(str, llvm.llvm_version_info))
    return digest(ir, cpu, features, llvmlite.__version__, version, str(ABI_VERSION), str(level))


class Engine:
    """Loads modules. Use the process's one instance, `engine()`; safe to call from any thread."""

    def __init__(self) -> None:
        self._jit = llvm.create_lljit_compiler(_target_machine(), use_jit_link=True)
        self._addresses: dict[str, int] = {}
        self._trackers: list[Any] = []
        self._names = itertools.count()
        self._lock = threading.RLock()
        self.compiled_count = 0  # modules compiled, and not found in the cache
        self.cached_count = 0  # modules taken from the cache

    def load(
        self,
        modules: Mapping[str, str],
        imports: Mapping[str, int] | None = None,
        *,
        exports: Mapping[str, tuple[str, ...]] | None = None,
        cache: ObjectCache | None = None,
        level: int = KERNEL_LEVEL,
    ) -> dict[str, int]:
        """Addresses of the symbols that name `modules`, compiling and linking those not yet loaded.

        imports: address of each symbol that a module declares and none of `modules` defines.
        exports: what a module defines besides the symbol that names it; returned as well.
        cache: where compiled objects are kept; None compiles in this process only.
        Raises InternalError when LLVM refuses a module or a symbol is missing.
        """
        with self._lock:
            missing = {name: ir for name, ir in modules.items() if name not in self._addresses}
            also = [extra for name in modules for extra in (exports or {}).get(name, ())]
            if missing:
                fresh = [*missing, *(name for name in also if name not in self._addresses)]
                self._link_objects(missing, fresh, imports or {}, cache, level)
            return {name: self._addresses[name] for name in [*modules, *also]}

    def address(self, symbol: str) -> int | None:
        """Address of a symbol that is loaded, else None."""
        return self._addresses.get(symbol)

    def _link_objects(
        self,
        modules: Mapping[str, str],
        symbols: list[str],
        imports: Mapping[str, int],
        cache: ObjectCache | None,
        level: int,
    ) -> None:
        """Link `modules`. Stored objects that LLVM refuses are dropped and compiled anew."""
        keys = {name: cache_key(ir, level) for name, ir in modules.items()}
        found = {name: cache.get(key) for name, key in keys.items()} if cache else {}
        stored = {name: body for name, body in found.items() if body is not None}
        fresh = self._compile(modules, stored, level)
        try:
            self._link(symbols, [{**stored, **fresh}[name] for name in modules], imports)
            self.cached_count += len(stored)
        except InternalError:
            if not stored or cache is None:
                raise
            for name in stored:
                cache.discard(keys[name])
            fresh |= self._compile(modules, fresh, level)
            self._link(symbols, [fresh[name] for name in modules], imports)
        if cache:
            for name, body in fresh.items():
                cache.put(keys[name], body)

    def _compile(
        self, modules: Mapping[str, str], known: Mapping[str, bytes], level: int
    ) -> dict[str, bytes]:
        """Object code of those of `modules` that are not `known`."""
        misses = [name for name in modules if name not in known]
        objects = _map(lambda name: _compile(modules[name], level), misses)
        self.compiled_count += len(misses)
        return dict(zip(misses, objects, strict=True))

    def _link(self, symbols: list[str], objects: list[bytes], imports: Mapping[str, int]) -> None:
        library = llvm.JITLibraryBuilder()
        for body in objects:
            library.add_object_img(body)
        for name, address in imports.items():
            if name not in symbols:
                library.import_symbol(name, address)
        for name in symbols:
            library.export_symbol(name)
        try:
            tracker = library.link(self._jit, f"stagejit.{next(self._names)}")
        except RuntimeError as error:
            raise InternalError(
                f"LLVM cannot link {', '.join(symbols)}: {error}", step="link"
            ) from error
        self._trackers.append(tracker)
        for name in symbols:
            self._addresses[name] = tracker[name]


@cache
def engine() -> Engine:
    """The engine of this process."""
    return Engine()


def disassemble(ir: str) -> str:
    """Assembly text of what `load` would run for `ir`."""
    machine = _target_machine()
    with _parsed(ir, machine) as module:
        return str(machine.emit_assembly(module))


def libc_address(name: str) -> int:
    """Address of a function of the C library, which is part of this process."""
    address = ctypes.cast(getattr(ctypes.CDLL(None), name), ctypes.c_void_p).value
    if address is None:
        raise InternalError(f"the C library has no {name}", step="link")
    return address


@cache
def _native_target() -> Any:
    llvm.initialize_native_target()
    llvm.initialize_native_asmprinter()
    return llvm.Target.from_default_triple()


def _target_machine(level: int = KERNEL_LEVEL) -> Any:
    cpu, features = host_cpu()
    return _native_target().create_target_machine(
        cpu=cpu, features=features, opt=level, reloc="pic", codemodel="default"
    )


class _parsed:
    """The verified module of `ir`, in a context of its own that is freed with it."""

    def __init__(self, ir: str, machine: Any) -> None:
        self._ir, self._machine = ir, machine

    def __enter__(self) -> Any:
        try:
            self._module = llvm.parse_assembly(self._ir, llvm.create_context())
            self._module.triple = llvm.get_default_triple()
            self._module.data_layout = str(self._machine.target_data)
            self._module.verify()
        except RuntimeError as error:
            raise InternalError(
                f"LLVM rejects a module: {error}", step="llvm", dump=self._ir
            ) from error
        return self._module

    def __exit__(self, *exc: object) -> None:
        self._module.close()


def _compile(ir: str, level: int = KERNEL_LEVEL) -> bytes:
    machine = _target_machine(level)
    with _parsed(ir, machine) as module:
        return _emit_object(machine, module)


@cache
def _emit_function() -> Any:
    """llvmlite's code generator without the lock that llvmlite takes around every call.

    The lock would make parallel compilation serial. It is not needed here: module, context and
    target machine belong to the calling thread, and LLVM shares nothing else between contexts.
    """
    function = ctypes.CDLL(ffi.lib._name).LLVMPY_TargetMachineEmitToMemory
    function.argtypes = [ctypes.c_void_p, ctypes.c_void_p, ctypes.c_int, ctypes.c_void_p]
    function.restype = ctypes.c_void_p
    return function


def _emit_object(machine: Any, module: Any) -> bytes:
    message = ctypes.c_char_p()
    machine_pointer = ctypes.cast(machine._ptr, ctypes.c_void_p)
    module_pointer = ctypes.cast(module._ptr, ctypes.c_void_p)
    memory = _emit_function()(machine_pointer, module_pointer, 1, ctypes.byref(message))
    if not memory:
        raise InternalError(f"LLVM cannot compile a module: {message.value!r}", step="llvm")
    buffer = ctypes.cast(memory, ffi.LLVMMemoryBufferRef)
    try:
        start, size = ffi.lib.LLVMPY_GetBufferStart(buffer), ffi.lib.LLVMPY_GetBufferSize(buffer)
        return ctypes.string_at(start, size)
    finally:
        ffi.lib.LLVMPY_DisposeMemoryBuffer(buffer)


def _map(function: Callable[[str], bytes], items: list[str]) -> list[bytes]:
    workers = min(len(items), cpu_count() or 1)
    if workers < 2:
        return [function(item) for item in items]
    with ThreadPoolExecutor(workers) as pool:
        return list(pool.map(function, items))

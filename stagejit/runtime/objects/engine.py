"""The one place where machine code is made: LLVM IR text in, modules in memory out.

Input: modules of LLVM IR text, each named by one content-addressed symbol that it defines, and
the addresses of the symbols they import. Output: a `Module` for each, whose code is in memory as
long as the object. Invariants: there is at most one module of a symbol at any time; threads that
want the same one make it once, others work beside each other; the IR is the caller's last word (no
IR pass pipeline runs, see Note [No IR passes]) unless it asks for more.

Note [No IR passes]: kernels arrive with explicit vectors, unrolled tiles and hoisted addresses, so
the middle end finds nothing: same speed, half the compile time. Code generation stays at level 2,
since level 0 is five times slower code. Of that level loops are left as they are written, see Note
[Addresses of loops] of `codegen/cpu/llvm/lower.py`; as the option for it is the whole process's, it
is on only while this compiles: others who use LLVM have their loops rewritten.

Note [IR passes]: a module that begins with the line `WITH_PASSES` is put together of several
kernels. There the middle end finds much: arguments that are known, loops of few turns, memory
that only the module sees. It gets LLVM's usual passes, but those that make vectors.

Note [Position-independent code]: code is mapped wherever there is room. With the default JIT
relocation model the address of an imported function is a 32-bit constant, which cannot reach it.
"""

from __future__ import annotations

import ctypes
import os
import threading
import weakref
import zlib
from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cache
from typing import Any

import llvmlite
import llvmlite.binding as llvm
from llvmlite.binding import ffi

from stagejit.base.threads.locks import free_in_child, new_lock
from stagejit.base.threads.other_threads import on_another_thread, on_other_threads
from stagejit.codegen.target import Target
from stagejit.errors import InternalError
from stagejit.runtime.gate import Gate
from stagejit.runtime.objects import linker
from stagejit.runtime.objects.elf import ObjectError
from stagejit.runtime.objects.object_cache import ObjectCache, digest

# Part of each cache key: raise it when the meaning of cached objects changes (the kernel ABI, say).
ABI_VERSION = 4

WITH_PASSES = "; with passes"

_LARGE_NBYTES = 4096  # of an object: packing a smaller one saves less than a page, in 0.1 ms


def _level_of(ir: str) -> int:
    """Of LLVM's code generator."""
    return 2


def cache_key(ir: str) -> str:
    """What identifies the object code of `ir` on this machine."""
    return digest(ir, machine(), str(_level_of(ir)))


def machine() -> str:
    """What must be equal where an object is to run: processor, LLVM, the kernels' ABI."""
    host = Target.host()
    return _machine_of(host.cpu, host.features, llvmlite.__version__, llvm.llvm_version_info)


@cache  # it is a part of every key
def _machine_of(cpu: str, features: str, llvmlite: str, version: tuple[int, ...]) -> str:
    return digest(cpu, features, llvmlite, ".".join(map(str, version)), str(ABI_VERSION))


@dataclass(eq=False)
class Module:
    """Code in memory; it stays there as long as this object."""

    addresses: dict[str, int]
    _stored: bytes
    _is_packed: bool

    @classmethod
    def of(cls, addresses: dict[str, int], object: bytes) -> Module:
        large = len(object) > _LARGE_NBYTES
        return cls(addresses, zlib.compress(object, 1) if large else object, large)

    @property
    def object(self) -> bytes:
        """The object file that it was linked from."""
        return zlib.decompress(self._stored) if self._is_packed else self._stored


class Engine:
    """Makes modules. Use the process's one instance, `engine()`; safe to call from any thread."""

    def __init__(self) -> None:
        self._modules: weakref.WeakValueDictionary[str, Module] = weakref.WeakValueDictionary()
        # By symbol: a lock that the thread which makes the module holds until it has ended.
        self._pending: dict[str, threading.Lock] = {}
        self._kept: dict[str, Module] = {}
        self._lock = new_lock()
        self.compiled_count = 0  # modules compiled, and not found in the cache
        self.cached_count = 0  # modules taken from the cache

    def modules(
        self,
        texts: Mapping[str, str],
        imports: Mapping[str, int] | None = None,
        *,
        cache: ObjectCache | None = None,
    ) -> dict[str, Module]:
        """The module of each symbol of `texts`, compiled and linked unless it is in memory.

        imports: address of each symbol that a module declares.
        cache: where compiled objects are kept; None compiles in this process only.
        Raises InternalError when LLVM refuses a module or a symbol is missing.
        """

        def make(names: list[str]) -> dict[str, Module]:
            wanted = {name: texts[name] for name in names}
            return self._linked(wanted, imports or {}, cache)

        return self._once(list(texts), make)

    def modules_of(self, objects: Mapping[str, bytes]) -> dict[str, Module]:
        """The module of each symbol, linked from its `Module.object` unless it is in memory.

        Raises InternalError for an object that cannot be linked.
        """
        return self._once(list(objects), lambda names: _link({n: objects[n] for n in names}, {}))

    def _once(
        self, names: list[str], make: Callable[[list[str]], dict[str, Module]]
    ) -> dict[str, Module]:
        """The module of each name; `make` makes those that are neither in memory nor being made."""
        found: dict[str, Module] = {}
        while missing := [name for name in names if name not in found]:
            claim = new_lock()
            with claim:
                made, mine, theirs = self._claim(missing, claim)
                found |= made
                if mine:
                    found |= self._made(mine, make)
            for other in theirs:
                with other:  # then look again: if it failed there, it is ours to try
                    pass
        return found

    def _made(
        self, names: list[str], make: Callable[[list[str]], dict[str, Module]]
    ) -> dict[str, Module]:
        """`make(names)`, of which this thread has the claim."""
        try:
            modules = make(names)
            with self._lock:
                self._modules.update(modules)
            return modules
        finally:
            with self._lock:
                for name in names:
                    self._pending.pop(name, None)

    def load(
        self,
        texts: Mapping[str, str],
        imports: Mapping[str, int] | None = None,
        *,
        cache: ObjectCache | None = None,
    ) -> dict[str, int]:
        """As `modules`, for the life of the process: the addresses of all symbols they define."""
        modules = self.modules(texts, imports, cache=cache)
        self._kept |= modules
        return {name: at for module in modules.values() for name, at in module.addresses.items()}

    def module(self, symbol: str) -> Module | None:
        """The module that a symbol names, if it is in memory."""
        return self._modules.get(symbol)

    def after_fork_in_child(self) -> None:
        """The threads that were making modules are not in this process."""
        self._pending = {}

    def _claim(
        self, names: list[str], claim: threading.Lock
    ) -> tuple[dict[str, Module], list[str], list[threading.Lock]]:
        """What is in memory, what this thread has to make now, and who makes the rest."""
        made: dict[str, Module] = {}
        mine: list[str] = []
        theirs: list[threading.Lock] = []
        with self._lock:
            for name in names:
                module, other = self._modules.get(name), self._pending.get(name)
                if module is not None:
                    made[name] = module
                elif other is None or not other.locked():  # what an interrupt left behind
                    mine.append(name)
                    self._pending[name] = claim
                else:
                    theirs.append(other)
        return made, mine, theirs

    def _linked(
        self,
        texts: Mapping[str, str],
        imports: Mapping[str, int],
        cache: ObjectCache | None,
    ) -> dict[str, Module]:
        """Compile and link. Stored objects that cannot be linked are dropped and compiled anew."""
        keys = {name: cache_key(ir) for name, ir in texts.items()}
        found = {name: cache.get(key) for name, key in keys.items()} if cache else {}
        stored = {name: body for name, body in found.items() if body is not None}
        fresh = self._compile(texts, stored)
        try:
            modules = _link({name: {**stored, **fresh}[name] for name in texts}, imports)
            self.cached_count += len(stored)
        except InternalError:
            if not stored or cache is None:
                raise
            for name in stored:
                cache.discard(keys[name])
            fresh |= self._compile(texts, fresh)
            modules = _link(fresh, imports)
        if cache:
            for name, body in fresh.items():
                cache.put(keys[name], body)
        return modules

    def _compile(self, texts: Mapping[str, str], known: Mapping[str, bytes]) -> dict[str, bytes]:
        """Object code of those of `texts` that are not `known`."""
        misses = [name for name in texts if name not in known]
        objects = on_other_threads(lambda name: _compile(texts[name]), misses)
        self.compiled_count += len(misses)
        return dict(zip(misses, objects, strict=True))


def _link(objects: Mapping[str, bytes], imports: Mapping[str, int]) -> dict[str, Module]:
    try:
        images = linker.link([(body, (name,)) for name, body in objects.items()], imports)
    except (ObjectError, MemoryError) as error:
        raise InternalError(f"cannot link {', '.join(objects)}: {error}", step="link") from error
    modules = {}
    for name, image in zip(objects, images, strict=True):
        module = modules[name] = Module.of(image.addresses, objects[name])
        weakref.finalize(module, image.free).atexit = False  # at exit, XLA's threads still run
    return modules


@cache
def engine() -> Engine:
    """The engine of this process."""
    made = Engine()
    os.register_at_fork(after_in_child=made.after_fork_in_child)
    return made


def disassemble(ir: str) -> str:
    """Assembly text of what `load` would run for `ir`."""

    def assembly() -> str:
        with _in_llvm(), _target_machine(_level_of(ir)) as machine, _parsed(ir, machine) as module:
            return str(machine.emit_assembly(module))

    return on_another_thread(assembly)


@cache
def _native_target() -> Any:
    llvm.initialize_native_target()
    llvm.initialize_native_asmprinter()
    return llvm.Target.from_default_triple()


_MOST_IDLE = 4  # target machines of a level that are kept, 0.7 MiB each
_idle_machines: defaultdict[int, list[Any]] = defaultdict(list)


class _LoopsAsWritten:
    """While any thread is inside, LLVM's code generator does not rewrite loops."""

    _OPTION, _SINCE, _UNTIL = "-disable-lsr", 15, 22  # LLVM ends the process if it has no such one

    def __init__(self) -> None:
        self._inside, self._lock = 0, new_lock()
        self._has_option = self._SINCE <= llvm.llvm_version_info[0] <= self._UNTIL

    def __enter__(self) -> None:
        self._add(1)

    def __exit__(self, *exc: object) -> None:
        self._add(-1)

    def _add(self, number: int) -> None:
        with self._lock:
            before, self._inside = self._inside, self._inside + number
            if self._has_option and not (before and self._inside):
                on = "true" if self._inside else "false"
                llvm.set_option("stagejit", f"{self._OPTION}={on}")


_loops_as_written = _LoopsAsWritten()


@contextmanager
def _target_machine(level: int) -> Iterator[Any]:
    """A target machine that no other thread has. What it knows of the processor takes LLVM 0.8 ms
    to make, so it is used again, unless a module failed on it."""
    host, idle = Target.host(), _idle_machines[level]
    try:
        machine = idle.pop()
    except IndexError:
        machine = _native_target().create_target_machine(
            cpu=host.cpu, features=host.features, opt=level, reloc="pic", codemodel="default"
        )
    with _loops_as_written:
        yield machine
    if len(idle) < _MOST_IDLE:
        idle.append(machine)


class _parsed:
    """The verified module of `ir`, in a context of its own that is freed with it."""

    _data_layout = ""  # the same of all target machines, which take long to say it

    def __init__(self, ir: str, machine: Any) -> None:
        self._ir, self._machine = ir, machine

    def __enter__(self) -> Any:
        try:
            self._module = llvm.parse_assembly(self._ir, llvm.create_context())
            self._module.triple = Target.host().triple
            if not _parsed._data_layout:
                _parsed._data_layout = str(self._machine.target_data)
            self._module.data_layout = _parsed._data_layout
            self._module.verify()
            if self._ir.startswith(WITH_PASSES):
                _optimize(self._module, self._machine)
        except RuntimeError as error:
            raise InternalError(
                f"LLVM rejects a module: {error}", step="llvm", dump=self._ir
            ) from error
        return self._module

    def __exit__(self, *exc: object) -> None:
        self._module.close()


def _optimize(module: Any, machine: Any) -> None:
    """See Note [IR passes]."""
    tuning = llvm.create_pipeline_tuning_options(speed_level=2)
    tuning.loop_vectorization = tuning.slp_vectorization = False
    builder = llvm.create_pass_builder(machine, tuning)
    builder.getModulePassManager().run(module, builder)


def _compile(ir: str) -> bytes:
    """Object code. Not for the main thread, see Note [Locks and signals]."""
    with _in_llvm(), _target_machine(_level_of(ir)) as machine, _parsed(ir, machine) as module:
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


_in_llvm = Gate()
free_in_child(getattr(ffi.lib._lock, "_lock", ffi.lib._lock))


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

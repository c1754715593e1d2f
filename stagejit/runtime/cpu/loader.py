"""Host programs and kernels -> programs that JAX can call.

Input: a `HostProgram` and the LLVM IR of its kernels. Output: a `LoadedProgram`, whose `target` and
`attributes` make a custom call of platform cpu. Invariants: names are content hashes, so the same
program is loaded once, and its name is the same in every process; code is in memory as long as
somebody has its `LoadedProgram` or an executable of XLA calls it (see `entry`), and not longer.

Note [When code goes]: the last reference may be let go by any thread of XLA's, so the code is freed
a little later: when the next program is loaded, when a `LoadedProgram` goes, or when Python's
garbage collector has run.
"""

from __future__ import annotations

import atexit
import ctypes
import gc
import weakref
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Protocol

import jax
import numpy as np

from stagejit.base.threads.locks import new_lock
from stagejit.errors import InternalError, StagejitError
from stagejit.graph import python_functions
from stagejit.runtime.cpu import foreign
from stagejit.runtime.cpu.encoding import TABLE, Code, encoded, named_for
from stagejit.runtime.cpu.native import entry, support
from stagejit.runtime.cpu.recording import Log, Logged, Recorder
from stagejit.runtime.cpu.weights import Table
from stagejit.runtime.hosting.background import WORK_SIZE
from stagejit.runtime.hosting.program import HostProgram
from stagejit.runtime.lowering import seams
from stagejit.runtime.lowering.ffi_calls import Layouts, ffi_call, with_work
from stagejit.runtime.objects.engine import Module, engine, machine
from stagejit.runtime.objects.object_cache import ObjectCache

TARGET = "stagejit"
_STATE_TYPE = "stagejit_program"


class Weights(Protocol):
    """What keeps the weights of a program."""

    @property
    def table(self) -> Table: ...


@dataclass(eq=False)
class LoadedProgram:
    """A program that can be called, and that stays in memory as long as this object."""

    _record: _Record

    @property
    def name(self) -> str:
        return self._record.name

    @property
    def program(self) -> HostProgram:
        return self._record.program

    @property
    def target(self) -> str:
        """The FFI target to call, with `attributes`."""
        return TARGET

    @property
    def attributes(self) -> dict[str, Any]:
        """What a custom call carries: the key that finds this program, and its name to read."""
        return {"key": np.int64(self._record.key), "program": self.name}

    @property
    def call_count(self) -> int:
        """How often it was called, on all threads, since it was loaded."""
        return self._record.call_count

    def __reduce__(self) -> tuple[Any, ...]:
        """What a new process needs, as JAX pickles what a serialized executable keeps.

        Python functions and weights stay in this process, so a program that has some is named only.
        """
        if python_functions.TARGET in self.program.targets() or self.program.bound_nbytes:
            return loaded_program, (self.name,)
        objects = {name: module.object for name, module in self._record.modules.items()}
        return restored_program, (self.name, self.program, objects, machine())

    def emit(
        self,
        ctx: Any,
        operands: list[Any],
        layouts: Layouts | None = None,
    ) -> list[Any]:
        """IR values of a call of this program, where JAX lowers; aliases become the call's.

        layouts: of operands and results, the fastest axis first; None for row-major.

        What JAX makes of the module keeps this object until XLA has its own reference. An exported
        module has nothing that could keep it (JAX refuses to), and may be called at any time.
        """
        if ctx.module_context.lowering_parameters.for_export:
            _exported.add(self)
        else:
            ctx.module_context.add_keepalive(self)
        aliases = self.program.aliases
        if self.program.background:
            ctx, operands, layouts = with_work(ctx, operands, layouts, WORK_SIZE)
        return ffi_call(ctx, self.target, operands, aliases, layouts, **self.attributes)


_exported: set[LoadedProgram] = set()


class _Record:
    """What `entry` knows of a program, its code and the modules that this calls, and its host
    program, which holds the Python functions that are called. weights: holds the table."""

    def __init__(
        self,
        code: Code,
        modules: dict[str, Module],
        program: HostProgram,
        weights: Any,
        run: int,
    ) -> None:
        self.name, self.modules, self.program, self.weights = code.name, modules, program, weights
        self.key = key_of(code.name)
        addresses = {
            name: at for module in modules.values() for name, at in module.addresses.items()
        }
        table = {} if weights is None else {TABLE: weights.table.address}
        self._words = code.placed(addresses | foreign.addresses(program.targets()) | table)
        self._memory = ctypes.create_string_buffer(entry.RECORD_NBYTES + 64)
        self.address = -(-ctypes.addressof(self._memory) // 64) * 64
        self._word(entry.KEY).value = self.key
        self._word(entry.CODE).value = self._words.ctypes.data
        self._word(entry.RUN).value = run
        self.logged = Logged(self.address)

    @property
    def call_count(self) -> int:
        return self._word(entry.CALLS).value

    def _word(self, offset: int) -> ctypes.c_int64:
        return ctypes.c_int64.from_address(self.address + offset)


def key_of(name: str) -> int:
    """63 bits of the content hash that a program's name ends with."""
    return int(name[-16:], 16) >> 1


class _Programs:
    """All programs in memory, and the native functions that count who needs them."""

    def __init__(self, cache: ObjectCache | None) -> None:
        helpers = support.addresses(cache)
        found = entry.addresses(helpers, cache)
        self._run = helpers["sj_call"]
        self._recording, self._left = False, list[Log]()  # of programs that are gone
        self.recorder = Recorder(self._cut)
        self._add = _function(None, found["sj_program_add"], ctypes.c_void_p)
        self._acquire = _function(ctypes.c_void_p, found["sj_program_acquire"], ctypes.c_int64)
        self._release = _function(None, found["sj_program_release"], ctypes.c_void_p)
        self._next_dead = _function(ctypes.c_void_p, found["sj_program_next_dead"])
        self._dead = ctypes.c_void_p.from_address(found["sj_dead"])
        self._records: dict[int, _Record] = {}  # by address
        self._loaded: weakref.WeakValueDictionary[str, LoadedProgram] = (
            weakref.WeakValueDictionary()
        )
        self._gone_calls = 0
        self._lock = new_lock()
        _hold_across_forks(found["sj_programs_lock"], found["sj_programs_unlock"])
        _register(found)
        gc.callbacks.append(self._after_collection)
        atexit.register(gc.callbacks.remove, self._after_collection)

    def find(self, name: str) -> LoadedProgram | None:
        """The one `LoadedProgram` of this name, if its code is in memory."""
        with self._lock:
            return self._loaded.get(name) or self._held(name)

    def hold(
        self, code: Code, modules: dict[str, Module], program: HostProgram, weights: Any = None
    ) -> LoadedProgram:
        """The one `LoadedProgram` of this code, which calls the modules of these kernels."""
        record = _Record(code, modules, program, weights, self._run)
        with self._lock:
            loaded = self._loaded.get(code.name) or self._held(code.name)
            if loaded is None:
                if self._recording:
                    record.logged.change(Log(record.name, program), self._run)
                self._records[record.address] = record
                self._add(record.address)
                loaded = self._held(code.name)
                assert loaded is not None
        self.free_dead()
        return loaded

    def _held(self, name: str) -> LoadedProgram | None:
        """A new `LoadedProgram` for a record, which may be one that only XLA refers to."""
        address = self._acquire(key_of(name))
        if not address:
            return None
        record = self._records[address]
        loaded = LoadedProgram(record)
        gone = weakref.finalize(loaded, self._let_go, address)
        gone.atexit = False  # at exit, XLA's threads still run
        if record.name != name:
            raise InternalError(f"{name} has the key of {record.name}", step="load")
        self._loaded[name] = loaded
        return loaded

    def all(self) -> tuple[LoadedProgram, ...]:
        return tuple(self._loaded.values())

    def call_count(self) -> int:
        return self._gone_calls + sum(r.call_count for r in list(self._records.values()))

    def free_dead(self) -> None:
        """Free the code of programs that nobody needs.

        Runs in finalizers and in the garbage collector, so in the middle of anything: it takes no
        lock but that of `entry`, which hands out each record once.
        """
        while self._dead.value:
            address = self._next_dead()
            if address:
                record = self._records.pop(address)
                self._gone_calls += record.call_count
                if record.logged.log is not None:
                    self._left.append(record.logged.log)

    def _cut(self, go_on: bool) -> list[Log]:
        """See `Recorder`."""
        with self._lock:
            self._recording = go_on
            records = list(self._records.values())
            changed = []
            for record in records:
                log = Log(record.name, record.program) if go_on else None
                changed.append((record, record.logged.change(log, self._run)))
            left, self._left = self._left, []
        for record, _ in changed:
            record.logged.wait()
        return [*left, *(log for _, log in changed if log is not None)]

    def _let_go(self, address: int) -> None:
        self._release(address)
        self.free_dead()

    def _after_collection(self, phase: str, info: dict[str, int]) -> None:
        if phase == "stop":
            self.free_dead()


_programs_lock = new_lock()
_programs: _Programs | None = None


def _all_programs(cache: ObjectCache | None = None) -> _Programs:
    """The programs of this process; the first call registers our target with XLA."""
    global _programs
    with _programs_lock:
        if _programs is None:
            _programs = _Programs(cache)
        return _programs


def load_program(
    program: HostProgram,
    kernels: Mapping[str, str],
    cache: ObjectCache | None = None,
    weights: Weights | None = None,
) -> LoadedProgram:
    """Compile (or take from `cache`) and link `program`.

    kernels: LLVM IR text of each kernel, by symbol; those of other programs are reused. weights: of
    a program that has some, whose name then is that of no other program.
    Raises InternalError for a kernel without text, or text that LLVM refuses.
    """
    code, programs = encoded(program), _all_programs(cache)
    if weights is not None:
        code = named_for(code, weights.table.number)
    known = programs.find(code.name)
    return known or programs.hold(code, _kernel_modules(program, kernels, cache), program, weights)


def restored_program(
    name: str, program: HostProgram, objects: Mapping[str, bytes], made_for: str
) -> LoadedProgram:
    """The program that was pickled under this name, linked anew unless it is in memory.

    Raises StagejitError where another machine or another version of stagejit pickled it.
    """
    known = loaded_program(name)
    if known is not None:
        return known
    code = encoded(program)
    if (made_for, name) != (machine(), code.name):
        raise StagejitError(
            "this executable was serialized on another kind of processor, or with another version"
            " of stagejit or llvmlite",
            next_step="lower and compile the function here",
        )
    return _all_programs().hold(code, engine().modules_of(objects), program)


def loaded_program(name: str) -> LoadedProgram | None:
    """The program of this name, where its code is in memory."""
    return _all_programs().find(name)


def loaded_programs() -> tuple[LoadedProgram, ...]:
    """The programs that Python still holds, in the order of loading."""
    return _all_programs().all()


def call_count() -> int:
    """Calls of all programs so far: the difference over a call shows whether our code ran."""
    return _all_programs().call_count()


def recorder() -> Recorder:
    """Who records the times of all programs of this process."""
    return _all_programs().recorder


def trim_arenas() -> None:
    """Give the memory of idle arenas back to the system; the next calls allocate it again."""
    ctypes.CFUNCTYPE(None)(support.addresses()["sj_arena_trim"])()


def _kernel_modules(
    program: HostProgram, kernels: Mapping[str, str], cache: ObjectCache | None
) -> dict[str, Module]:
    wanted = program.kernels()
    found = {name: engine().module(name) for name in wanted if name not in kernels}
    lost = [name for name, module in found.items() if module is None]
    if lost:
        raise InternalError(f"no code for {', '.join(lost)}", step="load")
    made = engine().modules({n: kernels[n] for n in wanted if n in kernels}, cache=cache)
    return {name: module for name, module in (found | made).items() if module is not None}


def _register(addresses: Mapping[str, int]) -> None:
    """Tell XLA of our state's type and of the two stages of our target."""
    jax.devices("cpu")  # a target registered before JAX has started the platform is not found later

    def capsule(name: str) -> Any:
        return jax.ffi.pycapsule(ctypes.c_void_p(addresses[name]))  # type: ignore[no-untyped-call]

    state = {"type_id": capsule("sj_type_id"), "type_info": capsule("sj_type_info")}
    jax.ffi.register_ffi_type(_STATE_TYPE, state, platform="cpu")  # type: ignore[arg-type]
    stages = {"instantiate": capsule("sj_instantiate"), "execute": capsule("sj_execute")}
    jax.ffi.register_ffi_target(TARGET, stages, platform="cpu", api_version=1)
    seams.pickle_first(LoadedProgram)


def _hold_across_forks(lock: int, unlock: int) -> None:
    """Let the C library take the lock before a fork and release it on both sides.

    Not by Python's hooks, of which others run after ours: an executable that is let go there is
    destroyed by this very thread, which would wait for itself.
    """
    arguments: list[Any] = [ctypes.c_void_p(at) for at in (lock, unlock, unlock)]
    try:
        ctypes.CDLL(None)["__register_atfork"](*arguments, None)  # glibc has no dynamic other one
    except AttributeError:
        ctypes.CDLL(None)["pthread_atfork"](*arguments)


def _function(result: Any, address: int, *arguments: Any) -> Any:
    return ctypes.CFUNCTYPE(result, *arguments)(address)

"""Compiles a kernel for this machine and runs it on NumPy arrays.

By default, tests that compile kernels of many shapes run one in `_EVERY` of them, and one in
`_EVERY_OF_OLDER` with the vectors of an older machine, for which the same generators make the same
kernels of other widths.
"""

from __future__ import annotations

import ctypes
import itertools
import os
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import llvmlite.binding as llvm
import numpy as np
import pytest

from stagejit.codegen.cpu.llvm.lower import lower
from stagejit.codegen.cpu.llvm.shadow import with_shadows
from stagejit.codegen.ir.nodes import Function
from stagejit.codegen.target import Target
from tests.codegen.regions import Runner
from tests.harness import levels
from tests.sampling import keep_some

_HERE = f"{Path(__file__).parent}{os.sep}"
_EVERY = 4
_EVERY_OF_OLDER = 12
_OLDER = {"avx2", "sse2"}
_FEW = 8

_JIT: list[Any] = []  # one for the process; machine code must outlive its callers
_NAMES = itertools.count()
_GUARD_NBYTES = 512


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    keep_some(config, items, _EVERY_OF_OLDER, lambda item: not _OLDER.isdisjoint(_ids(item)))
    keep_some(config, items, _EVERY, _compiles, few=_FEW)


def _compiles(item: pytest.Item) -> bool:
    """Whether it compiles kernels, and is no test of a guard."""
    names = getattr(item, "fixturenames", ())
    return bool(_ids(item)) and "compile_kernel" in names and "_dont_" not in item.name


def _ids(item: pytest.Item) -> list[str]:
    """Those of its parameters, where it is a case of this folder."""
    call = getattr(item, "callspec", None)
    return call.id.split("-") if call is not None and str(item.path).startswith(_HERE) else []


def target_machine(target: Target, level: int = 2) -> Any:
    """LLVM's code generator for `target`, as the engine configures it, at a level."""
    llvm.initialize_all_targets()
    llvm.initialize_all_asmprinters()
    made = llvm.Target.from_triple(target.triple).create_target_machine(
        cpu=target.cpu, features=target.features, opt=level, reloc="pic", codemodel="default"
    )
    made.set_asm_verbosity(False)
    return made


def parse(text: str, machine: Any, target: Target) -> Any:
    module = llvm.parse_assembly(text)
    module.triple = target.triple
    module.data_layout = str(machine.target_data)
    module.verify()
    return module


def assembly(function: Function, target: Target) -> str:
    """The assembly that a kernel compiles to, for any target that this LLVM knows."""
    machine = target_machine(target)
    return str(machine.emit_assembly(parse(lower(function, "k", target), machine, target)))


def _link(image: bytes) -> int:
    """The address of `k` in an object file."""
    if not _JIT:
        _JIT.append(llvm.create_lljit_compiler(use_jit_link=True))
    library = llvm.JITLibraryBuilder().add_object_img(image).export_symbol("k")
    tracker = library.link(_JIT[0], f"kernel{next(_NAMES)}")
    _JIT.append(tracker)
    return int(tracker["k"])


def control_setter() -> Callable[[int], None]:
    """A function that sets this thread's floating-point control register (x86)."""
    text = """
    declare void @llvm.x86.sse.ldmxcsr(ptr)
    define void @k(i32 %value) {
      %place = alloca i32
      store i32 %value, ptr %place
      call void @llvm.x86.sse.ldmxcsr(ptr %place)
      ret void
    }"""
    target = Target.host()
    machine = target_machine(target)
    address = _link(machine.emit_object(parse(text, machine, target)))
    return ctypes.CFUNCTYPE(None, ctypes.c_int32)(address)


def compile_kernel(
    function: Function, target: Target | None = None, *, verify: bool = False
) -> Callable[..., None]:
    """`kernel(arrays, params, lo, hi)`. Arrays are passed by address and written in place."""
    target = target or Target.host()
    text = lower(function, "k", target, verify=verify)
    machine = target_machine(target, levels.of(text))
    module = parse(text, machine, target)
    address = _link(machine.emit_object(module))
    entry = ctypes.CFUNCTYPE(
        None, ctypes.c_void_p, ctypes.c_void_p, ctypes.c_int64, ctypes.c_int64, ctypes.c_void_p
    )(address)
    # Poison: NaN as floats, -1 as integers. What lies behind the scratch must keep it.
    nbytes = with_shadows(function).scratch_nbytes if verify else function.scratch_nbytes
    scratch = np.full(nbytes + 64 + _GUARD_NBYTES, 0xFF, np.uint8)
    base = -(-scratch.ctypes.data // 64) * 64
    guard = scratch[base - scratch.ctypes.data + nbytes :]

    def run(
        arrays: Sequence[np.ndarray[Any, Any] | int],
        params: Sequence[int] = (),
        lo: int = 0,
        hi: int = 0,
    ) -> None:
        addresses = [a if isinstance(a, int) else a.ctypes.data for a in arrays]
        bufs = (ctypes.c_void_p * max(len(addresses), 1))(*addresses)
        words = (ctypes.c_int64 * max(len(params), 1))(*params)
        entry(ctypes.addressof(bufs), ctypes.addressof(words), lo, hi, base)
        assert np.all(guard == 0xFF), "the kernel wrote past its scratch"

    run.scratch = scratch  # type: ignore[attr-defined]  # keeps it alive
    return run


def run_kernel(
    function: Function,
    arrays: Sequence[np.ndarray[Any, Any] | int],
    params: Sequence[int] = (),
    lo: int = 0,
    hi: int = 0,
    *,
    target: Target | None = None,
    verify: bool = False,
) -> None:
    """Compile `function` and call it once on `arrays` (addresses are taken as they are)."""
    compile_kernel(function, target, verify=verify)(arrays, params, lo, hi)


@pytest.fixture(name="run_kernel")
def _run_kernel() -> Callable[..., None]:
    return run_kernel


@pytest.fixture(name="compile_kernel")
def _compile_kernel() -> Callable[..., Callable[..., None]]:
    return compile_kernel


@pytest.fixture(name="assembly")
def _assembly() -> Callable[[Function, Target], str]:
    return assembly


@pytest.fixture
def host(compile_kernel: Any) -> Runner:
    """Runs regions on this machine's target."""
    return Runner(compile_kernel, Target.host())


@pytest.fixture(params=[Target.host, Target.avx2, Target.sse2], ids=["host", "avx2", "sse2"])
def runner(request: pytest.FixtureRequest, compile_kernel: Any) -> Runner:
    """Runs regions on each target that this machine can execute."""
    return Runner(compile_kernel, request.param())

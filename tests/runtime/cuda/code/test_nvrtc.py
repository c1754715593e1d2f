"""Kernels as NVRTC compiles them, on any machine: none of this needs a GPU."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from stagejit.codegen.cuda.text.printer import cuda_source
from stagejit.codegen.ir.grid.builder import GridBuilder
from stagejit.codegen.ir.nodes import BF16, F32, F64, I8, I64, Type
from stagejit.runtime.cuda.code import nvrtc
from stagejit.runtime.cuda.code.nvrtc import CudaCompileError, compile_cubin, compile_ptx, version
from stagejit.runtime.cuda.code.resources import Resources, resources
from tests.codegen.ir.grid.kernels import TILES, block_sum, histogram, product
from tests.cuda.emulation.checked import ARCHITECTURES
from tests.cuda.emulation.emulated import NAME

needs_nvrtc = pytest.mark.skipif(not nvrtc.is_installed(), reason="needs `nvidia-cuda-nvrtc`")

KERNELS: dict[str, Callable[[], GridBuilder]] = {
    "sum": lambda: block_sum(256),
    "histogram": lambda: histogram(64),
    **{str(tile): lambda tile=tile: product(tile, 4 * tile.k) for tile, _ in TILES},
}


@needs_nvrtc
@pytest.mark.parametrize("arch", ARCHITECTURES)
@pytest.mark.parametrize("name", KERNELS)
def test_kernels_stay_in_registers(name: str, arch: str) -> None:
    function = KERNELS[name]().finish()
    cubin = compile_cubin(cuda_source(function, NAME), arch)
    found = resources(cubin.log)[NAME]
    assert cubin.code.startswith(b"\x7fELF")
    assert not found.spills
    assert found.stack_nbytes == 0
    assert 0 < found.registers <= 64
    shared = [buffer for buffer in function.buffers if buffer.space == "shared"]
    assert found.shared_nbytes == sum(b.size * b.elem.bits // 8 for b in shared)


@needs_nvrtc
@pytest.mark.parametrize(("tile", "dtype"), TILES, ids=[str(tile) for tile, _ in TILES])
def test_products_are_one_instruction(tile: object, dtype: object) -> None:
    ptx = compile_ptx(cuda_source(KERNELS[str(tile)]().finish(), NAME), "compute_80")
    assert ptx.count("mma.sync.aligned.") in (1, 4)  # of a loop of 4 steps
    assert "shfl" not in ptx


@needs_nvrtc
@pytest.mark.parametrize(
    ("elem", "lanes"), [(F32, 4), (F64, 2), (BF16, 8), (I8, 16), (I64, 2)], ids=str
)
def test_vectors_of_16_bytes_are_moved_at_once(elem: Type, lanes: int) -> None:
    b = GridBuilder([32])
    x, y = b.buffer("x", elem, readonly=True), b.buffer("y", elem)
    at = b.thread_id() * lanes
    b.store(b.load(x, at, lanes, alignment=16), y, at, alignment=16)
    ptx = compile_ptx(cuda_source(b.finish(), NAME), "compute_80")
    assert ptx.count("ld.global") == ptx.count("st.global") == 1
    assert "ld.global.nc.v" in ptx


@needs_nvrtc
def test_only_the_kernel_says_what_is_fused() -> None:
    b = GridBuilder([32])
    x, y = b.buffer("x", F32, readonly=True), b.buffer("y", F32)
    value = b.load(x, b.thread_id())
    b.store(value * value + value, y, b.thread_id())
    assert "fma" not in compile_ptx(cuda_source(b.finish(), NAME), "compute_80")
    b.store(b.fma(value, value, value), y, b.thread_id() + 32)
    assert compile_ptx(cuda_source(b.finish(), NAME), "compute_80").count("fma.rn.f32") == 1


@needs_nvrtc
def test_an_error_has_the_log() -> None:
    with pytest.raises(CudaCompileError, match=r"kernel.cu\(2\): error: .*nothing"):
        compile_cubin("\nint x = nothing;", "sm_80")
    with pytest.raises(CudaCompileError, match="invalid value for --gpu-architecture"):
        compile_cubin("", "sm_1")


@needs_nvrtc
def test_the_compiler_knows_all_architectures() -> None:
    assert version() >= (12, 8)


def test_what_to_do_without_a_compiler(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(nvrtc, "_LIBRARIES", ("libnothing.so",))
    monkeypatch.setattr(nvrtc, "_of_package", list)
    nvrtc._library.cache_clear()
    try:
        assert not nvrtc.is_installed()
        with pytest.raises(CudaCompileError, match=r"pip install 'stagejit\[cuda\]'"):
            compile_cubin("", "sm_80")
    finally:
        nvrtc._library.cache_clear()


LOG = """\
ptxas info    : 0 bytes gmem
ptxas info    : Compiling entry function 'first' for 'sm_90a'
ptxas info    : Function properties for first
    16 bytes stack frame, 48 bytes spill stores, 32 bytes spill loads
ptxas info    : Used 96 registers, used 1 barriers, 16 bytes cumulative stack size, 28 bytes smem
ptxas info    : Compile time = 14.690 ms
ptxas info    : Compiling entry function 'second' for 'sm_90a'
ptxas info    : Function properties for second
ptxas         .     0 bytes stack frame, 0 bytes spill stores, 0 bytes spill loads
ptxas info    : Used 14 registers
"""


def test_resources_are_read_from_the_log() -> None:
    found = resources(LOG)
    assert found == {"first": Resources(96, 16, 48, 32, 28), "second": Resources(14, 0, 0, 0, 0)}
    assert found["first"].spills
    assert not found["second"].spills

"""What is known of GPUs that somebody has."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import pytest

from stagejit.codegen.cuda.device import DEVICES, Limits, device_like
from stagejit.codegen.ir.grid.shared_memory import dynamic_nbytes
from stagejit.options import Options
from stagejit.runtime.cuda.driver import Source
from stagejit.runtime.cuda.emulation import compiling
from tests.cuda.machine import compilation_of


def test_a_gpu_is_taken_for_what_its_name_says() -> None:
    h100, h200 = DEVICES["H100"], DEVICES["H200"]
    assert device_like("NVIDIA H100 80GB HBM3", "sm_90a", 132).bandwidth == h100.bandwidth
    assert device_like("NVIDIA H200", "sm_90a", 132).bandwidth == h200.bandwidth
    assert device_like("emulated sm_90a", "sm_90a", 0).cores == h200.cores
    assert device_like("NVIDIA GH200 480GB", "sm_90a", 132).bandwidth == h200.bandwidth


def test_a_gpu_that_nobody_knows() -> None:
    a100, other = DEVICES["A100"], device_like("NVIDIA A30", "sm_80", 56)
    assert other.cores == 56
    assert other.bandwidth == pytest.approx(a100.bandwidth * 56 / 108)
    assert other.f32_flops == pytest.approx(a100.f32_flops * 56 / 108)
    assert device_like("NVIDIA L40S", "sm_89", 142).arch == "sm_89"
    assert device_like("something", "sm_130", 10).cores == 10


@pytest.mark.parametrize("limits", [None, Limits(1536, 24), Limits(1536, 16, 64 << 10, 63 << 10)])
def test_kernels_ask_for_no_more_than_a_smaller_gpu_has(limits: Limits | None) -> None:
    """Tiles on their way fill what shared memory an A100 has, and there is less of it elsewhere."""
    device = device_like("a small one", "sm_130", 142, limits)
    wanted = limits or Limits()
    assert wanted == Limits(
        device.threads_a_core, device.blocks_a_core, device.shared_nbytes,
        device.block_shared_nbytes,
    )  # fmt: skip
    x = jax.ShapeDtypeStruct((4096, 4096), jnp.bfloat16)
    made = compilation_of(jnp.dot, x, x, options=Options(), device=device).run_until("codegen")
    asked = [dynamic_nbytes(each.kernel.function.buffers) for each in made.kernels.values()]
    assert max(asked) <= device.block_shared_nbytes


@pytest.mark.parametrize("what", ["machine", "compiler"])
def test_code_of_another_machine_or_compiler_is_not_taken(
    what: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """`-march=native` means another machine there."""
    source = Source("kernel", "", (32,))
    before = compiling._key(source)
    assert compiling._key(source) == before
    name = {"machine": "machine", "compiler": "version_of"}[what]
    monkeypatch.setattr(compiling, name, lambda *_: "another one")
    assert compiling._key(source) != before

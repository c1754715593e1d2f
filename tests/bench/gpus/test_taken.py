"""What kernels of the measured programs take of three GPUs, and the table of it."""

from __future__ import annotations

import pytest
from typer.testing import CliRunner

from stagejit.bench.cli import app
from stagejit.bench.gpus import modelled
from stagejit.bench.workloads.catalogue import WORKLOADS
from stagejit.codegen.cuda.device import device_named
from stagejit.runtime.cuda.code.nvrtc import is_installed

pytestmark = pytest.mark.skipif(not is_installed(), reason="needs `nvidia-cuda-nvrtc`")
ARCHITECTURES = ("sm_80", "sm_90a", "sm_100")
SOME = ("softmax_4096x1024", "top_10_of_4096x1024", "lstm_256x16x128", "gemm_1024")


@pytest.mark.parametrize("name", [
    name if name in SOME else pytest.param(name, marks=pytest.mark.slow) for name in WORKLOADS
])  # fmt: skip
def test_no_kernel_spills(name: str) -> None:
    for arch in ARCHITECTURES:
        rows = modelled.rows_of(WORKLOADS[name], device_named(arch))
        assert rows
        assert not any(row.taken.spills for row in rows)
        assert all(0 < row.floor <= row.seconds for row in rows if row.work.nbytes)


def test_the_command_shows_what_a_kernel_takes() -> None:
    result = CliRunner().invoke(app, ["gpu", "tiny_add_16", "--device", "A100"])
    assert result.exit_code == 0, result.output
    assert "A100 (sm_80): a model; registers and spills are NVRTC's" in result.output
    assert "tiny_add_16" in result.output


def test_dont_show_a_gpu_that_nobody_knows() -> None:
    result = CliRunner().invoke(app, ["gpu", "tiny_add_16", "--device", "A101"])
    assert "unknown GPU 'A101'" in str(result.exception)

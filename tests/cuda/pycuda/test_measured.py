"""`python -m stagejit gpu --run` from end to end, the emulated driver standing in for a GPU."""

from __future__ import annotations

import ctypes
import json
from ctypes import c_void_p
from functools import partial
from pathlib import Path
from typing import Any

import jax.numpy as jnp
import numpy as np
import pytest
from typer.testing import CliRunner

from stagejit.bench.cli import app
from stagejit.bench.gpus import cublas, measured, overhead
from stagejit.bench.gpus.cublas import Cublas, NoCublasError
from stagejit.bench.programs import Workload
from stagejit.bench.workloads import catalogue
from stagejit.errors import NoDriverError
from stagejit.runtime.cuda import drivers
from stagejit.runtime.cuda.drivers import using
from stagejit.runtime.cuda.pycuda import PyCudaDriver
from tests.cuda.driver import build
from tests.cuda.pycuda.conftest import Device
from tests.cuda.pycuda.test_driver import given, read

X = np.random.default_rng(1).standard_normal((8, 12)).astype(np.float32)


def array_at(address: c_void_p, shape: tuple[int, ...]) -> np.ndarray:
    memory: Any = (ctypes.c_float * int(np.prod(shape))).from_address(address.value or 0)
    return np.frombuffer(memory, np.float32).reshape(shape, order="F")


class ColumnByColumn:
    """What cuBLAS does, for f32, when its stream gets there."""

    def cublasCreate_v2(self, handle: Any) -> int:
        return 0

    def cublasSetStream_v2(self, handle: c_void_p, stream: c_void_p) -> int:
        self.stream = stream
        return 0

    def cublasDestroy_v2(self, handle: c_void_p) -> int:
        return 0

    def cublasGemmEx(
        self, handle: Any, op_a: int, op_b: int, m: int, n: int, k: int, alpha: Any,
        a: c_void_p, type_a: int, lda: int, b: c_void_p, type_b: int, ldb: int, beta: Any,
        c: c_void_p, type_c: int, ldc: int, compute: Any, algorithm: Any,
    ) -> int:  # fmt: skip
        if {type_a, type_b, type_c} != {0}:
            return 15  # CUBLAS_STATUS_NOT_SUPPORTED
        assert (op_a, op_b, lda, ldb, ldc) == (0, 0, m, k, m)
        build.load().cuStreamSynchronize(self.stream)
        made = array_at(a, (m, k)) @ array_at(b, (k, n))
        array_at(c, (m, n))[...] = made
        return 0


def test_products_are_row_by_row(driver: PyCudaDriver, device: Device) -> None:
    if not device.emulated:
        pytest.skip("a stand-in for cuBLAS, on the emulated driver")
    y = np.random.default_rng(2).standard_normal((12, 5)).astype(np.float32)
    with driver.current():
        library = Cublas(driver.handle(driver.main), ColumnByColumn())
        a, b, c = given(driver, X), given(driver, y), driver.allocate(4 * 8 * 5)
        library.product(c, a, b, (8, 12, 5), "float32")
        np.testing.assert_allclose(read(driver, c, 40).reshape(8, 5), X @ y, 1e-5, 1e-5)
        with pytest.raises(NoCublasError, match="cublasGemmEx failed with 15"):
            library.product(c, a, b, (8, 12, 5), "bfloat16")
        library.close()
        for address in (a, b, c):
            driver.free(address)


def fails(x: Any) -> Any:
    raise ValueError("on purpose")


def wrong(x: Any) -> Any:
    """Other results in other precisions."""
    return x * (2 if x.dtype == np.float32 else 3)


ROWS = {
    "map": Workload("map", lambda x: (jnp.tanh(x), x.sum(axis=1)), lambda: (X,)),
    "gemm_8": Workload("gemm_8", lambda a, b: a @ b, lambda: (X, X.T.copy())),
    "donating": Workload(
        "donating", lambda c, x: (c["kept"].at[0].add(x), x * 2),
        lambda: ({"kept": X}, X[0]), donated=(0,),
    ),
    "bf16": Workload("bf16", lambda x: x * 2, lambda: (jnp.asarray(X, jnp.bfloat16),), 1e-2),
    "fails": Workload("fails", fails, lambda: (X,)),
    "wrong": Workload("wrong", wrong, lambda: (X,)),
}  # fmt: skip


@pytest.fixture
def small(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(measured, "_LEAST_SECONDS", 0)
    monkeypatch.setattr(measured, "_ROUNDS", 2)
    peaks = partial(measured.peaks, nbytes=4096, sizes=(("float32", 8),))
    monkeypatch.setattr(measured, "peaks", peaks)
    monkeypatch.setattr(overhead, "measure", partial(overhead.measure, lengths=(1, 3), batches=1))
    monkeypatch.setattr(catalogue, "WORKLOADS", ROWS)


def test_all_is_measured_in_one_run(
    driver: PyCudaDriver, device: Device, small: None, monkeypatch: pytest.MonkeyPatch,
    tmp_path: Path,
) -> None:  # fmt: skip
    device.need_pycuda()
    if device.emulated:
        monkeypatch.setattr(cublas, "library", ColumnByColumn)
    file = tmp_path / "rows.json"
    with using(driver):
        result = CliRunner().invoke(app, ["gpu", "--run", "--json", str(file)])
    assert result.exit_code == 1, (result.output, result.exception)
    assert "a copy moves" in result.output
    assert "fails: ValueError: on purpose" in result.output
    assert "wrong: off by" in result.output
    told = json.loads(file.read_text())
    assert told["peaks"]["bytes_a_second"] > 0
    rows = {row["name"]: row for row in told["rows"]}
    assert rows.keys() == ROWS.keys()
    for name in ("map", "gemm_8", "donating", "bf16"):
        row = rows[name]
        assert row["failure"] == ""
        assert row["seconds"] > 0
        assert row["floor"] > 0
        assert row["error"] <= row["tolerance"]
    if device.emulated:
        assert told["peaks"]["products"] == "cuBLAS"
        assert rows["gemm_8"]["against"] == "cuBLAS"
        assert rows["map"]["theirs"] is None
    with driver.current():
        pass


def test_without_a_gpu_it_says_so(monkeypatch: pytest.MonkeyPatch) -> None:
    def none() -> Any:
        raise NoDriverError("there is none", next_step="get one")

    monkeypatch.setattr(drivers, "_real", none)
    result = CliRunner().invoke(app, ["gpu", "--run"])
    assert isinstance(result.exception, NoDriverError)

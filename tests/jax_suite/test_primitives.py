"""JAX's cases of its primitives: some are run here, all of them by `primitives.py`."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import jax.numpy as jnp
import numpy as np
import pytest

from stagejit.options import Options
from tests.jax_suite.primitives import cases, fault_of, outcome

SOME = {case.fullname: case for case in list(cases(1))[::6]}


@pytest.mark.parametrize("name", SOME)
def test_as_xla(name: str) -> None:
    assert outcome(SOME[name]).fault == ""


@pytest.mark.some(2)
@pytest.mark.parametrize("name", list(SOME)[::3])
def test_as_xla_on_a_gpu(name: str) -> None:
    assert outcome(SOME[name], Options(target="cuda-emulated")).fault == ""


def test_the_judge() -> None:
    x = jnp.array([1, np.nan, np.inf, 0], jnp.float32)
    assert fault_of(x, x) == fault_of(x * (1 + 1e-6), x) == ""
    assert fault_of(x * 1.01, x) == "7.63e+04 roundings"
    assert fault_of(x.at[1].set(1), x) == fault_of(x.at[2].set(1), x) == "inf roundings"
    assert fault_of(x > 0, x > 1) == "1 of 4 elements differ"
    assert fault_of(x[:2], x) == "float32(2,) instead of float32(4,)"


def test_what_is_left_is_told() -> None:
    x = np.eye(3, dtype=np.float32)
    eig = SimpleNamespace(
        fullname="eig", dyn_fun=jnp.linalg.eigvals, dyn_args_maker=lambda random: [x]
    )
    assert outcome(eig).left == ("eig: a matrix decomposition is a library call",)


def test_what_is_raised_is_a_fault(monkeypatch: pytest.MonkeyPatch) -> None:
    def broken(*_: Any, **__: Any) -> Any:
        raise ValueError("no")

    monkeypatch.setattr("tests.jax_suite.primitives.stagejit.jit", lambda *_, **__: broken)
    monkeypatch.setattr(broken, "plan", broken, raising=False)
    assert outcome(next(cases(1))).fault == "ValueError: no"

"""Choosing workloads, and the protocol of a user's file."""

from __future__ import annotations

from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from stagejit.bench.programs import CommandError, Workload, load_file, select, undecorated
from stagejit.bench.workloads.catalogue import WORKLOADS

KNOWN = {name: Workload(name, jnp.sin, lambda: ()) for name in ("gemm_1", "gemm_2", "softmax")}


@pytest.mark.parametrize(
    ("names", "chosen"),
    [
        ([], ["gemm_1", "gemm_2", "softmax"]),
        (["softmax"], ["softmax"]),
        (["gemm"], ["gemm_1", "gemm_2"]),
        (["gemm_2", "gemm"], ["gemm_2", "gemm_1"]),
    ],
)
def test_select(names: list[str], chosen: list[str]) -> None:
    assert [workload.name for workload in select(names, KNOWN)] == chosen


def test_a_full_name_is_not_also_a_prefix() -> None:
    known = {name: Workload(name, jnp.sin, lambda: ()) for name in ("a", "ab")}
    assert [workload.name for workload in select(["a"], known)] == ["a"]


def test_an_unknown_name_lists_the_known_ones() -> None:
    with pytest.raises(CommandError, match=r"'gem2'[\s\S]*known names: gemm_1, gemm_2, softmax"):
        select(["gem2"], KNOWN)


def test_registry_names_and_seeds() -> None:
    for name, workload in WORKLOADS.items():
        assert workload.name == name
        assert workload.summary
        rounded = workload.weights not in (None, "f32")
        assert 0 < workload.tolerance < (1e-1 if rounded else 1e-3)
    first, second = (WORKLOADS["tiny_add_16"].make_args() for _ in range(2))
    np.testing.assert_array_equal(first, second)


def write(folder: Path, text: str) -> Path:
    path = folder / "mine.py"
    path.write_text(text)
    return path


def test_file_with_a_tuple_and_a_function_of_arguments(tmp_path: Path) -> None:
    path = write(
        tmp_path,
        "import numpy as np\n"
        "def f(x): return x + 1\n"
        "BENCH = {'a': (f, (np.ones(2),)), 'b': (f, lambda: (np.ones(3),))}\n",
    )
    found = load_file(path)
    assert list(found) == ["a", "b"]
    assert found["a"].make_args()[0].shape == (2,)
    assert found["b"].make_args()[0].shape == (3,)


@pytest.mark.parametrize(
    ("text", "what"),
    [
        ("x = 1", "defines no programs"),
        ("BENCH = {}", "defines no programs"),
        ("BENCH = [1]", "defines no programs"),
        ("BENCH = {'a': 3}", "not a pair"),
        ("BENCH = {'a': (3, ())}", "not a pair"),
        ("BENCH = {'a': (abs, 3)}", "are a int, not a tuple"),
    ],
)
def test_a_file_that_breaks_the_protocol(text: str, what: str, tmp_path: Path) -> None:
    with pytest.raises(CommandError, match=what) as raised:
        load_file(write(tmp_path, text))
    assert "mine.py" in str(raised.value)
    assert "define BENCH" in str(raised.value)


def test_a_file_that_is_not_there_or_not_python(tmp_path: Path) -> None:
    with pytest.raises(CommandError, match="there is no file"):
        load_file(tmp_path / "none.py")
    (tmp_path / "data.txt").touch()
    with pytest.raises(CommandError, match="not a Python file"):
        load_file(tmp_path / "data.txt")


def test_only_jit_like_wrappers_are_opened() -> None:
    def f(x: jax.Array) -> jax.Array:
        return (x * x).sum()

    gradient = jax.grad(f)
    assert undecorated(jax.jit(jax.jit(f))) is f
    assert undecorated(gradient) is gradient

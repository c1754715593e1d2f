"""What goes wrong, and what the user is told: JAX's own errors for bad arguments, ours with a next
step, and faults of ours as errors, never as a crash."""

from __future__ import annotations

import copy
import dataclasses
import inspect
import os
import pickle
import re
import subprocess
import sys
import textwrap
import warnings
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax

import stagejit
from stagejit.base.loc import Loc
from stagejit.codegen import generate
from stagejit.codegen.cpu.backend import CPU
from stagejit.codegen.kernel import Kernel
from stagejit.errors import InternalError, OptionsError, StagejitError, UnsupportedOpError
from stagejit.options import Options
from stagejit.runtime.objects.object_cache import CacheWarning
from tests.expected.left import NAME, left

X = np.ones((4, 3), np.float32)


# ------------------------------------------------------------------ the user's


@pytest.mark.parametrize(
    ("f", "args"),
    [
        (lambda x, y: x @ y, (X, X)),
        (lambda x, y: x + y, (X, np.ones(5, np.float32))),
        (lambda x, y: lax.add(x, y), (X, X.astype(np.int32))),
        (lambda x, y: jnp.concatenate([x, y]), (X, X.T)),
        (lambda x, y: lax.dynamic_slice(x, (0,), (2,)), (X, X)),
        (lambda x, y: x & y, (X, X)),
        (lambda x, y: x.reshape(5), (X, X)),
        (lambda x, y: x["key"], (X, X)),
        (lambda x, y: x + "text", (X, X)),
        (lambda x, y: np.sin(x), (X, X)),
        (lambda x, y: int(x[0, 0]), (X, X)),
    ],
)
def test_wrong_programs_are_jax_errors(f: Any, args: Any) -> None:
    with pytest.raises(Exception) as theirs:  # noqa: PT011
        jax.jit(f)(*args)
    with pytest.raises(type(theirs.value)) as ours:
        stagejit.jit(f)(*args)
    assert str(ours.value).splitlines()[0] == str(theirs.value).splitlines()[0]
    assert not isinstance(ours.value, StagejitError)


def test_wrong_arguments_of_a_compiled_function() -> None:
    compiled = stagejit.jit(lambda x: x + 1).lower(X).compile()
    reference = jax.jit(lambda x: x + 1).lower(X).compile()
    for wrong in (X.T, X.astype(np.int32), "text"):
        with pytest.raises(TypeError) as theirs:
            reference(wrong)
        with pytest.raises(TypeError) as ours:
            compiled(wrong)
        assert str(ours.value).splitlines()[0] == str(theirs.value).splitlines()[0]


def test_gradient_of_an_integer_function_is_jax_error() -> None:
    with pytest.raises(TypeError, match="real- or complex-valued"):
        jax.grad(stagejit.jit(lambda x: x.sum()))(np.arange(3))


def test_an_exception_inside_the_function_passes_through() -> None:
    class MyError(Exception):
        pass

    @stagejit.jit
    def f(x: Any) -> Any:
        raise MyError("mine")

    with pytest.raises(MyError, match="mine"):
        f(X)
    with pytest.raises(MyError, match="mine"):
        f.plan(X)


def test_an_exception_in_a_callback_is_jax_error() -> None:
    def fails(x: Any) -> Any:
        raise ValueError("callback is broken")

    @stagejit.jit
    def f(x: Any) -> Any:
        return jax.pure_callback(fails, jax.ShapeDtypeStruct(x.shape, x.dtype), x * 2) + 1

    with pytest.raises(jax.errors.JaxRuntimeError, match="callback is broken"):
        jax.block_until_ready(f(X))
    np.testing.assert_array_equal(stagejit.jit(lambda x: x + 1)(X), X + 1)  # still alive


# --------------------------------------------------------------------- options


def test_unknown_rewrite() -> None:
    with pytest.raises(OptionsError, match=r"unknown rewrite 'fuse-everything'.*\nNext: known"):
        Options(disable=("fuse-everything",))
    with pytest.raises(OptionsError, match="did you mean 'fuse-epilogues'") as raised:
        Options(disable="fuse-epilogue")  # type: ignore[arg-type]
    assert "fuse-pad" not in str(raised.value)


def test_unknown_option() -> None:
    with pytest.raises(OptionsError, match=r"'chek_nans'.*\nNext: did you mean 'check_nans'"):
        Options(chek_nans=True)  # type: ignore[call-arg]
    with pytest.raises(OptionsError, match=r"unknown option 'speed'.*\nNext: known names: target,"):
        Options(speed=3)  # type: ignore[call-arg]
    assert list(inspect.signature(Options).parameters) == [
        each.name for each in dataclasses.fields(Options)
    ]


@pytest.mark.parametrize("target", ["cuda:sm_20", "tpu", ""])
def test_unsupported_target(target: str) -> None:
    with pytest.raises(OptionsError, match=r"unsupported target.*\nNext: use one of"):
        Options(target=target)


def test_unknown_stage() -> None:
    with pytest.raises(OptionsError, match=r"no stage 'pxt'.*\nNext: choose one of jaxpr, graph"):
        stagejit.jit(lambda x: x).lower(X).as_text("pxt")


def test_what_cannot_be_compiled_without_delegation() -> None:
    def f(x: Any) -> Any:
        y = x @ x.T
        return left(y)  # the line to be named

    with pytest.raises(UnsupportedOpError) as caught:
        stagejit.jit(f, options=Options(delegate=False))(X)
    text = str(caught.value)
    assert f"cannot lower `{NAME}`" in text
    assert f"{Path(__file__).name}:" in text
    assert "the line to be named" in text
    assert "Options(delegate=True)" in text
    assert isinstance(caught.value, NotImplementedError)
    stagejit.jit(f)(X)  # the default


def test_what_can_be_compiled_needs_no_delegation() -> None:
    f = stagejit.jit(lambda x: jax.nn.softmax(x @ x.T), options=Options(delegate=False))
    np.testing.assert_allclose(f(X), np.full((4, 4), 0.25), rtol=1e-6)


@pytest.mark.skipif(os.geteuid() == 0, reason="root may write everywhere")
def test_folder_without_permission(tmp_path: Path) -> None:
    tmp_path.chmod(0o500)
    _run_with_unusable_cache(tmp_path / "cache")


def test_folder_that_is_a_file(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("in the way")
    _run_with_unusable_cache(tmp_path / "file" / "cache")


def _run_with_unusable_cache(folder: Path) -> None:
    """One warning that names the next step, and the function runs."""
    number = float(np.random.default_rng().random())  # kernels that no process has compiled
    f = stagejit.jit(lambda x: x * number, options=Options(cache_dir=str(folder)))
    with pytest.warns(CacheWarning, match="Next: "):
        np.testing.assert_allclose(f(X), X * number, rtol=1e-6)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        np.testing.assert_allclose(f(X[:2]), X[:2] * number, rtol=1e-6)


# ---------------------------------------------------------------- faults of ours


@pytest.fixture
def own_kernels() -> Iterator[None]:
    """Nothing that a broken generator made is found by another test."""
    generate.forget_kernels()
    yield
    generate.forget_kernels()


def _writes_too_far(region: Any, target: Any) -> Kernel:
    kernel = GENERATE_MAP(region, target)
    args = [dataclasses.replace(a, offset=a.offset + 7) if a.written else a for a in kernel.args]
    return dataclasses.replace(kernel, args=tuple(args))


def _reads_too_far(region: Any, target: Any) -> Kernel:
    kernel = GENERATE_MAP(region, target)
    args = [a if a.written else dataclasses.replace(a, offset=a.offset + 7) for a in kernel.args]
    return dataclasses.replace(kernel, args=tuple(args))


GENERATE_MAP = CPU.generators["map"]


@pytest.mark.usefixtures("own_kernels")
@pytest.mark.parametrize("broken", [_writes_too_far, _reads_too_far])
@pytest.mark.parametrize("shape", [(4, 3), (100, 50)])
def test_a_kernel_that_leaves_its_buffer_is_an_error(
    monkeypatch: pytest.MonkeyPatch, broken: Any, shape: tuple[int, ...]
) -> None:
    monkeypatch.setitem(CPU.generators, "map", broken)
    f = stagejit.jit(lambda x: jnp.tanh(x) * 1.25, options=Options(verify=True))
    x = np.ones(shape, np.float32)
    with pytest.raises(jax.errors.JaxRuntimeError, match=r"kernel of @\w+\.0 left buffer"):
        jax.block_until_ready(f(x))
    monkeypatch.undo()
    generate.forget_kernels()
    again = stagejit.jit(lambda x: jnp.tanh(x) * 1.25, options=Options(verify=True))
    np.testing.assert_allclose(again(x), np.tanh(x) * 1.25, rtol=1e-6)


@pytest.mark.usefixtures("own_kernels")
def test_a_generator_that_fails_is_an_internal_error(monkeypatch: pytest.MonkeyPatch) -> None:
    def fails(region: Any, target: Any) -> Kernel:
        raise KeyError("forgotten")

    monkeypatch.setitem(CPU.generators, "map", fails)
    with pytest.raises(InternalError) as caught:
        stagejit.jit(lambda x: jnp.sin(x) * 1.5)(X)
    assert caught.value.step == "codegen"
    assert "sin" in caught.value.dump
    assert f"{Path(__file__).name}:" in str(caught.value)
    assert "report" in str(caught.value)
    assert isinstance(caught.value.__cause__, KeyError)


def _sent(error: StagejitError) -> Any:
    return pickle.loads(pickle.dumps(error))


@pytest.mark.parametrize("again", [copy.copy, copy.deepcopy, _sent])
@pytest.mark.parametrize(
    "error",
    [
        InternalError("an op has no result", step="codegen", dump="graph", loc=Loc("model.py", 7)),
        *(
            kind("a shape", loc=Loc("model.py", 7), next_step="give another one")
            for kind in (StagejitError, *StagejitError.__subclasses__())
            if kind is not InternalError
        ),
    ],
    ids=lambda error: type(error).__name__,
)
def test_copies_of_errors_say_the_same(
    error: StagejitError, again: Callable[[StagejitError], StagejitError]
) -> None:
    """As a pool of processes sends them."""
    made = again(error)
    assert type(made) is type(error)
    assert str(made) == str(error)
    assert vars(made) == vars(error)


def test_a_fault_in_a_process_of_its_own_does_not_end_it() -> None:
    """Whole process: a broken kernel, an error, and the next call works."""
    code = """
        import dataclasses, jax, numpy as np, stagejit
        from stagejit.codegen.cpu.backend import CPU
        original = CPU.generators["map"]

        def broken(region, target):
            kernel = original(region, target)
            args = tuple(dataclasses.replace(a, offset=a.offset + 999) for a in kernel.args)
            return dataclasses.replace(kernel, args=args)

        x = np.ones(1000, np.float32)
        CPU.generators["map"] = broken
        try:
            stagejit.jit(lambda x: x * 3, options=stagejit.Options(verify=True))(x)
        except jax.errors.JaxRuntimeError as error:
            assert "left buffer" in str(error), error
        else:
            raise SystemExit("no error")
        CPU.generators["map"] = original
        print(stagejit.jit(lambda x: x * 4)(x)[0])
        """
    done = subprocess.run(
        [sys.executable, "-c", textwrap.dedent(code)],
        capture_output=True, text=True, timeout=120, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr[-2000:]
    assert done.stdout.strip() == "4.0"


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("verify", "yes"),
        ("verify", 1),
        ("delegate", None),
        ("full_barriers", "no"),
        ("export", 0),
        ("cache_dir", 3),
        ("cache_dir", b"x"),
        ("operand_limit", "16"),
        ("operand_limit", True),
        ("operand_limit", 2.0),
        ("memory_budget", "1 GB"),
        ("memory_budget", False),
        ("borders", None),
        ("borders", ["auto"]),
        ("disable", 3),
        ("target", None),
    ],
)
def test_options_of_a_wrong_type_are_named_with_what_to_give(field: str, value: Any) -> None:
    with pytest.raises(OptionsError, match=rf"(?s){field}.* {re.escape(repr(value))}.*Next: "):
        Options(**{field: value})


@pytest.mark.parametrize("names", [(3,), ([],), [None], ("fuse-pad", "fuse-pads")])
def test_wrong_names_to_disable_are_named(names: Any) -> None:
    with pytest.raises(OptionsError, match="unknown rewrite"):
        Options(disable=names)


def test_names_to_disable_may_come_in_any_collection() -> None:
    expected = Options(disable=("fold-views", "fuse-pad"))
    assert Options(disable=["fuse-pad", "fold-views", "fuse-pad"]) == expected  # type: ignore[arg-type]
    assert Options(disable={"fuse-pad", "fold-views"}) == expected  # type: ignore[arg-type]
    assert Options(disable="fuse-pad") == Options(disable=("fuse-pad",))  # type: ignore[arg-type]
    assert Options(cache_dir=Path("x")) == Options(cache_dir="x")  # type: ignore[arg-type]


def test_options_of_a_function_are_options() -> None:
    with pytest.raises(OptionsError, match="options is 'fast', of type str"):
        stagejit.jit(lambda x: x, options="fast")

"""Faults of ours never fail the user's call."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import Any

import jax
import numpy as np
import pytest

import stagejit
from stagejit import pipeline
from stagejit.errors import USERS_FAULTS, FallbackWarning, InternalError, UnsupportedOpError
from stagejit.options import Options
from stagejit.pipeline import STEPS, Compilation
from stagejit.runtime.cpu.loader import call_count
from stagejit.runtime.lowering import embedding, emission
from tests.expected.left import left

X = np.arange(1, 7, dtype=np.float32).reshape(2, 3)


@pytest.fixture
def lenient(monkeypatch: pytest.MonkeyPatch) -> None:
    """As for users; our own tests run under STAGEJIT_STRICT."""
    monkeypatch.setenv("STAGEJIT_STRICT", "0")


@pytest.fixture
def broken() -> Iterator[Callable[[BaseException], None]]:
    """Replaces the compiler by one that raises."""
    before = embedding._installed
    assert before is not None

    def break_it(error: BaseException) -> None:
        def compiler(request: Any) -> Any:
            raise error

        embedding.install(compiler)

    yield break_it
    embedding.install(before)


@pytest.mark.usefixtures("lenient")
@pytest.mark.parametrize("step", [step.name for step in STEPS])
def test_a_fault_in_any_step_falls_back_with_one_warning(
    step: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    def failing(c: Compilation) -> None:
        raise KeyError("lost value")

    steps = (replace(s, run=failing) if s.name == step else s for s in STEPS)
    monkeypatch.setattr(pipeline, "STEPS", tuple(steps))
    f = stagejit.jit(lambda x: x * 3 + x.sum())
    with pytest.warns(FallbackWarning) as caught:
        np.testing.assert_array_equal(f(X), X * 3 + X.sum())
    (warning,) = caught
    assert f"in step {step!r} of stagejit" in str(warning.message)
    assert "KeyError: 'lost value'" in str(warning.message)
    assert "report" in str(warning.message)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        f(X)
        lowered = f.lower(X)  # it is known by now
    monkeypatch.undo()
    monkeypatch.setenv("STAGEJIT_STRICT", "0")
    for plan in (f.plan(X), lowered.plan, lowered.compile().plan):  # what runs, not what could
        (delegated,) = plan.delegated
        assert delegated.reason.startswith("jit: compiling it failed: KeyError: 'lost value' (")
        assert len(plan.dispatches) == 1


@pytest.mark.usefixtures("lenient")
@pytest.mark.parametrize("error", [RecursionError("deep"), InternalError("bad"), TypeError("no")])
def test_any_exception_falls_back(error: Exception, broken: Any) -> None:
    broken(error)
    for transform in (lambda f: f, jax.vmap, lambda f: jax.jit(lambda x: f(x) + 1)):
        with pytest.warns(FallbackWarning, match=type(error).__name__):
            transform(stagejit.jit(lambda x: x * 3))(X)


@pytest.mark.usefixtures("lenient")
@pytest.mark.parametrize("error", [KeyboardInterrupt(), MemoryError(), SystemExit()])
def test_these_pass(error: BaseException, broken: Any) -> None:
    broken(error)
    with pytest.raises(type(error)):
        stagejit.jit(lambda x: x * 3)(X)


@pytest.mark.usefixtures("lenient")
@pytest.mark.parametrize("kind", USERS_FAULTS)
def test_what_the_user_has_to_mend_is_an_error_without_a_warning(kind: Any, broken: Any) -> None:
    broken(kind("not so", next_step="mend it"))
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        for _ in range(2):
            with pytest.raises(kind, match="not so"):
                stagejit.jit(lambda x: x * 3)(X)


@pytest.mark.usefixtures("lenient")
def test_without_delegation_it_stays_an_error(broken: Any) -> None:
    broken(InternalError("bad"))
    with pytest.raises(InternalError, match="bad"):
        stagejit.jit(lambda x: x * 3, options=Options(delegate=False))(X)


@pytest.mark.usefixtures("lenient")
def test_an_operation_that_is_not_ours_is_an_error_without_delegation() -> None:
    with pytest.raises(UnsupportedOpError, match="cannot lower"):
        stagejit.jit(left, options=Options(delegate=False))(X)


def test_under_strict_it_stays_an_error(broken: Any) -> None:
    broken(InternalError("bad"))
    with pytest.raises(InternalError, match="bad"):
        stagejit.jit(lambda x: x * 3)(X)


@pytest.mark.usefixtures("lenient")
def test_errors_of_the_users_function_are_not_faults_of_ours() -> None:
    def f(x: Any) -> Any:
        raise KeyError("the user's own")

    with warnings.catch_warnings():
        warnings.simplefilter("error")
        with pytest.raises(KeyError, match="the user's own"):
            stagejit.jit(f)(X)


@pytest.mark.usefixtures("lenient")
def test_code_emitted_before_a_fault_is_taken_back(monkeypatch: pytest.MonkeyPatch) -> None:
    calls = []

    def f(x: Any) -> Any:
        jax.debug.callback(lambda v: calls.append(float(v)), x[0, 0])
        y = x * 2
        jax.debug.callback(lambda v: calls.append(float(v)), y[0, 0])
        return y

    emit, seen = emission._emit_equation, []

    def failing(*args: Any) -> Any:
        seen.append(1)
        if len(seen) == 2:
            raise KeyError("second")
        return emit(*args)

    monkeypatch.setattr(emission, "_emit_equation", failing)
    with pytest.warns(FallbackWarning, match="second"):
        stagejit.jit(f)(X)
    jax.effects_barrier()
    assert sorted(calls) == [1.0, 2.0]


@pytest.mark.usefixtures("lenient")
def test_what_jax_refuses_too_is_the_users_error(monkeypatch: pytest.MonkeyPatch) -> None:
    """Where the original rule fails as well, that error is raised, without a warning."""
    from jax.extend.core import Primitive

    nameless = Primitive("has_no_lowering")
    nameless.def_abstract_eval(lambda x: x)
    f = stagejit.jit(lambda x: nameless.bind(x * 2) + 1)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        with pytest.raises(NotImplementedError, match="has_no_lowering"):
            f(X)


@pytest.mark.usefixtures("lenient")
def test_other_functions_are_staged_after_a_fault(broken: Any) -> None:
    before = embedding._installed
    broken(TypeError("no"))
    with pytest.warns(FallbackWarning):
        stagejit.jit(lambda x: x * 3)(X)
    assert before is not None
    embedding.install(before)
    count = call_count()
    jax.block_until_ready(stagejit.jit(lambda x: x * 4)(X))
    assert call_count() == count + 1

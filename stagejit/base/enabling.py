"""Whose programs are staged: those of `stagejit.jit` alone, or those of every `jax.jit`.

Input: `enable()`, `disable()`, `with enabled():`. Output: what holds on this thread now, for the
embedding. Invariant: the state is a user context of JAX, so it takes part in the keys of all of
JAX's caches: a function that was compiled outside is compiled anew inside, and what was compiled
outside runs again after that, without a look-up of ours in a call.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import Any, TypeVar

import jax

from stagejit.base.records import record
from stagejit.options import Options, checked, innermost

R = TypeVar("R")
_DEFAULTS = Options()


@record
class Scope:
    """everything: every `jax.jit` is staged, with `options` or those of `with Options(...)`.
    planning: a lowering ends where our compiler would be asked; see `embedding.plan_request`."""

    everything: bool = False
    options: Options | None = None
    planning: bool = False


_scope: Any = jax.make_user_context(Scope())  # type: ignore[no-untyped-call]


def scope() -> Scope:
    """What holds on this thread now."""
    found: Scope = _scope.value
    return found


def enable(*, options: Options | None = None) -> None:
    """Stage every function of `jax.jit` that runs from now on, in all threads, those inside
    libraries too.

    options: for those functions; by default those of the innermost `with Options(...)`.
    Single operations outside of any `jit` stay JAX's, as do functions while they are exported.
    What has been compiled already is compiled anew at its next call.
    """
    _scope.set_global(Scope(everything=True, options=checked(options)))


def disable() -> None:
    """Take `enable()` back: `jax.jit` is JAX's own again, `stagejit.jit` stays ours."""
    _scope.set_global(Scope())


@contextlib.contextmanager
def enabled(*, options: Options | None = None) -> Iterator[None]:
    """As `enable`, inside a `with` statement and on this thread alone.

    options: of the functions that it stages; by default those of `with Options(...)`. Raises
        OptionsError for anything else.
    """
    with _scope(Scope(everything=True, options=checked(options))):
        yield


def planning(work: Callable[[], R]) -> R:
    """`work()`, in which lowerings end with what our compiler would be asked."""
    return _within(replace(scope(), planning=True), work)


def suspended(work: Callable[[], R]) -> R:
    """`work()`, in which programs of `jax.jit` are JAX's own."""
    return _within(Scope(), work)


@contextlib.contextmanager
def apart() -> Iterator[None]:
    """What JAX does for ourselves is a part of nothing that is traced or mapped around it, and
    under no rule that a `with` there has for the user's own calls."""
    with (
        jax.core.eval_context(),
        jax.disable_jit(False),
        jax.transfer_guard("allow"),
        jax.debug_nans(False),
        jax.debug_infs(False),
    ):
        yield


def _within(scope: Scope, work: Callable[[], R]) -> R:
    """No `with` statement, as the end of JAX's context is a Python function: see Note [Locks and
    signals]. A scope that an interrupt left behind would hold for all that follows on this thread.
    """
    state = getattr(_scope, "_obj", None)
    if state is None:  # a JAX that is built differently
        with _scope(scope):
            return work()
    before = state.get_local()
    try:
        state.set_local(scope)
        return work()
    finally:
        state.set_local(before)


def options_around() -> Options | None:
    """The options that a `with` statement gives to what is traced or lowered now, if any."""
    return scope().options or innermost()


def chosen_options(own: Options | None) -> Options:
    """The options of a program: its function's `own`, or those around it."""
    return own or options_around() or _DEFAULTS

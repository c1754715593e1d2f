"""Whose programs are staged: those of `stagejit.jit` alone, or those of every `jax.jit`.

Input: `enable()`, `disable()`, `with enabled():`. Output: what holds on this thread now, for the
embedding. Invariant: the state is a user context of JAX, so it takes part in the keys of all of
JAX's caches: a function that was compiled outside is compiled anew inside, and what was compiled
outside runs again after that, without a look-up of ours in a call.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Any

import jax

from stagejit.errors import OptionsError
from stagejit.options import Options, innermost


@dataclass(frozen=True)
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
    _scope.set_global(Scope(everything=True, options=_checked(options)))


def disable() -> None:
    """Take `enable()` back: `jax.jit` is JAX's own again, `stagejit.jit` stays ours."""
    _scope.set_global(Scope())


@contextlib.contextmanager
def enabled(*, options: Options | None = None) -> Iterator[None]:
    """As `enable`, inside a `with` statement and on this thread alone."""
    with _scope(Scope(everything=True, options=_checked(options))):
        yield


@contextlib.contextmanager
def planning() -> Iterator[None]:
    """Lowerings inside end with what our compiler would be asked."""
    with _scope(replace(scope(), planning=True)):
        yield


@contextlib.contextmanager
def suspended() -> Iterator[None]:
    """Programs of `jax.jit` inside are JAX's own."""
    with _scope(Scope()):
        yield


def options_around() -> Options | None:
    """The options that a `with` statement gives to what is traced or lowered now, if any."""
    return scope().options or innermost()


def chosen_options(own: Options | None) -> Options:
    """The options of a program: its function's `own`, or those around it."""
    return own or options_around() or Options()


def _checked(options: Any) -> Options | None:
    if options is None or isinstance(options, Options):
        return options
    raise OptionsError(
        f"options is {options!r}, of type {type(options).__name__}",
        next_step="give stagejit.Options(...), or None for those of `with Options(...)`",
    )

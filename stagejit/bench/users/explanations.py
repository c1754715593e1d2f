"""Explanations of functions that the command line names.

Input: a `UserCall`. Output: an `Explanation`. Invariant: a function that is `stagejit.jit`'s keeps
its options and its history; one of `jax.jit`'s, or a plain one, is staged.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import stagejit
from stagejit.bench import programs
from stagejit.bench.programs import CommandError
from stagejit.bench.users.user_functions import UserCall
from stagejit.inspect.explain import Explanation


def explained(
    call: UserCall,
    target: str = "native",
    disable: Sequence[str] = (),
    what_if: Sequence[str] | bool = (),
    measure: bool = False,
) -> Explanation:
    """What the compilation of a call did; disable, what_if, measure: as `f.explain` takes them."""
    staged = call.function
    if not hasattr(staged, "explain") or target != "native":
        plain = programs.undecorated(call.function)
        staged = stagejit.jit(plain, options=stagejit.Options(target=target))
    asked: dict[str, Any] = {"disable": disable, "what_if": what_if}
    given = {name: value for name, value in asked.items() if value}
    if measure:
        given["measure"] = True
    explanation: Explanation = staged.explain(*call.args, **given, **call.kwargs)
    return explanation


def require_one(calls: Sequence[UserCall], program: str, file: Path | None) -> None:
    """Raises CommandError where several programs would be written to one file."""
    if file is not None and len(calls) > 1:
        known = ", ".join(call.name for call in calls)
        raise CommandError(
            f"{program!r} has {len(calls)} programs, and {str(file)!r} is one file",
            next_step=f"write {program}:NAME of {known}",
        )

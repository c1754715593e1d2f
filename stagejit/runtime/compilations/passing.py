"""How a call passed its arguments: static ones, containers, and which by name.

Input: arguments of a call, and what JAX knows of the jitted function. Output: `Passed`. Invariants:
texts and small numbers only, so that nothing of the user's lives longer for it; nothing here fails
a call, although texts and hashes are code of the user's.

Note [Static arguments]: what JAX lowers does not know them: they are in the trace; nor does it know
containers, of which it has the leaves. A call that compiles is on the stack while it does, with its
arguments; `f.trace` is told them by who calls it.
"""

from __future__ import annotations

import contextlib
import re
import reprlib
import sys
from collections.abc import Iterator, Mapping, Sequence
from contextvars import ContextVar
from typing import Any

import jax
import numpy as np

from stagejit.base.records import record

_MOST_FRAMES = 200
_ADDRESS = re.compile(r" at 0x[0-9a-f]+")
_LEAF = "*"
_LEAVES = (jax.Array, np.ndarray, float, int)  # whose structure nobody has to ask for


@record
class Static:
    """A static argument. text: its repr, shortened. token: tells values apart that read alike;
    is_by_identity: it is equal to itself alone."""

    name: str
    text: str
    token: int
    is_by_identity: bool = False

    def __str__(self) -> str:
        return f"{self.name}={self.text}"


@record
class Given:
    """Any argument. is_named: it was passed by its name. structure: of its containers, as JAX
    writes it, shortened: "[*, *]"; token: see `Static`."""

    name: str
    is_named: bool
    structure: str = _LEAF
    token: int = 0


@record
class Passed:
    """All arguments of a call."""

    static: tuple[Static, ...] = ()
    given: tuple[Given, ...] = ()


UNKNOWN = Passed()  # of what is no call
_told: ContextVar[Passed | None] = ContextVar("passed", default=None)


@contextlib.contextmanager
def as_passed(passed: Passed) -> Iterator[None]:
    """Inside, what is lowered was traced with these arguments."""
    token = _told.set(passed)
    try:
        yield
    finally:
        _told.reset(token)


def passed_on_the_way(mark: Any) -> Passed:
    """How the call that is compiled now passed its arguments: what `as_passed` says, or that of the
    call of JAX's on the stack whose function has this mark."""
    told = _told.get()
    if told is not None:
        return told
    frame = sys._getframe(1)
    for _ in range(_MOST_FRAMES):
        if frame.f_code.co_name == "cache_miss" and "jit_info" in frame.f_code.co_freevars:
            info = frame.f_locals.get("jit_info")
            known = getattr(info, "compiler_options_kvs", None)
            if getattr(known, "history", None) is mark.history:
                return passed_of(info, frame.f_locals["args"], frame.f_locals["kwargs"])
        if frame.f_back is None:
            break
        frame = frame.f_back
    return UNKNOWN


def passed_of(info: Any, args: Sequence[Any], kwargs: Mapping[str, Any]) -> Passed:
    """Of the arguments of a call. info: what JAX knows of the jitted function."""
    signature = getattr(info, "fun_signature", None)
    names = [] if signature is None else list(signature.parameters)
    numbers = {at + len(args) if at < 0 else at for at in info.static_argnums}
    static, given = list[Static](), list[Given]()
    arguments = [
        *(
            (names[at] if at < len(names) else f"argument {at}", value, False, at in numbers)
            for at, value in enumerate(args)
        ),
        *((name, value, True, name in info.static_argnames) for name, value in kwargs.items()),
    ]
    for name, value, is_named, is_static in sorted(arguments, key=lambda each: each[0]):
        if is_static:
            by_identity = getattr(type(value), "__hash__", None) is object.__hash__
            static.append(Static(name, *_shown(value), by_identity))
            given.append(Given(name, is_named))
        else:
            given.append(Given(name, is_named, *_structure(value)))
    return Passed(tuple(static), tuple(given))


_short = reprlib.Repr()
_short.maxother = _short.maxstring = 80


def _shown(value: Any) -> tuple[str, int]:
    """Its repr and hash, which are code of the user's. Where an object lies says nothing."""
    text, token = f"a {type(value).__name__}", 0
    with contextlib.suppress(Exception):
        text = _ADDRESS.sub("", _short.repr(value))
    with contextlib.suppress(Exception):
        token = hash(value)
    return text, token


def _structure(value: Any) -> tuple[str, int]:
    """Those of its containers."""
    if isinstance(value, _LEAVES):
        return _LEAF, 0
    with contextlib.suppress(Exception):
        tree = jax.tree.structure(value)
        text = str(tree).removeprefix("PyTreeDef(").removesuffix(")")
        text = _ADDRESS.sub("", text)
        short = text if len(text) <= 2 * _short.maxother else f"{text[: 2 * _short.maxother]} ..."
        return short, 0 if text == _LEAF else hash(tree)
    return _LEAF, 0


# -- in words -------------------------------------------------------------------------------------


def changed_statics(now: Sequence[Static], before: Sequence[Static]) -> Iterator[str]:
    for static, old in by_name(now, before):
        if old is None:
            yield f"static argument {static} is new"
        elif static is None:
            yield f"static argument {old.name} is gone"
        elif old.text != static.text:
            yield f"static argument {static.name} changed from {old.text} to {static.text}"
        elif old.token != static.token and static.is_by_identity:
            yield (
                f"static argument {static.name} is another object than before that reads the same, "
                f"{static.text}: hand on the same one, or define __eq__ and __hash__ by value"
            )
        elif old.token != static.token:
            yield f"static argument {static.name} changed, but not in what is shown: {static.text}"


def changed_structures(now: Sequence[Given], before: Sequence[Given]) -> Iterator[str]:
    """Of arguments that both have."""
    for given, old in by_name(now, before):
        if given is None or old is None:
            continue
        if given.structure != old.structure:
            yield f"the structure of {given.name} changed from {old.structure} to {given.structure}"
        elif given.token != old.token:
            yield f"the structure of {given.name} changed, but not in what is shown of it"
        if given.is_named != old.is_named:
            yield f"{given.name} is passed by {'name' if given.is_named else 'place'}"


def by_name(now: Sequence[Any], before: Sequence[Any]) -> Iterator[tuple[Any, Any]]:
    """Each with the one of the same name before, or None; then None with each that is gone."""
    known = {each.name: each for each in before}
    yield from ((each, known.pop(each.name, None)) for each in now)
    yield from ((None, each) for each in known.values())

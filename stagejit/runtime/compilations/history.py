"""What a function was compiled for, and why it had to be compiled again.

Input: what JAX lowers, as `seams.Call` has it. Output: `Compiled` entries, in a list that belongs
to the function (`Mark.history`). Invariants: texts and small numbers only, so that nothing of the
user's lives longer for it; at most `KEPT` entries; nothing here fails a call.
"""

from __future__ import annotations

import functools
import itertools
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, fields
from typing import Any

from stagejit.base.numbers import counted
from stagejit.compat import trace_settings
from stagejit.options import Options
from stagejit.runtime.compilations.passing import (
    UNKNOWN,
    Passed,
    by_name,
    changed_statics,
    changed_structures,
)

KEPT = 32
_MOST_SAID = 6  # changes of arguments
_WORDS = {  # of what traces depend on and is no setting
    "mesh_context_manager": "the mesh",
    "abstract_mesh_context_manager": "the abstract mesh",
    "axis_env_state": "named axes around it",
    "user_context": "what is set around it",
}


@dataclass(frozen=True)
class Argument:
    """type: as JAX writes it, "f32[8]". is_weak: of a Python number. layout, sharding: empty where
    they are the usual ones."""

    name: str
    type: str
    is_weak: bool = False
    is_donated: bool = False
    layout: str = ""
    sharding: str = ""

    def __str__(self) -> str:
        weak = " (weak type)" if self.is_weak else ""
        donated = " donated" if self.is_donated else ""
        more = "".join(f" {text}" for text in (self.layout, self.sharding) if text)
        return f"{self.name} {self.type}{weak}{donated}{more}"


@dataclass(frozen=True)
class Signature:
    """What a compilation depends on. arguments: the leaves of those that are not static. settings:
    all that a trace depends on beside them, `jax.config` and meshes, by name. is_inside: it is a
    part of another program, or of a transformed one (`grad`, `vmap`), not a call of the function.
    """

    arguments: tuple[Argument, ...]
    passed: Passed
    options: Options
    settings: tuple[tuple[str, str], ...]
    platforms: tuple[str, ...] = ("cpu",)
    is_inside: bool = False

    def __str__(self) -> str:
        return ", ".join(map(str, (*self.arguments, *self.passed.static))) or "no arguments"

    @property
    def kind(self) -> tuple[object, ...]:
        """What has to be the same for a comparison to mean anything: of the pieces that `grad` and
        others cut a function into, the arguments."""
        return (True, *(a.name for a in self.arguments)) if self.is_inside else (False,)

    def changes(self, before: Signature) -> tuple[str, ...]:
        """In words, what is different from an earlier one."""
        arguments = [*_changed_arguments(self.arguments, before.arguments)]
        if len(arguments) > _MOST_SAID:
            rest = len(arguments) - _MOST_SAID
            arguments = [*arguments[:_MOST_SAID], f"{rest} more arguments changed"]
        return (
            *arguments,
            *changed_statics(self.passed.static, before.passed.static),
            *self._structures(before),
            *(options := [*_changed_options(self.options, before.options)]),
            *self._settings(before, told=bool(options)),
            *_changed("", {"the platform": self.platforms}, {"the platform": before.platforms}),
        )

    def _settings(self, before: Signature, *, told: bool) -> Iterator[str]:
        """told: options are, which are set around a call, too."""
        now = dict(self.settings)
        if told:
            now.pop(_WORDS["user_context"], None)
        yield from _changed("", now, dict(before.settings))

    def _structures(self, before: Signature) -> Iterator[str]:
        """Where other leaves are told already, their containers are not."""
        leaves, known = ({each.name for each in one.arguments} for one in (self, before))
        if leaves == known:
            yield from changed_structures(self.passed.given, before.passed.given)


@dataclass(frozen=True)
class Compiled:
    """A compilation: the number of it, counted from 1. causes: what changed since the most similar
    one before; none for the first. left_to_xla: why JAX compiled it without us. seconds: that it
    took us."""

    number: int
    signature: Signature
    causes: tuple[str, ...]
    left_to_xla: str = ""
    seconds: float = 0.0
    line: str = ""


@dataclass(frozen=True)
class Past:
    """What a function was compiled for so far, and how a call in question relates to it.

    compiled: the last `KEPT`. is_known: a call like this one was compiled before. causes: of the
    compilation that it uses; where there is none yet, what differs from the most similar one.
    `str()` is a line.
    """

    compiled: tuple[Compiled, ...] = ()
    call: Signature | None = None
    is_known: bool = False
    causes: tuple[str, ...] = ()

    def __str__(self) -> str:
        times = self.compiled[-1].number if self.compiled else 0
        known = "" if self.call is None else "known" if self.is_known else "not compiled yet"
        if times > len(self.compiled) and not self.is_known and known:
            known = f"not among the last {len(self.compiled)}"
        said = f"{times} compiled so far"
        why = f", because {'; '.join(self.causes)}" if self.causes else ""
        return f"{said}; this call: {known}{why}" if known else said


def past_of(history: Sequence[Compiled], call: Signature | None) -> Past:
    """The past of a function, as a call sees it."""
    entries = tuple(history)
    if call is None:
        return Past(entries)
    for entry in reversed(entries):
        if entry.signature == call:
            return Past(entries, call, True, entry.causes)
    return Past(entries, call, False, causes_of(call, entries))


def record(
    history: list[Compiled],
    signature: Signature,
    left_to_xla: str = "",
    seconds: float = 0.0,
    line: str = "",
) -> Compiled:
    """Add a compilation to what the function remembers."""
    number = history[-1].number + 1 if history else 1
    causes = causes_of(signature, history)
    entry = Compiled(number, signature, causes, left_to_xla, seconds, line)
    history.append(entry)
    del history[:-KEPT]
    return entry


def causes_of(signature: Signature, history: Sequence[Compiled]) -> tuple[str, ...]:
    """What differs from the most similar earlier one; empty for the first of its kind."""
    alike = [entry.signature for entry in history if entry.signature.kind == signature.kind]
    if not alike:
        return ()
    changes = min((signature.changes(before) for before in reversed(alike)), key=len)
    return changes or ("nothing that is remembered changed: JAX had let go of it",)


# -- of what JAX lowers ---------------------------------------------------------------------------


def signature_of(
    jaxpr: Any,
    options: Options,
    *,
    donated: Sequence[bool] = (),
    layouts: Sequence[Any] = (),
    shardings: Sequence[Any] = (),
    passed: Passed = UNKNOWN,
    platforms: Sequence[str] = ("cpu",),
    is_inside: bool = False,
) -> Signature:
    """Of a jaxpr, as it was traced. donated, layouts, shardings: of its arguments."""
    avals = list(jaxpr.in_avals)
    names = getattr(jaxpr, "jaxpr", jaxpr).debug_info.safe_arg_names(len(avals))
    arguments = tuple(
        Argument(
            name or f"argument {number}",
            aval.str_short(short_dtypes=True) if hasattr(aval, "str_short") else str(aval),
            bool(getattr(aval, "weak_type", False)),
            bool(gone),
            _layout(layout),
            _sharding(sharding),
        )
        for number, (name, aval, gone, layout, sharding) in enumerate(
            zip(names, avals, *map(_and_none, (donated, layouts, shardings)), strict=False)
        )
    )
    # Pieces of transformed programs have arguments without names.
    inside = is_inside or (bool(avals) and not any(names))
    return Signature(arguments, passed, options, _settings(), tuple(platforms), inside)


def _and_none(values: Sequence[Any] | None) -> Iterator[Any]:
    """None for all that have no value."""
    return itertools.chain(values or (), itertools.repeat(None))


def _layout(layout: Any) -> str:
    order = getattr(layout, "major_to_minor", None)
    if order is None or tuple(order) == tuple(range(len(order))):
        return ""
    return f"with axes in order {tuple(order)}"


def _sharding(sharding: Any) -> str:
    """A mesh and a spec tell shardings apart on one device, too."""
    if sharding is None:
        return ""
    spec, mesh = getattr(sharding, "spec", None), getattr(sharding, "mesh", None)
    devices = getattr(sharding, "num_devices", 1)
    if not isinstance(devices, int) or (devices < 2 and spec is None):
        return ""
    axes = ", ".join(f"{name}: {size}" for name, size in dict(getattr(mesh, "shape", {})).items())
    where = f"on {counted(devices, 'device')}"
    return where if spec is None else f"{where} by {spec} of a mesh ({axes})"


def _settings() -> tuple[tuple[str, str], ...]:
    """What JAX traces anew for, beside arguments."""
    return _in_our_words(trace_settings())


@functools.lru_cache(maxsize=1)
def _in_our_words(settings: tuple[tuple[str, str], ...]) -> tuple[tuple[str, str], ...]:
    return tuple(
        (f"jax.config.{name}" if name.startswith("jax_") else _WORDS.get(name, name), value)
        for name, value in settings
        if name != "jax_disable_jit"  # with which nothing is compiled
    )


# -- in words -------------------------------------------------------------------------------------


def _changed_arguments(now: Sequence[Argument], before: Sequence[Argument]) -> Iterator[str]:
    for argument, old in by_name(now, before):
        if old is None:
            yield f"{argument} is new"
        elif argument is None:
            yield f"there is no {old.name} any more"
        elif old.type != argument.type:
            yield f"{argument.name} changed from {old.type} to {argument.type}"
        elif old.is_weak != argument.is_weak:
            kinds = ("an array", "a Python number (weak type)")
            was, is_now = kinds[:: -1 if old.is_weak else 1]
            yield f"{argument.name} changed from {was} to {is_now}"
        elif old.is_donated != argument.is_donated:
            yield f"{argument.name} is {'' if argument.is_donated else 'not '}donated"
        elif old.layout != argument.layout:
            yield f"{argument.name} lies {argument.layout or 'row by row'}"
        elif old.sharding != argument.sharding:
            yield f"{argument.name} is {argument.sharding or 'on one device'}"


def _changed_options(now: Options, before: Options) -> Iterator[str]:
    values, olds = (
        {field.name: getattr(options, field.name) for field in fields(options)}
        for options in (now, before)
    )
    yield from _changed("option ", values, olds)


def _changed(prefix: str, now: Mapping[str, Any], before: Mapping[str, Any]) -> Iterator[str]:
    for name, value in now.items():
        if before.get(name, value) != value:
            yield f"{prefix}{name} changed from {before[name]} to {value}"

"""Records: values of named fields, and records with some of these replaced.

Input: a class with annotations; a record or dataclass. Output: the class as a dataclass; another
value of its kind. Invariant: as `dataclasses.dataclass(frozen=True)` and `dataclasses.replace`, but
for what the note says.

Note [Methods of all records]: `dataclass(frozen=True)` writes six methods as text, for each class,
which Python compiles: half a millisecond, and there are hundreds of classes, so that it was a
quarter of the first compile of a process. Only `__init__` differs from class to class; the rest
is written once, here. That fields do not change is checked by the type checker, and not at run
time, where each of them would be set by a call; what users of the package are given is frozen for
them, too, by `dataclass(frozen=True)`.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field, fields
from operator import attrgetter
from reprlib import recursive_repr
from typing import Any, TypeVar, dataclass_transform, overload

T = TypeVar("T")


@overload
def record(kind: type[T], /) -> type[T]: ...


@overload
def record(
    *, eq: bool = True, repr: bool = True, kw_only: bool = False
) -> Callable[[type[T]], type[T]]: ...


@dataclass_transform(frozen_default=True, field_specifiers=(field,))
def record(
    kind: Any = None, /, *, eq: bool = True, repr: bool = True, kw_only: bool = False
) -> Any:
    """A class whose objects are values: see Note [Methods of all records]. eq: whether they are
    equal, and found in sets, by their fields, and not each only itself."""
    if kind is None:
        return functools.partial(record, eq=eq, repr=repr, kw_only=kw_only)
    own = vars(kind).copy()
    made: Any = dataclass(eq=False, repr=False, kw_only=kw_only)(kind)
    if repr and "__repr__" not in own:
        made.__repr__ = _text
    if eq:
        values = _values(each.name for each in fields(made) if each.compare)
        if "__eq__" not in own:
            made.__eq__ = _equality(values)
        if own.get("__hash__") is None:  # Python's own entry, for a class that has an `__eq__`
            made.__hash__ = _hashing(values)
    return made


def _values(names: Iterable[str]) -> Callable[[Any], Any]:
    """Values of fields, and the class: of two names or more, `attrgetter` gives a tuple."""
    return attrgetter(*names, "__class__")


def _equality(values: Callable[[Any], Any]) -> Callable[[Any, Any], Any]:
    def equal(one: Any, other: Any) -> Any:
        if one.__class__ is not other.__class__:
            return NotImplemented
        return values(one) == values(other)

    return equal


def _hashing(values: Callable[[Any], Any]) -> Callable[[Any], int]:
    return lambda one: hash(values(one))


@recursive_repr()
def _text(one: Any) -> str:
    shown = (f"{each.name}={getattr(one, each.name)!r}" for each in fields(one) if each.repr)
    return f"{type(one).__qualname__}({', '.join(shown)})"


def replace(record: T, **changes: Any) -> T:
    """The same with other values of these fields. Kernels are planned by many small steps, each a
    record; `dataclasses.replace` asks each field anew how it is made."""
    kind: Any = type(record)
    names, values_of = _fields_of(kind)
    made: T = kind(**{**dict(zip(names, values_of(record), strict=False)), **changes})
    return made


@functools.cache
def _fields_of(kind: Any) -> tuple[tuple[str, ...], Callable[[Any], tuple[Any, ...]]]:
    names = tuple(field.name for field in fields(kind) if field.init)
    return names, attrgetter(*names, names[0])  # of two names or more it gives a tuple

"""Records with some of their values replaced.

Input: a dataclass. Output: another of its kind. Invariant: as `dataclasses.replace`, which asks
each field anew how it is made; kernels are planned by many small steps, each a record.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from dataclasses import fields
from operator import attrgetter
from typing import Any, TypeVar

T = TypeVar("T")


def replace(record: T, **changes: Any) -> T:
    """The same with other values of these fields."""
    kind: Any = type(record)
    names, values_of = _fields_of(kind)
    made: T = kind(**{**dict(zip(names, values_of(record), strict=False)), **changes})
    return made


@functools.cache
def _fields_of(kind: Any) -> tuple[tuple[str, ...], Callable[[Any], tuple[Any, ...]]]:
    names = tuple(field.name for field in fields(kind) if field.init)
    return names, attrgetter(*names, names[0])  # of two names or more it gives a tuple

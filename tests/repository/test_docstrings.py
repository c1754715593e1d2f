"""Every public name says what it is: its parameters, the errors that it raises, its units.

Public are the names of `stagejit` and of `stagejit.extending`, and of those that are classes all
members without an underscore. Checked is what can be: that there is a docstring, that it names each
parameter and each field, `Raises` and the errors that stand in the code itself, and the unit of
what is called so many bytes or seconds.
"""

from __future__ import annotations

import ast
import dataclasses
import functools
import inspect
import re
import textwrap
from collections.abc import Callable, Iterator
from typing import Any

import pytest

import stagejit
from stagejit import extending
from stagejit.extending import writing

_OURS = "stagejit"
_UNITS = {"nbytes": "byte", "seconds": "second", "flops": "operation"}
# Parameters that are what they are called, or that are handed on as they are.
_PLAIN = {"self", "cls", "args", "kwargs", "fun"}


def public() -> Iterator[tuple[str, Any]]:
    """Everything that has to have a docstring, by the name that users know it by."""
    for module, names in (
        (stagejit, stagejit.__all__),
        (extending, extending.__all__),
        (writing, [n for n in writing.__all__ if _is_own(getattr(writing, n), writing)]),
    ):
        for name in names:
            thing = getattr(module, name)
            if inspect.ismodule(thing):
                continue
            yield f"{module.__name__}.{name}", thing
            if inspect.isclass(thing):
                yield from _members(f"{module.__name__}.{name}", thing)


def _is_own(thing: Any, module: Any) -> bool:
    return getattr(thing, "__module__", "") == module.__name__


def _members(name: str, cls: type) -> Iterator[tuple[str, Any]]:
    """Those that are declared in the package, inherited ones too."""
    for member in dir(cls):
        if member.startswith("_"):
            continue
        owner = next(base for base in cls.__mro__ if member in vars(base))
        thing = vars(owner)[member]
        fields = getattr(cls, "__dataclass_fields__", {})  # whose defaults may be functions
        if not owner.__module__.startswith(_OURS) or not _is_code(thing) or member in fields:
            continue
        yield f"{name}.{member}", thing


def _is_code(thing: Any) -> bool:
    return isinstance(
        thing, property | functools.cached_property | classmethod | staticmethod
    ) or inspect.isfunction(thing)


PUBLIC = dict(public())


def function_of(thing: Any) -> Callable[..., Any] | None:
    """The code behind a name, if it is one function's."""
    if isinstance(thing, property):
        return thing.fget
    if isinstance(thing, functools.cached_property):
        return thing.func
    if isinstance(thing, classmethod | staticmethod):
        return thing.__func__
    return thing if inspect.isfunction(thing) else None


def words(text: str) -> set[str]:
    return set(re.findall(r"\w+", text))


def raised(function: Callable[..., Any]) -> set[str]:
    """The errors that the code itself raises, by name, but for those of abstract methods."""
    tree = ast.parse(textwrap.dedent(inspect.getsource(function)))
    found = set()
    for node in ast.walk(tree):
        if isinstance(node, ast.Raise) and node.exc is not None:
            called = node.exc.func if isinstance(node.exc, ast.Call) else node.exc
            if isinstance(called, ast.Name) and called.id.endswith(("Error", "Exception")):
                found.add(called.id)
    return found - {"NotImplementedError", "AttributeError"}


def faults(name: str, thing: Any) -> Iterator[str]:
    """What the docstring of a public thing leaves out."""
    text = inspect.getdoc(thing) or ""
    if not text.strip():
        yield "has no docstring"
        return
    function = function_of(thing)
    if function is not None:
        parameters = set(inspect.signature(function).parameters) - _PLAIN
        for missing in sorted(parameters - words(text)):
            yield f"does not say what {missing} is"
        errors = raised(function)
        if errors and "raise" not in text.lower():
            yield f"does not say that it raises {', '.join(sorted(errors))}"
        yield from (f"does not name {error}" for error in sorted(errors - words(text)))
    if dataclasses.is_dataclass(thing):
        fields = {f.name for f in dataclasses.fields(thing) if not f.name.startswith("_")}
        for missing in sorted(fields - words(_with_bases(thing))):
            yield f"does not say what {missing} is"
    last = name.rpartition(".")[2].rpartition("_")[2]
    if last in _UNITS and _UNITS[last] not in text.lower():
        yield f"does not say that it is {_UNITS[last]}s"


def _with_bases(cls: type) -> str:
    return "\n".join(base.__doc__ or "" for base in cls.__mro__)


@pytest.mark.parametrize("name", PUBLIC)
def test_it_says_what_it_is(name: str) -> None:
    assert list(faults(name, PUBLIC[name])) == []


def test_what_is_left_out_is_seen() -> None:
    def silent(x: int) -> None: ...

    def loud(x: int, most_nbytes: int) -> None:
        """Takes x."""
        raise ValueError(x)

    assert list(faults("silent", silent)) == ["has no docstring"]
    assert list(faults("loud_seconds", loud)) == [
        "does not say what most_nbytes is",
        "does not say that it raises ValueError",
        "does not name ValueError",
        "does not say that it is seconds",
    ]


def test_members_of_classes_are_looked_at() -> None:
    assert {
        "stagejit.Plan.as_text",
        "stagejit.Access.overlaps",
        "stagejit.Options.on_gpu",
        "stagejit.Lowered.compile",
        "stagejit.extending.rewrite",
        "stagejit.extending.writing.kernel",
    } <= PUBLIC.keys()

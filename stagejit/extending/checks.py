"""What may be registered: names, places, backends, numbers of machines.

Input: what a user gave to a function of `stagejit.extending`, and the line of that. Output: the
same, or an `OptionsError` at that line. Invariant: an extension that exists has a name of its own
and a place that there is.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable, Collection, Sequence
from typing import Any, TypeVar

import numpy as np

from stagejit.base.extension import Extension
from stagejit.base.loc import Loc
from stagejit.base.machine import Machine
from stagejit.codegen.own import checked_code
from stagejit.codegen.target import Target
from stagejit.errors import ExtensionError, OptionsError
from stagejit.extending.promises import keeping
from stagejit.graph.definition import OpDef, require, states_its_types
from stagejit.graph.functions import MAP_FUNCTIONS
from stagejit.options import SWITCHES, suggested
from stagejit.types import DType, TensorType

_MACHINES = {"cpu": "a CPU", "cuda": "a GPU"}
BACKENDS = tuple(_MACHINES)
VECTORS_NBYTES = (8, 16, 32, 64, 128)  # of registers; kernels hold a vector in several, if need be
_NUMBERS = "biufV"  # kinds of NumPy's types; V has those of `ml_dtypes`
_CPUS: dict[str, Callable[[], Target]] = {
    "native": Target.host, "avx512": Target.avx512, "avx2": Target.avx2, "sse2": Target.sse2,
    "neon": Target.neon,
}  # fmt: skip
M = TypeVar("M", bound=Machine)


def wrong(what: str, loc: Loc, next_step: str) -> OptionsError:
    return OptionsError(what, loc=loc, next_step=next_step)


def named(name: Any, loc: Loc) -> Loc:
    """The line of an extension whose name may be one. Raises OptionsError."""
    if not isinstance(name, str) or not name or any(letter.isspace() for letter in name):
        raise wrong(f"{name!r} is no name of an extension", loc, 'give a word, as "my-rewrite"')
    if name in SWITCHES:
        raise wrong(f"{name!r} is a rewrite of stagejit's own", loc, "choose another name")
    return loc


def name_of(definition: Any, loc: Loc) -> str:
    if not isinstance(definition, OpDef):
        raise wrong(f"an op is declared by an OpDef, not by {definition!r}", loc, "give OpDef(...)")
    named(definition.kind, loc)
    if definition.is_elementwise and definition.code is None:
        what = f"op {definition.kind!r} is elementwise and has no code"
        raise wrong(what, loc, "an elementwise op needs code=")
    return definition.kind


def known_functions(names: Collection[str], loc: Loc) -> None:
    """Raises OptionsError for what is no function of `map`."""
    for name in sorted(set(names) - set(MAP_FUNCTIONS)):
        what = f"a map has no function {name!r}"
        raise wrong(what, loc, suggested(name, sorted(MAP_FUNCTIONS)))


def function_of(function: Any, loc: Loc) -> Callable[..., Any]:
    if not callable(function):
        raise wrong(f"{function!r} is no function", loc, "decorate a function")
    made: Callable[..., Any] = function
    return made


def words(text: Any, name: str, loc: Loc) -> frozenset[str]:
    """Those of a text. Raises OptionsError for what is none."""
    if not isinstance(text, str):
        raise wrong(f"{name} is {text!r}", loc, f'give words in one text, as {name}="map copy"')
    return frozenset(text.split())


def checked_backend(backend: str, loc: Loc) -> str:
    if backend not in BACKENDS:
        raise wrong(f"there is no backend {backend!r}", loc, 'give "cpu" or "cuda"')
    return backend


def one_place(loc: Loc, known: Sequence[str], **places: str) -> None:
    """Raises OptionsError for no place, for two, and for a step that there is not."""
    given = {how: step for how, step in places.items() if step}
    if len(given) != 1:
        hows = " or ".join(f"{how}=" for how in places)
        raise wrong(f"a rewrite has one place, not {len(given)}", loc, f"give {hows} a step")
    ((how, step),) = given.items()
    if step not in known:
        raise wrong(f"there is no step {step!r}", loc, f"give {how}= one of {', '.join(known)}")


def beside(loc: Loc, known: Sequence[str], before: str, after: str) -> tuple[str, bool]:
    """The step, one of those that are known, and whether the place is after it."""
    one_place(loc, known, before=before, after=after)
    return before or after, bool(after)


def cpu_like(name: str, loc: Loc) -> Target:
    """A CPU by its name. Raises OptionsError."""
    if name not in _CPUS:
        raise wrong(f"there is no CPU {name!r} to be like", loc, f"give one of {', '.join(_CPUS)}")
    return _CPUS[name]()


def summary(function: Callable[..., Any]) -> str:
    return ((function.__doc__ or "").strip().splitlines() or [""])[0]


def guarded(definition: OpDef, own: Extension) -> OpDef:
    """The declaration, whose functions raise ExtensionError where they fail. `infer` and `check`
    raise what they like, for that is how they refuse."""
    changed: dict[str, Any] = {}
    for field in dataclasses.fields(definition):
        given = getattr(definition, field.name)
        guarded = field.init and callable(given) and given is not field.default
        if guarded and field.name not in ("infer", "check"):
            changed[field.name] = _running(own, field.name, given)
    if definition.infer is not states_its_types:
        changed["infer"] = _typed(definition)
    changed["check"] = keeping(definition, own)
    changed["interpret"] = _running(own, "interpret", _fitting(definition.interpret))
    if definition.code is not None:
        changed["code"] = checked_code(own, definition.code)
    return dataclasses.replace(definition, **changed)


def _running(own: Extension, name: str, function: Callable[..., Any]) -> Callable[..., Any]:
    def called(*args: Any, **more: Any) -> Any:
        with own.running(f"failed in its {name}"):
            return function(*args, **more)

    return called


def _typed(definition: OpDef) -> Callable[..., Any]:
    has_one = definition.is_elementwise or definition.is_view

    def inferred(operands: Any, attrs: Any) -> Any:
        types: Any = definition.infer(operands, attrs)
        given = types if isinstance(types, tuple | list) else [types]
        for type in given:
            is_type = isinstance(type, TensorType) and isinstance(type.shape, tuple)
            require(
                type is None or (is_type and isinstance(type.dtype, DType)),
                "infer returned no type of a value, which is TensorType(dtype, shape)",
            )
        require(
            len(given) == 1 or not has_one,
            "infer returned {} types: an elementwise op, or a view, has one result",
            len(given),
        )
        return types

    return inferred


def _fitting(interpret: Callable[..., Any]) -> Callable[..., Any]:
    def interpreted(evaluator: Any, op: Any, *operands: Any) -> Any:
        made = interpret(evaluator, op, *operands)
        arrays = [np.asarray(each) for each in (made if isinstance(made, list) else [made])]
        types = [value.type for value in op.results]
        shapes = [type.shape for type in types]
        if op.definition.is_elementwise:  # single elements, too, are asked for
            shapes = [np.broadcast_shapes(*map(np.shape, operands))]
        if any(type.dtype.kind == "opaque" for type in types):
            return made
        numbers = all(array.dtype.kind in _NUMBERS for array in arrays)
        if not numbers or [array.shape for array in arrays] != shapes:
            given = ", ".join(f"{array.dtype} of shape {array.shape}" for array in arrays)
            raise ValueError(f"it returned {given or 'nothing'} for {', '.join(map(str, types))}")
        return made

    return interpreted


def as_one(kind: str) -> Callable[..., Any]:
    """An equation as one op, with the same parameters."""
    return lambda emit, site, *operands: emit.build(kind, operands, **site.params)


def nothing(kind: str, backend: str, loc: Loc) -> Callable[..., Any]:
    def missing(region: Any, machine: Any) -> Any:
        raise ExtensionError(
            f"op {kind!r} has no kernel for {_MACHINES[backend]}",
            loc=loc,
            next_step=f"give extending.op(..., {backend}=...), a function that makes it, or "
            "translate=..., which makes it of ops that there are",
        )

    return missing


def _means_something(value: Any, default: Any) -> bool:
    """Of numbers of machines: none is negative, infinite or NaN; zero says that there is none,
    where that is the default."""
    if isinstance(value, bool) or not isinstance(value, int | float):
        return bool(value) or not default
    return math.isfinite(value) and (value > 0 or (value == 0 and not default))


def whole(loc: Loc, what: str, **numbers: Any) -> None:
    """Raises OptionsError for what is no whole number of at least 1. what: has these numbers."""
    for name, number in numbers.items():
        if isinstance(number, bool) or not isinstance(number, int) or number < 1:
            raise wrong(f"{what} of {number!r} {name}", loc, "give a whole number of at least 1")


def changed(machine: M, name: str, numbers: dict[str, Any], loc: Loc) -> M:
    fields = {field.name: field.default for field in dataclasses.fields(machine)}
    del fields["name"]
    for key, value in numbers.items():
        if key not in fields:
            known = ", ".join(sorted(fields))
            raise wrong(f"a machine has no number {key!r}", loc, f"give some of {known}")
        usual = getattr(machine, key)
        if type(value) is not type(usual) or not _means_something(value, fields[key]):
            raise wrong(f"{key} is {value!r}", loc, f"give a value such as {usual!r}")
        if key == "vector_nbytes" and value not in VECTORS_NBYTES:
            allowed = ", ".join(map(str, VECTORS_NBYTES))
            raise wrong(f"{key} is {value!r}", loc, f"give one of {allowed}")
    return dataclasses.replace(machine, **{"name": name, **numbers})

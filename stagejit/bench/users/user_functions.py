"""A function of the user's and its arguments, as the command line names them.

Input: `package.module:function` or `FILE.py:function`, and the text of arguments. Output:
`UserCall`s. Invariant: the text of arguments runs no code: it is read as the arguments of a call,
made of literals, `f32[8,16]` for an array of that type and shape, `"x.npy"` for that of a file,
lists, tuples, dictionaries, names of the module, and their items, as `params["w"]`; `*examples` and
`**settings` are those of a tuple and of a dictionary.

    python -m stagejit picture model.py:loss --args "params, f32[32,64], scale=0.5" -o loss.html

A file that follows the protocol of `programs.py` brings its arguments along.
"""

from __future__ import annotations

import ast
import importlib
import inspect
import os
import re
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from types import ModuleType
from typing import Any

from stagejit.base.numbers import a_type
from stagejit.bench import programs
from stagejit.bench.programs import CommandError
from stagejit.options import suggested

_EXAMPLE = 'for example --args "f32[32,64], params, scale=0.5", with names of the module'
_TYPE = re.compile(r"(bf|f|i|u|c)(\d+)$")
_SCALAR = re.compile(r"(?<=\w)\[\]")  # of `f32[]`, which Python has no syntax for
_LONG = {"f": "float", "i": "int", "u": "uint", "c": "complex", "bf": "bfloat"}


@dataclass(frozen=True)
class UserCall:
    """A function, and what it is called with: arrays, or shapes and types of arrays."""

    name: str
    function: Callable[..., Any]
    args: tuple[Any, ...] = ()
    kwargs: Mapping[str, Any] = field(default_factory=dict)

    def lower(self, target: str = "native") -> Any:
        """A `stagejit.Lowered`. A function that is `stagejit.jit`'s keeps its options."""
        import stagejit
        from stagejit.stages import Lowered

        if hasattr(self.function, "lower") and target == "native":
            lowered = self.function.lower(*self.args, **self.kwargs)
            if isinstance(lowered, Lowered):
                return lowered
        plain = programs.undecorated(self.function)
        jitted = stagejit.jit(plain, options=stagejit.Options(target=target))
        return jitted.lower(*self.args, **self.kwargs)


def calls_of(program: str, args: str | None = None) -> list[UserCall]:
    """What a program's name stands for: one function, or all programs of a file.

    Raises CommandError for what is not there, and for arguments that cannot be read; exceptions of
    the user's own code pass through.
    """
    where, _, name = program.rpartition(":") if not Path(program).is_file() else (program, "", "")
    if not where:
        where, name = name, ""
    if where.endswith(".py") or os.sep in where:
        module = programs.module_of(Path(where))
        if args is None and (known := _programs(module, Path(where), name)):
            return known
    else:
        module = _imported(where)
    if not name:
        raise CommandError(f"{program!r} names no function", next_step=f"write {program}:FUNCTION")
    function = _attribute(module, name)
    if not callable(function):
        raise CommandError(f"{name!r} is {a_type(function)}", next_step="name a function")
    positional, named = arguments_of(args or "", module)
    _check(name, function, positional, named)
    return [UserCall(name, function, positional, named)]


def call_of(program: str, args: str | None = None) -> UserCall:
    """The one function that a program's name stands for. Raises CommandError for several."""
    calls = calls_of(program, args)
    if len(calls) > 1:
        known = ", ".join(call.name for call in calls)
        raise CommandError(
            f"{program!r} has {len(calls)} programs", next_step=f"write {program}:NAME of {known}"
        )
    return calls[0]


def _programs(module: ModuleType, path: Path, name: str) -> list[UserCall]:
    """Those of a file that follows the protocol; none where the name is that of another function
    of the file's."""
    if name and not hasattr(module, "BENCH"):
        return []
    known = programs.programs_of(module, path)
    if name and not any(other.startswith(name) for other in known) and hasattr(module, name):
        return []
    chosen = programs.select([name] if name else [], known)
    return [UserCall(each.name, each.function, each.make_args()) for each in chosen]


def _imported(name: str) -> ModuleType:
    if "" not in sys.path and os.getcwd() not in sys.path:
        sys.path.insert(0, os.getcwd())  # as `python -m` does
    try:
        return importlib.import_module(name)
    except ModuleNotFoundError as error:
        if error.name is None or not f"{name}.".startswith(f"{error.name}."):
            raise
        raise CommandError(
            f"there is no module {error.name!r}",
            next_step="write package.module:function, or FILE.py:function",
        ) from None


def _attribute(module: ModuleType, name: str) -> Any:
    """A name of a module, such as `f` or `Model.apply`."""
    found: Any = module
    for part in name.split("."):
        if not hasattr(found, part):
            defined = [
                known
                for known, what in vars(module).items()
                if not (known.startswith("_") or isinstance(what, ModuleType))
            ]
            raise CommandError(
                f"{_shown(module)} has no {name!r}",
                next_step=suggested(name, defined),
            )
        found = getattr(found, part)
    return found


def _shown(module: ModuleType) -> str:
    """As who calls the command names it: files of users' get names of modules that nobody knows."""
    spec = module.__spec__
    is_file = spec is not None and spec.name.startswith(programs.MODULE_OF_FILE)
    return str(module.__file__) if is_file else module.__name__


def _check(
    name: str, function: Callable[..., Any], args: tuple[Any, ...], kwargs: Mapping[str, Any]
) -> None:
    try:
        inspect.signature(function).bind(*args, **kwargs)
    except TypeError as error:
        raise CommandError(
            f"the arguments do not fit {name}{_signature(function)}: {error}", next_step=_EXAMPLE
        ) from None
    except ValueError:  # a function without a signature
        return


def _signature(function: Callable[..., Any]) -> str:
    return f"({', '.join(inspect.signature(function).parameters)})"


def arguments_of(text: str, module: ModuleType) -> tuple[tuple[Any, ...], dict[str, Any]]:
    """The arguments of a call, by place and by name. Raises CommandError."""
    try:
        call = ast.parse(f"f({_SCALAR.sub('[()]', text)})", mode="eval").body
    except SyntaxError:
        raise CommandError(f"{text!r} are no arguments", next_step=_EXAMPLE) from None
    if not isinstance(call, ast.Call) or not isinstance(call.func, ast.Name):
        raise CommandError(f"{text!r} are no arguments", next_step=_EXAMPLE)
    positional: list[Any] = []
    for each in call.args:
        if isinstance(each, ast.Starred):
            positional += _unpacked(each.value, module, "*")
        else:
            positional.append(_value(each, module))
    named: dict[str, Any] = {}
    for keyword in call.keywords:
        if keyword.arg is None:
            named |= _unpacked(keyword.value, module, "**")
        else:
            named[keyword.arg] = _value(keyword.value, module)
    return tuple(positional), named


def _unpacked(node: ast.expr, module: ModuleType, stars: str) -> Any:
    """What stands after a star, or two."""
    found, kind = _value(node, module), Sequence if stars == "*" else Mapping
    if not isinstance(found, kind):
        wanted = "a tuple or a list" if stars == "*" else "a dictionary"
        raise CommandError(
            f"{stars}{ast.unparse(node)} is {a_type(found)}", next_step=f"give {wanted}"
        )
    return found


def _value(node: ast.expr, module: ModuleType) -> Any:
    match node:
        case ast.Constant(value=str(name)) if name.endswith(".npy"):
            return _stored(name)
        case ast.Constant(value=value):
            return value
        case ast.UnaryOp(op=ast.USub(), operand=ast.Constant(value=int() | float() as value)):
            return -value
        case ast.Tuple(elts=parts):
            return tuple(_value(part, module) for part in parts)
        case ast.List(elts=parts):
            return [_value(part, module) for part in parts]
        case ast.Dict(keys=keys, values=values) if all(keys):
            pairs = zip(keys, values, strict=True)
            return {_value(key, module): _value(value, module) for key, value in pairs if key}
        case ast.Subscript(value=ast.Name(id=name), slice=sizes) if not hasattr(module, name):
            return _array(name, sizes, ast.unparse(node))
        case ast.Subscript(value=of, slice=key):
            return _item(_value(of, module), _value(key, module), ast.unparse(node))
        case ast.Name() | ast.Attribute():
            return _attribute(module, ast.unparse(node))
    raise CommandError(f"{ast.unparse(node)!r} is no argument", next_step=_EXAMPLE)


def _item(of: Any, key: Any, text: str) -> Any:
    try:
        return of[key]
    except (LookupError, TypeError) as error:
        what = f"{type(error).__name__}: {error}"
        raise CommandError(
            f"there is no {text}: {what}", next_step="name one that is there"
        ) from None


def _stored(name: str) -> Any:
    """The array of a file, which may hold nothing that has to be run."""
    import numpy as np

    try:
        return np.load(name, allow_pickle=False)
    except (OSError, ValueError) as error:
        raise CommandError(
            f"cannot read {name!r}: {error}", next_step="give a file that numpy.save wrote"
        ) from None


def _array(name: str, sizes: ast.expr, text: str) -> Any:
    """The shape and type that `f32[8,16]` stands for."""
    import jax
    from jax import numpy as jnp

    parts = sizes.elts if isinstance(sizes, ast.Tuple) else [sizes]
    shape = [part.value for part in parts if isinstance(part, ast.Constant)]
    if len(shape) < len(parts) or not all(type(size) is int and size >= 0 for size in shape):
        raise CommandError(f"{text!r} has no shape", next_step="write sizes, as in f32[8,16]")
    short = _TYPE.match(name)
    try:
        dtype = jnp.dtype(_LONG[short[1]] + short[2] if short else name)
    except TypeError:
        raise CommandError(
            f"{name!r} is no type", next_step="for example f32, bf16, i32, u8, bool"
        ) from None
    made: Any = jax.ShapeDtypeStruct  # which publishes no types
    return made(tuple(shape), dtype)

"""What is measured: a function, its arguments, and how exact it must be.

Input: the registry in `workloads`, or a Python file that defines `BENCH`. Output: `Workload`
values. Invariant: a `Workload` holds no arrays until `make_args` is called, so listing them is
free.

The protocol of a user's file:

    BENCH = {"name": (function, args)}

where `args` is a tuple of arrays (or pytrees of arrays), or a function without parameters that
returns that tuple.
"""

from __future__ import annotations

import importlib.util
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import ModuleType
from typing import Any, Literal

from stagejit.base.loc import Loc
from stagejit.errors import StagejitError

Function = Callable[..., Any]
Arguments = tuple[Any, ...]

USER_TOLERANCE = 1e-4
_PROTOCOL = 'define BENCH = {"name": (function, args)} with args a tuple or a function returning it'


MODULE_OF_FILE = "stagejit_bench_"  # how the names of users' files as modules begin


class CommandError(StagejitError, ValueError):
    """A request to the command line that cannot be carried out."""


@dataclass(frozen=True)
class Workload:
    """One program to measure.

    make_args: builds the arguments, the same ones on every call.
    make_shapes: builds what stands for them where no value matters, without drawing any.
    tolerance: largest accepted `max|result - reference| / max|reference|`, see `accuracy`.
    donated: numbers of the arguments that a call gives away; result i of such a program takes the
        place of the i-th of them in the next call.
    read_nbytes: of the donated arguments, what every call has to read.
    summary: what the row stands for, one line.
    weights: of a program whose first argument stays the same, so that ours is bound to it: "f32" as
        it is, or the form that `stagejit.bind` takes.
    """

    name: str
    function: Function
    make_args: Callable[[], Arguments]
    tolerance: float = USER_TOLERANCE
    summary: str = ""
    donated: tuple[int, ...] = ()
    weights: Literal["f32", "bf16", "int8", "int4"] | None = None
    make_shapes: Callable[[], Arguments] | None = None
    read_nbytes: int = 0

    def shapes(self) -> Arguments:
        """What a compilation wants of the arguments."""
        return (self.make_shapes or self.make_args)()


def select(names: Sequence[str], known: Mapping[str, Workload]) -> list[Workload]:
    """The workloads called `names`, all of them for no names. A name may be a prefix.

    Raises CommandError for a name that fits nothing.
    """
    if not names:
        return list(known.values())
    chosen: dict[str, Workload] = {}
    for name in names:
        fitting = [name] if name in known else [other for other in known if other.startswith(name)]
        if not fitting:
            raise CommandError(
                f"no workload is called {name!r}", next_step="known names: " + ", ".join(known)
            )
        chosen |= {other: known[other] for other in fitting}
    return list(chosen.values())


def load_file(path: Path) -> dict[str, Workload]:
    """The workloads that a user's file defines, by name, in the file's order.

    Runs the file. Raises CommandError where it cannot be read or does not follow the protocol;
    an exception of the file's own code passes through.
    """
    return programs_of(module_of(path), path)


def module_of(path: Path) -> ModuleType:
    """A user's file as a module: runs it. Raises CommandError where it cannot be read."""
    if not path.is_file():
        raise CommandError(
            f"there is no file {str(path)!r}", next_step="give the path of a .py file"
        )
    spec = importlib.util.spec_from_file_location(f"{MODULE_OF_FILE}{path.stem}", path)
    if spec is None or spec.loader is None:
        raise CommandError(
            f"{str(path)!r} is not a Python file", next_step="its name must end in .py"
        )
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module  # dataclasses and pickling look their module up by name
    try:
        spec.loader.exec_module(module)
    except SyntaxError as error:
        raise CommandError(
            f"{error.filename} cannot be read: {error.msg}",
            loc=Loc(str(error.filename), error.lineno or 0),
            next_step="correct it",
        ) from error
    return module


def programs_of(module: ModuleType, path: Path) -> dict[str, Workload]:
    """What a user's module defines by the protocol. Raises CommandError where that is nothing."""
    table = getattr(module, "BENCH", None)
    if not isinstance(table, Mapping) or not table:
        raise CommandError("the file defines no programs", loc=Loc(str(path)), next_step=_PROTOCOL)
    return {str(name): _from_entry(str(name), entry, path) for name, entry in table.items()}


def _from_entry(name: str, entry: Any, path: Path) -> Workload:
    if not (isinstance(entry, tuple) and len(entry) == 2 and callable(entry[0])):
        raise CommandError(
            f"BENCH[{name!r}] is not a pair (function, args)",
            loc=Loc(str(path)),
            next_step=_PROTOCOL,
        )
    function, args = entry
    make_args = args if callable(args) else lambda: args
    if not isinstance(args, tuple) and not callable(args):
        raise CommandError(
            f"the args of BENCH[{name!r}] are a {type(args).__name__}, not a tuple",
            loc=Loc(str(path)),
            next_step=_PROTOCOL,
        )
    return Workload(name, undecorated(function), make_args, summary=f"from {path.name}")


def undecorated(function: Function) -> Function:
    """The plain function inside `jax.jit(f)` or `stagejit.jit(f)`; anything else unchanged.

    Every contender compiles the function itself. Only jit-like objects (those that can be lowered)
    are opened: `jax.grad(f)` also carries `__wrapped__` and is another function.
    """
    while hasattr(function, "lower") and hasattr(function, "__wrapped__"):
        function = function.__wrapped__
    return function

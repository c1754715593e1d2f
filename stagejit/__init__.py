"""stagejit: a compiler for JAX programs that shows every decision it takes.

    jaxpr --trace--> graph --rewrites--> graph --dispatch--> graph of dispatches
      --schedule--> plan --codegen--> loop-nest IR --llvm--> kernels --runtime--> XLA FFI call

Use `stagejit.jit` where you would use `jax.jit`:

    @stagejit.jit
    def f(x, w): ...

    f(x, w)            a jax.Array, under jit, grad, vmap, scan, shard_map, checkpoint as well
    f.plan(x, w)       the dispatches, the subranges they touch, the barriers between them
    f.explain(x, w)    each decision with its reason and your source line

`stagejit.bind(f, params)` for a function of the other arguments, whose parameters stay the same,

`stagejit.extending` for parts of the compiler of your own,

and `stagejit.enable()`, or `with stagejit.enabled():`, to stage every function of `jax.jit`.
"""

import importlib
from typing import TYPE_CHECKING, Any

from stagejit.api import jit
from stagejit.base.decisions import Decision
from stagejit.base.enabling import disable, enable, enabled
from stagejit.base.showing import drawn_by, printed_by
from stagejit.base.threads.importing import importing
from stagejit.errors import FallbackWarning, StagejitError
from stagejit.options import Options

if TYPE_CHECKING:
    from stagejit.binding import Bound, bind
    from stagejit.inspect.profiles.rows import DispatchTimes
    from stagejit.inspect.profiles.session import Profile, profile
    from stagejit.schedule.plans.plan import Access, Barrier, Buffer, Dispatch, HostScalar, Plan
    from stagejit.stages import Compiled, Lowered, Traced
    from stagejit.trace.calls.primitives import inline

__all__ = [
    "Access",
    "Barrier",
    "Bound",
    "Buffer",
    "Compiled",
    "Decision",
    "Dispatch",
    "DispatchTimes",
    "FallbackWarning",
    "HostScalar",
    "Lowered",
    "Options",
    "Plan",
    "Profile",
    "StagejitError",
    "Traced",
    "bind",
    "disable",
    "enable",
    "enabled",
    "inline",
    "jit",
    "profile",
]

# What a program names rarely and late: the modules it comes from import the compiler.
_HOMES = {
    **dict.fromkeys(
        ("Access", "Barrier", "Buffer", "Dispatch", "HostScalar", "Plan"),
        "stagejit.schedule.plans.plan",
    ),
    **dict.fromkeys(("Bound", "bind"), "stagejit.binding"),
    "inline": "stagejit.trace.calls.primitives",
    "DispatchTimes": "stagejit.inspect.profiles.rows",
    **dict.fromkeys(("Profile", "profile"), "stagejit.inspect.profiles.session"),
    **dict.fromkeys(("Compiled", "Lowered", "Traced"), "stagejit.stages"),
}


def _drawn(shown: Any) -> str:
    with importing:
        from stagejit.inspect.pictures.views import html_of
    return html_of(shown)


def _printed(graph: Any) -> str:
    with importing:
        from stagejit.graph.text.printer import as_text
    return as_text(graph)


drawn_by(_drawn)
printed_by(_printed)


def __getattr__(name: str) -> Any:
    if name == "__version__":
        return _version()
    if name == "extending":
        with importing:
            return importlib.import_module("stagejit.extending")
    if name not in _HOMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    with importing:
        value = globals()[name] = getattr(importlib.import_module(_HOMES[name]), name)
    return value


def _version() -> str:
    """The version that is installed; asked for late, since reading metadata takes milliseconds."""
    from importlib.metadata import PackageNotFoundError, version

    try:
        globals()["__version__"] = found = version("stagejit")
    except PackageNotFoundError:
        raise AttributeError("stagejit has no version where it is not installed") from None
    return found


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__, "__version__"})

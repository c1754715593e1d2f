"""What the user calls: `stagejit.jit`.

Input: a Python function. Output: JAX's own jitted function, whose programs carry a mark that sends
them to our compiler (see `runtime.lowering.marks`). Invariant: what JAX's jit does with arguments
(pytrees, static arguments, donation, shardings, caching, dispatch) is done by JAX's jit; a call
takes its C++ fast path and nothing of ours runs.

Note [Import time]: the compiler (500 modules, LLVM) is imported where it is first needed,
so that a program which imports stagejit waits for JAX alone.
"""

from __future__ import annotations

import functools
import inspect
import warnings
from collections.abc import Callable, Collection, Iterator
from dataclasses import fields, replace
from typing import TYPE_CHECKING, Any, overload

import jax

from stagejit.base.threads.collector import collector_paused
from stagejit.base.threads.importing import importing
from stagejit.compat import hide_frames
from stagejit.errors import FallbackWarning, OptionsError
from stagejit.options import TARGETS, Options, checked, suggested
from stagejit.runtime.lowering import embedding, fallback, seams
from stagejit.runtime.lowering.marks import Mark

if TYPE_CHECKING:
    from stagejit.inspect.explain import Explanation
    from stagejit.runtime.lowering.staged import Request, Staged
    from stagejit.schedule.plans.plan import Plan
    from stagejit.stages import Lowered, Traced


def _compile(request: Request) -> Staged:
    with collector_paused():  # imports, too, make what stays: a fifth of the first compile
        with importing:
            from stagejit.pipeline import compile_request  # see Note [Import time]
        return compile_request(request)


embedding.install(_compile)
for _file in (__file__, embedding.__file__, fallback.__file__, seams.__file__):
    hide_frames(_file)  # they would stand in tracebacks and locations of the user's programs

_NO_FUNCTION: Any = object()
_NOT_GIVEN: Any = object()


@overload
def jit(
    fun: Callable[..., Any], /, *, options: Options | None = None, **jit_options: Any
) -> Any: ...


@overload
def jit(
    *, options: Options | None = None, **jit_options: Any
) -> Callable[[Callable[..., Any]], Any]: ...


def jit(
    fun: Callable[..., Any] = _NO_FUNCTION,
    /,
    *,
    options: Options | None = None,
    **jit_options: Any,
) -> Any:
    """Compile `fun` with stagejit; a drop-in for `jax.jit`, also as `@stagejit.jit(...)`.

    options: fixed for this function; by default those of the innermost `with Options(...)` around
        the call that lowers it.
    jit_options: all that jax.jit takes (static_argnums, donate_argnames, in_shardings, ...).
        backend="cuda" or "cuda-emulated" stands for `Options(target=...)`; calls of such a function
        take arrays on a GPU, too (see `gpu_calls`).

    The result is a jax.jit object with more attributes: `.plan` and `.explain`; what its `.trace`
    and `.lower` return shows our stages as well.
    Raises what jax.jit raises for a wrong `fun` or wrong arguments; OptionsError.
    """
    require_known("jit", jit_options)
    if fun is _NO_FUNCTION:
        return functools.partial(jit, options=options, **jit_options)
    options = _with_backend(checked(options), jit_options)
    if seams.problems():
        _warn_once()
        return seams.plain_jit(fun, jit_options, stacklevel=2)
    jitted = seams.jit_with(functools.partial(Mark, options), fun, jit_options, stacklevel=2)
    jitted.__dict__ = _Attributes(jitted.__dict__, Stages(jitted))
    if options is None or not options.on_gpu:
        return jitted
    from stagejit.gpu_calls import GpuFunction  # see Note [Import time]

    return GpuFunction(jitted, options)


def require_known(function: str, jit_options: Collection[str], own: Collection[str] = ()) -> None:
    """Raises TypeError, as Python does, for a name that neither jax.jit nor `function` takes, and
    says what was meant. own: names that `function` takes."""
    known = ["options", *own, *seams.names_of_jit()] if jit_options else []
    for name in jit_options:
        if name in known:
            continue
        meant = suggested(name, known)
        if name in (each.name for each in fields(Options)):
            meant = f"it is one of the options: options=stagejit.Options({name}=...)"
        raise TypeError(f"{function}() got an unexpected keyword argument {name!r}: {meant}")


def _with_backend(options: Options | None, jit_options: dict[str, Any]) -> Options | None:
    """Options whose target is the backend, if that is one of ours; else it stays among JAX's."""
    backend = jit_options.get("backend")
    if backend not in TARGETS:
        return options
    del jit_options["backend"]
    if options is not None and options.target not in ("native", backend):
        raise OptionsError(
            f"backend is {backend!r}, and options say {options.target!r}",
            next_step="give one of them",
        )
    return replace(options or Options(), target=backend)


@functools.cache
def _warn_once() -> None:
    warnings.warn(
        f"stagejit does not know jax {jax.__version__} ({'; '.join(seams.problems())}); "
        "stagejit.jit is jax.jit. Next: install a version of jax that stagejit supports, "
        "0.10 to 0.12, or a newer stagejit.",
        FallbackWarning,
        stacklevel=3,
    )


class Traceable:
    """What a trace of a function leads to."""

    def trace(self, *args: Any, **kwargs: Any) -> Traced:
        """Trace for these arguments, which may be `jax.ShapeDtypeStruct`."""
        raise NotImplementedError

    def lower(self, *args: Any, **kwargs: Any) -> Lowered:
        """Trace and lower for these arguments."""
        return self.trace(*args, **kwargs).lower()

    def plan(self, *args: Any, **kwargs: Any) -> Plan:
        """What a call with these arguments runs, and why it is in this order."""
        return self.trace(*args, **kwargs).plan

    def explain(
        self,
        *args: Any,
        disable: Any = _NOT_GIVEN,
        what_if: Any = _NOT_GIVEN,
        measure: Any = _NOT_GIVEN,
        **kwargs: Any,
    ) -> Explanation:
        """What the compilation for these arguments did, by source line, and why: see `Explanation`.

        disable: names of rewrites without which it is explained, and compared to that with them.
        what_if: names of rewrites of each of which it is told what it is worth (dispatches, copies,
            bytes moved, transients, peak, barriers, modelled seconds); True: all that were applied.
        measure: whether calls with and without them are measured, too, for about a second each.
        A function that has a parameter of one of these names gets that argument itself.
        Raises OptionsError for names that are no rewrites.
        """
        own = {"disable": disable, "what_if": what_if, "measure": measure}
        given = {name: value for name, value in own.items() if value is not _NOT_GIVEN}
        kwargs |= {name: given.pop(name) for name in [*given] if name in self._parameters()}
        traced, timed = self.trace(*args, **kwargs), None
        if given.pop("measure", False):
            with importing:
                from stagejit.inspect.explain.measured import seconds_of  # see Note [Import time]
            timed = functools.partial(seconds_of, self, args=args, kwargs=kwargs)
        return traced.explained(**given, timed=timed)

    def _parameters(self) -> Collection[str]:
        """Of the function itself."""
        try:
            return inspect.signature(self._fun).parameters
        except (TypeError, ValueError):  # some have no signature
            return ()

    _fun: Any


class Stages(Traceable):
    """The attributes that a staged function has besides those of `jax.jit`'s.

    It holds what JAX's `trace` asks of a jitted function, not that function: no cycle.
    """

    def __init__(self, jitted: Any) -> None:
        self._fun, self._jit_info = jitted._fun, jitted._jit_info

    def trace(self, *args: Any, **kwargs: Any) -> Traced:
        """Trace for these arguments, which may be `jax.ShapeDtypeStruct`."""
        with importing:
            from stagejit.stages import Traced  # see Note [Import time]

        made = seams.trace_jitted(self, *args, **kwargs)
        return Traced.of(made, self._jit_info, args, kwargs)


class _Attributes(dict[str, Any]):
    """Attributes of a function, of which ours are its alone.

    Note [Attributes that stay]: `functools.wraps` and JAX's own copy copy what a function's
    `__dict__` lists. With our `trace` in the copy, `jax.make_jaxpr(f)` or `jax.jit(f).lower`
    would ask us about a function that is not ours. So ours can be looked up but are not listed.
    """

    own = frozenset({"trace", "lower", "plan", "explain"})

    def __init__(self, attributes: dict[str, Any], stages: Stages) -> None:
        super().__init__(attributes)
        self.update({name: getattr(stages, name) for name in self.own})

    def __iter__(self) -> Iterator[str]:
        return (name for name in super().__iter__() if name not in self.own)

    def keys(self) -> Any:
        return list(self)

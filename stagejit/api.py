"""What the user calls: `stagejit.jit`.

Input: a Python function. Output: a `jax.jit` object around a second, marked `jax.jit` of the same
function, which the embedding's lowering rule recognises. Invariant: what JAX's jit does with
arguments (pytrees, static arguments, donation, shardings, caching, dispatch) is done by JAX's
jit; a call takes its C++ fast path and nothing of ours runs.

Note [Two jits]: the outer one is needed because a top-level jit lowers its own jaxpr without asking
any lowering rule. The inner one carries the options in its name, so there is one inner jit for each
options value, and `with Options(...)` (a part of JAX's cache key) selects it while tracing.

Note [Import time]: the compiler (190 modules, networkx, LLVM) is imported where it is first needed,
so that a program which imports stagejit waits for JAX alone.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Any, overload

import jax

from stagejit.options import Options, current
from stagejit.runtime import embedding
from stagejit.trace.compat import hide_frames

if TYPE_CHECKING:
    from stagejit.inspect.explain import Explanation
    from stagejit.schedule.plan import Plan
    from stagejit.stages import Lowered, Traced


def _compile(request: embedding.Request) -> embedding.Staged:
    from stagejit.pipeline import compile_request  # see Note [Import time]

    return compile_request(request)


embedding.install(_compile)
hide_frames(__file__)  # the two wrappers below would stand in every traceback of a user

# What says how to read the function's arguments: the inner jit needs it too.
_SHARED = ("static_argnums", "static_argnames", "donate_argnums", "donate_argnames")


@overload
def jit(
    fun: Callable[..., Any], /, *, options: Options | None = None, **jit_options: Any
) -> Any: ...


@overload
def jit(
    *, options: Options | None = None, **jit_options: Any
) -> Callable[[Callable[..., Any]], Any]: ...


def jit(
    fun: Callable[..., Any] | None = None, /, *, options: Options | None = None, **jit_options: Any
) -> Any:
    """Compile `fun` with stagejit; a drop-in for `jax.jit`, also as `@stagejit.jit(...)`.

    options: fixed for this function; by default those of the innermost `with Options(...)` around
        the call that traces it.
    jit_options: all that jax.jit takes (static_argnums, donate_argnames, in_shardings, ...).

    The result is a jax.jit object with more attributes: `.trace`, `.lower`, `.plan`, `.explain`.
    Raises what jax.jit raises for a wrong `fun` or wrong arguments.
    """
    if fun is None:
        return functools.partial(jit, options=options, **jit_options)
    jax.jit(fun, **jit_options)  # for its errors, which then name the user's function
    shared = {name: jit_options[name] for name in _SHARED if name in jit_options}
    inners: dict[Options, Any] = {}

    def outer(*args: Any, **kwargs: Any) -> Any:
        chosen = options if options is not None else current()
        if chosen not in inners:
            inners[chosen] = _marked(fun, chosen, shared)
        return inners[chosen](*args, **kwargs)

    jitted = jax.jit(_named_like(fun, outer), **jit_options)
    _attach(jitted, fun, inners)
    return jitted


def _marked(fun: Callable[..., Any], options: Options, shared: dict[str, Any]) -> Any:
    """The inner jit. Its name carries the marker, its signature is the user's."""

    def inner(*args: Any, **kwargs: Any) -> Any:
        return fun(*args, **kwargs)

    _named_like(fun, inner)
    inner.__name__ = embedding.marked_name(inner.__name__, options)
    return jax.jit(inner, **shared)


def _named_like(fun: Callable[..., Any], wrapper: Callable[..., Any]) -> Callable[..., Any]:
    """`wrapper` with the name and signature of `fun`, which may also be a callable object."""
    functools.update_wrapper(wrapper, fun)
    inner = fun.func if isinstance(fun, functools.partial) else fun
    wrapper.__name__ = getattr(inner, "__name__", type(inner).__name__)
    return wrapper


def _attach(jitted: Any, fun: Callable[..., Any], inners: dict[Options, Any]) -> None:
    """Set our attributes on JAX's own object: a wrapper around it would cost time in each call."""
    jax_trace, jax_clear_cache = jitted.trace, jitted.clear_cache

    def trace(*args: Any, **kwargs: Any) -> Traced:
        """Trace for these arguments, which may be `jax.ShapeDtypeStruct`."""
        from stagejit.stages import Traced  # see Note [Import time]

        traced = jax_trace(*args, **kwargs)
        return Traced(embedding.request_in(traced.jaxpr), traced)

    def lower(*args: Any, **kwargs: Any) -> Lowered:
        """Trace and compile for these arguments, up to kernels and a schedule."""
        lowered: Lowered = trace(*args, **kwargs).lower()
        return lowered

    def plan(*args: Any, **kwargs: Any) -> Plan:
        """What a call with these arguments runs, and why it is in this order."""
        return lower(*args, **kwargs).plan

    def explain(*args: Any, **kwargs: Any) -> Explanation:
        """Each decision of the compilation for these arguments, with its reason."""
        return lower(*args, **kwargs).explanation

    def clear_cache() -> None:
        """Forget what was traced and compiled for this function."""
        jax_clear_cache()
        for inner in inners.values():
            inner.clear_cache()
        inners.clear()

    jitted.__wrapped__ = fun
    ours = {f.__name__: f for f in (trace, lower, plan, explain, clear_cache)}
    jitted.__dict__ = _Attributes(jitted.__dict__, ours)


class _Attributes(dict[str, Any]):
    """Attributes of a function, of which `own` are its alone.

    Note [Attributes that stay]: `functools.wraps` and JAX's own copy copy what a function's
    `__dict__` lists. With our `trace` in the copy, `jax.make_jaxpr(f)` or `jax.jit(f).lower`
    would ask us about a function that is not ours. So `own` can be looked up but is not listed.
    """

    def __init__(self, attributes: dict[str, Any], own: dict[str, Any]) -> None:
        super().__init__(attributes)
        self.update(own)
        self.own = frozenset(own)

    def __iter__(self) -> Iterator[str]:
        return (name for name in super().__iter__() if name not in self.own)

    def keys(self) -> Any:
        return list(self)

"""Marks: what makes an equation of JAX's jit primitive ours.

Input: options. Output: jit equations and jitted functions that carry them. Invariant: JAX hands a
mark through every transformation and every cache key, and looks at nothing of it.

Note [Marks]: a mark stands where JAX keeps the compiler options of a jit
(`compiler_options_kvs`): a tuple of pairs, empty and so without effect where the user gave none.
It is the one parameter that is in the keys of all caches, that of the C++ fast path included, so
`jax.jit(f)` and `stagejit.jit(f)` share the trace of `f` and nothing else. The mark may not be in
the function: a wrapper would be traced again for each `stagejit.jit(f)`, would show in tracebacks,
and would have to live as long as `f`.
"""

from __future__ import annotations

import functools
from collections.abc import Iterable, Sequence
from typing import Any

import jax
from jax.extend import core as jex_core
from jax.extend.core.primitives import jit_p

from stagejit.options import Options

_jax_jit = jax.jit  # also where a user replaces it by ours
_PARAMETER = "compiler_options_kvs"
BODY = "body"  # of a loop or a branch that stays with XLA: the name of what we make of it


class Mark(tuple[Any, ...]):
    """The user's compiler options (pairs of name and value) and ours.

    options: None for those around the call. snapshot: which input is one, see `snapshots.py`.
    history: what the function that has this mark was compiled for, see `compilations/history.py`;
    no part of the value.
    """

    options: Options | None
    snapshot: int | None
    history: list[Any]

    def __new__(
        cls,
        options: Options | None,
        pairs: Iterable[Any] = (),
        history: list[Any] | None = None,
        snapshot: int | None = None,
    ) -> Mark:
        self = super().__new__(cls, pairs)
        self.options, self.snapshot = options, snapshot
        self.history = [] if history is None else history
        return self

    def __eq__(self, other: object) -> bool:
        same = isinstance(other, Mark) and self._of_ours == other._of_ours
        return same and tuple.__eq__(self, other)

    @property
    def _of_ours(self) -> Any:
        return self.options, self.snapshot

    def __ne__(self, other: object) -> bool:
        return not self == other

    def __hash__(self) -> int:
        return hash((Mark, self._of_ours, tuple(self)))

    def __add__(self, other: tuple[Any, ...]) -> Mark:
        """JAX appends options of its own (profile-guided latencies)."""
        return Mark(self.options, (*self, *other), self.history, self.snapshot)

    def __reduce__(self) -> Any:
        return Mark, (self.options, tuple(self), None, self.snapshot)

    def __repr__(self) -> str:
        return f"Mark({self.options!r}, {tuple(self)!r})"


def mark_of(params: dict[str, Any]) -> Mark | None:
    """The mark among the parameters of a jit equation."""
    found = params.get(_PARAMETER)
    return found if isinstance(found, Mark) else None


def marked(params: dict[str, Any], mark: Mark) -> dict[str, Any]:
    """Parameters of a jit equation with another mark."""
    return {**params, _PARAMETER: mark}


def enclose(
    body: Any,
    options: Options,
    name: str = BODY,
    donated: Sequence[bool] = (),
    snapshot: int | None = None,
) -> Any:
    """A closed jaxpr of the same type whose only equation is a marked jit of `body`.

    For whole programs, and for the bodies of loops that stay with XLA: JAX lowers the loop, and our
    rule its body.
    """
    jaxpr = body.jaxpr
    results = [jex_core.Var(aval) for aval in body.out_avals]
    params = _jit_params(len(jaxpr.invars), len(results))
    params |= {"jaxpr": body, "name": name, _PARAMETER: Mark(options, snapshot=snapshot)}
    if donated:
        params["donated_invars"] = tuple(donated)
    equation = jex_core.new_jaxpr_eqn(list(jaxpr.invars), results, jit_p, params, jaxpr.effects)
    outer = jex_core.Jaxpr((), jaxpr.invars, results, [equation], jaxpr.effects, jaxpr.debug_info)
    return jex_core.ClosedJaxpr(outer, ())


def with_input(call: Any, body: Any) -> dict[str, Any]:
    """Parameters of a jit equation that calls `body`, with one input more than a call has, the last
    one."""
    params: dict[str, Any] = dict(call.params)
    if call.primitive is jit_p:
        params |= {name: (*params[name], *_template()[name]) for name in _OF_INPUTS}
    else:
        params = _jit_params(len(call.invars) + 1, len(call.outvars))
        params["name"] = call.primitive.name
    return params | {"jaxpr": body}


def plain_params(body: Any, name: str) -> dict[str, Any]:
    """Parameters of a jit equation that is no more than a call of `body`."""
    jaxpr = body.jaxpr
    params = _jit_params(len(jaxpr.invars), len(jaxpr.outvars))
    return params | {"jaxpr": body, "name": name}


def call_params(
    params: dict[str, Any], body: Any, inputs: Iterable[int | None], outputs: Iterable[int | None]
) -> dict[str, Any]:
    """Parameters of a jit equation that calls `body` instead. inputs, outputs: which one each was
    there, None for those that were none."""
    plain = _template()

    def of(name: str, numbers: Iterable[int | None]) -> tuple[Any, ...]:
        return tuple(plain[name][0] if at is None else params[name][at] for at in numbers)

    inputs, outputs = tuple(inputs), tuple(outputs)
    changed = {name: of(name, inputs) for name in _OF_INPUTS}
    changed |= {name: of(name, outputs) for name in _OF_OUTPUTS}
    return {**params, **changed, "jaxpr": body}


_OF_INPUTS = ("in_shardings", "in_layouts", "donated_invars")
_OF_OUTPUTS = ("out_shardings", "out_layouts")


def _jit_params(inputs: int, outputs: int) -> dict[str, Any]:
    """Parameters of a plain jit equation, whatever this version of JAX has."""
    counts = dict.fromkeys(_OF_INPUTS, inputs) | dict.fromkeys(_OF_OUTPUTS, outputs)
    return {k: v * counts[k] if k in counts else v for k, v in _template().items()}


@functools.cache
def _template() -> dict[str, Any]:
    """Those of a traced function of one argument and one result, so each of the tuples with an
    entry for each argument or result has one."""
    params = jax.make_jaxpr(_jax_jit(lambda x: x + 1))(0.0).jaxpr.eqns[0].params
    return {name: value for name, value in params.items() if name != "jaxpr"}

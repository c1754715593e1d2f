"""Random lives of bound functions: calls, other shapes, derivatives and maps from several threads,
while weights are updated and functions are dropped and bound anew.

Input: a seed. Output: what went wrong, in words. Invariants that are checked: a result is that of
weights which the function had at some moment of the call; what is known is neither compiled nor
made anew; arrays that nobody can read any more are gone.
"""

from __future__ import annotations

import gc
import threading
import weakref
from collections.abc import Callable
from random import Random
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

import stagejit
from stagejit.runtime.bound import evaluation_counts
from stagejit.runtime.cpu.loader import call_count
from tests.fuzz.bound.models import Model

Array = Any
# How far results are from those in float64, of how large they are.
ERRORS: dict[Any, float] = {None: 1e-3, "bf16": 0.05, "int8": 0.08, "int4": 0.7}
_STEP = 1e-4
_ROWS = (1, 3, 17, 40)


class Life:
    """A function that is bound, and all that it has been. versions: parameters, from the one on
    that a call which begins now may read."""

    def __init__(self, model: Model, form: Any, seed: int) -> None:
        self.model, self.form, self.seed = model, form, seed
        self.given: list[weakref.ref[Any]] = []
        self.versions = [self._parameters()]
        self.done = 0  # the version that every call that begins now reads, or a later one
        self.bound = stagejit.bind(model, self._given(self.versions[0]), weights=form)
        self.jitted = jax.jit(lambda x: self.bound(x) * 2)
        self.gradient = jax.grad(lambda x: (self.bound(x) ** 2).sum())
        self.jitted_gradient = jax.jit(self.gradient)
        self.updating = threading.Lock()

    def _parameters(self) -> Any:
        """As NumPy arrays, which we keep."""
        self.seed += 1
        return jax.tree.map(np.asarray, self.model.parameters(self.seed))

    def _given(self, params: Any) -> Any:
        arrays = jax.tree.map(lambda a: jnp.array(a, copy=True), params)
        self.given += map(weakref.ref, jax.tree.leaves(arrays))
        self.kept = arrays  # for programs that are compiled later
        return arrays

    def update(self) -> None:
        with self.updating:
            self.versions.append(self._parameters())
            before = self.kept
            self.bound.update(self._given(self.versions[-1]))
            del before  # till now a program that is compiled meanwhile may ask for it
            self.done = len(self.versions) - 1

    def nearest(self, at: int, judged: Callable[[Any], float]) -> float:
        """The least error against a version, of those since `at`."""
        return min(judged(params) for params in self.versions[at:])


def _call(life: Life, x: Array, function: Callable[[Array], Array], times: float = 1.0) -> str:
    at = life.done
    found = np.asarray(function(x), np.float64) / times

    def judged(params: Any) -> float:
        wanted = life.model.in_float64(params, x)
        return float(np.linalg.norm(found - wanted) / (np.linalg.norm(wanted) + 1e-9))

    return _verdict(life, life.nearest(at, judged))


def _grad(life: Life, x: Array, function: Callable[[Array], Array]) -> str:
    """A step along the gradient of the sum of squares changes that by as much as it says."""
    at = life.done
    found = np.asarray(function(x), np.float64)
    wide, square = np.asarray(x, np.float64), float((found**2).sum()) + 1e-12
    step = _STEP * found / square**0.5

    def judged(params: Any) -> float:
        after, before = (
            float((life.model.in_float64(params, wide + by) ** 2).sum()) for by in (step, -step)
        )
        return float(abs((after - before) / (2 * _STEP * square**0.5) - 1))

    return _verdict(life, life.nearest(at, judged) / 4)


def _verdict(life: Life, error: float) -> str:
    return "" if error < ERRORS[life.form] else f"an error of {error:.3g} as {life.form}"


READS: dict[str, Callable[[Life, Array], str]] = {
    "call": lambda life, x: _call(life, x, life.bound),
    "in a program": lambda life, x: _call(life, x, life.jitted, 2.0),
    "map": lambda life, x: _call(life, x, lambda x: jax.vmap(life.bound)(x[None])[0]),
    "gradient": lambda life, x: _grad(life, x, life.gradient),
    "gradient in a program": lambda life, x: _refused_or(life, x),
}


def _refused_or(life: Life, x: Array) -> str:
    """Where an update came between its two programs, there is an error that says so."""
    at = 1 + life.done
    try:
        return _grad(life, x, life.jitted_gradient)
    except Exception as error:
        if "were updated between" in str(error) and len(life.versions) > at:
            return ""
        raise


def trouble(seed: int, *, actions: int = 12, known: Any = None) -> list[str]:
    """What is wrong with a life of several threads; nothing, it should be."""
    rng = Random(seed)
    model, form = Model.random(rng), rng.choice(list(ERRORS))
    life, found = Life(model, form, seed), list[str]()
    reads = [r for r in READS if not r.startswith("gradient") or form != "int4"]

    def act(own: Random) -> None:
        for _ in range(actions):
            how = own.choice([*reads, "update", "update"])
            if how == "update":
                life.update()
                continue
            x = np.asarray(np.random.default_rng(own.randrange(99)).normal(
                size=(own.choice(_ROWS), model.sizes[0])), np.float32)  # fmt: skip
            try:
                said = READS[how](life, x)
            except Exception as error:
                said = f"{type(error).__name__}: {error}"
            if said:
                found.append(f"seed {seed}, {model}: {how} of {x.shape}: {said}")

    threads = [
        threading.Thread(target=act, args=(Random(rng.random()),)) for _ in range(rng.randint(1, 3))
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return found + [f"seed {seed}, {model}, {form}: {said}" for said in _afterwards(life)]


def _afterwards(life: Life) -> list[str]:
    """What is wrong when all is quiet."""
    found = []
    x = np.ones((40, life.model.sizes[0]), np.float32)
    life.bound(x).block_until_ready()
    made, calls = evaluation_counts(), call_count()
    life.bound(x).block_until_ready()
    if evaluation_counts() != made:
        found.append("a call that is known makes something of weights")
    if call_count() == calls:
        found.append("no program of ours was called")
    life.update()
    now = len(jax.tree.leaves(life.versions[0]))
    gc.collect()
    if any(ref() is not None for ref in life.given[:-now]):
        found.append("weights of earlier updates are still there")
    given = life.given
    del life.bound, life.jitted, life.kept, life.gradient, life.jitted_gradient
    gc.collect()
    if any(ref() is not None for ref in given):
        found.append("weights of a function that is gone are still there")
    return found

"""`stagejit.bind`: a function of its other arguments, whose first one is the same in every call.

Input: a function, what its first argument is. Output: a `Bound`, which is called, transformed and
looked at as what `stagejit.jit` gives. Invariants: no program holds the elements of an array that
is bound, so `update` compiles nothing; a call computes with arrays of one update.
"""

from __future__ import annotations

import contextlib
import functools
import inspect
import operator
import secrets
import textwrap
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Literal, get_args

import jax
import jax.numpy as jnp
import numpy as np
from jax.interpreters import mlir

from stagejit.api import Traceable, jit, require_known
from stagejit.base.enabling import apart
from stagejit.base.extension import line_of
from stagejit.base.numbers import counted
from stagejit.base.threads.importing import importing
from stagejit.base.threads.locks import new_rlock
from stagejit.base.threads.other_threads import on_another_thread
from stagejit.errors import OptionsError
from stagejit.inspect.weights import WeightTable, table_of
from stagejit.options import Options
from stagejit.runtime.cpu import snapshots
from stagejit.runtime.gradients import held, seams
from stagejit.runtime.waiting import wait_for_calls
from stagejit.trace.calls.parameters import (
    Given,
    are_equal,
    difference,
    given_of,
    is_array,
    name_of,
    require_same,
)
from stagejit.trace.contents import content_anew, content_of
from stagejit.trace.weights import Budget, Forms, Reading, Weight, changing, tables_of, weight_p

if TYPE_CHECKING:
    from stagejit.inspect.explain import Explanation
    from stagejit.stages import Traced

seams.install()

Form = Literal["bf16", "int8", "int4"]
BUDGET_MS = 60_000.0
_MOST_SMALL = 1 / 64  # of the bytes of all weights


def bind(
    fun: Callable[..., Any],
    params: Any,
    /,
    *,
    options: Options | None = None,
    weights: Form | None = None,
    budget_ms: float = BUDGET_MS,
    budget_nbytes: int | None = None,
    **jit_options: Any,
) -> Bound:
    """`stagejit.jit` of `fun(params, ...)` as a function of the other arguments.

    params: any pytree. Its arrays are weights: programs read them where they are, no call passes
        them, and what they alone determine is computed once, when a program is compiled. Arrays of
        JAX's are not copied; one that is deleted or donated later stays in memory for the programs
        that read it. NumPy arrays are copied now: who writes to one afterwards, or to memory that
        an array of JAX's shares (`device_put`, `from_dlpack`), calls `update`. Numbers, and all
        else that is no array, are compiled in. Donating an array to another function while
        programs read it saves nothing: that gets a copy, as of any array to which there is another
        reference.
    options: as of `stagejit.jit`.
    weights: how products read matrices of f32: "bf16", or "int8" or "int4" with a scale for each
        output channel. Kernels widen them; sums stay f32. See `Bound.weight_error`. A weight that
        others than products read, too, stays as it is, but for who picks rows of it, as an
        embedding does: that reads the same numbers. What is returned of a weight is of these
        numbers, too. A part, a sum or a multiple of weights that products read is rounded by
        itself, and the weights are not made of that. Vectors that matrices are multiplied by, as
        those of a batch norm, may be read by others. One with an Inf or a NaN, which integers have
        not, stays, too, and one whose finite numbers would not all be finite: OptionsError where an
        update gives such to a program that has the form, or where it is computed of weights. So
        does what is made of fewer bytes than it would have, as of integers of 8 bits where "bf16"
        is asked for.
    budget_ms: what is computed once takes at most so long, by estimate.
    budget_nbytes: a program has at most so many bytes of it and of the weights that it reads as
        they are; by default 1.2 times those of all weights.
    jit_options: as of `jax.jit`; arguments are counted without `params`. TypeError for another one.

    `jax.jit`, `grad`, `vmap`, `scan` and `checkpoint` go through it, for the other arguments; to
    differentiate by the parameters, use `fun`. A program around it that somebody else compiles,
    such as one of `jax.jit`, reads the weights of the moment in which it runs.
    `copy.deepcopy` and pickle take what is bound along (for pickle, `fun` has to be one that it
    takes: of a module, by its name); what they give compiles anew, when it is called.
    The caller may forget `params`: a weight of which only something else is read is freed, but for
    the smallest. What was made stays; programs that need what was not made, or a NumPy array that
    somebody wrote to since, raise GoneError.
    Raises OptionsError for arrays that no device has whole, on another platform, or deleted.
    """
    if weights not in (None, *get_args(Form)):
        raise OptionsError(
            f"weights is {weights!r}",
            loc=line_of(),
            next_step=f"give None, or one of {', '.join(map(repr, get_args(Form)))}",
        )
    if not callable(fun):
        raise OptionsError(
            f"bind() got {textwrap.shorten(repr(fun), 80, placeholder='...')} as a function",
            loc=line_of(),
            next_step="give the function first, then its parameters: bind(fun, params)",
        )
    for name, most in (("budget_ms", budget_ms), ("budget_nbytes", budget_nbytes)):
        if most is not None and not (isinstance(most, int | float) and most >= 0):
            raise OptionsError(
                f"{name} is {most!r}", loc=line_of(), next_step="give a number, at least 0"
            )
    require_known("bind", jit_options, ("weights", "budget_ms", "budget_nbytes"))
    budget = Budget(budget_ms, budget_nbytes)
    return Bound(fun, params, weights, budget, options, jit_options)


class Bound(Traceable):
    """What `bind` returns: a function. In plans buffers of weights are of kind "weight"; in what
    `explain` says, `evaluate-weights` is what is made once, and what is not."""

    def __init__(
        self,
        fun: Callable[..., Any],
        params: Any,
        form: Form | None,
        budget: Budget,
        options: Options | None,
        jit_options: dict[str, Any],
    ) -> None:
        self._tree: Any
        leaves, self._tree = jax.tree_util.tree_flatten_with_path(params)
        self._leaves: list[Any] = []  # weights, and what is no array
        self._forms = Forms(form)
        name = getattr(fun, "__name__", "f")
        self._words = [secrets.randbits(32), secrets.randbits(32), 0]
        self._moment = Weight(f"moment of {name}", _words(self._words), True, budget)
        self._moment.is_moment = True
        for path, leaf in leaves:
            name = name_of(path)
            if is_array(leaf):
                array, is_copy, content = given_of(name, leaf)
                leaf = Weight(name, array, is_copy, budget, self._forms, content)
                leaf.moment = self._moment
            self._leaves.append(leaf)
        _mark_small(self._weights())
        self._lock = new_rlock()  # which knows who has it; nobody takes it twice
        self._given = fun, form, budget, options, jit_options
        functools.update_wrapper(self, fun, updated=())
        del self.__wrapped__  # which has one parameter more
        remaining = _remaining(fun, self._leaves, self._tree)
        with contextlib.suppress(TypeError, ValueError):  # some have no signature
            self.__signature__ = inspect.signature(remaining)
        self._jitted = jit(remaining, options=options, **jit_options)

    __wrapped__: Any

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        if self._forms.is_overruled:  # see Note [One form] in `trace/weights.py`
            self._forms.is_overruled = False
            self.clear_cache()
        return self._jitted(*args, **kwargs)

    def trace(self, *args: Any, **kwargs: Any) -> Traced:
        """As of `stagejit.jit`."""
        traced: Traced = self._jitted.trace(*args, **kwargs)
        return traced

    def explain(self, *args: Any, **kwargs: Any) -> Explanation:
        """As of `stagejit.jit`."""
        explanation: Explanation = self._jitted.explain(*args, **kwargs)
        return explanation

    def eval_shape(self, *args: Any, **kwargs: Any) -> Any:
        """As of `jax.jit`."""
        return self._jitted.eval_shape(*args, **kwargs)

    def clear_cache(self) -> None:
        """As of `jax.jit`."""
        self._jitted.clear_cache()

    def update(self, params: Any) -> None:
        """params: other weights of the same shapes and types, for all calls that begin from now on,
        also inside programs of others. Nothing is compiled; what is made of weights is made anew,
        also of an array of JAX's that was bound before, whose memory somebody may share; not of one
        of NumPy's that has the same bytes.

        Waits for all that has been called before. A call on another thread meanwhile computes with
        the old weights or the new ones, never with some of both, also where XLA runs an equation
        between what reads them (`plan.delegated`). One that a signal interrupts has changed all of
        them, or is about to, or none. Raises OptionsError, and changes nothing, where the
        structure, a shape, a type or a number differs, and where a program cannot compute with
        these weights: see `weights` of `bind`, and `scale-weights` in `stagejit/docs/numbers.md`;
        and where it is called inside of another one, by what interrupts that on its thread. Any
        other exception, as a MemoryError while the new weights are made, changes nothing either. An
        array that cannot be let go for want of memory is kept until the next update.
        """
        leaves, tree = jax.tree_util.tree_flatten_with_path(params)
        if tree != self._tree:
            raise OptionsError(
                f"update() got parameters of another structure: {difference(tree, self._tree)}",
                loc=line_of(),
                next_step="give parameters of the same structure, or bind anew",
            )
        self._require_other_thread("update()")
        with self._lock:
            new: dict[Weight, Given] = {}
            for known, (path, leaf) in zip(self._leaves, leaves, strict=True):
                if isinstance(known, Weight):
                    given = given_of(known.name, leaf)
                    require_same(known, given.array, leaf)
                    if given.content is known.content and given.array is leaf:
                        given = given._replace(content=content_anew(leaf))
                    new[known] = given
                elif known is not leaf and not are_equal(known, leaf):
                    raise OptionsError(
                        f"update() got {leaf!r} for {name_of(path)}, which is no array: "
                        f"{known!r} is compiled in",
                        loc=line_of(),
                        next_step="bind anew, or make it an array",
                    )
            self._words[-1] += 1  # a moment that nobody knows, if this fails
            words = _words(self._words)
            new[self._moment] = Given(words, True, content_of(words))
            wait_for_calls()  # which may still read the weights
            arrays = {weight: given.array for weight, given in new.items()}
            is_done = False
            while not is_done:
                made = {table: table.reading(arrays) for table in tables_of(new)}
                is_done = on_another_thread(functools.partial(_replace, new, made))
            for weight in new:
                with contextlib.suppress(MemoryError):  # it keeps its array until the next update
                    weight.let_go_unless_read()
            for table in made:
                table.free()

    def _require_other_thread(self, what: str) -> None:
        """OptionsError where this thread has the locks, and would wait for itself for ever."""
        if self._lock._is_owned() or changing._is_owned():  # type: ignore[attr-defined]
            raise OptionsError(
                f"{what} of {self!r} was asked for in the middle of an update(), by a signal "
                "handler, a finalizer or a callback on the thread that runs it",
                loc=line_of(),
                next_step="have that note what is to be done, and do it when update() has returned",
            )

    def memory_analysis(self) -> dict[str, float]:
        """Bytes in memory for what has been compiled so far.

        weight_nbytes: of the arrays that are bound. original_nbytes: of those that are kept.
        made_nbytes: of what is made of them. kept_nbytes: of both. programs: how many read them.
        weight_error: the largest of `Bound.weight_error`, 0 where weights are read as they are.
        """
        weights = self._weights()
        tables = tables_of(weights)
        made = {
            id(array): array.nbytes
            for table in tables
            for source, array in table.named_arrays()
            if not isinstance(source, Weight)
        }
        for weight in weights:
            made |= {key: array.nbytes for key, array in weight.instead.items() if array.ndim}
        kept = [w for w in weights if w.is_held or w.is_read]
        original = {w.content: w.nbytes for w in kept}
        total = sum(original.values()), sum(made.values())
        return {
            "weight_nbytes": sum(weight.nbytes for weight in weights),
            "original_nbytes": total[0],
            "made_nbytes": total[1],
            "kept_nbytes": sum(total),
            "programs": len(tables),
            "weight_error": max(self.weight_error.values(), default=0.0),
        }

    @property
    def weight_error(self) -> dict[str, float]:
        """|stored - w| / |w| (Frobenius), the largest, for each weight that programs so far read in
        another form; by name, of several where a product reads what is computed of them."""
        found: dict[str, float] = {}
        for table in tables_of(self._weights()):
            for name, error in table.measures.items():
                found[name] = max(found.get(name, 0.0), error)
        return found

    @property
    def weights(self) -> WeightTable:
        """What programs so far read of each array, how that lies, and what reads it: print it."""
        return table_of(self._weights())

    def _weights(self) -> list[Weight]:
        return [leaf for leaf in self._leaves if isinstance(leaf, Weight)]

    def __reduce__(self) -> tuple[Any, ...]:
        """What it is made of, with the arrays of the moment; GoneError where nobody has one."""
        self._require_other_thread("a copy")
        with self._lock:
            leaves = [leaf.array if isinstance(leaf, Weight) else leaf for leaf in self._leaves]
        fun, *others = self._given
        return Bound, (fun, jax.tree_util.tree_unflatten(self._tree, leaves), *others)

    def __repr__(self) -> str:
        weights = counted(len(self._weights()), "weight")
        return f"stagejit.bind({getattr(self, '__name__', 'f')}, {weights})"


def _remaining(fun: Callable[..., Any], leaves: Sequence[Any], tree: Any) -> Callable[..., Any]:
    """The function of the remaining arguments."""

    def bound(*args: Any, **kwargs: Any) -> Any:
        values = [_value(leaf) if isinstance(leaf, Weight) else leaf for leaf in leaves]
        return fun(jax.tree_util.tree_unflatten(tree, values), *args, **kwargs)

    bound.__name__ = bound.__qualname__ = getattr(fun, "__name__", "bound")
    with contextlib.suppress(TypeError, ValueError):  # some have no signature
        signature = inspect.signature(fun)
        first, *others = signature.parameters.values()
        if first.kind is inspect.Parameter.VAR_POSITIONAL:
            others.insert(0, first)
        bound.__signature__ = signature.replace(parameters=others)  # type: ignore[attr-defined]
    return bound


def _mark_small(weights: Sequence[Weight]) -> None:
    """The smallest of them, which are together few bytes beside all."""
    left = _MOST_SMALL * sum(weight.nbytes for weight in weights)
    for weight in sorted(weights, key=operator.attrgetter("nbytes")):
        left -= weight.nbytes
        weight.is_small = left >= 0


def _words(words: Sequence[int]) -> Any:
    """See Note [Moments] in `trace/calls/moments.py`; an array, wherever it is made."""
    with apart():
        return jnp.asarray(np.array(words, np.uint32))


def _value(weight: Weight) -> Any:
    """The weight where a function is traced."""
    return weight_p.bind(weight=weight)


def _lower_weight(ctx: Any, *, weight: Weight) -> Any:
    """In a program that is not ours, maybe the first one: see Note [Import time] of `api`."""
    with importing:
        from stagejit.runtime.bound import lower_weight
    return lower_weight(ctx, weight=weight)


mlir.register_lowering(weight_p, _lower_weight)


def _replace(new: Mapping[Weight, Given], made: Mapping[Any, Reading]) -> bool:
    """Unless a program that reads them, or another weight that it reads, is a new one meanwhile.
    On a thread that no signal interrupts, so that no update stops half-way."""
    with changing:
        if any(table not in made for weight in new for table in weight.tables):
            return False
        if not all(reading.is_true for reading in made.values()):
            return False
        for weight in new:
            held.keep(weight)
        for weight, given in new.items():
            weight.put(given.array, is_copy=given.is_copy, content=given.content)
        moment = snapshots.next_moment()
        for table, reading in made.items():
            table.put(reading.arrays, moment)
        snapshots.pass_on()
    return True

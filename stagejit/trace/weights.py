"""Weights: arrays that are the same in every call of a program, which `stagejit.bind` makes.

Input: an array, as the primitive `weight_p` stands for it in a jaxpr. Output: an input of the graph
that is `bound`. Invariant: no program holds a weight's elements; each knows the `Weight`, whose
array `Bound.update` replaces.

Note [Weights in jaxprs]: a weight is an equation without operands, not a constant of the jaxpr. So
JAX carries it through `jit`, `grad`, `vmap`, `scan` and `checkpoint` like any equation, embeds
nothing in a module, and two functions that bind one array stay apart, as one of them may be given
another.
"""

from __future__ import annotations

import functools
import math
import weakref
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

import jax
import numpy as np
from jax.extend.core import Primitive
from jax.interpreters import ad, batching, mlir

from stagejit.base.enabling import apart
from stagejit.base.records import record
from stagejit.base.threads.locks import new_rlock
from stagejit.compat import constant_array, remembered_weakly, type_of, unfolded
from stagejit.errors import GoneError
from stagejit.graph.ir import Graph, Op, Value
from stagejit.graph.ops.control import bodies_of, read_from_outside
from stagejit.trace.contents import Content, array_of, content_of


@record(eq=False)
class Budget:
    """What may be made before any call of the weights of one function that is bound, whose own it
    is: in so many milliseconds, by estimate, and so many bytes of it and of those weights that are
    read as they are; None stands for a bit more than all of them."""

    ms: float
    nbytes: int | None = None


# With scales of their own, and the one along which two may be in a byte: see
# `rewrites/weights/stored.py`.
Axes = tuple[tuple[int, ...], int | None]


class Forms:
    """In which form products read the weights of one function that is bound. is_overruled: programs
    read one in a form that others, compiled later, may not; they have to be compiled anew."""

    def __init__(self, form: str | None = None) -> None:
        self.form, self.is_overruled = form, False


# Held while weights become others, and while tables join them or are given what programs read: who
# evaluated something before looks, holding it, whether it was of what is there now. It knows who
# has it, so that an update in a finalizer does not wait for its own thread.
changing = new_rlock()


@remembered_weakly
class Weight:
    """One array of those that a function is bound to.

    name: where it stands in the tree. is_copy: nobody else can give it again. budget: for what is
    made of it. form: how products read it, see `rewrites/weights/forms.py`; axes: its axes there,
    by what is made of it, which the first program decides, by all of its products; kept: why it has
    no such form, which any program may find. finite: whether factors that are computed of it were,
    when somebody looked; factors: those that have to be, which an update has looked at. tables: of
    programs that read it, or what is made of it. moment: the weight that is the number of the last
    update, of all weights of a function that is bound; is_moment: it is one. is_small: it stays.
    holds: of those of its moments that somebody may still ask for, see `runtime/gradients/held.py`.

    Note [One form]: all programs read the same elements of a weight, whichever is compiled first.
    So one that finds a reason to keep it as it is overrules those that read it in fewer bytes:
    calls of the bound function compile these anew. Programs of others around it stay as they are.

    Note [Who keeps an array]: the weight does, until what programs read is made of it alone; from
    then on only whoever gave it does, who may delete or donate it at any time. What was made of it
    the weight keeps from then on, whatever becomes of the programs: those that are compiled later
    read that, too, or the array, where it can be made again of it, as it was packed. The smallest
    weights, as factors and biases, stay as they are (`is_small`): they cost nothing, and are what
    programs read each in a way of its own. What else of an array the caller let go, or has written
    to (see Note [Copies for weights]), no program reads that is compiled later, which is an error
    that says so. What is a copy of what nobody can give again the weight keeps until it can be made
    again.
    """

    def __init__(
        self,
        name: str,
        array: Any,
        is_copy: bool,
        budget: Budget,
        forms: Forms | None = None,
        content: Content | None = None,
    ) -> None:
        self.name, self.budget, self.is_copy = name, budget, is_copy
        self._forms = forms or Forms()
        self.axes: dict[str, Axes] = {}
        self._wanted: dict[str, tuple[int, Axes]] = {}  # with their rank
        self.kept = ""
        self.finite: dict[tuple[object, str], bool] = {}
        self.factors: weakref.WeakSet[Any] = weakref.WeakSet()
        self.moment: Weight | None = None
        self.is_moment = self.is_small = False
        self._holds: tuple[weakref.ref[Any], ...] = ()
        self.aval = jax.typeof(array)
        self.tables: weakref.WeakSet[Any] = weakref.WeakSet()
        self._held: Any = array
        self._again: Callable[[], Any] | None = None  # makes the array, where it is not held
        self.instead: dict[int, Any] = {}  # what was made of it, where it is not held; by identity
        self.content = content_of(array) if content is None else content
        self.content.weights.add(self)

    @property
    def array(self) -> Any:
        """A `jax.Array`. Raises GoneError where nobody has kept it."""
        array = self._held if self._held is not None else self.content.array()
        if array is None or array.is_deleted():
            again = self._again or self._of_tables()
            if again is None:
                raise self._gone()
            with apart():
                array = again()
        return array

    def as_it_is(self) -> Callable[[], Any] | None:
        """What gives the array of now later on, from as little memory as can be; for who holds
        `changing`."""
        array = self._held if self._held is not None else self.content.array()
        is_there = array is not None and not array.is_deleted()
        if is_there and self._held is not None:
            return _keeping(array)
        found = (self._again, *(table.restoring(self) for table in self.tables))
        again = next((each for each in found if each is not None), None)
        return _keeping(array) if again is None and is_there else again

    @property
    def holds(self) -> list[Any]:
        if self.moment is not None:
            return self.moment.holds
        return [hold for ref in self._holds if (hold := ref()) is not None]

    def add_hold(self, hold: Any) -> None:
        """For who holds `changing`."""
        self._holds = tuple(map(weakref.ref, [*self.holds, hold]))

    def _of_tables(self) -> Callable[[], Any] | None:
        """What makes the array again of what some program reads, if one reads all of it."""
        found = (table.restoring(self) for table in tables_of([self]))
        return next((again for again in found if again is not None), None)

    def _gone(self) -> GoneError:
        return GoneError(
            f"the weight {self.name} is needed as it was bound, and is gone: programs keep what is "
            "made of it",
            next_step="keep the arrays that you bind, and those of NumPy's as they are, or call "
            "update() with them first",
        )

    @property
    def elements(self) -> Any:
        """Those of the array, as NumPy has them. Raises GoneError, too."""
        return self.elements_of(None)

    def elements_of(self, new: Any) -> Any:
        """Those of another array, if there is one."""
        array = self.array if new is None else new
        return constant_array(array, self.aval, type_of(self.aval))

    @property
    def extent(self) -> tuple[bool, float] | None:
        """Whether the array has neither Inf nor NaN; and the largest magnitude of what else it
        has. None where it is gone."""
        try:
            array = self.elements
        except GoneError:
            return None
        ends = [float(array.min()), float(array.max())] if array.size else [0.0]
        if all(map(math.isfinite, ends)):
            return True, max(map(abs, ends))
        finite = array[np.isfinite(array)]
        return False, float(np.abs(finite).max(initial=0))

    @property
    def form(self) -> str | None:
        return self._forms.form

    def want_axes(self, text: str, rank: int, axes: Axes) -> None:
        """A product would have these. The highest rank is best, or the last axes."""
        known = self._wanted.setdefault(text, (rank, axes))
        self._wanted[text] = max(known, (rank, axes), key=lambda each: (each[0], each[1][0]))

    def axes_for(self, text: str) -> Axes:
        """Those that it has from now on in all programs."""
        return self.axes.setdefault(text, self._wanted[text][1])

    def keep(self, reason: str) -> None:
        """Products read it as it is, in all programs: see Note [One form]. Where nobody has the
        array, those that were compiled stay, and no other one reads it."""
        if self.axes and not self.kept:
            try:
                self._held, self.instead = self.array, {}
            except GoneError:
                return
            self.is_copy = True  # so that it stays until these are compiled anew
            self._forms.is_overruled = True
        self.kept = self.kept or reason

    @property
    def is_held(self) -> bool:
        """Whether this object keeps the array alive."""
        return self._held is not None

    @property
    def is_read(self) -> bool:
        """Whether a program reads the array itself."""
        return any(table.reads(self) for table in tables_of([self]))

    @property
    def nbytes(self) -> int:
        return type_of(self.aval).nbytes

    def put(self, array: Any, *, is_copy: bool, content: Content | None = None) -> None:
        """Another array of the same type."""
        self.content.weights.discard(self)
        self.content = content_of(array) if content is None else content
        self._held, self.is_copy = array, is_copy
        self._again, self.instead = None, {}
        self.finite = {factor.key: True for factor in self.factors}
        self.content.weights.add(self)

    def let_go_unless_read(self) -> None:
        """Only the caller keeps the array from now on, and this what is made of it, if no program
        reads the array. For those who have just made something of it."""
        content = self.content
        if self.is_small and not self._held.is_deleted():
            self._again = self._again or _keeping(self._held)
        if not self.tables or self.is_small or self.is_read:
            return
        again = self._again or self._of_tables()
        content.note_bytes()
        with changing:
            if self.content is not content or (again is None and self.is_copy):
                return
            self._held, self._again = None, again
            for table in self.tables:
                self.instead |= {id(array): array for array in table.made_of(self)}

    def __repr__(self) -> str:
        return f"{self.name}: {self.aval.str_short()}"


def _keeping(array: Any) -> Callable[[], Any]:
    """What gives an array that may be deleted."""
    if type_of(array.aval).dtype.numpy != array.dtype:  # random keys
        return lambda: array
    return functools.partial(array_of, constant_array(array, array.aval, type_of(array.aval)))


@record
class Reading:
    """What a program would read, and of which contents of those weights that are to stay. given:
    those of the others, by which what is made of them is found again, if they last so long."""

    contents: Mapping[Weight, Content]
    arrays: Sequence[Any]
    given: Sequence[Content] = ()

    @property
    def is_true(self) -> bool:
        """Whether the weights are still what they were."""
        return all(weight.content is content for weight, content in self.contents.items())


def tables_of(weights: Iterable[Weight]) -> set[Any]:
    """Of the programs that depend on them."""
    with changing:
        return {table for weight in weights for table in weight.tables}


def readers_of(content: Content) -> list[tuple[Any, Weight]]:
    """The tables of programs that depend on an array, each with the weight that the array is now
    there, one for each name that it has."""
    with changing:
        return [(table, weight) for weight in content.weights for table in weight.tables]


class _Weights(Primitive):
    """Has no operands, and stands for no constant: it stays in a trace where JAX folds those."""

    def bind(self, *args: Any, **params: Any) -> Any:
        with unfolded():
            return super().bind(*args, **params)  # type: ignore[no-untyped-call]


weight_p = _Weights("stagejit_weight")
weight_p.def_impl(lambda weight: weight.array)  # type: ignore[no-untyped-call]
weight_p.def_abstract_eval(lambda weight: weight.aval)  # type: ignore[no-untyped-call]

# What weights alone determine, where it is an argument; it is the same value.
known_p: Any = Primitive("stagejit_known")
known_p.def_impl(lambda value: value)
known_p.def_abstract_eval(lambda value: value)
mlir.register_lowering(known_p, lambda ctx, value: [value])
batching.primitive_batchers[known_p] = lambda args, dims: (known_p.bind(*args), dims[0])
ad.primitive_jvps[known_p] = lambda primals, tangents: (known_p.bind(*primals), *tangents)


def bind_weights(graph: Graph) -> tuple[Weight, ...]:
    """%w = bound  -->  input %w bound, also where a body has it. Returns the weights that the bound
    inputs are, in their order."""
    _take_out(graph)
    found: dict[Weight, Value] = {}
    for op in graph.ops():
        if op.definition.is_weight:
            weight = op.attrs["weight"]
            if weight not in found:
                found[weight] = graph.add_input(weight.name, op.result.type, bound=True)
                graph.weights[found[weight]] = weight
            graph.replace_uses(op.result, found[weight])
            graph.erase(op)
    return tuple(found)


def _take_out(graph: Graph) -> None:
    """loop (body: bound)  -->  loop of bound (body: input), and so on outwards."""
    for op in graph.ops():
        for number, body in enumerate(bodies_of(op)):
            _take_out(body)
            for inner in _weights(body.ops()):
                outer = graph.add("bound", (), inner.result.type, inner.loc, **inner.attrs)
                read_from_outside(graph, op, number, inner.result, outer.result)


def _weights(ops: Sequence[Op]) -> list[Op]:
    return [op for op in ops if op.definition.is_weight]

"""What programs of `stagejit.bind` read besides their arguments: weights, and what is made of them.

Input: the sources of a program's bound inputs (see `rewrites/weights/evaluate.py`), and how to
compile what is made. Output: `BoundWeights`, with the table that the program reads. Invariants:
equal values of the same arrays are made once, however many programs read them; what is kept is what
is read.

Note [What finds a value again]: what is computed, of which bytes, and by which code; so other
options, another version or more threads find what they would make themselves, and nothing else.

Note [On disk]: what takes longer to compute than to read again is also kept in the object cache,
if that is little memory. An entry is what was stored there or nothing, see
`objects/object_cache.py`; so a damaged one is made anew.
"""

from __future__ import annotations

import contextlib
import functools
import hashlib
import math
import operator
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

import jax
import numpy as np

from stagejit.base.extension import Extension
from stagejit.compat import constant_array, physical_aval, type_of
from stagejit.errors import GoneError, OptionsError, UnsupportedOpError
from stagejit.index.layout import Layout
from stagejit.rewrites.weights.made import Made, Source
from stagejit.rewrites.weights.scales import Factor
from stagejit.runtime.cpu.huge_pages import Room, put_on_huge_pages
from stagejit.runtime.cpu.loader import LoadedProgram, load_program
from stagejit.runtime.cpu.weights import Table
from stagejit.runtime.found_again import Lookup
from stagejit.runtime.hosting.program import HostProgram
from stagejit.runtime.hosting.program_steps import BufferRef, Copy
from stagejit.runtime.lowering.emission import converted
from stagejit.runtime.lowering.evaluating import Evaluation
from stagejit.runtime.objects.engine import machine
from stagejit.runtime.objects.object_cache import ObjectCache, digest
from stagejit.schedule.schedule import Run, Schedule
from stagejit.trace.contents import array_of, content_of
from stagejit.trace.weights import Reading, Weight, changing

Array = np.ndarray[Any, np.dtype[Any]]
Compile = Callable[[Made], Evaluation | None]  # None for a weight as it is

# Operations for each byte that is hashed and read: below, making a value anew is as fast.
_FLOPS_A_BYTE = 16
_MOST_ON_DISK_NBYTES = 64 << 20


class BoundWeights:
    """The weights of one program. `table.arrays` are in the order of its bound inputs."""

    def __init__(
        self,
        sources: Sequence[Source],
        compile: Compile,
        cache: ObjectCache | None = None,
        measures: Sequence[Made] = (),
        extensions: tuple[Extension, ...] = (),
        readers: Sequence[tuple[str, ...]] = (),
        factors: Sequence[Factor] = (),
    ) -> None:
        """extensions: that decide what is computed. It is found again by those of equal ones, and
        nothing on disk says which these were. readers: kinds of ops that read each source. factors:
        what has to stay finite."""
        self._sources, self._cache = tuple(sources), None if extensions else cache
        self._extensions = extensions
        self._measures, self._factors = tuple(measures), tuple(factors)
        self.readers = tuple(readers) or ((),) * len(sources)
        self._first: dict[Weight, list[int]] = {}  # sources, by the first weight of each
        for number, source in enumerate(sources):
            first = source.weights[0] if isinstance(source, Made) else source
            self._first.setdefault(first, []).append(number)
        made = [*sources, *self._measures]
        self._made = {source: compile(source) for source in made if isinstance(source, Made)}
        self.table = Table()
        while not self._joined(self.reading({})):
            pass
        put_on_huge_pages(self.table.arrays)  # once: what updates make may have no time
        for weight in self.weights:
            weight.let_go_unless_read()

    @property
    def weights(self) -> tuple[Weight, ...]:
        """All that the program depends on."""
        each = (s.weights if isinstance(s, Made) else (s,) for s in self._sources)
        return tuple(dict.fromkeys(weight for of in each for weight in of))

    def sources_of(self, weight: Weight) -> list[Source]:
        """What the program reads that is this weight, or that is made of it before all others."""
        return [self._sources[at] for at in self._first.get(weight, ())]

    def reads(self, weight: Weight) -> bool:
        """Whether the program reads the weight itself."""
        return any(source is weight for source in self.sources_of(weight))

    def evaluated(self, new: Mapping[Weight, Any]) -> list[Array]:
        """What the program would read if some weights were these arrays. Raises OptionsError where
        it would be something else than the function."""
        for factor in self._factors:
            factor.require_finite(new)
        room = Room(each.type.nbytes for each in self._sources if isinstance(each, Made))
        arrays = [
            self._result(each, new, room) if isinstance(each, Made) else _memory(_array(each, new))
            for each in (*self._sources, *self._measures)
        ]
        for made, error in zip(self._measures, arrays[len(self._sources) :], strict=True):
            _require_numbers(made, float(error))
        return arrays

    def _result(self, made: Made, new: Mapping[Weight, Any], room: Room) -> Array:
        """From memory, from disk, or made now. What lies otherwise is taken where the weights are
        gone."""
        contents = [content_of(new[w]) if w in new else w.content for w in made.weights]
        evaluate = self._made[made]
        code = None if evaluate is None else evaluate.name
        value = Lookup(made, code, self._extensions, contents)
        found = value.found()
        if found is None:
            try:
                arrays = [_array(weight, new) for weight in made.weights]
            except GoneError:
                known = value.row_major()
                if known is None:
                    raise
                found = _laid_out(known, made.type.layout, room)
            else:
                found = _from_disk_or_made(made, evaluate, arrays, self._cache, room)
            value.remember(found)
        return found

    def reading(self, new: Mapping[Weight, Any]) -> Reading:
        """The same, and what it is true of."""
        contents = {weight: weight.content for weight in self.weights if weight not in new}
        given = tuple(content_of(new[weight]) for weight in self.weights if weight in new)
        return Reading(contents, self.evaluated(new), given)

    def _joined(self, reading: Reading) -> bool:
        """Have the program read that, and every update change it, unless there was one since."""
        earlier, since = self._earlier()
        with changing:
            if reading.is_true:
                for at, arrays in (*earlier, (since, reading.arrays)):
                    self.put(arrays, at)
                for weight in self.weights:
                    weight.tables.add(self)
            return reading.is_true

    def _earlier(self) -> tuple[list[tuple[int, list[Array]]], int]:
        """What it reads at moments of before that are held, since when; and since when it reads
        what it does now. Where nobody has what a weight was, it reads others, and says so."""
        weights, since, found = set(self.weights), 0, []
        for hold in sorted(self._holds(), key=operator.attrgetter("moment")):
            if hold.moment < since or weights.isdisjoint(hold.before):
                continue
            with contextlib.suppress(GoneError, OptionsError):
                found.append((since, self.evaluated(hold.arrays(weights))))
            since = hold.moment + 1
        return found, since

    def _holds(self) -> set[Any]:
        return {hold for weight in self.weights for hold in weight.holds}

    def _held(self) -> set[int]:
        return {hold.moment for hold in self._holds()}

    def put(self, arrays: Sequence[Array], since: int = 0) -> None:
        """What calls read from now on, or from a moment on: what `evaluated` gave."""
        self.table.put(arrays, since)

    def free(self, *most_seconds: float) -> None:
        """What calls read before, once none does."""
        self.table.free(self._held, *most_seconds)

    @property
    def measures(self) -> dict[str, float]:
        """Numbers about what calls read now, by names of weights: the largest, where a program
        stores several values of them."""
        found: dict[str, float] = {}
        for made, number in self.errors():
            name = ", ".join(sorted(weight.name for weight in made.weights))
            found[name] = max(found.get(name, 0.0), number)
        return found

    def errors(self) -> list[tuple[Made, float]]:
        """The same, with what measures them."""
        numbers = map(float, self.table.arrays[len(self._sources) :])
        return list(zip(self._measures, numbers, strict=True))

    def restoring(self, weight: Weight) -> Callable[[], Any] | None:
        """What makes the array of a weight again of what the program reads now, the weight itself
        or all parts of it; None where that is not all of it. Random keys are no numbers, and are
        not."""
        shape, dtype = weight.aval.shape, weight.aval.dtype
        if type_of(weight.aval).dtype.numpy != dtype:
            return None
        parts, seen = list[tuple[Made, Array]](), None
        for number in self._first.get(weight, ()):
            source, memory = self._sources[number], self.table.arrays[number]
            if source is weight:
                return functools.partial(array_of, memory)
            if not isinstance(source, Made) or source.weights != (weight,):
                continue
            if source.type.dtype.numpy != dtype or not source.is_view:
                continue
            if source.is_packed:  # all of it, which nobody has to count
                return functools.partial(_put_together, shape, dtype, [(source, memory)])
            seen = np.zeros(shape, bool) if seen is None else seen
            if (part := source.within(seen)) is None:
                continue
            parts.append((source, memory))
            part[...] = True
            if seen.all():
                return functools.partial(_put_together, shape, dtype, parts)
        return None

    def made_of(self, weight: Weight) -> list[Array]:
        """What the program reads now that is made of a weight, or of it and others, and what
        measures that."""
        both = zip((*self._sources, *self._measures), self.table.arrays, strict=True)
        return [x for of, x in both if isinstance(of, Made) and weight in of.weights]

    def named_arrays(self) -> list[tuple[Source, Array]]:
        """What the program reads now."""
        return list(zip(self._sources, self.table.arrays, strict=False))


def _require_numbers(made: Made, error: float) -> None:
    """error: see `rewrites/weights/forms.py`."""
    if math.isfinite(error):
        return
    form = next(weight.form for weight in made.weights if weight.form)
    names = ", ".join(weight.name for weight in made.weights)
    what = f"what products read of {names} has"
    if math.isnan(error):
        raise OptionsError(
            f"{what} an Inf or a NaN, and is stored as {form}, which has neither",
            next_step="give weights of finite numbers, or bind without weights=",
        )
    raise OptionsError(
        f"{what} a finite number that would be infinite as {form}, in which it is stored",
        next_step="give weights of smaller numbers, or bind without weights=",
    )


def arrays_of(weights: BoundWeights | None) -> list[Array]:
    """What a program reads besides its arguments; none for one without weights."""
    return [] if weights is None else [array for _, array in weights.named_arrays()]


def copies(
    weights: BoundWeights, nbytes: Sequence[int], which: Iterable[int], *, has_snapshot: bool
) -> list[LoadedProgram]:
    """Programs without arguments that return a weight, for those of these numbers: what XLA reads.

    nbytes: of all weights in the table. has_snapshot: see `hosting/program.py`.
    """
    made = []
    for number in which:
        copy = Copy(BufferRef("result"), BufferRef("bound", number), nbytes[number])
        program = HostProgram(
            "weight", (copy,), (), (nbytes[number],),
            bound_nbytes=tuple(nbytes), has_snapshot=has_snapshot,
        )  # fmt: skip
        made.append(load_program(program, {}, weights=weights))
    return made


def copies_for_xla(
    schedule: Schedule, weights: BoundWeights, *, has_snapshot: bool
) -> dict[str, LoadedProgram]:
    """What gives each weight that a delegated equation reads, by buffer."""
    buffers = [buffer for buffer in schedule.plan.buffers if buffer.kind == "weight"]
    parts = [part for part in schedule.segments if not isinstance(part, Run)]
    read = {name for part in parts for name in part.operands}
    which = [at for at, buffer in enumerate(buffers) if buffer.name in read]
    nbytes = [buffer.nbytes for buffer in buffers]
    made = copies(weights, nbytes, which, has_snapshot=has_snapshot)
    return {buffers[at].name: program for at, program in zip(which, made, strict=True)}


def lower_weight(ctx: Any, *, weight: Weight) -> list[Any]:
    """A weight in a program that is not ours: a copy, made by each call, of what it then is."""
    module = ctx.module_context
    if tuple(module.platforms) != ("cpu",) or module.lowering_parameters.for_export:
        raise UnsupportedOpError(
            f"the weight {weight.name} of a bound function is in this process, on the CPU",
            next_step="export, or lower for other platforms, the function with its parameters",
        )
    weights = BoundWeights([weight], lambda made: None)
    type = type_of(weight.aval)
    (program,) = copies(weights, [type.nbytes], [0], has_snapshot=False)
    aval = jax.core.ShapedArray(type.shape, type.dtype.numpy)
    (value,) = program.emit(ctx.replace(avals_in=[], avals_out=[aval]), [])
    return [converted(ctx, (value, aval), physical_aval(ctx.avals_out[0]))]


def _array(weight: Weight, new: Mapping[Weight, Any]) -> Any:
    """What the weight may have lost is not asked for where there is a new array."""
    return new[weight] if weight in new else weight.array  # noqa: SIM401


# -- values ---------------------------------------------------------------------------------------


def _memory(array: Any) -> Array:
    """The elements of an array of JAX's, where they are. They stay there, whatever becomes of the
    array: a view of NumPy's keeps them, also where the array is deleted."""
    aval = array.aval
    return np.asarray(constant_array(array, aval, type_of(aval)), order="C")


def _put_together(shape: Sequence[int], dtype: Any, parts: Sequence[tuple[Made, Array]]) -> Any:
    """The array of which these are parts, as programs read them."""
    array = np.empty(shape, dtype)
    for part, memory in parts:
        layout = part.type.layout
        whole = memory if layout.is_row_major else layout.restored(memory, part.type.shape)
        part.within(array)[...] = whole
    return array_of(array)


_counts = {"evaluated": 0, "from disk": 0}


def evaluation_counts() -> dict[str, int]:
    """How often something was made of weights in this process, and how often it was on disk."""
    return dict(_counts)


def _from_disk_or_made(
    made: Made, evaluate: Evaluation | None, arrays: Sequence[Any], cache: ObjectCache | None,
    room: Room,
) -> Array:  # fmt: skip
    key = ""
    if cache is not None and evaluate is not None and _is_worth_keeping(made):
        key = _key_on_disk(made.text, evaluate.name, arrays)
        data = cache.get(key)
        if data is not None and len(data) == made.type.nbytes:
            _counts["from disk"] += 1
            shape = made.type.shape if made.type.layout.is_row_major else (made.type.room,)
            return _put(np.frombuffer(data, np.uint8), made.type.dtype.numpy, shape, room)
    if evaluate is not None:
        _counts["evaluated"] += 1
        arrays = evaluate(*arrays)
    memory = _laid_out(_memory(arrays[0]), made.type.layout, room)
    if cache is not None and key:
        cache.put(key, memory.tobytes())
    return memory


def _laid_out(array: Array, layout: Layout, room: Room) -> Array:
    """As it lies in the room, or where it is if it needs none."""
    if layout.is_row_major and not room.nbytes:
        return array
    shape = array.shape if layout.is_row_major else (layout.room(array.shape),)
    made = _taken(room, array.dtype, shape)
    layout.laid_out(array, made.reshape(-1))
    made.flags.writeable = False
    return made


def _is_worth_keeping(made: Made) -> bool:
    nbytes = made.type.nbytes + sum(weight.nbytes for weight in made.weights)
    return nbytes <= _MOST_ON_DISK_NBYTES and made.flops >= _FLOPS_A_BYTE * nbytes


def _key_on_disk(text: str, code: str, arrays: Sequence[Any]) -> str:
    contents = (hashlib.sha256(_memory(array).tobytes()).hexdigest() for array in arrays)
    return digest("made of weights", machine(), text, code, *contents)


def _put(data: Array, dtype: Any, shape: Sequence[int], room: Room) -> Array:
    """A copy of bytes in the room, as an array."""
    made = _taken(room, np.dtype(dtype), shape)
    made.reshape(-1).view(np.uint8)[:] = data
    made.flags.writeable = False
    return made


def _taken(room: Room, dtype: np.dtype[Any], shape: Sequence[int]) -> Array:
    """Memory for an array in the room."""
    made: Array = room.take(math.prod(shape) * dtype.itemsize).view(dtype).reshape(shape)
    return made

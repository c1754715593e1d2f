"""What programs read of the weights of a bound function: a row for each array, as a table.

Input: the graph of a program when its target has said how everything lies; the weights, with the
tables of the programs that read them. Output: who reads each bound input; `WeightTable`. Invariant:
it says what is there now, of the programs compiled so far, and compiles nothing.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from stagejit.base.numbers import counted, nbytes_text
from stagejit.base.threads.importing import importing
from stagejit.compat import type_of
from stagejit.graph.definition import definition_of, is_defined
from stagejit.graph.ir import Graph, Op, Value
from stagejit.graph.ops.control import bodies_of
from stagejit.graph.ops.dispatches import parts_of
from stagejit.index.layout import ROW_MAJOR, Layout
from stagejit.inspect.columns import columns
from stagejit.rewrites.encodings.bodies import read_in_bodies
from stagejit.rewrites.weights.made import Made
from stagejit.trace.weights import Weight, tables_of

_HEAD = ["weight", "bound", "kept", "read", "bytes", "lies", "error", ""]
_NUMBERS = frozenset({2, 4, 6})  # the columns that stand at the right


def readers_of(graph: Graph) -> tuple[tuple[str, ...], ...]:
    """The kinds of the ops that read each bound input, through views, conversions and, in one
    dispatch, elementwise ops."""
    kinds = _readers(graph)
    bound = (value for value in graph.inputs if graph.is_bound(value))
    return tuple(tuple(sorted(kinds.get(value, ()))) for value in bound)


def _readers(graph: Graph) -> dict[Value, set[str]]:
    """By value; what only the caller of the graph reads is not there."""
    found: dict[Value, set[str]] = {}
    for op in reversed(graph.ops()):
        if op.definition.is_step:
            for operand, kinds in zip(op.operands, _readers_by(op, found), strict=True):
                found.setdefault(operand, set()).update(kinds)
    return found


def _readers_by(op: Op, found: Mapping[Value, set[str]]) -> Iterator[Collection[str]]:
    """Of each operand, those that read it by an op. found: of the op's results."""
    known = op.definition
    if known.is_dispatch:
        parts = [(part.inputs, _readers(part)) for part in parts_of(op)]
        for number in range(len(op.operands)):
            yield {k for ins, of in parts for k in of.get(ins[number], ())} or {"copy"}
    elif known.has_bodies:
        inside = {body: _readers(body) for body in bodies_of(op)}
        for operand in op.operands:
            reads = [(body, inner) for _, body, inner in read_in_bodies(op, operand)]
            yield {k for body, inner in reads for k in inside[body].get(inner, ())} or {op.kind}
    else:
        after = set() if not op.results else found.get(op.results[0], set())
        passes = known.is_view or known.is_conversion
        kinds = after if passes else (known.is_elementwise and after) or {op.kind}
        yield from (kinds for _ in op.operands)


def in_words(layout: Layout) -> str:
    """How an array lies, as of `{1,0;1,64}`: "tiles of 1 x 64, axes 1, 0"."""
    tiles = f"tiles of {' x '.join(map(str, layout.tiles))}" if layout.tiles else ""
    order = f"axes {', '.join(map(str, layout.order))}" if layout.order else ""
    room = f"room behind it {', '.join(map(str, layout.padding))}" if layout.padding else ""
    return ", ".join(filter(None, (tiles, order, room))) or "row-major"


@dataclass(frozen=True)
class Read:
    """One array that programs read: the weight itself, or what is made of it.

    type: its element type and shape. layout: in words, the axes from the slowest to the fastest.
    is_made: whether it is another array than the one that is bound. beside: names of other weights
    that it is made of. readers: kinds of ops. programs: how many read it. unpacked: why products
    read it row-major, where they do.
    """

    type: str
    layout: str
    nbytes: int
    is_made: bool
    beside: tuple[str, ...] = ()
    readers: tuple[str, ...] = ()
    programs: int = 1
    unpacked: str = ""

    @property
    def remarks(self) -> str:
        beside = f"with {', '.join(self.beside)}" if self.beside else ""
        by = f"by {', '.join(self.readers)}" if self.readers else ""
        programs = counted(self.programs, "program") if self.programs > 1 else ""
        return "; ".join(filter(None, (beside, by, programs, self.unpacked)))


@dataclass(frozen=True)
class WeightRow:
    """An array that is bound. kept_nbytes: of it, in memory that the function or a program keeps;
    form: in which products read it by `weights=`; error: what that lost, see `Bound.weight_error`;
    not_stored: why it has no such form."""

    name: str
    type: str
    nbytes: int
    kept_nbytes: int
    reads: tuple[Read, ...] = ()
    form: str | None = None
    error: float = 0.0
    not_stored: str = ""


@dataclass(frozen=True)
class WeightTable:
    """`print(bound.weights)` shows it."""

    rows: tuple[WeightRow, ...]

    def as_text(self) -> str:
        return "\n".join(columns([_HEAD, *self._cells()], _NUMBERS))

    def _cells(self) -> list[list[str]]:
        """A row for each array that is read."""
        cells: list[list[str]] = []
        for row in self.rows:
            kept = nbytes_text(row.kept_nbytes) if row.kept_nbytes else "0"
            first = [row.name, row.type, kept]
            nothing = "" if row.reads else "no program reads it"
            error = "" if row.form is None else f"{row.error:.2g}"
            remarks = "; ".join(filter(None, (nothing, row.not_stored)))
            for read in row.reads or (None,):
                told = ["", "", ""] if read is None else [
                    read.type, nbytes_text(read.nbytes), read.layout if read.is_made else "as bound"
                ]  # fmt: skip
                more = "; ".join(filter(None, (remarks, "" if read is None else read.remarks)))
                cells.append([*first, *told, error, more])
                first, error, remarks = ["", "", ""], "", ""
        return cells

    def __str__(self) -> str:
        return self.as_text()

    def _repr_html_(self) -> str:
        """The table, for notebooks."""
        with importing:
            from stagejit.inspect.page import Section, fragment, table
        rows = table(_HEAD, self._cells(), numbers=_NUMBERS)
        return fragment("weights", [Section("weights", rows, counted(len(self.rows), "array"))])


def table_of(weights: Sequence[Weight]) -> WeightTable:
    """As of now, for the programs that were compiled so far."""
    tables = sorted(tables_of(weights), key=lambda table: [str(s) for s, _ in table.named_arrays()])
    errors: dict[Weight, float] = {}
    for table in tables:
        for made, error in table.errors():
            for weight in made.weights:
                errors[weight] = max(errors.get(weight, 0.0), error)
    return WeightTable(tuple(_row(weight, tables, errors.get(weight)) for weight in weights))


def _row(weight: Weight, tables: Sequence[Any], error: float | None) -> WeightRow:
    """error: of what is stored in another form; None where nothing is."""
    read: dict[object, list[tuple[Any, tuple[str, ...]]]] = {}
    for table in tables:
        for (source, array), readers in zip(table.named_arrays(), table.readers, strict=False):
            if weight in (source.weights if isinstance(source, Made) else (source,)):
                key = id(array) if isinstance(source, Made) else weight
                read.setdefault(key, []).append(((source, array), readers))
    reads = tuple(_read(weight, found) for found in read.values())
    stored = None if error is None else weight.form
    return WeightRow(
        weight.name,
        _type_text(weight.aval.dtype, weight.aval.shape),
        weight.nbytes,
        weight.nbytes if weight.is_held or weight.is_read else 0,
        reads,
        stored,
        error or 0.0,
        weight.kept if weight.form and not stored else "",
    )


def _read(weight: Weight, found: Sequence[tuple[Any, tuple[str, ...]]]) -> Read:
    (source, array), _ = found[0]
    readers = tuple(sorted({kind for _, kinds in found for kind in kinds}))
    if isinstance(source, Made):
        type, others = source.type, [other for other in source.weights if other is not weight]
        text, layout = _type_text(type.dtype.name, type.shape), type.layout
    else:
        type, layout, others = type_of(weight.aval), ROW_MAJOR, []
        text = _type_text(weight.aval.dtype, weight.aval.shape)
    is_plain = layout.is_row_major and type.dtype.numpy == weight.aval.dtype
    return Read(
        text, in_words(layout), array.nbytes, isinstance(source, Made),
        tuple(other.name for other in others), readers, len(found),
        _why_unpacked(readers) if is_plain else "",
    )  # fmt: skip


def _why_unpacked(readers: Sequence[str]) -> str:
    """See Note [One copy of a weight] in `rewrites/encodings/elide.py`."""
    products = [kind for kind in readers if is_defined(kind) and definition_of(kind).is_product]
    others = [kind for kind in readers if kind not in products]
    both = bool(products and others)
    return f"not packed; {', '.join(others)} reads it as it lies, too" if both else ""


def _type_text(dtype: Any, shape: Sequence[int]) -> str:
    return f"{dtype}[{','.join(map(str, shape))}]"

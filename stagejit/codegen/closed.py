"""`ClosedRegion`: all that a generator may look at, rebuilt from a key, so that equal keys give
equal kernels.

Input: a region. Output: its `Key`, nested tuples of plain data; from the key alone, the
`ClosedRegion` that generators get. Invariant: no op, value or attribute that a closed region
reaches is one of the graph's; the text of a key says all of it and parses back.

Note [What a generator may see]: regions of equal keys share one kernel, whichever came first. So
nothing that decides about a kernel may stay out of the key; and since a generator is handed what
was made of the key, it cannot look anywhere else. What was outside of the region is here either
data (which stores share a buffer, which inputs lie in memory that the kernel writes) or an
`outside` value, of which only the type is known.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from stagejit.dispatch.region import Region, Store
from stagejit.errors import InternalError
from stagejit.graph.ir import Op, Value
from stagejit.graph.ops.control import before
from stagejit.loc import UNKNOWN, Loc
from stagejit.types import DType, TensorType, dtype_named, from_numpy

Data = Any  # None, bool, int, str, bytes, and tuples of these


@dataclass(frozen=True, eq=False)
class ClosedRegion:
    """A region as a generator sees it; the fields that it shares with `Region` mean the same.

    buffers: for each store the number of the buffer that it writes; stores of equal number share
        one. mutable: inputs that lie in memory which the kernel writes, or may write.
    calls: whether long functions are called; the key decides about it, see `shared_code`.
    """

    kind: str
    ops: tuple[Op, ...]
    inputs: tuple[Value, ...]
    stores: tuple[Store, ...]
    buffers: tuple[int, ...]
    mutable: frozenset[Value]
    anchor: Op | None
    aligned: bool
    calls: bool = False

    @property
    def name(self) -> str:
        """For messages; regions of any name share a kernel."""
        return self.kind

    @property
    def loc(self) -> Loc:
        return UNKNOWN

    @property
    def anchor_op(self) -> Op:
        """The anchor. Raises InternalError for a region that has none."""
        if self.anchor is None:
            raise InternalError(f"{self.name} has no anchor", step="codegen")
        return self.anchor


@dataclass(frozen=True)
class Key:
    """What a kernel is made from. `text` is the data's, and parses back to it.

    Keys are equal where their texts are: to Python, data with True, 1 and 1.0 in it are equal.
    """

    data: Data = field(compare=False, repr=False)
    text: str = field(init=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "text", repr(self.data))


# -------------------------------------------------------------------- from a region to its key


def key_of(region: Region, overwritten: frozenset[Value] = frozenset()) -> Key:
    """The key of `region`, of which stores may take over the memory of the inputs `overwritten`."""
    writer = _Writer(region)
    held = {_memory_of(store.into) for store in region.stores}
    mutable = tuple(v in overwritten or _memory_of(v) in held for v in region.inputs)
    ops = tuple(writer.op(op) for op in region.ops)
    # Inserts may be in the region, or only place what it stores.
    inserts = tuple(
        writer.op(op)
        for op in dict.fromkeys(insert for store in region.stores for insert in store.inserts)
        if op not in writer.numbers
    )
    stores = tuple(
        (
            writer.value(store.value),
            _type_data(store.into.type),
            tuple(writer.numbers[insert] for insert in store.inserts),
        )
        for store in region.stores
    )
    anchor = None if region.anchor is None else writer.numbers[region.anchor]
    inputs = tuple(_type_data(value.type) for value in region.inputs)
    outside = tuple(_type_data(value.type) for value in writer.outside)
    return Key(
        (
            region.kind,
            region.aligned,
            inputs,
            mutable,
            outside,
            ops,
            inserts,
            stores,
            _buffers(region),
            anchor,
        )
    )


class _Writer:
    """Numbers of ops, and names of values: ("input", n), ("outside", n), or (op, result)."""

    def __init__(self, region: Region) -> None:
        self.numbers: dict[Op, int] = {}
        self.outside: dict[Value, int] = {}
        self._inputs = {value: number for number, value in enumerate(region.inputs)}

    def value(self, value: Value) -> Data:
        if value in self._inputs:
            return "input", self._inputs[value]
        if value.op in self.numbers:
            return self.numbers[value.op], value.index
        return "outside", self.outside.setdefault(value, len(self.outside))

    def op(self, op: Op) -> Data:
        operands = tuple(self.value(operand) for operand in op.operands)
        types = tuple(_type_data(result.type) for result in op.results)
        attrs = tuple((name, _data(op.attrs[name])) for name in sorted(op.attrs))
        self.numbers[op] = len(self.numbers)
        return op.kind, operands, types, attrs


def _memory_of(value: Value) -> Value:
    """The earliest contents of the memory that `value` may lie in. Values that may share memory
    have it in common."""
    while (earlier := before(value)) is not None:
        value = earlier
    return value


def _buffers(region: Region) -> tuple[int, ...]:
    """Which buffer each store writes. What stands for one is the first of the region's destinations
    along a chain of insertions: a copy between two of them would have to run in the middle of the
    region. Chains that only begin with the same contents are two buffers."""
    destinations = {store.into for store in region.stores}
    roots: dict[Value, int] = {}
    numbers = []
    for store in region.stores:
        value = root = store.into
        others = len(destinations) - 1
        while store.inserts and value.op.definition.is_insert and others:
            value = value.op.operands[1]
            if value in destinations:
                root = value
                others -= 1
        numbers.append(roots.setdefault(root, len(roots)))
    return tuple(numbers)


def _type_data(type: TensorType) -> Data:
    return _dtype_data(type.dtype), tuple(_data(extent) for extent in type.shape)


def _dtype_data(dtype: DType) -> str:
    if dtype_named(dtype.name) != dtype:
        raise InternalError(f"{dtype} is not known by its name", step="codegen")
    return dtype.name


def _data(value: object) -> Data:
    """An attribute as plain data; what is not plain gets a tag."""
    if value is None or type(value) in (bool, int, str):
        return value
    if isinstance(value, float):
        return "float", value.hex()
    if isinstance(value, tuple):
        return "tuple", *(_data(item) for item in value)
    if isinstance(value, DType):
        return "dtype", _dtype_data(value)
    if isinstance(value, np.ndarray | np.generic):
        array = np.asarray(value)
        tag = "array" if isinstance(value, np.ndarray) else "scalar"
        return tag, _dtype_data(from_numpy(array.dtype)), array.shape, array.tobytes()
    raise InternalError(
        f"a kernel's key has no text for an attribute of {type(value).__name__}", step="codegen"
    )


# -------------------------------------------------------------------- from a key to a closed region


def rebuilt(key: Key) -> ClosedRegion:
    """The closed region of a key, made of new ops."""
    kind, aligned, inputs, mutable, outside, ops, inserts, stores, buffers, anchor = key.data
    reader = _Reader(inputs, outside)
    inside = tuple(reader.op(data) for data in ops)
    for data in inserts:
        reader.op(data)
    return ClosedRegion(
        kind=kind,
        ops=inside,
        inputs=tuple(reader.inputs),
        stores=tuple(
            Store(
                reader.value(value),
                _leaf(into),
                tuple(reader.ops[number] for number in numbers),
            )
            for value, into, numbers in stores
        ),
        buffers=buffers,
        mutable=frozenset(v for v, held in zip(reader.inputs, mutable, strict=True) if held),
        anchor=None if anchor is None else reader.ops[anchor],
        aligned=aligned,
    )


class _Reader:
    def __init__(self, inputs: Iterable[Data], outside: Iterable[Data]) -> None:
        self.inputs = [_leaf(data) for data in inputs]
        self.outside = [_leaf(data) for data in outside]
        self.ops: list[Op] = []

    def value(self, data: Data) -> Value:
        where: Any = data[0]
        number: int = data[1]
        if where == "input":
            known: Sequence[Value] = self.inputs
        else:
            known = self.outside if where == "outside" else self.ops[where].results
        return known[number]

    def op(self, data: Data) -> Op:
        kind, operands, types, attrs = data
        values: Mapping[str, object] = {name: _attribute(item) for name, item in attrs}
        made = Op(
            len(self.ops),
            kind,
            tuple(self.value(operand) for operand in operands),
            [_type(item) for item in types],
            values,
            UNKNOWN,
        )
        self.ops.append(made)
        return made


def _leaf(data: Data) -> Value:
    """A value of which only the type is known."""
    return Op(-1, "input", (), (_type(data),), {}, UNKNOWN).result


def _type(data: Data) -> TensorType:
    name, shape = data
    return TensorType(dtype_named(name), shape)


def _attribute(data: Data) -> object:
    if not isinstance(data, tuple):
        return data
    tag, *rest = data
    if tag == "float":
        return float.fromhex(rest[0])
    if tag == "tuple":
        return tuple(_attribute(item) for item in rest)
    if tag == "dtype":
        return dtype_named(rest[0])
    name, shape, content = rest
    array = np.frombuffer(content, dtype_named(name).numpy).reshape(shape)
    return array if tag == "array" else array[()]

"""The text form of a graph: stable between processes, minimal, and parsed back by `parser.py`.

Input: a graph. Output: one line an op, in topological order, numbered results. Invariant: equal
text means an equal graph (up to what `delegate` holds), so attributes that the result type already
tells (`shape`, `dtype`) are not repeated, and values are spelled so that every bit comes back.

    graph @f(%x: f32[4,4]) {
      %0: f32[] = const 0.0
      %1: f32[8,8] = fill %0
      %2: f32[8,8] = insert_slice %x into %1 at (2, 2)
      return %2
    }

The graphs inside a `loop` or `branch` follow its line, indented.
"""

from __future__ import annotations

import base64
import re
from collections.abc import Callable, Iterable
from typing import Any

import numpy as np

from stagejit.graph.control import bodies_of
from stagejit.graph.ir import Graph, Op, Value

MAX_INLINE_ELEMENTS = 16

# Attributes that the result type tells.
IMPLIED: dict[str, frozenset[str]] = {
    "iota": frozenset({"shape", "dtype"}),
    "empty": frozenset({"shape", "dtype"}),
    "fill": frozenset({"shape"}),
    "map": frozenset({"dtype"}),
    "convert": frozenset({"dtype"}),
    "bitcast": frozenset({"dtype"}),
    "broadcast": frozenset({"shape"}),
    "reshape": frozenset({"shape"}),
    "extract_slice": frozenset({"sizes"}),
    "reduce": frozenset({"dtype"}),
    "contract": frozenset({"dtype"}),
    "conv": frozenset({"dtype"}),
}

Names = dict[Value, str]


def as_text(graph: Graph, *, with_locs: bool = False) -> str:
    """The text of a graph; `with_locs` adds `// file:line` to every op that has a location."""
    names = value_names(graph)
    inputs = ", ".join(
        f"{names[value]}: {value.type}{' donated' if donated else ''}"
        for value, donated in zip(graph.inputs, graph.donated, strict=True)
    )
    lines = [f"graph @{_identifier(graph.name)}({inputs}) {{"]
    for op in graph.ops():
        where = f"  // {op.loc}" if with_locs and op.loc else ""
        lines.append(f"  {op_text(op, names)}{where}")
        for body in bodies_of(op):
            lines += [f"    {line}" for line in as_text(body, with_locs=with_locs).splitlines()]
    outputs = ", ".join(names[value] for value in graph.outputs)
    lines += [f"  return {outputs}".rstrip(), "}"]
    return "\n".join(lines)


def value_names(graph: Graph) -> Names:
    """`%name` for inputs, `%n` for results of ops in topological order."""
    names: Names = {}
    taken: set[str] = set()
    for value, name in zip(graph.inputs, graph.input_names, strict=True):
        unique = name = _input_name(name)
        copies = 0
        while unique in taken:
            copies += 1
            unique = f"{name}_{copies}"
        taken.add(unique)
        names[value] = f"%{unique}"
    results = (result for op in graph.ops() for result in op.results)
    names.update((result, f"%{number}") for number, result in enumerate(results))
    return names


def op_text(op: Op, names: Names) -> str:
    """One op as it stands in the dump, without indentation."""
    results = ", ".join(f"{names[r]}: {r.type}" for r in op.results)
    body = _BODIES.get(op.kind, _generic)(op, names)
    return f"{results} = {body}" if results else body


# ---------------------------------------------------------------- op bodies


def _generic(op: Op, names: Names) -> str:
    return _join(op.kind, _operands(op, names), *_attributes(op))


def _with_function(op: Op, names: Names) -> str:
    return _join(op.kind, op.attrs["fn"], _operands(op, names), *_attributes(op, {"fn"}))


def _const(op: Op, names: Names) -> str:
    value = op.attrs["value"]
    return f"const {array_text(value) if isinstance(value, np.ndarray) else 'opaque'}"


def _extract_slice(op: Op, names: Names) -> str:
    return _join("extract_slice", names[op.operands[0]], _place(op, 1, names))


def _insert_slice(op: Op, names: Names) -> str:
    source, destination = (names[value] for value in op.operands[:2])
    return _join("insert_slice", source, "into", destination, _place(op, 2, names))


def _place(op: Op, first_start: int, names: Names) -> str:
    starts = iter(op.operands[first_start:])
    offsets = ", ".join(
        names[next(starts)] if offset is None else str(offset) for offset in op.attrs["offsets"]
    )
    strides = op.attrs["strides"]
    text = f"at ({offsets})"
    return text if all(s == 1 for s in strides) else f"{text} strides {literal_text(strides)}"


def _delegate(op: Op, names: Names) -> str:
    effects = op.attrs["effects"]
    return _join(
        "delegate",
        literal_text(op.attrs["reason"]),
        f"({_operands(op, names)})",
        f"effects={literal_text(effects)}" if effects else "",
    )


def _call(op: Op, names: Names) -> str:
    target = literal_text(op.attrs["target"])
    return _join("call", target, f"({_operands(op, names)})", *_attributes(op, {"target"}))


def _control(op: Op, names: Names) -> str:
    bodies = {"body", "condition", "branches"}
    return _join(op.kind, _operands(op, names), *_attributes(op, bodies))


_BODIES: dict[str, Callable[[Op, Names], str]] = {
    "const": _const,
    "map": _with_function,
    "reduce": _with_function,
    "cumulative": _with_function,
    "scatter": _with_function,
    "extract_slice": _extract_slice,
    "insert_slice": _insert_slice,
    "delegate": _delegate,
    "call": _call,
    "loop": _control,
    "branch": _control,
}


def _operands(op: Op, names: Names) -> str:
    return ", ".join(names[value] for value in op.operands)


def _attributes(op: Op, hidden: Iterable[str] = ()) -> list[str]:
    implied = IMPLIED.get(op.kind, frozenset())
    return [
        f"{name}={literal_text(value)}"
        for name, value in sorted(op.attrs.items())
        if name not in implied and name not in hidden
    ]


def _join(*parts: str) -> str:
    return " ".join(part for part in parts if part)


# ----------------------------------------------------------------- literals


def literal_text(value: Any) -> str:
    """An attribute: none, true, 3, nan, "clip", f32, (1, 2). A tuple of one is `(1)`."""
    if isinstance(value, tuple):
        return f"({', '.join(map(literal_text, value))})"
    if value is None or isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, str):
        escaped = value.replace("\\", "\\\\").replace('"', '\\"').replace("\n", "\\n")
        return f'"{escaped}"'
    return repr(value) if isinstance(value, float) else str(value)


def array_text(array: np.ndarray[Any, Any]) -> str:
    """A scalar as itself, few elements as a flat list, one repeated as `splat`, others in
    base64."""
    if array.ndim == 0:
        return element_text(array)
    flat = array.reshape(-1)
    if flat.size <= MAX_INLINE_ELEMENTS:
        return f"[{', '.join(element_text(item) for item in flat)}]"
    if flat.tobytes() == flat[:1].tobytes() * flat.size:
        return f"splat({element_text(flat[0])})"
    return f'base64("{base64.b64encode(flat.tobytes()).decode()}")'


def element_text(element: Any) -> str:
    """The shortest decimal that gives the same bits back, else the bits themselves."""
    element = np.asarray(element)
    if element.dtype.kind == "b":
        return "true" if element else "false"
    if element.dtype.kind in "iu":
        return str(int(element))
    text = str(element[()])
    if element.dtype.kind != "c" and element_bits(text, element.dtype) == element.tobytes():
        return text
    return f"bits(0x{element.tobytes()[::-1].hex()})"


def element_bits(text: str, dtype: np.dtype[Any]) -> bytes | None:
    """The bytes of a decimal read as an element; None where it is none."""
    try:
        return np.asarray(float(text)).astype(dtype).tobytes()
    except ValueError:
        return None


def _input_name(name: str) -> str:
    name = re.sub(r"[^\w.\[\]]", "_", name)
    return f"_{name}" if not name or name[0].isdigit() else name


def _identifier(name: str) -> str:
    return re.sub(r"\W", "_", name) or "f"

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

The graphs inside of an op (a `loop`, `branch` or `dispatch`) follow its line, indented.
"""

from __future__ import annotations

import re

from stagejit.graph.definition import Names
from stagejit.graph.ir import Graph, Op, Value
from stagejit.graph.text.syntax import joined, write_plain


def as_text(graph: Graph, *, with_locs: bool = False) -> str:
    """The text of a graph; `with_locs` adds `// file:line` to every op that has a location."""
    names = value_names(graph)
    inputs = ", ".join(
        f"{names[value]}: {value.type}{' donated' if donated else ''}{' bound' if bound else ''}"
        for value, donated, bound in zip(graph.inputs, graph.donated, graph.bound, strict=True)
    )
    lines = [f"graph @{_identifier(graph.name)}({inputs}) {{"]
    for op in graph.ops():
        where = f"  // {op.loc}" if with_locs and op.loc else ""
        lines.append(f"  {op_text(op, names)}{where}")
        for body in op.definition.bodies(op):
            lines += [f"    {line}" for line in as_text(body, with_locs=with_locs).splitlines()]
    outputs = ", ".join(names[value] for value in graph.outputs)
    lines += [f"  return {outputs}".rstrip(), "}"]
    return "\n".join(lines)


def value_names(graph: Graph) -> Names:
    """`%name` for inputs, `%n` for results of ops in topological order."""
    names: dict[Value, str] = {}
    taken: set[str] = set()
    last: dict[str, int] = {}  # by names, the number of the copies so far
    for value, name in zip(graph.inputs, graph.input_names, strict=True):
        unique = name = _input_name(name)
        copies = last.get(name, 0)
        while unique in taken:
            copies += 1
            unique = f"{name}_{copies}"
        taken.add(unique)
        last[name] = copies
        names[value] = f"%{unique}"
    results = (result for op in graph.ops() for result in op.results)
    names.update((result, f"%{number}") for number, result in enumerate(results))
    return names


def op_text(op: Op, names: Names) -> str:
    """One op as it stands in the dump, without indentation."""
    body = joined(op.kind, (op.definition.write or write_plain)(op, names))
    if len(op.results) == 1:
        return f"{names[op.result]}: {op.result.type} = {body}"
    results = ", ".join(f"{names[r]}: {r.type}" for r in op.results)
    return f"{results} = {body}" if results else body


def _input_name(name: str) -> str:
    name = re.sub(r"[^\w.\[\]]", "_", name)
    return f"_{name}" if not name or name[0].isdigit() else name


def _identifier(name: str) -> str:
    return re.sub(r"\W", "_", name) or "f"

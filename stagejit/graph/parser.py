"""From text back to a graph: the inverse of `printer.py`.

Input: the text form of a graph. Output: a verified `Graph` whose text is the same. Raises
ParseError, with the line, for anything that is not in the grammar, and VerificationError for what
cannot be.
Invariant: `as_text(parse(text)) == text`; a `delegate` comes back without its equation.
"""

from __future__ import annotations

import base64
import re
from collections.abc import Callable, Sequence
from typing import Any, cast

import numpy as np

from stagejit.errors import ParseError
from stagejit.formulas import evaluate, names_in
from stagejit.graph.control import CONTROL
from stagejit.graph.ir import Graph, Op, Value
from stagejit.graph.ops import infer
from stagejit.graph.printer import IMPLIED
from stagejit.graph.verifier import verify
from stagejit.loc import UNKNOWN, Loc
from stagejit.symbolic import size_named
from stagejit.types import DType, TensorType, dtype_named

_TOKEN = re.compile(
    r"""\s*(?:
      (?P<comment>//.*)
    | (?P<value>%[\w.\[\]]+)
    | (?P<string>"(?:[^"\\]|\\.)*")
    | (?P<number>-?(?:0x[0-9a-f]+|\d[\d.]*(?:e[+-]?\d+)?|inf\b|nan\b)(?![\w*+-]))
    | (?P<size>-?\w+(?:[*+-]\w+)+)
    | (?P<name>[A-Za-z_@][\w<>.]*)
    | (?P<mark>[()\[\]{}=:,])
    )""",
    re.VERBOSE,
)


def parse(text: str) -> Graph:
    """The graph that `text` describes."""
    lines = [(number, line) for number, line in enumerate(text.splitlines(), 1) if line.strip()]
    if len(lines) < 2:
        raise ParseError("a graph has at least a header and a return")
    graph = _graph(_Lines(lines))
    verify(graph)
    return graph


class _Lines:
    """The lines of a text, taken from the first to the last."""

    def __init__(self, lines: Sequence[tuple[int, str]]) -> None:
        self.lines, self.next = lines, 0

    def starts_with(self, word: str) -> bool:
        more = self.next < len(self.lines)
        return more and self.lines[self.next][1].lstrip().startswith(word)

    def take(self) -> _Line | None:
        if self.next == len(self.lines):
            return None
        self.next += 1
        return _Line(*self.lines[self.next - 1])


def _graph(lines: _Lines) -> Graph:
    header = lines.take()
    if header is None:
        raise ParseError("a graph has at least a header and a return")
    graph, values = _header(header)
    while (tokens := lines.take()) is not None:
        if tokens.accept("}"):
            break
        if tokens.accept("return"):
            graph.set_outputs(tokens.values_until(None, values))
        else:
            _op(tokens, graph, values, lines)
        tokens.end()
    return graph


def _header(tokens: _Line) -> tuple[Graph, dict[str, Value]]:
    tokens.expect("graph")
    graph = Graph(tokens.take("name").removeprefix("@"))
    values: dict[str, Value] = {}
    tokens.expect("(")

    def argument() -> None:
        name = tokens.take("value")
        tokens.expect(":")
        type = tokens.type()
        donated = tokens.accept("donated")
        values[name] = graph.add_input(name[1:], type, donated=donated)

    tokens.list_until(")", argument)
    tokens.expect("{")
    tokens.end()
    return graph, values


def _op(tokens: _Line, graph: Graph, values: dict[str, Value], lines: _Lines) -> None:
    names: list[str] = []
    types: list[TensorType] = []
    while tokens.kind() == "value":
        names.append(tokens.take("value"))
        tokens.expect(":")
        types.append(tokens.type())
        if not tokens.accept(","):
            break
    if names:
        tokens.expect("=")
    kind = tokens.take("name")
    operands, attrs = _BODIES.get(kind, _generic)(tokens, kind, values, types)
    loc = tokens.loc()
    if kind in CONTROL:
        attrs |= _inner_graphs(tokens, kind, lines)
    op = graph.add(kind, operands, types, loc, **attrs)
    if len(types) != len(set(names)) or any(name in values for name in names):
        raise tokens.error("a name is given twice")
    values.update(zip(names, op.results, strict=True))
    _check_types(tokens, op)


def _inner_graphs(tokens: _Line, kind: str, lines: _Lines) -> dict[str, Any]:
    """The graphs on the lines after a `loop` or `branch`."""
    graphs = []
    while lines.starts_with("graph "):
        graphs.append(_graph(lines))
    if kind == "branch":
        return {"branches": tuple(graphs)}
    if len(graphs) not in (1, 2):
        raise tokens.error("a loop has a body, and may have a condition")
    return {"body": graphs[0], "condition": graphs[1] if graphs[1:] else None}


def _check_types(tokens: _Line, op: Op) -> None:
    expected = infer(op.kind, [value.type for value in op.operands], op.attrs)
    actual = tuple(value.type for value in op.results)
    if expected is not None and expected != actual:
        raise tokens.error(f"the type should be {', '.join(map(str, expected))}")


# ---------------------------------------------------------------- op bodies

Body = tuple[list[Value], dict[str, Any]]
Values = dict[str, Value]


def _generic(tokens: _Line, kind: str, values: Values, types: list[TensorType]) -> Body:
    operands = []
    while tokens.kind() == "value":
        operands.append(tokens.value(values))
        tokens.accept(",")
    attrs = tokens.attributes()
    return operands, attrs | _implied(tokens, kind, types)


def _implied(tokens: _Line, kind: str, types: list[TensorType]) -> dict[str, Any]:
    """The attributes that the result type tells."""
    if kind == "optimization_barrier":
        return {}
    if len(types) != 1:
        raise tokens.error(f"{kind} has one result, not {len(types)}")
    known = {"shape": types[0].shape, "sizes": types[0].shape, "dtype": types[0].dtype}
    return {name: known[name] for name in sorted(IMPLIED.get(kind, ()))}


def _with_function(tokens: _Line, kind: str, values: Values, types: list[TensorType]) -> Body:
    fn = tokens.take("name")
    operands, attrs = _generic(tokens, kind, values, types)
    if kind == "reduce" and fn not in ("argmax", "argmin"):
        del attrs["dtype"]
    return operands, {"fn": fn} | attrs


def _const(tokens: _Line, kind: str, values: Values, types: list[TensorType]) -> Body:
    if len(types) != 1:
        raise tokens.error("const has one result")
    return [], {"value": tokens.array(types[0])}


def _extract_slice(tokens: _Line, kind: str, values: Values, types: list[TensorType]) -> Body:
    x = tokens.value(values)
    starts, attrs = _place(tokens, values)
    return [x, *starts], attrs | _implied(tokens, kind, types)


def _insert_slice(tokens: _Line, kind: str, values: Values, types: list[TensorType]) -> Body:
    source = tokens.value(values)
    tokens.expect("into")
    destination = tokens.value(values)
    starts, attrs = _place(tokens, values)
    return [source, destination, *starts], attrs


def _place(tokens: _Line, values: Values) -> Body:
    starts: list[Value] = []
    offsets: list[int | None] = []

    def offset() -> None:
        if tokens.kind() == "value":
            starts.append(tokens.value(values))
            offsets.append(None)
        else:
            offsets.append(tokens.integer())

    tokens.expect("at")
    tokens.expect("(")
    tokens.list_until(")", offset)
    strides = tokens.literal() if tokens.accept("strides") else (1,) * len(offsets)
    return starts, {"offsets": tuple(offsets), "strides": strides}


def _delegate(tokens: _Line, kind: str, values: Values, types: list[TensorType]) -> Body:
    reason = tokens.literal()
    tokens.expect("(")
    operands = tokens.values_until(")", values)
    effects = tokens.attributes().get("effects", ())
    return operands, {"equation": None, "reason": reason, "effects": effects}


def _call(tokens: _Line, kind: str, values: Values, types: list[TensorType]) -> Body:
    target = tokens.literal()
    tokens.expect("(")
    operands = tokens.values_until(")", values)
    return operands, {"target": target} | tokens.attributes()


def _control(tokens: _Line, kind: str, values: Values, types: list[TensorType]) -> Body:
    operands = []
    while tokens.kind() == "value":
        operands.append(tokens.value(values))
        tokens.accept(",")
    return operands, tokens.attributes()


_BODIES: dict[str, Callable[[_Line, str, Values, list[TensorType]], Body]] = {
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


# ------------------------------------------------------------------- tokens


class _Line:
    """The tokens of one line, read from left to right."""

    def __init__(self, number: int, text: str) -> None:
        self.number, self.text = number, text
        self.tokens: list[tuple[str, str]] = []
        self.comment = ""
        at = 0
        stripped = text.rstrip()
        while at < len(stripped):
            match = _TOKEN.match(stripped, at)
            if match is None:
                raise self.error(f"cannot read {stripped[at:].strip()[:20]!r}")
            kind = str(match.lastgroup)
            if kind == "comment":
                self.comment = match["comment"][2:].strip()
            else:
                self.tokens.append((kind, match[kind]))
            at = match.end()
        self.next = 0

    def error(self, message: str) -> ParseError:
        return ParseError(f"line {self.number}: {message}: {self.text.strip()}")

    def kind(self) -> str:
        return self.tokens[self.next][0] if self.next < len(self.tokens) else "end"

    def accept(self, text: str) -> bool:
        found = self.next < len(self.tokens) and self.tokens[self.next][1] == text
        self.next += found
        return found

    def expect(self, text: str) -> None:
        if not self.accept(text):
            raise self.error(f"expected {text!r}")

    def take(self, kind: str) -> str:
        if self.kind() != kind:
            raise self.error(f"expected a {kind}, found {self.kind()}")
        self.next += 1
        return self.tokens[self.next - 1][1]

    def end(self) -> None:
        if self.next < len(self.tokens):
            raise self.error(f"did not expect {self.tokens[self.next][1]!r}")

    def list_until(self, closing: str | None, item: Callable[[], Any]) -> list[Any]:
        """Items separated by commas, up to `closing` or the end of the line."""
        items: list[Any] = []
        while not (self.accept(closing) if closing else self.kind() == "end"):
            if items:
                self.expect(",")
            items.append(item())
        return items

    def values_until(self, closing: str | None, values: Values) -> list[Value]:
        return self.list_until(closing, lambda: self.value(values))

    def value(self, values: Values) -> Value:
        name = self.take("value")
        if name not in values:
            raise self.error(f"{name} is not defined yet")
        return values[name]

    def integer(self) -> int:
        """A number, or a sum of products of symbolic sizes, which counts as one."""
        if self.kind() in ("name", "size"):
            text = self.take(self.kind())
            return cast(int, evaluate(text, {name: size_named(name) for name in names_in(text)}))
        text = self.take("number")
        try:
            return int(text)
        except ValueError:
            raise self.error(f"{text} is no integer") from None

    def type(self) -> TensorType:
        dtype = dtype_named(self.take("name"))
        self.expect("[")
        return TensorType(dtype, tuple(self.list_until("]", self.integer)))

    def attributes(self) -> dict[str, Any]:
        attrs = {}
        while self.kind() == "name":
            name = self.take("name")
            self.expect("=")
            attrs[name] = self.literal()
        return attrs

    def literal(self) -> Any:
        """The inverse of `printer.literal_text`."""
        if self.accept("("):
            return tuple(self.list_until(")", self.literal))
        if self.kind() == "string":
            return re.sub(
                r"\\(.)", lambda m: "\n" if m[1] == "n" else m[1], self.take("string")[1:-1]
            )
        if self.kind() == "number":
            text = self.take("number")
            return int(text) if re.fullmatch(r"-?\d+", text) else float(text)
        name = self.take("name")
        words = {"none": None, "true": True, "false": False}
        if name not in words:
            raise self.error(f"{name} is no value")
        return words[name]

    def array(self, type: TensorType) -> Any:
        """The inverse of `printer.array_text`, read-only; None for an opaque constant."""
        if self.accept("opaque"):
            return None
        if type.dtype.kind == "opaque":
            raise self.error(f"{type.dtype} has no literal")
        dtype = type.dtype.numpy
        if self.accept("["):
            data = b"".join(self.list_until("]", lambda: self.element(type.dtype)))
        elif self.accept("splat"):
            self.expect("(")
            data = self.element(type.dtype) * type.size
            self.expect(")")
        elif self.accept("base64"):
            self.expect("(")
            data = base64.b64decode(self.literal())
            self.expect(")")
        else:
            data = self.element(type.dtype)
        if len(data) != type.size * dtype.itemsize:
            raise self.error(f"{len(data)} bytes do not fill {type}")
        array = np.frombuffer(data, dtype).reshape(type.shape)
        array.flags.writeable = False
        return array

    def element(self, dtype: DType) -> bytes:
        """The bytes of one element."""
        if self.accept("bits"):
            self.expect("(")
            digits = self.take("number")
            self.expect(")")
            return bytes.fromhex(digits.removeprefix("0x"))[::-1]
        if self.kind() == "name":
            return np.asarray(self.literal(), dtype.numpy).tobytes()
        text = self.take("number")
        try:
            number: Any = int(text) if dtype.is_integer else float(text)
            return np.asarray(number).astype(dtype.numpy).tobytes()
        except ValueError:
            raise self.error(f"{text} is no {dtype}") from None

    def loc(self) -> Loc:
        """The location in the trailing comment."""
        match = re.fullmatch(r"(.+):(\d+)", self.comment)
        return Loc(match[1], int(match[2])) if match else UNKNOWN

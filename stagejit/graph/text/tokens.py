"""The tokens of one line of a graph's text, and the values that they spell.

Input: a line. Output: tokens taken from left to right; types, literals and arrays made of them.
Invariant: the inverse of `literals.py`; what cannot be read is a ParseError with the line.
"""

from __future__ import annotations

import base64
import re
from collections.abc import Callable, Mapping, Sequence
from typing import Any, cast

import numpy as np

from stagejit.base.formulas import evaluate, names_in
from stagejit.base.loc import UNKNOWN, Loc
from stagejit.base.symbolic import size_named
from stagejit.errors import ParseError
from stagejit.graph.ir import Value
from stagejit.index.encoding import Encoding
from stagejit.index.layout import ROW_MAJOR, Layout
from stagejit.types import DType, TensorType, dtype_named

Values = Mapping[str, Value]

_TOKEN = re.compile(
    r"""\s*(?:
      (?P<comment>//.*)
    | (?P<value>%[\w.\[\]]+)
    | (?P<string>"[^"\\]*(?:\\.[^"\\]*)*")
    | (?P<number>-?(?:0x[0-9a-f]+|\d[\d.]*(?:e[+-]?\d+)?|inf\b|nan\b)(?![\w*+-]))
    | (?P<size>-?\w+(?:[*+-]\w+)+)
    | (?P<name>[A-Za-z_@][\w<>.]*)
    | (?P<layout>\{[\d;][\d,;]*\})
    | (?P<encoding>\{\w+(?::\w*)+\})
    | (?P<mark>[()\[\]{}=:,~])
    )""",
    re.VERBOSE,
)


def read_layout(text: str, shape: Sequence[int], error: Callable[[str], ParseError]) -> Layout:
    """The layout of arrays of this shape that the text says. Raises the error for any other."""
    try:
        layout = Layout.of_text(text)
    except ValueError:
        raise error(f"{text} is no layout") from None
    if not layout.fits(shape):
        raise error(f"{text} is no layout of that shape")
    return layout


class Line:
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

    def skip(self) -> None:
        """One token, whatever it is."""
        if self.kind() == "end":
            raise self.error("did not expect the end of the line")
        self.next += 1

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
        shape = tuple(self.list_until("]", self.integer))
        layout = ROW_MAJOR
        if self.kind() == "layout":
            layout = read_layout(self.take("layout"), shape, self.error)
        encoding = self.encoding(shape) if self.kind() == "encoding" else None
        return TensorType(dtype, shape, layout, encoding)

    def encoding(self, shape: Sequence[int]) -> Encoding:
        """The encoding of an array of this shape."""
        text = self.take("encoding")
        try:
            encoding = Encoding.of_text(text)
        except ValueError as fault:
            raise self.error(str(fault)) from None
        if len(encoding.axes) != len(shape):
            raise self.error(f"{text} is no encoding of that shape")
        return encoding

    def attributes(self) -> dict[str, Any]:
        attrs = {}
        while self.kind() == "name":
            name = self.take("name")
            self.expect("=")
            attrs[name] = self.literal()
        return attrs

    def literal(self) -> Any:
        """The inverse of `literals.literal_text`."""
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
        """The inverse of `literals.array_text`, read-only; None for an opaque constant."""
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

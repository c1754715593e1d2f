"""Spans as a plane of XLA's profiler, in the wire format of its protocol buffers.

Input: spans, and the time of the system's clock at which they begin. Output: bytes of an `XSpace`
(tsl/profiler/protobuf/xplane.proto) with one plane, a line for each thread. Invariant: events of
one name share their metadata.
"""

from __future__ import annotations

from collections.abc import Sequence

from stagejit.inspect.profiles.spans import Span

PLANE = "/device:CUSTOM:stagejit"  # planes with this prefix are shown as they are


def xspace(spans: Sequence[Span], begin_ns: int) -> bytes:
    """begin_ns: since 1970, when the spans' own time begins. Empty where there are no spans."""
    if not spans:
        return b""
    names: dict[str, int] = {}
    threads: dict[str, list[Span]] = {}
    for span in spans:
        names.setdefault(_name(span), len(names) + 1)
        threads.setdefault(span.thread, []).append(span)
    plane = _text(2, PLANE)
    for number, (thread, own) in enumerate(threads.items()):
        plane += _bytes(3, _line(number, thread, own, names, begin_ns))
    for name, number in names.items():
        metadata = _number(1, number) + _text(2, name)
        plane += _bytes(4, _number(1, number) + _bytes(2, metadata))
    return _bytes(1, plane)


def _name(span: Span) -> str:
    return span.name if span.kind == "call" else f"{span.function}: {span.name}"


def _line(
    number: int, thread: str, spans: Sequence[Span], names: dict[str, int], begin_ns: int
) -> bytes:
    made = [_number(1, number), _text(2, thread), _number(3, begin_ns)]
    for span in sorted(spans, key=lambda span: (span.start_seconds, -span.seconds)):
        event = _number(1, names[_name(span)])
        event += _number(2, max(round(1e12 * span.start_seconds), 0))
        event += _number(3, max(round(1e12 * span.seconds), 0))
        made.append(_bytes(4, event))
    return b"".join(made)


def _number(field: int, value: int) -> bytes:
    """A field with a non-negative integer."""
    return _varint(field << 3) + _varint(value)


def _bytes(field: int, value: bytes) -> bytes:
    return _varint(field << 3 | 2) + _varint(len(value)) + value


def _text(field: int, value: str) -> bytes:
    return _bytes(field, value.encode())


def _varint(value: int) -> bytes:
    made = bytearray()
    while value > 0x7F:
        made.append(value & 0x7F | 0x80)
        value >>= 7
    made.append(value)
    return bytes(made)

"""Relocatable ELF objects for x86-64, as LLVM writes them -> sections, symbols, relocations.

Input: the bytes of an object file. Output: an `Object`. Invariant: what the object says about
itself is checked against its size; anything else than what `linker` can place raises ObjectError.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator
from typing import NamedTuple

from stagejit.base.records import record

_IDENT = b"\x7fELF\x02\x01\x01"  # 64 bits, little-endian
_RELOCATABLE, _X86_64 = 1, 62
_PROGBITS, _SYMTAB, _RELA, _NOBITS = 1, 2, 4, 8
_WRITE, _ALLOC, _TLS = 1, 2, 0x400
_UNDEFINED, _ABSOLUTE, _RESERVED = 0, 0xFFF1, 0xFF00
_LOCAL = 0
_LIMIT_NBYTES = 1 << 28
_MAX_ALIGNMENT = {False: 4096, True: 64}  # of what is never written, and may be: pages, lines
_FIELD_NBYTES = {1: 8}  # what relocations of a kind write; all others that are linked write 4


class ObjectError(Exception):
    """The bytes are no object that can be linked here."""


@record
class Section:
    """A section that lies in memory. `contents` is shorter than `nbytes` where the rest is zero."""

    name: str
    contents: bytes
    nbytes: int
    alignment: int
    writable: bool  # when the program runs; tables of addresses are written by the linker alone


@record
class Symbol:
    """`section` is None for what another module defines."""

    name: str
    section: int | None
    value: int
    is_global: bool


@record
class Relocation:
    """At `offset` of `section`, put the address of `symbol` plus `addend`, as `kind` says."""

    section: int
    offset: int
    kind: int
    symbol: Symbol
    addend: int


@record
class Object:
    """Sections by their number in the file."""

    sections: dict[int, Section]
    symbols: tuple[Symbol, ...]
    relocations: tuple[Relocation, ...]


class _Header(NamedTuple):
    name: str
    kind: int
    flags: int
    offset: int
    size: int
    link: int
    info: int
    alignment: int


def parse(data: bytes) -> Object:
    """Raises ObjectError for anything that is not a whole relocatable x86-64 object."""
    try:
        return _parse(data)
    except (struct.error, IndexError, KeyError, ValueError, OverflowError) as error:
        raise ObjectError(f"damaged object: {error}") from error


def _parse(data: bytes) -> Object:
    kind, machine = struct.unpack_from("<HH", data, 16)
    if data[:7] != _IDENT or (kind, machine) != (_RELOCATABLE, _X86_64):
        raise ObjectError("not a relocatable object for x86-64")
    headers = _headers(data)
    sections = {
        number: _section(data, header)
        for number, header in enumerate(headers)
        if header.flags & _ALLOC and header.name != ".eh_frame"  # kernels do not unwind
    }
    tables = [header for header in headers if header.kind == _SYMTAB]
    if len(tables) != 1:
        raise ObjectError(f"{len(tables)} symbol tables")
    symbols = _symbols(data, tables[0], headers[tables[0].link], sections)
    relocations = tuple(
        relocation
        for header in headers
        if header.kind == _RELA and header.info in sections
        for relocation in _relocations(data, header, symbols, sections[header.info])
    )
    return Object(sections, symbols, relocations)


def _headers(data: bytes) -> list[_Header]:
    (offset,) = struct.unpack_from("<Q", data, 40)
    size, count, names = struct.unpack_from("<HHH", data, 58)
    raw = [struct.unpack_from("<IIQQQQIIQQ", data, offset + size * i) for i in range(count)]
    table = data[raw[names][4] : raw[names][4] + raw[names][5]]
    return [
        _Header(_text(table, name), kind, flags, at, nbytes, link, info, alignment)
        for name, kind, flags, _, at, nbytes, link, info, alignment, _ in raw
    ]


def _section(data: bytes, header: _Header) -> Section:
    if header.kind not in (_PROGBITS, _NOBITS) or header.flags & _TLS:
        raise ObjectError(f"section {header.name} is of a kind that is not known here")
    writable = bool(header.flags & _WRITE) and not header.name.startswith(".data.rel.ro")
    alignment, most = max(header.alignment, 1), _MAX_ALIGNMENT[writable]
    if header.size > _LIMIT_NBYTES or alignment > most or alignment & (alignment - 1):
        raise ObjectError(f"section {header.name} has {header.size} bytes, aligned to {alignment}")
    contents = b"" if header.kind == _NOBITS else _slice(data, header)
    return Section(header.name, contents, header.size, alignment, writable)


def _symbols(
    data: bytes, table: _Header, names: _Header, sections: dict[int, Section]
) -> tuple[Symbol, ...]:
    strings = _slice(data, names)
    found = []
    for name, info, _, section, value, _ in struct.iter_unpack("<IBBHQQ", _slice(data, table)):
        inside = section if section in sections else None
        if inside is None and section >= _RESERVED and section != _ABSOLUTE:
            raise ObjectError(f"symbol {_text(strings, name)} is in no section")
        if inside is not None and value > sections[inside].nbytes:
            raise ObjectError(f"symbol {_text(strings, name)} lies outside of its section")
        found.append(Symbol(_text(strings, name), inside, value, info >> 4 != _LOCAL))
    return tuple(found)


def _relocations(
    data: bytes, header: _Header, symbols: tuple[Symbol, ...], section: Section
) -> Iterator[Relocation]:
    for offset, info, addend in struct.iter_unpack("<QQq", _slice(data, header)):
        kind = info & 0xFFFFFFFF
        if offset + _FIELD_NBYTES.get(kind, 4) > len(section.contents):
            raise ObjectError(f"a relocation lies outside of section {section.name}")
        symbol = symbols[info >> 32]
        if symbol.section is None and not symbol.name:
            raise ObjectError("a relocation names no symbol")
        yield Relocation(header.info, offset, kind, symbol, addend)


def _slice(data: bytes, header: _Header) -> bytes:
    if header.offset + header.size > len(data):
        raise ObjectError(f"section {header.name} ends behind the end of the file")
    return data[header.offset : header.offset + header.size]


def _text(table: bytes, offset: int) -> str:
    end = table.index(b"\0", offset)
    return table[offset:end].decode()

"""Objects -> code in memory that can be called.

Input: object files, each of which defines the symbols that it is asked for, and what they import.
Output: an `Image` for each. Invariants: an image's memory lives until `free`; nothing is linked by
halves: an error frees what was allocated.

Objects for x86-64 are linked here, into `code_memory`. Whatever else this machine runs goes through
LLVM's own linker, whose mappings are more and whose libraries leave some kilobytes behind.
"""

from __future__ import annotations

import ctypes
import itertools
from collections.abc import Callable, Mapping, Sequence
from functools import cache
from typing import Any

import llvmlite.binding as llvm

from stagejit.base.records import record
from stagejit.base.threads.other_threads import on_another_thread
from stagejit.codegen.target import Target
from stagejit.runtime.objects import elf
from stagejit.runtime.objects.code_memory import Block, code_memory
from stagejit.runtime.objects.elf import Object, ObjectError, Relocation, Symbol

_ABSOLUTE64, _RELATIVE32, _CALL32 = 1, 2, 4
_GOT_RELATIVE32 = (9, 41, 42)  # GOTPCREL, GOTPCRELX, REX_GOTPCRELX: a table entry, relative
_STUB = b"\xff\x25\x00\x00\x00\x00"  # jmp *[the 8 bytes behind this instruction]
_STUB_NBYTES, _ENTRY_NBYTES = 16, 8
# What LLVM's code generator calls by itself.
_OF_THE_C_LIBRARY = ("memcpy", "memmove", "memset")


@record
class Image:
    """Addresses of the global symbols of one object. Call `free` once, when nobody calls them."""

    addresses: dict[str, int]
    free: Callable[[], None]


def link(
    objects: Sequence[tuple[bytes, tuple[str, ...]]], imports: Mapping[str, int]
) -> list[Image]:
    """Images of (object, symbols wanted of it). Raises ObjectError where that cannot be done."""
    if not Target.host().is_x86:
        return on_another_thread(lambda: _link_by_llvm(objects, imports))
    parts: list[_Part] = []
    try:
        for data, _ in objects:
            parts.append(_Part(elf.parse(data)))
        for part, (_, wanted) in zip(parts, objects, strict=True):
            missing = [name for name in wanted if name not in part.defined]
            if missing:
                raise ObjectError(f"it does not define {', '.join(missing)}")
            part.relocate(imports)
    except BaseException:
        for part in parts:
            part.free()
        raise
    return [Image(part.defined, part.free) for part in parts]


class _Part:
    """One object in memory: where its sections lie, and the table of what it imports.

    Pages of code hold its fixed sections, then an entry for each imported address, then a jump for
    each imported function (which may be further away than a call reaches).
    """

    def __init__(self, source: Object) -> None:
        self.source = source
        self.offsets: dict[int, int] = {}
        size = {False: 0, True: 0}
        for number, section in source.sections.items():
            at = -(-size[section.writable] // section.alignment) * section.alignment
            self.offsets[number], size[section.writable] = at, at + section.nbytes
        self.entries = _numbered(source.relocations, _GOT_RELATIVE32)
        self.stubs = _numbered(source.relocations, (_CALL32,))
        self.entries_at = -(-size[False] // _STUB_NBYTES) * _STUB_NBYTES
        self.stubs_at = self.entries_at + -(-len(self.entries) // 2) * _STUB_NBYTES
        nbytes = self.stubs_at + len(self.stubs) * _STUB_NBYTES
        self.code = bytearray(nbytes)
        self.data = bytearray(size[True])
        self.block: Block = code_memory().allocate(nbytes, size[True])
        self.defined = {
            symbol.name: self._own_address(symbol)
            for symbol in source.symbols
            if symbol.is_global and symbol.section is not None
        }

    def free(self) -> None:
        code_memory().free(self.block)

    def relocate(self, addresses: Mapping[str, int]) -> None:
        """Write everything to its place, and seal it."""
        for number, section in self.source.sections.items():
            image = self.data if section.writable else self.code
            at = self.offsets[number]
            image[at : at + len(section.contents)] = section.contents
        for symbol, number in self.entries.items():
            at = self.entries_at + number * _ENTRY_NBYTES
            self._write(at, 8, self._address(symbol, addresses), signed=False)
        for symbol, number in self.stubs.items():
            at = self.stubs_at + number * _STUB_NBYTES
            self.code[at : at + len(_STUB)] = _STUB
            self._write(at + len(_STUB), 8, self._address(symbol, addresses), signed=False)
        for relocation in self.source.relocations:
            self._relocate(relocation, addresses)
        ctypes.memmove(self.block.code, bytes(self.code), len(self.code))
        ctypes.memmove(self.block.data, bytes(self.data), len(self.data))
        self.block.seal()

    def _relocate(self, relocation: Relocation, addresses: Mapping[str, int]) -> None:
        symbol = relocation.symbol
        writable = self.source.sections[relocation.section].writable
        offset = self.offsets[relocation.section] + relocation.offset
        place = (self.block.data if writable else self.block.code) + offset
        image = self.data if writable else self.code
        if relocation.kind == _ABSOLUTE64:
            value = self._address(symbol, addresses) + relocation.addend
            self._write(offset, 8, value, signed=False, image=image)
            return
        if relocation.kind in _GOT_RELATIVE32:
            target = self.block.code + self.entries_at + self.entries[symbol] * _ENTRY_NBYTES
        elif relocation.kind == _CALL32:
            target = self._address(symbol, addresses)
            if not -(1 << 31) + 4096 <= target - place < (1 << 31) - 4096:
                target = self.block.code + self.stubs_at + self.stubs[symbol] * _STUB_NBYTES
        elif relocation.kind == _RELATIVE32:
            target = self._address(symbol, addresses)
        else:
            raise ObjectError(f"relocation {relocation.kind} is not known here")
        self._write(offset, 4, target + relocation.addend - place, signed=True, image=image)

    def _address(self, symbol: Symbol, addresses: Mapping[str, int]) -> int:
        if symbol.section is not None:
            return self._own_address(symbol)
        found = addresses.get(symbol.name)
        if found is None and symbol.name in _OF_THE_C_LIBRARY:
            found = libc_address(symbol.name)
        if found is None:
            raise ObjectError(f"symbol {symbol.name} is defined nowhere")
        return found

    def _own_address(self, symbol: Symbol) -> int:
        assert symbol.section is not None
        writable = self.source.sections[symbol.section].writable
        base = self.block.data if writable else self.block.code
        return base + self.offsets[symbol.section] + symbol.value

    def _write(
        self, at: int, nbytes: int, value: int, *, signed: bool, image: bytearray | None = None
    ) -> None:
        try:
            encoded = value.to_bytes(nbytes, "little", signed=signed)
        except OverflowError as error:
            raise ObjectError("an imported address is too far away") from error
        (self.code if image is None else image)[at : at + nbytes] = encoded


def _numbered(relocations: Sequence[Relocation], kinds: tuple[int, ...]) -> dict[Symbol, int]:
    """The symbols that relocations of these kinds name, numbered through."""
    numbers: dict[Symbol, int] = {}
    for relocation in relocations:
        if relocation.kind in kinds:
            numbers.setdefault(relocation.symbol, len(numbers))
    return numbers


@cache
def libc_address(name: str) -> int:
    """Address of a function of the C library, which is part of this process."""
    address = ctypes.cast(getattr(ctypes.CDLL(None), name), ctypes.c_void_p).value
    if address is None:
        raise ObjectError(f"the C library has no {name}")
    return address


# -- LLVM's own linker -----------------------------------------------------------------------------


@cache
def _lljit() -> Any:
    """One for the process, never closed: see the docstring."""
    llvm.initialize_native_target()
    llvm.initialize_native_asmprinter()
    machine = llvm.Target.from_default_triple().create_target_machine(reloc="pic")
    return llvm.create_lljit_compiler(machine, use_jit_link=True)


_library_numbers = itertools.count()


def _link_by_llvm(
    objects: Sequence[tuple[bytes, tuple[str, ...]]], imports: Mapping[str, int]
) -> list[Image]:
    """All objects as one library, which goes when the last of its images is freed."""
    library = llvm.JITLibraryBuilder()
    wanted = {name for _, names in objects for name in names}
    for data, _ in objects:
        library.add_object_img(data)
    for name in _OF_THE_C_LIBRARY:
        library.import_symbol(name, libc_address(name))
    for name, address in imports.items():
        if name not in wanted:
            library.import_symbol(name, address)
    for name in sorted(wanted):
        library.export_symbol(name)
    try:
        tracker = library.link(_lljit(), f"stagejit.{next(_library_numbers)}")
    except RuntimeError as error:
        raise ObjectError(str(error)) from error
    left = [len(objects)]

    def free() -> None:
        left[0] -= 1
        if not left[0]:
            tracker.close()

    return [Image({name: tracker[name] for name in names}, free) for _, names in objects]

"""Runs kernels for AVX-512 on an x86 without it, on the emulated PC Bochs.

Input: object files by symbol, frames. Output: images after the run. Invariant: see `emulator.py`.
There is no operating system and no BIOS: a ROM of a few instructions switches to 64-bit mode and
to AVX-512 and jumps to a loader in memory, which reads the driver with the kernels, and the tasks,
from a disk; images come out of the port that Bochs prints.
"""

from __future__ import annotations

import os
import platform
import shutil
import subprocess
import tempfile
import weakref
from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import cache
from pathlib import Path

import numpy as np

from stagejit.codegen.target import Target
from stagejit.errors import InternalError
from tests.fuzz.kernels.running.emulator import CARRY_OUT, image_place, pack, table
from tests.fuzz.kernels.running.machine import compile_object
from tests.fuzz.kernels.running.scene import Array, Frame

_TOOLS = ("bochs", "gcc", "ld", "objcopy")
_SECTOR, _CYLINDER = 512, 16 * 63 * 512
_LOADER, _PROGRAM, _TASKS = 16 << 20, 32 << 20, 256 << 20  # places in memory
_MOST_NBYTES = 96 << 20  # of tasks at once
_BEGIN = b"<stagejit images>"
_CONFIGURATION = f"""\
config_interface: textconfig
display_library: sdl2
romimage: file=rom.bin, address=0xffff0000
optramimage1: file=loader, address={_LOADER:#x}
ata0: enabled=1, ioaddr1=0x1f0, ioaddr2=0x3f0, irq=14
ata0-master: type=disk, path=disk, mode=flat
cpu: model=corei7_skylake_x, count=1, ips=50000000, reset_on_triple_fault=0
megs: 1024
port_e9_hack: enabled=1
sound: waveoutdrv=dummy, waveindrv=dummy, midioutdrv=dummy
plugin_ctrl: speaker=0
log: log
panic: action=fatal
"""
# From the reset vector at the end to 64-bit mode: tables for 4 GiB of pages from 0x10000 on.
_ROM = rf"""
    .code16
    .globl _start
_start:
    cli
    lgdtl %cs:(table - _start)
    movl %cr0, %eax
    orb $1, %al
    movl %eax, %cr0
    ljmpl $0x08, $(0xFFFF0000 + protected - _start)
    .code32
protected:
    movw $0x10, %ax
    movw %ax, %ds
    movw %ax, %es
    movw %ax, %ss
    movl $0x10000, %edi
    xorl %eax, %eax
    movl $(6 * 1024), %ecx
    cld
    rep stosl
    movl $0x11003, 0x10000
    movl $0x12003, 0x11000
    movl $0x13003, 0x11008
    movl $0x14003, 0x11010
    movl $0x15003, 0x11018
    movl $0x12000, %edi
    movl $0x83, %eax
1:  movl %eax, (%edi)
    addl $8, %edi
    addl $0x200000, %eax
    jnc 1b
    movl $0x40620, %eax     # CR4: PAE, OSFXSR, OSXMMEXCPT, OSXSAVE
    movl %eax, %cr4
    movl $0x10000, %eax
    movl %eax, %cr3
    movl $0xC0000080, %ecx  # EFER: LME
    rdmsr
    orl $0x100, %eax
    wrmsr
    movl $0x80000023, %eax  # CR0: PG, NE, MP, PE
    movl %eax, %cr0
    ljmpl $0x18, $(0xFFFF0000 + long - _start)
    .code64
long:
    xorl %ecx, %ecx
    xorl %edx, %edx
    movl $0xE7, %eax        # XCR0: x87, SSE, AVX, AVX-512
    xsetbv
    movl $0x7FFFF8, %esp    # as after a call
    movl ${_LOADER:#x}, %eax
    jmp *%rax
    .align 16
segments:
    .quad 0, 0x00CF9A000000FFFF, 0x00CF92000000FFFF, 0x00AF9A000000FFFF
table:
    .word 31
    .long 0xFFFF0000 + segments - _start
    .org 0xFFF0
    .byte 0xE9              # jmp _start
    .word 0x10000 - 0xFFF3
    .org 0x10000
"""
# Sector 0 of the disk says how many sectors the program has, and the tasks after it.
_READ = rf"""
typedef long i64;
static void out(i64 port, i64 byte) {{
  __asm__ volatile("outb %b0, %w1" : : "a"(byte), "d"(port));
}}
static i64 status(void) {{
  i64 byte = 0;
  __asm__ volatile("inb %w1, %b0" : "+a"(byte) : "d"(0x1f7));
  return byte;
}}
static void load(char *to, i64 from, i64 count) {{
  for (i64 at = from; at < from + count; at++) {{
    while (status() & 0x80);
    out(0x1f6, 0xe0 | at >> 24);
    out(0x1f2, 1), out(0x1f3, at), out(0x1f4, at >> 8), out(0x1f5, at >> 16), out(0x1f7, 0x20);
    while ((status() & 0x88) != 8);
    i64 words = {_SECTOR // 2};
    __asm__ volatile("rep insw" : "+D"(to), "+c"(words) : "d"(0x1f0) : "memory");
  }}
}}
__attribute__((section(".text.startup"))) void _start(void) {{
  i64 *head = (i64 *){_PROGRAM - _SECTOR:#x}L;
  load((char *)head, 0, 1);
  load((char *){_PROGRAM:#x}L, 1, head[0]);
  load((char *){_TASKS:#x}L, 1 + head[0], head[1]);
  ((void (*)(void)){_PROGRAM:#x}L)();
}}
"""
_DRIVER = rf"""
{CARRY_OUT}
static void out(i64 port, const void *from, i64 count) {{
  __asm__ volatile("rep outsb" : "+S"(from), "+c"(count) : "d"(port) : "memory");
}}
__attribute__((section(".text.startup"))) void _start(void) {{
  i64 *given = (i64 *){_TASKS:#x}L;
  u8 *m = (u8 *)(given + 8);
  carry_out(m, *given);
  out(0xe9, "{_BEGIN.decode()}", {len(_BEGIN)});
  out(0xe9, m, *given);
  out(0x8900, "Shutdown", 8);
  for (;;);
}}
"""


def refuse_bochs() -> str:
    """Why AVX-512 cannot be emulated here; empty where it can."""
    if platform.machine() != "x86_64":
        return "this is no x86"
    missing = [name for name in _TOOLS if shutil.which(name) is None]
    if missing:
        return f"this processor has no AVX-512 and there is no {missing[0]}; install bochs-sdl"
    return ""


def emulated(target: Target) -> Target:
    """Without the gathers and scatters, of which Bochs 2.7 takes those with the index in one of the
    upper 16 registers for invalid."""
    return replace(target, features=f"{target.features},+prefer-no-gather,+prefer-no-scatter")


class Bochs:
    """See the module's docstring."""

    def __init__(self) -> None:
        self._folder = tempfile.mkdtemp(prefix="stagejit-lab-")
        weakref.finalize(self, shutil.rmtree, self._folder, ignore_errors=True)

    def run(self, objects: Mapping[str, bytes], tasks: Sequence[tuple[str, Frame]]) -> list[Array]:
        """The image of each task after its run."""
        symbols = list(objects)
        given = [pack(symbols.index(symbol), frame) for symbol, frame in tasks]
        images = []
        with tempfile.TemporaryDirectory(dir=self._folder) as name:
            self._prepare(Path(name), objects)
            done = b"".join(_run(Path(name), b"".join(some)) for some in _batches(given))
        at = 0
        for packed, (_, frame) in zip(given, tasks, strict=True):
            start = at + image_place(packed)
            images.append(np.frombuffer(done[start : start + frame.image.size], np.uint8))
            at += len(packed)
        return images

    def _prepare(self, folder: Path, objects: Mapping[str, bytes]) -> None:
        self._link(folder, objects)
        for made in (_rom(self._folder), _loader(self._folder)):
            shutil.copy(made, folder)
        (folder / "bochsrc").write_text(_CONFIGURATION)
        (folder / "continue").write_text("c\n")  # for where Bochs starts in its debugger

    def _link(self, folder: Path, objects: Mapping[str, bytes]) -> None:
        files = [_driver(self._folder), folder / "table.o"]
        files[1].write_bytes(compile_object(table(list(objects)), Target.avx512(), 0))
        for number, image in enumerate(objects.values()):
            files.append(folder / f"{number}.o")
            files[-1].write_bytes(image)
        _flat(folder / "program", _PROGRAM, *files)


def _batches(given: Sequence[bytes]) -> list[list[bytes]]:
    """Tasks that fit into memory together."""
    batches: list[list[bytes]] = [[]]
    for packed in given:
        if sum(map(len, batches[-1])) + len(packed) > _MOST_NBYTES:
            batches.append([])
        batches[-1].append(packed)
    return [batch for batch in batches if batch]


def _run(folder: Path, tasks: bytes) -> bytes:
    """The tasks after their run."""
    program = (folder / "program").read_bytes()
    parts = [_sectors(program), _sectors(len(tasks).to_bytes(64, "little") + tasks)]
    head = b"".join((len(part) // _SECTOR).to_bytes(8, "little") for part in parts)
    disk = b"".join((_sectors(head), *parts))
    (folder / "disk").write_bytes(disk.ljust(-(-len(disk) // _CYLINDER) * _CYLINDER, b"\0"))
    done = subprocess.run(
        ["bochs", "-q", "-f", "bochsrc", "-rc", "continue"], cwd=folder, check=False,
        env={**os.environ, "SDL_VIDEODRIVER": "dummy", "SDL_AUDIODRIVER": "dummy"},
        stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL,
    )  # fmt: skip
    start = done.stdout.find(_BEGIN) + len(_BEGIN)
    if start < len(_BEGIN) or len(done.stdout) < start + len(tasks):
        log = (folder / "log").read_text(errors="replace")[-2000:]
        raise InternalError(f"the emulated kernels did not end: {log}", step="bochs")
    return done.stdout[start : start + len(tasks)]


def _sectors(data: bytes) -> bytes:
    return data.ljust(-(-len(data) // _SECTOR) * _SECTOR, b"\0")


@cache
def _driver(folder: str) -> Path:
    return _compiled(Path(folder) / "driver", _DRIVER)


@cache
def _loader(folder: str) -> Path:
    compiled = _compiled(Path(folder) / "loading", _READ)
    _flat(Path(folder) / "loader", _LOADER, compiled)
    return Path(folder) / "loader"


@cache
def _rom(folder: str) -> Path:
    source, result = Path(folder) / "rom.S", Path(folder) / "rom.bin"
    source.write_text(_ROM)
    _call("gcc", "-c", source, "-o", result.with_suffix(".o"))
    _call("objcopy", "-O", "binary", "-j", ".text", result.with_suffix(".o"), result)
    return result


def _compiled(name: Path, text: str) -> Path:
    source, result = name.with_suffix(".c"), name.with_suffix(".o")
    source.write_text(text)
    _call("gcc", "-O1", "-ffreestanding", "-fno-pie", "-fno-stack-protector", "-mno-red-zone",
          "-fno-tree-loop-distribute-patterns", "-c", source, "-o", result)  # fmt: skip
    return result


def _flat(result: Path, place: int, *files: Path) -> None:
    """Links files; the first begins with the function that is jumped to."""
    _call("ld", "-nostdlib", "-static", f"-Ttext={place:#x}", "--oformat", "binary", "-o", result,
          *files)  # fmt: skip


def _call(*command: object) -> None:
    done = subprocess.run([*map(str, command)], capture_output=True, text=True, check=False)
    if done.returncode:
        raise InternalError(f"{command[0]}: {done.stderr[-2000:]}", step="bochs")

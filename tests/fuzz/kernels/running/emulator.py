"""Runs kernels for 64-bit ARM under a user-mode emulator.

Input: object files by symbol, frames. Output: images after the run. Invariant: as in `machine.py`:
nothing but the kernels and a driver without a C library is linked. One program runs a whole batch:
it reads tasks, carries them out in place, and writes them back.
"""

from __future__ import annotations

import shutil
import struct
import subprocess
import tempfile
import weakref
from collections.abc import Mapping, Sequence
from functools import cache
from pathlib import Path

import numpy as np

from stagejit.codegen.target import Target
from stagejit.errors import InternalError
from tests.fuzz.kernels.running.machine import compile_object
from tests.fuzz.kernels.running.scene import Array, Frame

_QEMU = ("qemu-aarch64-static", "qemu-aarch64")
_GCC = "aarch64-linux-gnu-gcc"

# A task is ten words, then the places of its buffers, the parameters of its launches, its chunks,
# then the image from the next cache line on:
#   nbytes of all, kernel, buffers, params, chunks, scratch, scratch bytes, poison, image, launches
_HEADER = struct.Struct("<10q")
CARRY_OUT = r"""
typedef long i64;
typedef unsigned char u8;
typedef void (*kernel)(u8 **, i64 *, i64, i64, u8 *);
extern kernel kernels[];
static u8 *bufs[64];
static void carry_out(u8 *m, i64 total) {
  for (i64 at = 0; at < total;) {
    i64 *h = (i64 *)(m + at), *places = h + 10, *params = places + h[2];
    i64 *chunks = params + h[3] * h[9];
    u8 *image = m + at + h[8];
    for (i64 i = 0; i < h[2]; i++) bufs[i] = image + places[i];
    for (i64 i = 0; i < h[9] * h[4]; i++) {
      i64 *own = params + i / h[4] * h[3], *chunk = chunks + i % h[4] * 2;
      volatile u8 *scratch = image + h[5];
      for (i64 j = 0; j < h[6]; j++) scratch[j] = (u8)h[7];
      kernels[h[1]](bufs, own, chunk[0], chunk[1], image + h[5]);
    }
    at += h[0];
  }
}
"""
_DRIVER = rf"""
{CARRY_OUT}
static i64 call(i64 n, i64 a, i64 b, i64 c, i64 d, i64 e, i64 f) {{
  register i64 x8 __asm__("x8") = n, x0 __asm__("x0") = a, x1 __asm__("x1") = b;
  register i64 x2 __asm__("x2") = c, x3 __asm__("x3") = d, x4 __asm__("x4") = e;
  register i64 x5 __asm__("x5") = f;
  __asm__ volatile("svc 0" : "+r"(x0) : "r"(x8), "r"(x1), "r"(x2), "r"(x3), "r"(x4), "r"(x5)
                   : "memory");
  return x0;
}}
static int work(void) {{
  i64 total = 0, got, at;
  u8 *m = (u8 *)call(222, 0, 1L << 31, 3, 0x4022, -1, 0);
  while ((got = call(63, 0, (i64)m + total, 1 << 20, 0, 0, 0)) > 0) total += got;
  carry_out(m, total);
  for (at = 0; at < total; at += got)
    if ((got = call(64, 1, (i64)m + at, total - at, 0, 0, 0)) <= 0) return 1;
  return 0;
}}
void _start(void) {{ call(93, work(), 0, 0, 0, 0, 0); }}
"""


def refuse_emulator() -> str:
    """Why nothing can be emulated here; empty where it can."""
    if not any(map(shutil.which, _QEMU)):
        return f"there is no {_QEMU[0]}; install qemu-user-static"
    if shutil.which(_GCC) is None:
        return f"there is no {_GCC}; install gcc-aarch64-linux-gnu"
    return ""


class Emulator:
    """See the module's docstring."""

    def __init__(self) -> None:
        self._folder = tempfile.mkdtemp(prefix="stagejit-lab-")
        weakref.finalize(self, shutil.rmtree, self._folder, ignore_errors=True)
        self._qemu = next(name for name in _QEMU if shutil.which(name))

    def run(self, objects: Mapping[str, bytes], tasks: Sequence[tuple[str, Frame]]) -> list[Array]:
        """The image of each task after its run."""
        symbols = list(objects)
        with tempfile.TemporaryDirectory(dir=self._folder) as name:
            program = self._link(Path(name), objects)
            given = [pack(symbols.index(symbol), frame) for symbol, frame in tasks]
            done = subprocess.run(
                [self._qemu, str(program)], input=b"".join(given), capture_output=True, check=False
            )
        if done.returncode:
            raise InternalError(
                f"the emulated kernels ended with {done.returncode}: {done.stderr[-300:]!r}",
                step="emulator",
            )
        images, at = [], 0
        for packed, (_, frame) in zip(given, tasks, strict=True):
            start = at + image_place(packed)
            part = done.stdout[start : start + frame.image.size]
            images.append(np.frombuffer(part, np.uint8))
            at += len(packed)
        return images

    def _link(self, folder: Path, objects: Mapping[str, bytes]) -> Path:
        files = [_driver(self._folder), folder / "table.o"]
        files[1].write_bytes(compile_object(table(list(objects)), Target.neon(), 0))
        for number, image in enumerate(objects.values()):
            files.append(folder / f"{number}.o")
            files[-1].write_bytes(image)
        program = folder / "program"
        command = [_GCC, "-nostdlib", "-static", "-o", str(program), *map(str, files)]
        done = subprocess.run(command, capture_output=True, text=True, check=False)
        if done.returncode:
            raise InternalError(f"linking kernels: {done.stderr[-2000:]}", step="emulator")
        return program


@cache
def _driver(folder: str) -> Path:
    source, result = Path(folder) / "driver.c", Path(folder) / "driver.o"
    source.write_text(_DRIVER)
    command = [_GCC, "-O1", "-ffreestanding", "-fno-tree-loop-distribute-patterns", "-c"]
    subprocess.run([*command, str(source), "-o", str(result)], check=True, capture_output=True)
    return result


def table(symbols: Sequence[str]) -> str:
    """The array of all kernels."""
    names = ", ".join(f"ptr @{symbol}" for symbol in symbols)
    declared = "\n".join(f"declare void @{symbol}(ptr, ptr, i64, i64, ptr)" for symbol in symbols)
    return f"@kernels = constant [{len(symbols)} x ptr] [{names}]\n{declared}\n"


def pack(kernel: int, frame: Frame) -> bytes:
    """A task."""
    words = [word for each in (frame.buffers, *frame.params, *frame.chunks) for word in each]
    start = -(-(_HEADER.size + 8 * len(words)) // 64) * 64
    nbytes = -(-(start + frame.image.size) // 64) * 64
    header = _HEADER.pack(
        nbytes, kernel, len(frame.buffers), len(frame.params[0]), len(frame.chunks), frame.scratch,
        frame.scratch_nbytes, frame.poison, start, len(frame.params),
    )  # fmt: skip
    head = (header + struct.pack(f"<{len(words)}q", *words)).ljust(start, b"\0")
    return (head + frame.image.tobytes()).ljust(nbytes, b"\0")


def image_place(packed: bytes) -> int:
    """Where the image of a task begins."""
    return int(_HEADER.unpack_from(packed)[8])

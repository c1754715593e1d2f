"""CUDA C++ -> machine code of this CPU: kernels as they are printed, compiled beside `emulation.h`.

Input: sources of kernels. Output: for each a function that launches it. Invariant: a function is
made of its source, the header and the compiler's options, and of nothing else, so it is compiled
once: code is in memory by a hash of these, and in the object cache.

Sources that are wanted together are compiled together, in as many libraries as there are cores:
most of the time goes into what they share. Each has a namespace, and names of its own for what C++
cannot put into one.
"""

from __future__ import annotations

import ctypes
import os
import re
import shutil
import subprocess
import tempfile
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import cache
from pathlib import Path
from typing import Any

from stagejit.base.threads.locks import new_lock
from stagejit.errors import NoDriverError, StagejitError
from stagejit.runtime.cuda.driver import Source
from stagejit.runtime.objects.engine import machine
from stagejit.runtime.objects.object_cache import ObjectCache, digest

HEADER = Path(__file__).with_name("emulation.h")
HEADERS = (HEADER, HEADER.with_name("warpgroups.h"))  # with those that it includes
OPTIONS = (
    "-std=c++17", "-O1", "-fPIC", "-shared", "-w", "-ffp-contract=off", "-fno-strict-aliasing",
    "-fsanitize=bounds,alignment", "-fno-sanitize-recover=all", "-Wl,-Bsymbolic", "-fno-exceptions",
    "-march=native",
)  # fmt: skip
_COMPILERS = ("g++", "clang++")
_PREFIX = "stagejit-emulated-"

_DYNAMIC = re.compile(
    r"(?:alignas\(\d+\)\s*)?extern\s+__shared__\s+(?P<type>[\w\s]+?)\s+(?P<name>\w+)\s*\[\s*\]\s*;"
)

# (grid and block, arguments, order of the threads, dynamic shared memory) -> what went wrong, or
# nothing
Launcher = Callable[[Any, Any, Any, Any], bytes]

_launchers: dict[str, Launcher] = {}
_lock = new_lock()


class EmulatedCompileError(StagejitError):
    """The compiler of C++ refuses a source."""


def launchers(
    sources: Sequence[Source], store: ObjectCache | None = None
) -> Mapping[str, Launcher]:
    """What launches each kernel, by its name. store: where code is kept on disk."""
    with _lock:
        keys = {source.name: _key(source) for source in sources}
        wanted = {keys[source.name]: source for source in sources}
        missing = {key: one for key, one in wanted.items() if key not in _launchers}
        if store is not None:
            _restore(missing, store)
        if missing := {key: one for key, one in missing.items() if key not in _launchers}:
            _compile(missing, store)
        return {name: _launchers[key] for name, key in keys.items()}


@cache
def compiler() -> str:
    """The path of a compiler of C++."""
    found = next(filter(None, map(shutil.which, _COMPILERS)), None)
    if found is None:
        raise NoDriverError(
            f"the emulation of a GPU needs a compiler of C++ ({' or '.join(_COMPILERS)}), and "
            "there is none on the PATH",
            next_step="install one, as `apt-get install g++` does",
        )
    return found


@cache
def _header() -> str:
    return "\n".join(header.read_text(encoding="utf-8") for header in HEADERS)


def _key(source: Source) -> str:
    """`-march=native` is another one on another machine."""
    compiled = source.name, source.text, _header(), *OPTIONS
    return digest("emulated", *compiled, version_of(compiler()), machine())


@cache
def version_of(path: str) -> str:
    """What a compiler says that it is."""
    done = subprocess.run([path, "--version"], text=True, capture_output=True, check=False)
    return done.stdout


def _compile(missing: Mapping[str, Source], store: ObjectCache | None) -> None:
    cores = min(len(os.sched_getaffinity(0)), len(missing))
    keys = sorted(missing, key=lambda key: -len(missing[key].text))
    groups = [{key: missing[key] for key in keys[core::cores]} for core in range(cores)]
    with ThreadPoolExecutor(cores) as pool:
        libraries = list(pool.map(_library, groups))
    for group, library in zip(groups, libraries, strict=True):
        if store is not None:
            together = digest("emulated library", *sorted(group))
            store.put(together, library)
            for key in group:
                store.put(key, together.encode())
        _load(library, group)


def _restore(missing: Mapping[str, Source], store: ObjectCache) -> None:
    """Loads what is on disk: under the key of a kernel that of its library."""
    for key in missing:
        together = store.get(key) if key not in _launchers else None
        library = store.get(together.decode()) if together else None
        if library is not None:
            _load(library, missing)


def _load(library: bytes, keys: Mapping[str, Source]) -> None:
    """Takes those of the functions that are in the library."""
    with tempfile.TemporaryDirectory(prefix=_PREFIX) as folder:
        path = Path(folder) / "kernels.so"  # the linker takes one path for one library
        path.write_bytes(library)
        loaded = ctypes.CDLL(str(path))
    for key in keys:
        function = getattr(loaded, _launcher(key), None)
        if function is not None:
            function.restype = ctypes.c_char_p
            _launchers.setdefault(key, function)


def _launcher(key: str) -> str:
    return f"launch_{key[:32]}"


def _library(group: Mapping[str, Source]) -> bytes:
    """The code of some kernels in one library."""
    text = "\n".join([f'#include "{HEADER}"', *(_unit(key, one) for key, one in group.items())])
    with tempfile.TemporaryDirectory(prefix=_PREFIX) as folder:
        path = Path(folder) / "kernels.so"
        command = [compiler(), *OPTIONS, "-x", "c++", "-", "-o", str(path)]
        done = subprocess.run(command, input=text, text=True, capture_output=True, check=False)
        if done.returncode:
            names = ", ".join(source.name for source in group.values())
            raise EmulatedCompileError(f"{compiler()} on {names}:\n{done.stderr[:4000]}")
        return path.read_bytes()


def emulated_text(text: str) -> str:
    """`extern __shared__ T x[];` names what a launch adds to shared memory; C++ has no words for
    that."""
    return _DYNAMIC.sub(r"\g<type>* const \g<name> = (\g<type>*)emulation::dynamic.start;", text)


def _unit(key: str, source: Source) -> str:
    """A kernel, its shared memory, and the function that launches it."""
    own, shared = f"{source.name}_{key[:16]}", f"shared_{key[:16]}"
    return f"""\
namespace space_{key[:16]} {{
#define {source.name} {own}
#undef EMULATED_SHARED
#define EMULATED_SHARED "{shared}"
#line 1 "{source.name}.cu"
{emulated_text(source.text)}
#undef {source.name}
}}
extern "C" char __start_{shared}[] __attribute__((weak));
extern "C" char __stop_{shared}[] __attribute__((weak));
extern "C" __attribute__((visibility("default"))) const char* {_launcher(key)}(
    const unsigned* grid, const uint64_t* args, const int* order, unsigned shared_nbytes) {{
  return emulation::launch(space_{key[:16]}::{own}, grid, args, order,
                           {{__start_{shared}, __stop_{shared}}},
                           emulation::dynamic_memory(shared_nbytes));
}}
"""

"""Sources -> cubins: NVRTC, several kernels side by side, and what is on disk already.

Input: sources in CUDA C++, an architecture. Output: machine code of each, in their order.
Invariant: code is kept by everything that it is made of: the source, the architecture, the compiler
with its version and its options.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor

from stagejit.base.records import record
from stagejit.runtime.cuda.code import nvrtc
from stagejit.runtime.objects.object_cache import ObjectCache, digest


@record
class Compiler:
    """identity: what decides the code beside source and architecture. compile: of a source and an
    architecture; it is called on several threads at a time. compile_open: the same of a source that
    calls what the driver links in when it loads the code, where that is another way."""

    identity: str
    compile: Callable[[str, str], bytes]
    compile_open: Callable[[str, str], bytes] | None = None


def nvrtc_compiler() -> Compiler:
    """Raises CudaCompileError where there is no NVRTC."""
    version = ".".join(map(str, nvrtc.version()))
    identity = " ".join(["NVRTC", version, *nvrtc.OPTIONS])
    return Compiler(
        identity,
        lambda source, arch: nvrtc.compile_cubin(source, arch).code,
        lambda source, arch: nvrtc.compile_ptx(source, arch, nvrtc.OPEN).encode() + b"\0",
    )


def key_of(source: str, arch: str, compiler: Compiler) -> str:
    """What a cubin is kept by."""
    return digest("cubin", compiler.identity, arch, source)


def cubins(
    sources: Sequence[str], arch: str, compiler: Compiler, store: ObjectCache | None
) -> list[bytes]:
    """store: where code is kept on disk."""

    def one(source: str) -> bytes:
        key = key_of(source, arch, compiler)
        found = store.get(key) if store is not None else None
        if found is None:
            found = compiler.compile(source, arch)
            if store is not None:
                store.put(key, found)
        return found

    different = list(dict.fromkeys(sources))
    workers = min(len(os.sched_getaffinity(0)), len(different))
    if workers <= 1:
        codes = [one(source) for source in different]
    else:
        with ThreadPoolExecutor(workers, "stagejit-nvrtc") as pool:
            codes = list(pool.map(one, different))
    found = dict(zip(different, codes, strict=True))
    return [found[source] for source in sources]

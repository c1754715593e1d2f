"""Files that people keep: pictures, pages, traces.

Input: a path and what is to be in it. Output: the file. Invariant: it is there as a whole or not at
all; what is no file, such as /dev/stdout or a pipe, is written to as it is.
"""

from __future__ import annotations

import contextlib
import os
import tempfile
from pathlib import Path


def write(target: Path, content: str) -> None:
    """A file with this content, or, after an error, the one that was there. Raises OSError where
    nothing can be written."""
    if target.is_symlink() or (target.exists() and not target.is_file()):
        target.write_text(content, encoding="utf-8")
        return
    handle, name = tempfile.mkstemp(dir=target.parent, prefix=f".{target.name}.")
    try:
        with os.fdopen(handle, "w", encoding="utf-8") as file:
            file.write(content)
        os.chmod(name, 0o666 & ~_umask())
        os.replace(name, target)
    except BaseException:
        with contextlib.suppress(OSError):
            os.unlink(name)
        raise


def _umask() -> int:
    """That of the process, which has to be set to be read."""
    mask = os.umask(0o077)
    os.umask(mask)
    return mask

"""The text to learn from, which every machine has: the docstrings of Python's standard library.

Input: the modules of the running Python, which are files of one folder. Output: one text; its
characters as numbers. Invariant: the same for the same files: nothing is imported, and the order is
that of names.
"""

from __future__ import annotations

import ast
import hashlib
import inspect
import sysconfig
import warnings
from collections.abc import Iterator, Sequence
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

FEWEST_CHARACTERS = 80  # of a docstring: shorter ones say little
_DOCUMENTED = ast.Module, ast.ClassDef, ast.FunctionDef, ast.AsyncFunctionDef

Tokens = NDArray[np.uint8]


def modules(folder: Path | None = None) -> list[Path]:
    """The files, by name; of the standard library by default."""
    return sorted((folder or Path(sysconfig.get_path("stdlib"))).glob("*.py"))


def digest_of(files: Sequence[Path]) -> str:
    """Equal for files of the same names and contents."""
    hasher = hashlib.sha256()
    for file in files:
        hasher.update(f"{file.name} {hashlib.sha256(file.read_bytes()).hexdigest()}\n".encode())
    return hasher.hexdigest()


def text_of(files: Sequence[Path]) -> str:
    """All docstrings, each with an empty line after it."""
    return "".join(f"{doc}\n\n" for file in files for doc in _docstrings(file))


def tokens_of(text: str) -> Tokens:
    """The code of each character; what is not ASCII is a question mark."""
    return np.frombuffer(text.encode("ascii", "replace"), np.uint8)


def characters_of(tokens: NDArray[np.integer]) -> str:
    return tokens.astype(np.uint8).tobytes().decode("ascii", "replace")


def _docstrings(file: Path) -> Iterator[str]:
    try:
        with warnings.catch_warnings(action="ignore"):  # of escapes in their strings
            tree = ast.parse(file.read_bytes())
    except (SyntaxError, ValueError):  # of another version of Python, left there by mistake
        return
    for node in ast.walk(tree):
        if isinstance(node, _DOCUMENTED):
            doc = ast.get_docstring(node, clean=False)
            if doc is not None and len(doc) >= FEWEST_CHARACTERS:
                yield inspect.cleandoc(doc).strip()

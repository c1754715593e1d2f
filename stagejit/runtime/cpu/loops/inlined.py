"""The LLVM IR of kernels, to be inlined into the function that calls them.

Input: the text of each kernel. Output: the text of one module, where they are its own functions.
Invariant: what a kernel says of memory that is only true of one call of it is gone: that nobody
writes what it reads (`!invariant.load`), that its arguments are apart from each other (`!noalias`);
in a loop another call writes there.
"""

from __future__ import annotations

import re
from collections.abc import Iterable

_METADATA = re.compile(r", !\w+(?:\.\w+)* !\d+")
_GROUP = re.compile(r" #(\d+)(?= \{$)")
_KERNEL = re.compile(r"^define void (.*\)) #")
_ATTRIBUTES = re.compile(r"attributes #(\d+) = (.*)")


def inlined(kernels: Iterable[str]) -> tuple[list[str], list[str], list[str]]:
    """Of the texts of kernels the functions, the declarations and the groups of attributes, of
    which the first is that of the kernels."""
    functions: list[str] = []
    declarations: dict[str, None] = {}
    groups: dict[str, int] = {}
    for text in kernels:
        lines = text.splitlines()
        found = [match for line in lines if (match := _ATTRIBUTES.match(line))]
        number = {each[1]: groups.setdefault(each[2], len(groups)) for each in found}
        for line in lines:
            if line.startswith("declare"):
                declarations[line] = None
            elif not line.startswith(("!", "attributes")):
                functions.append(_line(line, number))
    told = [f"attributes #{at} = {attributes}" for attributes, at in groups.items()]
    return functions, list(declarations), told


def _line(line: str, number: dict[str, int]) -> str:
    if not line.startswith("define"):
        return _METADATA.sub("", line)
    line = _GROUP.sub(lambda match: f" #{number[match[1]]}", line)
    return _KERNEL.sub(r"define internal void \1 alwaysinline #", line)

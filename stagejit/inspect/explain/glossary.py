"""What the names mean that `explain` uses: rewrites, choices of kernels, kinds of dispatches, and
why equations are left to XLA.

Input: a name or a reason. Output: a sentence. Invariant: every name that the compiler can give has
one; tests/inspect/explain/test_glossary.py reads the source of the package and fails where a name
has none.
"""

from __future__ import annotations

import re
from collections.abc import Iterator

from stagejit.base.decisions import Decision
from stagejit.inspect.explain.notes import (
    Between,
    Chosen,
    Facts,
    Launched,
    Left,
    Note,
    Packed,
    PartOf,
)
from stagejit.options import SWITCHES

# Names of decisions that no switch has.
OTHERS: dict[str, str] = {
    "limit-operands": "a dispatch of more buffers than Options(operand_limit=...) becomes several",
}

# Of a kernel, by the name of `codegen.kernel.Choice`. Where costs stand behind a colon, the first
# is that of what was chosen, the second that of the next best.
CHOICES: dict[str, str] = {
    "vector": "the loop whose neighbouring elements are the lanes of a vector; its cost is memory "
    "operations an element",
    "width": "short vectors: a core that runs slower while it uses long ones does so for more than "
    "a small program takes",
    "stream": "whether stores go around the caches: they do where results are too large to stay "
    "there until somebody reads them; on cores that do not see ahead, which reads and stores ask "
    "for lines before it is their turn",
    "whole vectors": "whether short rows are stored one by one, or in whole vectors that go on "
    "from one to the next, without a loop",
    "interior": "the part of a field whose elements are all of the largest part of what is put "
    "together: a body of the loop that asks for no place is enough there",
    "row": "the code of the innermost loop: straight or turning, how its last vector is cut off",
    "abreast": "short rows of a gather whose indices are computed together, in vectors; single "
    "elements of a scatter which are, with where they go",
    "repeat": "elements that are stored several times: all of these stores follow each other, and "
    "what they share is evaluated once",
    "rows": "how the rows of a reduction lie to the vectors, and how often the kernel passes over "
    "them; on a GPU, which threads share a row",
    "keep": "values that several passes over a row share instead of computing them again",
    "panel": "how many neighbouring results are summed up side by side",
    "runs": "parts of long sums that are added up first, so that rounding stays small",
    "square": "elements that are read along one axis and written along another, in squares that "
    "are turned in registers",
    "squares": "elements that are read along one axis and written along another, in squares that "
    "are turned in shared memory",
    "sort": "the algorithm of a sort",
    "tile": "rows and vectors of results that a core keeps in registers, and which operands are "
    "packed into tiles on the way; its cost is cycles of one core",
    "fetch": "what a register tile of a product asks the caches for before it reads it, where the "
    "prefetchers of a core do not bring it in time",
    "order": "in which order the rows of a product or of a reduction are read",
    "tiles": "results that a block of threads keeps, and the tiles of operands that it reads",
    "pack": "how an operand of a product is copied into tiles, and how large these are, or why it "
    "is not",
    "zeros": "steps of a product that are left out, because a mask makes an operand zero there",
    "mask": "results of a product that are left out, because a mask lets nobody read them",
    "passes": "tiles of attention that are left out, because a mask of positions leaves nothing",
    "owners": "how places that several updates go to are shared among workers",
    "sums": "how the products of small integers are added up: as floats, which are exact as long "
    "as these are few, or four bytes at once by an instruction",
    "tail": "how the end of a window that fills no vector is updated: in shorter vectors, or in "
    "one that is masked",
    "items": "into how many pieces a kernel can be divided, and what each takes by the model",
    "threads": "whether cores share a kernel: they do where that takes longer than a fork and a "
    "join",
    "neighbours": "the axis along which the threads of a warp read neighbouring elements; its cost "
    "is sectors of memory an element",
    "elements": "how many elements a thread has, and how many threads a block",
    "on their way": "how tiles of operands come from memory while others are multiplied",
    "who sums up": "which threads, warps or blocks add up the parts of a split sum, and how many "
    "parts there are",
    "schedule": "a policy of an extension made the kernel, or why it did not",
    "lines": "how threads share the lines of a running sum",
}

# Of dispatches.
KINDS: dict[str, str] = {
    "map": "computes each element by itself",
    "reduce": "sums, maxima and the like along rows, with what is computed of them",
    "contract": "a product of matrices, or of any arrays over shared axes",
    "conv": "a convolution",
    "attend": "softmax of a product times values, without storing the scores",
    "cumulative": "running sums and the like",
    "scatter": "updates elements at computed places",
    "sort": "sorts lines",
    "copy": "only moves data: what no rewrite could spare",
    "fill": "only writes one value",
    "loop": "runs its body again and again, without Python and XLA",
    "branch": "runs one of its bodies",
    "call": "a routine of a library, such as LAPACK's, or a Python callback",
    "delegate": "an equation that XLA runs",
}

# What reasons, plans and timelines speak of.
TERMS: dict[str, str] = {
    "dispatch": "what runs as one: a kernel with all ops that are evaluated in it",
    "fused": "evaluated in the same dispatch, so that what is between the ops is never stored",
    "stored": "written to memory, for another dispatch to read",
    "transient": "memory of results that only the call itself needs",
    "barrier": "a dispatch waits until another one has written, or read, a range of a buffer",
    "wave": "dispatches that wait for none of each other, and may run at the same time",
    "fork": "other threads are woken, to share what comes next; the join waits for all of them",
    "modelled": "by the model that chooses kernels: nothing was measured",
    "floor": "the least time that memory and arithmetic of the machine allow",
    "pack": "an operand of a product is copied into tiles, in the order in which they are read",
    "encoding": "how an operand of a product should lie in memory; it goes where nobody gains",
    "row": "the elements that one sum, maximum or the like is made of",
    "border": "elements around those that a dispatch computes, which it fills with one value",
    "conservative hull": "all places where something may be whose offset is computed on the way",
}

# Why an equation is left to XLA, as patterns of the reason behind the primitive's name; the first
# that fits counts. A piece inside a loop that cannot be compiled leaves the whole loop to XLA, and
# is named behind "its body has".
LEFT: dict[str, str] = {
    r"XLA partitions it|several devices": "a program for several devices is cut by XLA's "
    "partitioner, which an opaque call would block; use jax.shard_map to have each device's part "
    "staged",
    r"it is lowered for": "it is compiled for another platform than the one that kernels are for",
    r"it is exported": "jax.export writes what any process can run; Options(export=True) lets it "
    "call our kernels",
    r"compiling it failed": "a fault of stagejit, of which a FallbackWarning told; please "
    "report it",
    r"argument or result is of type|symbolic size": "what it takes or returns is no plain array",
    r"its \S+ has ": "something inside cannot be compiled, so the loop or branch runs in XLA; its "
    "other pieces are ours",
    r"native control flow is disabled": "Options(disable=('native-control-flow',)) asks for it",
    r"matrix decomposition|tridiagonal": "decompositions of this kind are calls of a library that "
    "only XLA makes",
    r"calls Python": "a Python callback runs through XLA, outside of loops",
    r"calls foreign code|is no scalar|^layout ": "a foreign function that no library of jaxlib's "
    "has, or that is called in a way that we do not know",
    r"devices communicate|where data lives|names a device|choice for the CPU": "it is about "
    "several devices, which is XLA's business",
    r"generator of XLA's own": "random numbers that only XLA can make again",
    r"kernel of its own": "a Pallas kernel is compiled by Pallas",
    r"side effects": "effects have an order that XLA keeps",
    r"no JAX function|other types than it declares": "the primitive is computed by code that "
    "cannot be traced",
    r"no kernels for this primitive": "nobody has written kernels for it yet; "
    "`stagejit.inline` may take it apart",
    r"element types? |of bools|float format|real result|bitcast from|rounding method|words other"
    r"|needs \S+-bit": "there is no arithmetic for this element type in kernels",
    r"precision |mode |parameter ": "it is asked for in a way that kernels do not know",
    r"elements|coefficients|random numbers at once|axes$|computed power|rank other|update function":
    "this case of the operation has no kernels; other shapes or arguments of it have",
}  # fmt: skip


def meaning_of(note: Note) -> tuple[str, str] | None:
    """(the name that a note has, its meaning); None for what has no name."""
    if isinstance(note, Decision):
        return note.rewrite, of_rewrite(note.rewrite)
    if isinstance(note, Chosen):
        return note.name, CHOICES.get(note.name, "")
    if isinstance(note, Launched | PartOf):
        return note.kind, KINDS.get(note.kind, "")
    if isinstance(note, Left):
        return note.equation, of_reason(note.reason)
    if isinstance(note, Packed):
        return "pack in each call", (
            "an operand of a product does not lie in tiles: the kernel packs it in every call, or "
            "reads it as it lies, where that takes less time"
        )
    if isinstance(note, Between):
        return "kept apart", "one dispatch reads what the other one stores, and why they are two"
    return None


def of_rewrite(name: str) -> str:
    """What a rewrite does; empty for a name that nobody knows."""
    return SWITCHES.get(name) or OTHERS.get(name, "")


def of_reason(reason: str) -> str:
    """What it means that an equation is left to XLA for this reason; empty where nobody knows."""
    return next((meaning for pattern, meaning in LEFT.items() if re.search(pattern, reason)), "")


def glossary_of(facts: Facts) -> dict[str, str]:
    """What each name means that occurs, by name."""
    found = dict(sorted(_meanings(facts)))
    return {name: meaning for name, meaning in found.items() if meaning}


def _meanings(facts: Facts) -> Iterator[tuple[str, str]]:
    for note in facts.notes():
        known = meaning_of(note)
        if known is not None:
            yield known
    if facts.left_to_xla:
        yield "left to XLA", of_reason(facts.left_to_xla)
    for inside in facts.inside:
        yield from _meanings(inside.facts)


def whole_glossary() -> str:
    """All names and their meanings, as text."""
    sections = (
        ("rewrites, for Options(disable=...)", SWITCHES),
        ("other decisions", OTHERS),
        ("choices of kernels", CHOICES),
        ("kinds of dispatches", KINDS),
        ("other words", TERMS),
    )
    lines: list[str] = []
    for title, names in sections:
        width = max(map(len, names))
        lines += [f"{title}:", *(f"  {n:{width}}  {text}" for n, text in names.items()), ""]
    reasons = dict.fromkeys(LEFT.values())
    return "\n".join([*lines, "why equations are left to XLA:", *(f"  {text}" for text in reasons)])

"""`Options`: what a user may choose about a compilation, and nothing else.

Input: keyword arguments. Output: a frozen, hashable value; `with Options(...)` makes it the
default of the functions traced inside. Invariant: an `Options` that exists is valid, so later
stages never check.
"""

from __future__ import annotations

import contextvars
import difflib
import functools
import os
import re
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field, fields
from typing import Any, Literal, TypeVar

import jax

from stagejit.base.extension import E, Extension, parts_of
from stagejit.errors import OptionsError

T = TypeVar("T")

# Every rewrite and optional fusion, by the name that `disable=` takes: there to be ablated, for no
# program is better without one. What a user would choose is a field of `Options`. tests/rewrites
# compares this table with what the drivers run, so a name cannot be forgotten on either side.
SWITCHES: dict[str, str] = {
    "native-control-flow": "loops and branches of native operations run without Python and XLA",
    "leave-bodies": "loops that XLA runs keep their bodies where compiling pieces would not pay",
    "simplify-loops": "fewer carries and results; what does not change is computed before a loop",
    "simplify-branches": "fewer results and operands of branches",
    "update-branches": "a branch writes into the operand that its result is an update of",
    "select-updates": "what is updated or kept is updated by what is chosen of few elements",
    "fold-views": "compose and cancel transposes, reshapes, broadcasts and slices",
    "fold-pads": "a pad joins another one, or the padding of a convolution or a window",
    "fold-constants": "evaluate ops whose operands are small constants",
    "known-ranges": "what integers cannot be is not compared, wrapped, clamped or masked",
    "join-indices": "a gather at several indices, put together for it, reads at one place",
    "simplify-algebra": "x * 1, x + 0, convert to the same dtype, double negation",
    "scale-weights": "factors of output channels are multiplied into weights that are bound",
    "store-weights": "products read weights as bf16, int8 or int4, where `bind` is told to",
    "evaluate-weights": "what weights that are bound determine is computed once, in no call",
    "eliminate-common-subexpressions": "one op for equal ops on equal operands",
    "sum-to-contract": "a sum of products whose factors repeat is a contraction",
    "contract-to-sum": "a product of a matrix that is computed and a vector is a sum of products",
    "tile-and-fuse": "what is larger than a cache is made tile by tile, with all that reads it",
    "fuse-attention": "softmax of a product, and its product with values, store no scores (a GPU)",
    "skip-zeros": "products leave out steps in which a mask has made an operand zero",
    "data-tiling": "operands of products are encoded: a target may want them in tiles",
    "propagate-encodings": "encodings move through ops, to constants and from product to product",
    "elide-packs": "what kernels pack as they read it is not packed before",
    "split-reduce": "sum parts of long axes apart, where there are few results",
    "split-scan": "running sums of parts of long lines, where there are few lines",
    "overlay-parts": "what is one cheap part and a border is put together where it is read",
    "map-parts": "an elementwise function of what is put together is evaluated with each part",
    "spread-repeats": "what is inserted repeated is stored several times by its producer",
    "share-pads": "pads of one value, at several places, are boxes of one wider pad",
    "overlay-rows": "what is put together of short rows is stored in whole vectors",
    "share-prefixes": "a concatenation that lies within another one is read from its buffer",
    "border-buffers": "what convolutions read with a border lies in memory with that border",
    "fuse-producers": "evaluate elementwise producers inside the dispatch that reads them",
    "store-transposes": "what rows of a reduction would read across its lines is transposed before",
    "fuse-epilogues": "apply elementwise consumers where a reduction or contraction stores",
    "fuse-rows": "one dispatch for reductions over the same rows (softmax, layernorm)",
    "fuse-insert": "a producer writes straight into the destination of its insert_slice",
    "elide-copy": "what is overwritten is not copied before, where everybody can read it first",
    "read-placed": "who reads a value that is placed in a larger buffer reads it there",
    "fuse-pad": "the dispatch that places the interior of a pad writes the border too",
    "caller-layouts": "arguments and results lie as the caller says, without copies around calls",
    "infer-layouts": "what lies between dispatches keeps the order of what it is made of",
    "channels-last": "what convolutions and pools read lies with its channels innermost",
    "run-beside": "small dispatches come right after others that they do not depend on",
    "share-forks": "neighbours that do not depend on each other share a fork; a GPU's streams",
    "compile-loops": "a loop of small steps is one function, whose numbers stay in registers",
    "run-in-background": "a call that takes long, or has many results, returns before it is done",
    "parallel-loops": "iterations that do not depend on each other run on several threads",
    "pack-slots": "transient buffers whose lives do not overlap share memory",
    "write-in-place": "a result takes the place of an operand that nobody reads afterwards",
    "borrow-results": "transients lie in the memory of a result until that is written",
    "host-offsets": "ranges at offsets that the host computes from scalar arguments are exact",
    "reuse-arguments": "write a result into a donated argument",
}


# With these, memory may hold what is no value of the buffer that lies there, or what somebody else
# writes at the same time: it could not be looked at.
_NOT_CHECKED = frozenset(
    ("pack-slots", "borrow-results", "reuse-arguments", "parallel-loops", "elide-copy")
)

# GPUs that kernels can be made for, and architectures; tests/runtime/cuda compares them with those
# that are known.
GPUS = ("A100", "H100", "H200", "B200", "sm_80", "sm_90a", "sm_100")
CUDA, EMULATED = "cuda", "cuda-emulated"
_KINDS = (CUDA, EMULATED)
TARGETS = ("native", *_KINDS, *(f"{kind}:{name}" for kind in _KINDS for name in GPUS))


def _with_known_names(cls: type[T]) -> type[T]:
    """A dataclass that tells of unknown keywords as it does of unknown values."""
    names = [each.name for each in fields(cls)]  # type: ignore[arg-type]
    init = cls.__init__

    @functools.wraps(init)
    def __init__(self: Any, *args: Any, **given: Any) -> None:
        for name in given:
            if name not in names:
                raise OptionsError(
                    f"unknown option {name!r} in {cls.__name__}(...)",
                    next_step=suggested(name, names, "stagejit/docs/options.md"),
                )
        init(self, *args, **given)

    cls.__init__ = __init__  # type: ignore[method-assign]
    return cls


@_with_known_names
@dataclass(frozen=True)
class Options:
    """Choices for one compilation.

    What a program or a machine may want:

    target: "native" compiles for the CPU this process runs on; "cuda" for its GPU; "cuda-emulated"
        runs what would run on a GPU on the CPU, to learn and to test. "cuda:sm_90a" and the like
        choose the GPU that plans and texts are for, which need none.
    delegate: leave what cannot be compiled to XLA; False raises `UnsupportedOpError` instead.
    cache_dir: folder of the object cache; None takes $STAGEJIT_CACHE_DIR or the user's cache
        folder, "" (also in the variable) switches the cache off. A folder that others may write
        is not used.
    memory_budget: bytes of intermediate results that should be enough at any one time. A rewrite
        that moves fewer bytes is then given up where, as far as it can know, memory grows over the
        budget by it. None: fewer bytes moved always win.
    split: into how many parts sums are split, in place of what the machine would gain most by; 1:
        not at all. By kind ("reduce", "contract", "conv"), by kind and function ("reduce max"), or
        by the line that it comes from ("model.py:12"), which counts first: {"contract": 77}. The
        outermost axis that is summed over, and long enough, is split; no part is empty.
    extensions: parts of the compiler of your own: rewrites, ops, schedules, resolvers of encodings,
        machines, as `stagejit.extending` makes them. Where several could be asked, the first one
        is asked first.
    export: what `jax.export` writes calls our kernels, and runs in processes that have loaded them
        (pass their names to its `disabled_checks`). False exports the function as JAX does.

    To look inside, or to narrow a fault down; no program is faster for them:

    disable: names of rewrites to switch off (see `SWITCHES`), or of extensions; results never
        change.
    log_compiles: the logger "stagejit" tells of each compilation, and what changed since the most
        similar one before.
    verify: run every stage's verifier, and bounds checks inside kernels.
    check_nans: look at the results of each dispatch, inside of loops and branches too, and of
        equations that are left to XLA; the first in
        which a float is NaN ends the call with an error that says which dispatch, which kinds of
        ops and which line of yours made it, and which arguments were NaN before. What is in place
        otherwise, or in memory that others had before, then has memory of its own. For the CPU.
    check_infs: the same for infinities, and for NaN.
    progress: show a bar while something compiles for more than two seconds, where stderr is a
        terminal or a notebook. False, or $STAGEJIT_PROGRESS=0: never.
    full_barriers: order all dispatches one after the other.
    operand_limit: most buffers that one dispatch reads and writes; what fusion would make larger
        becomes several dispatches. Only an op that takes more by itself stays over the limit.
    borders: where convolutions read what lies around their operand: in "blocks" that they copy, the
        default, or "always" in memory, wherever that can be done without a copy.
    Raises OptionsError for an unknown option, rewrite or target, and for extensions of one name.
    """

    target: str = "native"
    disable: tuple[str, ...] = field(default=())
    verify: bool = False
    delegate: bool = True
    full_barriers: bool = False
    cache_dir: str | None = None
    operand_limit: int = 16
    memory_budget: int | None = None
    borders: Literal["blocks", "always"] = "blocks"
    check_nans: bool = False
    check_infs: bool = False
    progress: bool = True
    export: bool = False
    log_compiles: bool = False
    split: Mapping[str, int] | tuple[tuple[str, int], ...] = ()
    extensions: tuple[Extension, ...] = ()

    def __post_init__(self) -> None:
        disable = (self.disable,) if isinstance(self.disable, str) else self.disable
        if not isinstance(disable, Iterable):
            raise _wrong(
                "disable", disable, "give names of rewrites, such as disable=('fuse-pad',)"
            )
        object.__setattr__(self, "extensions", _extensions(self.extensions))
        known = [*(extension.name for extension in self.extensions), *SWITCHES]
        for name in (disable := tuple(disable)):
            if not isinstance(name, str) or name not in known:
                raise OptionsError(
                    f"unknown rewrite {name!r} in Options(disable=...)",
                    next_step=suggested(name, known, "stagejit/rewrites/README.md"),
                )
        object.__setattr__(self, "disable", tuple(sorted(set(disable))))
        object.__setattr__(self, "split", _split_pairs(self.split))
        if isinstance(self.cache_dir, os.PathLike):
            object.__setattr__(self, "cache_dir", os.fspath(self.cache_dir))
        for name, (fits, next_step) in _FITTING.items():
            if not fits(value := getattr(self, name)):
                raise _wrong(name, value, next_step)
        if self.target not in TARGETS:
            raise OptionsError(
                f"unsupported target {self.target!r}",
                next_step=f"use one of {', '.join(map(repr, TARGETS))}",
            )
        if self.checks and self.on_gpu:
            raise OptionsError(
                f"check_nans and check_infs are for the CPU, not for target {self.target!r}",
                next_step='use target="native", which computes the same',
            )

    @property
    def on_gpu(self) -> bool:
        """Whether programs are CUDA programs."""
        return self.target != "native"

    def enabled(self, switch: str) -> bool:
        """True unless the rewrite named `switch` is disabled."""
        return switch not in self.disable and not (switch in _NOT_CHECKED and self.checks)

    @property
    def checks(self) -> bool:
        """Whether results of dispatches are looked at."""
        return self.check_nans or self.check_infs

    def parts_of(self, kind: type[E]) -> tuple[E, ...]:
        """Parts of that kind of the extensions that are enabled, in order."""
        if not self.extensions:
            return ()
        return parts_of([each for each in self.extensions if self.enabled(each.name)], kind)

    @property
    def names_lines(self) -> bool:
        """Whether what is compiled depends on the lines that it comes from."""
        return any(key not in _SPLIT_KEYS for key in dict(self.split))

    def asked_parts(self, kind: str, fn: str, loc: str) -> int | None:
        """The number of parts that `split` asks for: of a sum of this kind and function `fn`, at
        the line `loc` ("model.py:12"); None where it does not say."""
        pairs = dict(self.split)
        lines = [key for key in pairs if key not in _SPLIT_KEYS and f"/{loc}".endswith(f"/{key}")]
        found = (pairs.get(key) for key in (*lines, f"{kind} {fn}", kind))
        return next((parts for parts in found if parts is not None), None)

    def __enter__(self) -> Options:
        entered = _context(self)
        entered.__enter__()
        _entered.set((*_entered.get(), entered))
        return self

    def __exit__(self, *exc: object) -> None:
        *rest, entered = _entered.get()
        _entered.set(tuple(rest))
        entered.__exit__(None, None, None)


# The innermost `with Options(...)`. A user context is part of the key of jax.jit's caches, so a
# function is traced once for each value, and its fast path needs no look-up of ours.
_context: Any = jax.make_user_context(None)  # type: ignore[no-untyped-call]
_entered: contextvars.ContextVar[tuple[Any, ...]] = contextvars.ContextVar(
    "stagejit_options", default=()
)


def innermost() -> Options | None:
    """The options of the innermost `with Options(...)`, if there is one."""
    chosen: Options | None = _context.value
    return chosen


def checked(options: Any) -> Options | None:
    """What was given as `options=`. Raises OptionsError for anything but `Options` or None."""
    if options is None or isinstance(options, Options):
        return options
    next_step = "give stagejit.Options(...), or None for those of `with Options(...)`"
    raise _wrong("options", options, next_step)


def _extensions(given: Any) -> tuple[Extension, ...]:
    """Those that were given, each with a name of its own. Raises OptionsError."""
    if isinstance(given, Extension):
        given = (given,)
    next_step = "give what the functions of stagejit.extending return, such as extensions=(mine,)"
    if not isinstance(given, Iterable):
        raise _wrong("extensions", given, next_step)
    found: dict[str, Extension] = {}
    for extension in (given := tuple(given)):
        if not isinstance(extension, Extension):
            raise _wrong("extensions", extension, next_step)
        other = found.setdefault(extension.name, extension)
        if other is not extension:
            raise OptionsError(
                f"two extensions are called {extension.name!r}: the other one is at {other.loc}",
                loc=extension.loc,
                next_step="give one of them another name",
            )
    return tuple(found.values())


# What `split` may name besides lines; tests/rewrites compares the functions with those that exist.
_SPLIT_FUNCTIONS = ("add", "mul", "max", "min", "and", "or", "xor", "argmax", "argmin")
_SPLIT_KEYS = ("reduce", "contract", "conv", *(f"reduce {fn}" for fn in _SPLIT_FUNCTIONS))
_LINE = re.compile(r".+:[1-9][0-9]*")


def _split_pairs(split: Any) -> tuple[tuple[str, int], ...]:
    """What `split` says, as a hashable value. Raises OptionsError."""
    next_step = 'give numbers of parts by kind or line, such as split={"contract": 77}'
    try:
        pairs = dict(split)
    except (TypeError, ValueError):
        raise _wrong("split", split, next_step) from None
    for key, parts in pairs.items():
        if not isinstance(key, str) or not _is_int(parts) or parts < 1:
            raise _wrong("split", split, next_step)
        if key not in _SPLIT_KEYS and not _LINE.fullmatch(key):
            raise OptionsError(
                f"unknown {key!r} in Options(split=...)",
                next_step=f'{suggested(key, list(_SPLIT_KEYS))}, or a line, as "model.py:12"',
            )
    return tuple(sorted(pairs.items()))


def _is_int(value: Any) -> bool:
    return isinstance(value, int) and not isinstance(value, bool)


# For each field what it may be, and what to say where it is not.
_FITTING: dict[str, tuple[Callable[[Any], bool], str]] = {
    **dict.fromkeys(
        (
            "verify",
            "delegate",
            "full_barriers",
            "export",
            "check_nans",
            "check_infs",
            "progress",
            "log_compiles",
        ),
        (lambda value: isinstance(value, bool), "give True or False"),
    ),
    "cache_dir": (
        lambda value: value is None or isinstance(value, str),
        'give a path, "" for no cache, or None',
    ),
    "operand_limit": (
        lambda value: _is_int(value) and value >= 1,
        "give at least 1; the default is 16",
    ),
    "memory_budget": (
        lambda value: value is None or (_is_int(value) and value >= 0),
        "give a number of bytes, or None for no budget",
    ),
    "borders": (
        lambda value: value in ("blocks", "always"),
        'give "blocks", the default, or "always"',
    ),
}


def _wrong(name: str, value: Any, next_step: str) -> OptionsError:
    return OptionsError(f"{name} is {value!r}, of type {type(value).__name__}", next_step=next_step)


def suggested(name: Any, known: list[str], page: str = "") -> str:
    """The name that is close to it, or all of them. page: that has them, too."""
    close = difflib.get_close_matches(str(name), known, n=1)
    if not close:
        return "known names: " + ", ".join(known)
    return f"did you mean {close[0]!r}?" + (f" all names are in {page}" if page else "")

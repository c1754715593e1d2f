"""Everything that stagejit takes from JAX's internals, in one place, each with its reason.

Input: JAX objects (equations, abstract values, tracebacks). Output: plain Python and our own types.
Invariant: checked against jax 0.10 and 0.12; nothing else in the package imports `jax._src` but the
two modules `seams`, which replace functions and rules of JAX's.
"""

from __future__ import annotations

import builtins
import contextlib
import ctypes
import functools
import importlib.util
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, cast

import jax
import jax.numpy as jnp
import numpy as np

# `jax.extend.source_info_util` publishes only `summarize`, which gives text, not the frames that a
# caller may want to skip (ours), nor the function's name.
# `config` knows what traces depend on beside types, in one tuple, and whether they fold constants.
# `traceback_util` has no public counterpart: it is what keeps JAX's own frames out of tracebacks.
# `util` has the set of types that JAX's caches remember weakly.
# Of the dtypes that JAX adds to NumPy's (PRNG keys), only `core` knows what they are made of, and
# only `prng` how keys of any implementation are seeded, split and read.
# From 0.12 on a scan tells its operands apart by a tree, which only `flattree` makes.
from jax._src import config, core, source_info_util, traceback_util, util
from jax._src.interpreters import partial_eval
from jax._src.random import prng
from jax.extend import core as jex_core

from stagejit.base.formulas import evaluate, names_in
from stagejit.base.loc import UNKNOWN, Loc
from stagejit.base.symbolic import size_named
from stagejit.base.users_line import is_ours
from stagejit.errors import UnsupportedOpError
from stagejit.types import DType, TensorType, storage_of

Literal = jex_core.Literal
ClosedJaxpr = jex_core.ClosedJaxpr
Jaxpr = jex_core.Jaxpr

_INTEGERS = frozenset({int})
_has_trees = importlib.util.find_spec("jax._src.flattree") is not None
_flattree: Any = importlib.import_module("jax._src.flattree") if _has_trees else None


def unfolded() -> Any:
    """A context in which primitives without traced operands stay in a trace."""
    return config.eager_constant_folding(False)


def trace_context() -> Any:
    """What a trace depends on beside types of arguments: 64-bit types, precisions, meshes, ..."""
    return config.trace_context()


def trace_settings() -> tuple[tuple[str, str], ...]:
    """The same in words, by the names that JAX has for it; equal iff that is, as far as texts and
    hashes tell."""
    return _in_words(trace_context(), _trace_names())


@functools.lru_cache(maxsize=1)  # JAX keeps it, too: it is a key of all that it has traced
def _in_words(found: Any, names: tuple[str, ...]) -> tuple[tuple[str, str], ...]:
    if len(names) != len(found):  # then nobody knows which is which
        names = tuple(f"trace context {number}" for number in range(len(found)))
    texts: dict[str, list[str]] = {}
    for name, value in zip(names, found, strict=True):  # there may be several contexts of users
        texts.setdefault(name, []).append(_setting_text(value))
    return tuple((name, "; ".join(each)) for name, each in texts.items())


@functools.cache
def _trace_names() -> tuple[str, ...]:
    """None where this JAX does not tell."""
    names = getattr(getattr(config, "config_ext", None), "trace_context_names", None)
    try:
        return tuple(map(str, names() if callable(names) else names or ()))
    except TypeError:
        return ()


def _setting_text(value: Any) -> str:
    """Objects that are shown by their address are told apart by their hash."""
    text = str(value)
    if " at 0x" not in text:
        return text
    if hasattr(value, "axis_sizes"):  # named axes
        text = str(value.axis_sizes)

    def marked(_: re.Match[str]) -> str:
        return f" #{hash(value) & 0xFFFFFF:x}"

    return re.sub(r" at 0x[0-9a-f]+", marked, text)


def loc_of(equation: Any) -> Loc:
    """The innermost line of the user's program that made a JAX equation; UNKNOWN where JAX kept
    none."""
    return _innermost(equation.source_info.traceback)


def hide_frames(file: str) -> None:
    """Keep the frames of a source file out of JAX's tracebacks and source locations."""
    traceback_util.register_exclusion(file)
    source_info_util.register_exclusion(file)


@functools.lru_cache(maxsize=4096)
def _innermost(traceback: Any) -> Loc:
    return next(_lines_of(traceback), UNKNOWN)


def _lines_of(traceback: Any) -> Iterator[Loc]:
    """The user's, those that were called first."""
    for frame in source_info_util.user_frames(traceback):
        if not is_ours(frame.file_name):
            yield Loc(
                frame.file_name,
                frame.start_line,
                frame.start_column,
                frame.function_name.rpartition(".")[2],
                traceback,
            )


def callers_of(loc: Loc) -> tuple[Loc, ...]:
    """The lines from which a line was called, the nearest first.

    What is inside of a nested jit was traced at its first call, whose lines JAX knows; at others
    the lines of that call stand for those, from the function on that both are in.
    """
    own = () if loc.source is None else tuple(_lines_of(loc.source))
    if not loc.call:
        return own[1:]
    called = (loc.call, *callers_of(loc.call))
    common = 0
    while common < min(len(own), len(called)) and own[-1 - common] == called[-1 - common]:
        common += 1
    inner, outer = own[: len(own) - common], called[: len(called) - common]
    if inner and outer and _function(inner[-1]) == _function(outer[-1]):
        inner = inner[:-1]
    if not inner:  # it is the line of the call
        return called[1:]
    return (*inner[1:], *called) if outer else own[1:]


def _function(loc: Loc) -> tuple[str, str]:
    return loc.file, loc.function


def type_of(aval: Any) -> TensorType:
    """The physical type of an abstract value: a key is the words that it is made of, a complex
    number a pair. Tokens and references get an opaque dtype."""
    shape, dtype = getattr(aval, "shape", None), getattr(aval, "dtype", None)
    if shape is None or dtype is None:
        return TensorType(DType(type(aval).__name__, "opaque", 0, 0), ())
    sizes = shape if _INTEGERS.issuperset(map(type, shape)) else tuple(map(size_of, shape))
    return _type_of(dtype, sizes)


@functools.lru_cache(maxsize=4096)
def _type_of(dtype: Any, shape: tuple[int, ...]) -> TensorType:
    scalar = core.ShapedArray((), dtype)
    element = storage_of(physical_aval(scalar).dtype)
    return TensorType(element.dtype, shape + element_shape(scalar) + element.shape)


def is_extended(aval: Any) -> bool:
    """True for the element types that JAX adds to NumPy's, such as PRNG keys."""
    return _is_extended(getattr(aval, "dtype", np.float32))


@functools.lru_cache(maxsize=256)
def _is_extended(dtype: Any) -> bool:
    return jnp.issubdtype(dtype, jax.dtypes.extended)


def element_shape(aval: Any) -> tuple[int, ...]:
    """The shape of one element of an extended type, () for any other: its words come last."""
    return tuple(physical_aval(aval).shape[len(aval.shape) :]) if is_extended(aval) else ()


def physical_aval(aval: Any) -> Any:
    """The abstract value that XLA sees: a key's words, and bools for float0."""
    if getattr(aval, "dtype", None) == jax.dtypes.float0:
        return core.ShapedArray(aval.shape, np.dtype(np.bool_))
    return core.physical_aval(aval) if is_extended(aval) else aval


def shaped_like(aval: Any, shape: tuple[int, ...]) -> Any:
    """The abstract value of an array of another shape."""
    return core.ShapedArray(shape, aval.dtype)


def size_of(size: Any) -> int:
    """A size as an int, or as an `Expr`, which counts as one: jax.export's symbolic dimensions
    write themselves as formulas.

    Raises UnsupportedOpError for one that is no sum of products."""
    if isinstance(size, int | np.integer):
        return int(size)
    text = re.sub(r"(\w+)\^(\d+)", lambda power: "*".join([power[1]] * int(power[2])), str(size))
    try:
        names = names_in(text.strip())
        return cast(int, evaluate(text, {name: size_named(name) for name in names}))
    except (KeyError, TypeError, ValueError):
        raise UnsupportedOpError(
            f"cannot plan for the symbolic size `{size}`",
            next_step="make a plan for sizes that are sums of products, or for numbers",
        ) from None


def has_static_shape(type: TensorType | jax.core.ShapedArray) -> bool:
    """False for the symbolic sizes of `jax.export`."""
    return _INTEGERS.issuperset(map(builtins.type, type.shape)) or all(
        isinstance(size, int) for size in type.shape
    )


def constant_array(value: Any, aval: Any, type: TensorType) -> Any:
    """A read-only NumPy array of a jaxpr constant or literal, in its physical type, `type`.

    JAX's own arrays are viewed, not copied; what the user could still write to is copied. A
    constant of an opaque type has no NumPy form and is returned as it is.
    """
    if type.dtype.kind == "opaque":
        return value
    array = np.asarray(words_of(value) if is_extended(aval) else value)
    physical = physical_aval(aval).dtype
    if array.dtype != physical:
        array = np.zeros(array.shape, np.bool_) if array.dtype == jax.dtypes.float0 else array
        array = array.astype(physical)
    element = storage_of(physical)
    array = np.asarray(element.array(array)).reshape(type.shape)
    if array.flags.writeable:
        array = array.copy()
        array.flags.writeable = False
    return array


def words_of(keys: Any) -> Any:
    """The array that an array of an extended type wraps (`jax.random.key_data`, without an
    equation)."""
    return keys._base_array


def wrapped(words: Any, aval: Any) -> Any:
    """The array of random keys that `words_of` gives `words` for."""
    return _prng.random_wrap(words, impl=aval.dtype._impl)


def evaluate_equation(equation: Any, operands: list[Any]) -> list[Any]:
    """Run one JAX equation on concrete (or traced) values, as JAX itself would.

    `get_bind_params` and `ctx.manager` are what `jax.core.eval_jaxpr` uses; the public
    `jaxpr_as_fun` would need a closed jaxpr around the equation and rename its variables.
    """
    parameters = equation.primitive.get_bind_params(equation.params)
    with equation.ctx.manager:
        results = equation.primitive.bind(*operands, **parameters)
    return list(results) if equation.primitive.multiple_results else [results]


def named_axis(effect: Any) -> Any:
    """The name of the axis that an equation depends on by this effect; None for other effects."""
    return effect.name if isinstance(effect, core.NamedAxisEffect) else None


def without_high_level(closed_jaxpr: Any) -> Any:
    """The jaxpr with its high-level primitives expanded (`jnp.searchsorted` is one from jax 0.12
    on). JAX does that to what it lowers, but not to what it traces."""
    if not getattr(closed_jaxpr, "is_high", False):
        return closed_jaxpr
    return partial_eval.lower_jaxpr2(closed_jaxpr)


@functools.cache
def foreign_address(target: str) -> int | None:
    """Where the handler of a custom call starts that jaxlib brings along (LAPACK's routines); None
    for all others, those that need more than one stage among them.

    jaxlib hands its handlers out as capsules for `jax.ffi.register_ffi_target`.
    """
    found = _lapack_handlers().get(target)
    if found is None:
        return None
    pointer = ctypes.pythonapi.PyCapsule_GetPointer
    pointer.restype, pointer.argtypes = ctypes.c_void_p, [ctypes.py_object, ctypes.c_char_p]
    name = ctypes.pythonapi.PyCapsule_GetName
    name.restype, name.argtypes = ctypes.c_char_p, [ctypes.py_object]
    return pointer(found, name(found)) or None


@functools.cache
def _lapack_handlers() -> dict[str, Any]:
    """Capsules by target; none where this jaxlib offers them in another way."""
    try:
        from jaxlib import lapack

        prepare: Any = lapack.prepare_lapack_call
        prepare("potrf_ffi", np.dtype(np.float32))  # finds SciPy's routines
        handlers = lapack.registrations()["cpu"]
        return {
            str(name): handler
            for name, handler, version in handlers
            if version == 1 and type(handler).__name__ == "PyCapsule"
        }
    except (ImportError, AttributeError, KeyError, TypeError, ValueError):
        return {}


def scan_counts(params: Mapping[str, Any], operands: int) -> tuple[int, int]:
    """How many constants and carries a scan equation has.

    jax 0.12 says so by the tree of all operands (`ft_in`), earlier versions by two numbers.
    """
    if "ft_in" not in params:
        return params["num_consts"], params["num_carry"]
    constants, carries, _ = params["ft_in"].update(list(range(operands))).unpack()
    return len(list(constants)), len(list(carries))


def with_constant(params: Mapping[str, Any], operands: int) -> dict[str, Any]:
    """The parameters of a scan that has one constant more, the last of them, but for its body."""
    (at, _), found = scan_counts(params, operands), dict(params)
    if "ft_in" in params:
        _, *others = params["ft_in"].unpack()
        return found | {"ft_in": _flattree.pack((_flattree.nones(at + 1), *others))}
    if "linear" in params:
        found["linear"] = (*params["linear"][:at], False, *params["linear"][at:])
    return found | {"num_consts": at + 1}


def is_evaluated_now() -> bool:
    """Whether what is bound here is evaluated at once, perhaps differentiated or batched, and not
    traced as a part of a program."""
    trace = core.trace_ctx.trace
    while trace and not isinstance(trace, partial_eval.DynamicJaxprTrace | core.EvalTrace):
        trace = getattr(trace, "parent_trace", None)
    return isinstance(trace, core.EvalTrace)


def remembered_weakly(kind: type) -> type:
    """A class whose objects, as parameters of equations, JAX's caches do not keep alive.

    JAX keeps jaxprs so; it offers no public way to add to the set of such types.
    """
    types = getattr(util, "weakref_cache_key_types", None)
    if isinstance(types, set):
        types.add(kind)
    return kind


# -- random keys ----------------------------------------------------------------------------------

# What JAX lowers its key primitives with: each takes the implementation and the words of the keys.
# There is no public way to an implementation's functions.
_prng: Any = prng


def key_function(name: str, params: Mapping[str, Any], avals: Sequence[Any]) -> Callable[..., Any]:
    """The function of words that a primitive on keys computes, by the primitive's name."""
    keys = avals[0]
    match name:
        case "random_seed":
            return functools.partial(_prng.random_seed_impl_base, impl=params["impl"])
        case "random_split":
            split, shape = _prng.random_split_impl_base, params["shape"]
            return lambda words: split(keys.dtype._impl, words, keys.ndim, shape=shape)
        case "random_fold_in":
            fold_in = _prng.random_fold_in_impl_base
            return lambda words, data: fold_in(keys.dtype._impl, words, data, keys.shape)
        case "random_bits":
            bits, sizes = _prng.random_bits_impl_base, dict(params)
            return lambda words: bits(keys.dtype._impl, words, keys.ndim, **sizes)
    raise KeyError(name)


def traced(
    function: Callable[..., Any], avals: Sequence[Any], params: Mapping[str, Any], equation: Any
) -> Any:
    """The closed jaxpr of `function`, as it would be traced where `equation` is lowered.

    64-bit types are kept even where the equation comes from inside `jax.enable_x64()` and its
    lowering takes place outside.
    """
    struct: Any = jax.ShapeDtypeStruct
    types = [struct(aval.shape, aval.dtype) for aval in avals]
    known = [*types, *(variable.aval for variable in equation.outvars)]
    wide = any(np.dtype(type.dtype).itemsize == 8 for type in known if not is_extended(type))
    x64 = jax.enable_x64(True) if wide else contextlib.nullcontext()
    with equation.ctx.manager, x64:
        closed = jax.make_jaxpr(functools.partial(function, **params))(*types)
    return without_high_level(closed)

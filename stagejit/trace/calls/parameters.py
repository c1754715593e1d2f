"""The parameters of a function that is bound: leaves of a pytree, as arrays of JAX's.

Input: a leaf and its name. Output: the array that a weight has, or an error that names the leaf.
Invariant: what a leaf becomes does not depend on what is traced, mapped or forbidden around it,
but for `jax.enable_x64`, which says so of NumPy arrays everywhere.
"""

from __future__ import annotations

import textwrap
from typing import Any, NamedTuple

import jax
import numpy as np

from stagejit.base.extension import line_of
from stagejit.errors import OptionsError
from stagejit.trace.contents import Content, content_of, copy_of
from stagejit.trace.weights import Weight


def name_of(path: Any) -> str:
    return "params" + jax.tree_util.keystr(path)


def difference(given: Any, bound: Any) -> str:
    """The first name that only one of two structures has; trees of many layers are long."""
    names = [
        [
            name_of(path)
            for path, _ in jax.tree_util.tree_leaves_with_path(
                jax.tree_util.tree_unflatten(tree, [0] * tree.num_leaves)
            )
        ]
        for tree in (given, bound)
    ]
    missing = next((name for name in names[1] if name not in names[0]), None)
    inside = next((name for name in names[0] if missing and name.startswith(f"{missing}[")), None)
    if inside is not None:
        return f"{missing} is bound as one leaf, and given as a list or another tree: {inside}"
    if missing is not None:
        return f"{missing} is bound, and not given"
    more = next((name for name in names[0] if name not in names[1]), None)
    if more is not None:
        return f"{more} is given, and not bound"
    shown = (textwrap.shorten(str(tree), 200, placeholder="...") for tree in (given, bound))
    return " for ".join(shown)


def is_array(leaf: Any) -> bool:
    """Also one that only says its shape, which `given_of` refuses."""
    return isinstance(leaf, jax.Array | np.ndarray | np.generic | jax.ShapeDtypeStruct)


class Given(NamedTuple):
    """array: of JAX's, on the CPU. is_copy: nobody else can give it again."""

    array: Any
    is_copy: bool
    content: Content


def given_of(name: str, leaf: Any) -> Given:
    """Of a leaf that is an array."""
    if isinstance(leaf, jax.ShapeDtypeStruct):
        raise OptionsError(
            f"{name} is no array: it is the shape of one, as jax.eval_shape gives",
            loc=line_of(),
            next_step="give arrays: init(key) instead of jax.eval_shape(init, key)",
        )
    if isinstance(leaf, jax.core.Tracer):
        raise OptionsError(
            f"{name} is a traced value",
            loc=line_of(),
            next_step="bind arrays, outside of jit and grad; inside, call the function itself",
        )
    if not isinstance(leaf, jax.Array):
        try:
            array, content = copy_of(leaf)
            return Given(array, not isinstance(leaf, np.ndarray), content)
        except TypeError as error:
            raise OptionsError(
                f"{name} is no array: {error}",
                loc=line_of(),
                next_step="give arrays where arrays are bound",
            ) from error
    if leaf.is_deleted():
        raise OptionsError(
            f"{name} is deleted", loc=line_of(), next_step="bind arrays that are there"
        )
    devices = leaf.devices()
    is_whole = len(devices) == 1 or leaf.sharding.is_fully_replicated
    if not is_whole or next(iter(devices)).platform != "cpu":
        raise OptionsError(
            f"{name} is on {', '.join(map(str, devices))}",
            loc=line_of(),
            next_step="bind arrays that one device of the CPU has whole, as jax.device_put makes"
            " them",
        )
    if len(devices) > 1:  # what one of them has, which nobody else keeps as an array
        part = leaf.addressable_data(0)
        return Given(part, True, content_of(part))
    return Given(leaf, False, content_of(leaf))


def require_same(weight: Weight, array: Any, leaf: Any) -> None:
    """array: what a leaf became."""
    aval = jax.typeof(array)
    if (aval.shape, aval.dtype) == (weight.aval.shape, weight.aval.dtype):
        return
    why, next_step = "", "give arrays of the same shapes and types, or bind anew"
    if not isinstance(leaf, jax.Array) and aval.shape == weight.aval.shape:
        own = np.asarray(leaf).dtype
        with jax.enable_x64(False):
            narrow = jax.dtypes.canonicalize_dtype(own)
        if {aval.dtype, weight.aval.dtype} == {own, narrow}:
            why = (
                f": NumPy's {own} becomes {narrow} where jax.enable_x64 is off, as it "
                f"{'is here' if aval.dtype == narrow else 'was where that was bound'}"
            )
            next_step = "bind and update with jax.enable_x64 alike, or give arrays of JAX's"
    raise OptionsError(
        f"update() got {aval.str_short()} for {weight.name}, which is "
        f"{weight.aval.str_short()}{why}",
        loc=line_of(),
        next_step=next_step,
    )


def are_equal(known: Any, leaf: Any) -> bool:
    """Floats by their bits: programs tell -0.0 from 0.0, and a NaN is itself."""
    if type(known) is not type(leaf):
        return False
    if isinstance(known, float | complex):
        return bool(np.asarray(known).tobytes() == np.asarray(leaf).tobytes())
    return bool(known == leaf)

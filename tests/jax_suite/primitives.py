"""JAX's own cases of each of its primitives, through stagejit and through XLA.

    python -m tests.jax_suite.primitives --each 5
    python -m tests.jax_suite.primitives --target cuda-emulated --every 3

Input: `jax._src.internal_test_util.test_harnesses`, which is installed with JAX. Output: how many
cases there are, which give other results than XLA, and what is left to XLA, by primitive and
reason. Invariant: cases are drawn the same way each time, from all groups in turn. `--first` and
`--every` share them out between processes.
"""

from __future__ import annotations

import os
import random
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import islice
from typing import Annotated, Any

import jax
import jax.numpy as jnp
import numpy as np
import typer

import stagejit
from stagejit.options import Options

# The roundings, of what is of the size of the result's elements, that a case may differ by.
_ROUNDINGS = 100

# Cases where results may differ, by a part of their names.
DIFFERENT = {
    "isstable_False": "elements that are equal come in any order",
    "approx_top_k": "of equal elements any one is taken",
    "max_inf_nan_complex": "a NaN on the left is lost in XLA, and kept in NumPy",
    "min_inf_nan_complex": "a NaN on the left is lost in XLA, and kept in NumPy",
    "top_k_sort_inf_nan": "XLA returns an infinity between two NaNs",
}


@dataclass(frozen=True)
class Outcome:
    """fault: what is wrong; empty where nothing is. left: equations that stay with XLA."""

    name: str
    fault: str
    left: tuple[str, ...]


def cases(each: int, seed: int = 0) -> Iterator[Any]:
    """At most `each` cases of each group, group by group in turn."""
    from jax._src.internal_test_util.test_harnesses import all_harnesses

    groups: dict[str, list[Any]] = {}
    for case in all_harnesses:
        if case.filter("cpu"):
            groups.setdefault(case.group_name, []).append(case)
    for group in groups.values():
        group.sort(key=lambda case: case.fullname)  # JAX lists some in the order of a set of types
        random.Random(seed).shuffle(group)
    for number in range(each):
        yield from (groups[name][number] for name in sorted(groups) if number < len(groups[name]))


def outcome(case: Any, options: Options | None = None) -> Outcome:
    """Raises what JAX itself raises for a case."""
    args = case.dyn_args_maker(np.random.RandomState(0))
    wanted = jax.tree.leaves(jax.jit(case.dyn_fun)(*args))
    staged = stagejit.jit(case.dyn_fun, options=options)
    try:
        left = tuple(sorted({each.reason for each in staged.plan(*args).delegated}))
        made = jax.tree.leaves(staged(*args))
    except Exception as error:  # the case is wrong, whatever was raised
        return Outcome(case.fullname, f"{type(error).__name__}: {error}", ())
    faults = [fault for pair in zip(made, wanted, strict=True) if (fault := fault_of(*pair))]
    known = any(part in case.fullname for part in DIFFERENT)
    return Outcome(case.fullname, "" if known else "; ".join(faults), left)


def fault_of(made: Any, wanted: Any) -> str:
    """What is wrong with a result; empty where nothing is."""
    if (made.shape, made.dtype) != (wanted.shape, wanted.dtype):
        return f"{made.dtype}{made.shape} instead of {wanted.dtype}{wanted.shape}"
    if jnp.issubdtype(made.dtype, jax.dtypes.prng_key):
        made, wanted = map(jax.random.key_data, (made, wanted))
    if not jnp.issubdtype(made.dtype, jnp.inexact):
        count = int(np.sum(np.asarray(made) != np.asarray(wanted)))
        return f"{count} of {made.size} elements differ" if count else ""
    roundings = _roundings(np.asarray(made), np.asarray(wanted))
    return f"{roundings:.3g} roundings" if roundings > _ROUNDINGS else ""


def _roundings(made: Any, wanted: Any) -> float:
    eps = float(jnp.finfo(made.dtype).eps)
    wide = np.complex128 if made.dtype.kind == "c" else np.float64
    made, wanted = made.astype(wide), wanted.astype(wide)
    same = (made == wanted) | (np.isnan(made) & np.isnan(wanted))
    if same.all():
        return 0.0
    with np.errstate(all="ignore"):
        size = np.abs(wanted)
        finite = size[np.isfinite(size)]
        error = np.abs(made - wanted) / (size + 0.1 * finite.max(initial=0.0))
    return float(np.nan_to_num(error[~same], nan=np.inf).max()) / eps


def main(
    each: Annotated[int, typer.Option(help="cases of each group, at most")] = 1_000_000,
    x64: Annotated[bool, typer.Option(help="with 64-bit types")] = False,
    target: Annotated[str, typer.Option(help="of `Options`")] = "native",
    first: Annotated[int, typer.Option(help="number of the first case")] = 0,
    every: Annotated[int, typer.Option(help="run each so many-th case")] = 1,
) -> None:
    """Run the cases and say what differs and what is left to XLA."""
    os.environ["STAGEJIT_STRICT"] = "1"  # otherwise XLA would cover our faults
    left: Counter[str] = Counter()
    count = wrong = 0
    with jax.enable_x64(x64):
        for case in islice(cases(each), first, None, every):
            found = outcome(case, Options(target=target))
            count, wrong = count + 1, wrong + bool(found.fault)
            left.update(found.left)
            if found.fault:
                typer.echo(f"{found.name}: {found.fault}")
    for reason, times in left.most_common():
        typer.echo(f"{times} cases leave {reason}")
    typer.echo(f"{count} cases, {wrong} wrong, {left.total()} equations left to XLA")
    raise typer.Exit(bool(wrong))


if __name__ == "__main__":
    typer.run(main)

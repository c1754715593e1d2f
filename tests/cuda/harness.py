"""JAX's own cases of each of its primitives, by emulated kernels of a GPU.

    python -m tests.cuda.harness --each 5

Input: the cases of `tests/jax_suite/primitives.py`. Output: how many there are, and which give
other results than XLA on the CPU. Invariant: as there; cases whose results may differ are counted
as right. `--first` and `--every` share the cases out between processes.
"""

from __future__ import annotations

import os
from itertools import islice
from typing import Annotated, Any

import jax
import numpy as np
import typer

from stagejit.options import Options
from tests.cuda.machine import as_held, run
from tests.jax_suite.primitives import DIFFERENT, cases, fault_of


def fault(case: Any) -> str:
    """What is wrong with a case; empty where nothing is."""
    args = case.dyn_args_maker(np.random.RandomState(0))
    wanted = jax.tree.leaves(jax.jit(case.dyn_fun)(*args))
    try:
        made = run(case.dyn_fun, *args, options=Options(verify=True))
        faults = [fault_of(x, y) for x, y in zip(made, map(as_held, wanted), strict=True)]
    except Exception as error:  # the case is wrong, whatever was raised
        return f"{type(error).__name__}: {str(error)[:300]}"
    if any(part in case.fullname for part in DIFFERENT):
        return ""
    return "; ".join(filter(None, faults))


def main(
    each: Annotated[int, typer.Option(help="cases of each group, at most")] = 1_000_000,
    first: Annotated[int, typer.Option(help="number of the first case")] = 0,
    every: Annotated[int, typer.Option(help="run each so many-th case")] = 1,
    only: Annotated[str, typer.Option(help="part of the names of cases")] = "",
    x64: Annotated[bool, typer.Option(help="with 64-bit types")] = False,
) -> None:
    """Run the cases and say what differs."""
    os.environ["STAGEJIT_STRICT"] = "1"  # otherwise XLA would cover our faults
    count = wrong = 0
    with jax.enable_x64(x64):
        for case in islice(cases(each), first, None, every):
            if only not in case.fullname:
                continue
            found = fault(case)
            count, wrong = count + 1, wrong + bool(found)
            if found:
                typer.echo(f"{case.fullname}: {found}")
    typer.echo(f"{count} cases, {wrong} wrong")
    raise typer.Exit(bool(wrong))


if __name__ == "__main__":
    typer.run(main)

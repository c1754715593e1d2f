"""What is made of weights under some options is not taken for what others make."""

from __future__ import annotations

import gc
import inspect
import itertools
from dataclasses import replace
from typing import Any

import jax.numpy as jnp
import numpy as np
import pytest

import stagejit
from stagejit import Options
from stagejit.runtime.bound import evaluation_counts
from tests.binding.networks import array

A, B = (jnp.asarray(array(*shape, seed=shape[0])) for shape in ((96, 4096), (4096, 96)))
X = jnp.asarray(np.eye(4, 96, dtype=np.float32))


def long_sums(params: Any, x: Any) -> Any:
    y = params["a"] @ params["b"]
    z = jnp.tanh(y) / jnp.abs(y).max(1, keepdims=True)
    return x @ (z @ jnp.cumsum(y, 1).T)


HERE = f"{__file__}:{inspect.getsourcelines(long_sums)[1] + 1}"
OPTIONS = {
    "whole": Options(split={"contract": 1}),
    "parts": Options(split={"contract": 64}),
    "parts of a line": Options(split={HERE: 37}),
    "verify": Options(split={"contract": 1}, verify=True),
    "one by one": Options(split={"contract": 1}, operand_limit=1, disable="fuse-epilogues"),
    "no slots": Options(split={"contract": 1}, disable=("pack-slots", "fuse-producers")),
    "no rows": Options(split={"contract": 1}, disable="fuse-rows", full_barriers=True),
}
PAIRS = list(itertools.permutations(OPTIONS, 2))


def value(options: Options, fun: Any = long_sums) -> tuple[Any, bytes]:
    bound = stagejit.bind(fun, {"a": A, "b": B}, options=options)
    return bound, np.asarray(bound(X)).tobytes()


def alone(options: Options, fun: Any = long_sums) -> bytes:
    """As nothing that was made before gives it."""
    gc.collect()
    before = evaluation_counts()["evaluated"]
    bound, found = value(replace(options, cache_dir=""), fun)
    assert evaluation_counts()["evaluated"] == before + 1
    del bound
    gc.collect()
    return found


@pytest.mark.parametrize("kept", [True, False], ids=["in memory", "on disk"])
@pytest.mark.parametrize(("first", "second"), PAIRS)
def test_options_find_what_they_would_make(
    first: str, second: str, kept: bool, tmp_path: Any
) -> None:
    """And nothing that other code has made, also where that gives the same: who looks for a fault
    would see it again."""
    wanted = alone(OPTIONS[second])
    cache_dir = "" if kept else str(tmp_path)
    bound, _ = value(replace(OPTIONS[first], cache_dir=cache_dir))
    if not kept:
        del bound
        gc.collect()
    before = evaluation_counts()
    again, found = value(replace(OPTIONS[second], cache_dir=cache_dir))
    assert found == wanted
    now = evaluation_counts()
    assert now["evaluated"] == before["evaluated"] + 1
    assert now["from disk"] == before["from disk"]
    del again  # that it is gone at once is not said
    gc.collect()
    value(replace(OPTIONS[second], cache_dir=cache_dir))
    if not kept:
        assert evaluation_counts()["evaluated"] == now["evaluated"]


def test_these_options_make_different_values() -> None:
    values = {name: alone(each) for name, each in OPTIONS.items()}
    assert len(set(values.values())) >= 3
    assert len({values[name] for name in ("whole", "parts", "parts of a line")}) == 3


def test_options_that_compute_alike_share_what_is_made() -> None:
    one, _ = value(Options(split={"contract": 1}))
    before = evaluation_counts()
    other, _ = value(Options(split={"contract": 1}, log_compiles=True, progress=False))
    assert evaluation_counts() == before
    arrays = [bound.memory_analysis()["made_nbytes"] for bound in (one, other)]
    assert arrays[0] == arrays[1] > 0


def test_each_of_two_lines_has_its_own_parts() -> None:
    """Of one text, which are split in other ways."""

    def here(params: Any, x: Any) -> Any:
        return x @ (params["a"] @ params["b"])

    def there(params: Any, x: Any) -> Any:
        return x @ (params["a"] @ params["b"])

    line = f"{__file__}:{inspect.getsourcelines(here)[1] + 1}"
    options = Options(split={line: 64, "contract": 1}, cache_dir="")
    bound = [stagejit.bind(f, {"a": A, "b": B}, options=options) for f in (here, there)]
    found = [np.asarray(each(X)).tobytes() for each in bound]
    del bound
    assert found == [alone(Options(split={"contract": parts}), there) for parts in (64, 1)]

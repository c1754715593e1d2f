"""Most tests compile kernels without LLVM's optimizations, and say so to whoever keeps objects."""

from __future__ import annotations

from collections.abc import Iterator

import jax.numpy as jnp
import numpy as np
import pytest

import stagejit
from stagejit.runtime.objects import engine
from tests.harness import levels
from tests.sampling import drawn

TEXT = """
define double @k(double %x) {
  %half = fmul double %x, 5.0e-1
  %one = fadd double %half, 1.0
  ret double %one
}"""


@pytest.fixture(autouse=True)
def level_afterwards() -> Iterator[None]:
    before = levels.level
    yield
    levels.compile_at(before)


@pytest.mark.usefixtures("as_shipped")
def test_as_shipped() -> None:
    assert engine._level_of(TEXT) == levels.level == levels.AS_SHIPPED == 2


@pytest.mark.usefixtures("cache_dir")
def test_what_looks_at_stored_objects_is_as_shipped() -> None:
    assert engine._level_of(TEXT) == levels.AS_SHIPPED


def test_one_in_so_many_is_as_shipped_whatever_else_is_drawn_of_them() -> None:
    """Names that a sample of cases keeps, and those that it leaves."""
    names = [f"tests/a.py::test_a[{k}]" for k in range(4000)]
    for sampled in (True, False):
        of_these = [name for name in names if drawn(name, 4) == sampled]
        as_shipped = sum(levels.drawn_as_shipped(name) for name in of_these)
        assert 0.2 < as_shipped / len(of_these) < 0.3


def test_each_level_has_code_and_objects_of_its_own() -> None:
    made = {}
    for level in (0, levels.AS_SHIPPED, 0, levels.AS_SHIPPED):
        levels.compile_at(level)
        made.setdefault(level, set()).add((engine.disassemble(TEXT), engine.cache_key(TEXT)))
    assert all(len(of_level) == 1 for of_level in made.values())
    (((plain, key),), ((optimized, other),)) = made.values()
    assert key != other
    assert len(plain) > len(optimized)


def test_what_saves_the_registers_of_its_caller_is_as_shipped() -> None:
    """Infinity comes back from the sine of large numbers at level 0, which saves them so."""
    levels.compile_at(0)
    x = np.array([np.inf, 1e30, 3.0], np.float32)
    with stagejit.Options(cache_dir=""):
        found = stagejit.jit(lambda x: jnp.sin(x[0]) + jnp.sin(x[1:]))(x)
    assert np.isnan(found).all()
    saving = TEXT.replace("%x) {", '%x) "no_caller_saved_registers" {')
    assert (engine._level_of(TEXT), engine._level_of(saving)) == (0, levels.AS_SHIPPED)

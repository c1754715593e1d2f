"""The table of compile times: programs are of some 300 equations, each variant is compiled anew."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import pytest

from stagejit.bench.compiling import table
from stagejit.bench.compiling.program import Made, Program, equation_count
from stagejit.bench.compiling.programs import PROGRAMS
from stagejit.runtime.objects.engine import engine
from tests.fuzz.compiling import RANDOM_PROGRAMS, SEEDS
from tests.fuzz.programs.generate import random_program


def test_programs_have_some_300_equations() -> None:
    for program in PROGRAMS:
        if program.name != "sine chain":
            f, args = program.make(1)
            count = equation_count(jax.make_jaxpr(f)(*args).jaxpr)
            assert 180 <= count <= 550, f"{program.name}: {count}"


def test_random_programs_compute_in_32_bits_and_can_be_measured() -> None:
    assert not random_program(SEEDS[0], steps=90).x64
    f, args = RANDOM_PROGRAMS.make(1)
    assert equation_count(jax.make_jaxpr(f)(*args).jaxpr) > 100


def test_variants_are_compiled_anew(monkeypatch: pytest.MonkeyPatch) -> None:
    def make(variant: int) -> Made:
        def f(x: Any) -> Any:
            return jnp.sin(x * (1.0 + variant / 1024)).sum()

        return f, (jnp.ones(100),)

    before = engine().compiled_count
    row = table.measure(Program("small", make), 3)
    assert engine().compiled_count - before >= 4
    assert row.equations == 3
    assert len(row.ours) == len(row.theirs) == 3
    assert row.cpu_ratio > 0
    assert row.wall_ratio > 0
    assert table.table_of([row]).row_count == 1

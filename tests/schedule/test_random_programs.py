"""Random programs: every verifier passes, and the executor gives what the interpreter gives, with
all constants that decide what pays as they are, and with others."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from stagejit.options import SWITCHES, Options
from tests.schedule.constants import turned
from tests.schedule.planning import check
from tests.strategies import RandomProgram, programs

OPTIONS = st.sets(st.sampled_from(sorted(SWITCHES)), max_size=4).map(
    lambda names: Options(disable=tuple(sorted(names)))
)


@pytest.mark.fuzz
@given(program=programs(max_steps=12), data=st.data(), options=OPTIONS)
def test_a_schedule_computes_what_the_graph_means(
    program: RandomProgram, data: Any, options: Options
) -> None:
    donated = data.draw(
        st.lists(st.booleans(), min_size=len(program.args), max_size=len(program.args))
    )
    check(program.fn, *program.args, donated=donated, options=options)


@pytest.mark.fuzz
@given(
    program=programs(max_steps=12),
    rng=st.randoms(use_true_random=False),
    limit=st.sampled_from((1, 2, 3, 5, 16)),
)
def test_no_constant_changes_what_a_schedule_computes(
    program: RandomProgram, rng: Any, limit: int
) -> None:
    donated = [rng.random() < 0.5 for _ in program.args]
    with turned(rng):
        check(program.fn, *program.args, donated=donated, options=Options(operand_limit=limit))

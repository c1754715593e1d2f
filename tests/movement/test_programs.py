"""Random programs that move data, compiled and in random schedules, against NumPy.

45 programs run by default, always the same, and 200 with `--all-cases`; `-m nightly` runs 2,000 new
ones. A
failure that hypothesis has shrunk is kept as a test of its own, below or beside what it concerns.
"""

from __future__ import annotations

import dataclasses
import random
import warnings
from typing import Any

import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given, settings

import stagejit
from stagejit.errors import VerificationError
from stagejit.schedule.plans.plan import Plan
from stagejit.schedule.verifier.plans import verify_plan
from tests.movement.programs import Movement, assert_means, movements
from tests.sampling import budget
from tests.schedule.execution.executor import Executor
from tests.schedule.execution.machine import Concurrent, Machine
from tests.schedule.planning import prepared, schedule_graph

pytestmark = [pytest.mark.fuzz]
MOST_BARRIERS = 8  # that are taken away from one program


def check(program: Movement) -> None:
    expected = program.expected()
    check_compiled(program, expected)
    check_schedules(program, expected)


def check_compiled(program: Movement, expected: list[Any]) -> None:
    """The machine code; what was not donated is what it was."""
    args = [jnp.array(x) for x in program.args]
    compiled = stagejit.jit(program.fn, donate_argnums=program.donated, options=program.options)
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", "Some donated buffers were not usable")
        assert_means(program, compiled(*args), expected)
    for number, (array, before) in enumerate(zip(args, program.args, strict=True)):
        if number not in program.donated:
            np.testing.assert_array_equal(array, before)


def check_schedules(program: Movement, expected: list[Any]) -> None:
    """The plan in random orders that its barriers allow, over memory that is poisoned but for what
    each dispatch declares: evaluated in NumPy, by its machine code, and by that on threads."""
    donated = [number in program.donated for number in range(len(program.args))]
    graph = prepared(program.fn, program.args, donated, program.options)
    schedule = schedule_graph(graph, program.options)
    for seed, run in enumerate((Executor, Machine, Concurrent)):
        results = run(schedule, random.Random(seed))(program.args)
        assert_means(program, results, expected)
    if not program.options.full_barriers:
        check_barriers(schedule.plan)


def check_barriers(plan: Plan) -> None:
    """The happens-before checker misses each of them."""
    for at in range(min(len(plan.barriers), MOST_BARRIERS)):
        fewer = (*plan.barriers[:at], *plan.barriers[at + 1 :])
        with pytest.raises(VerificationError):  # two that conflict, or that share memory
            verify_plan(dataclasses.replace(plan, barriers=fewer))


@settings(max_examples=budget(45, of=200))
@given(movements())
@pytest.mark.timeout(900)
def test_programs_that_move_data(program: Movement) -> None:
    check(program)


@settings(max_examples=2000, derandomize=False)
@given(movements(steps=(5, 16)))
@pytest.mark.nightly
@pytest.mark.timeout(6 * 3600)
def test_many_programs_that_move_data(program: Movement) -> None:
    check(program)

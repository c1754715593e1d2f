"""Runs conv regions on every target that this machine can run."""

from __future__ import annotations

from typing import Any

import pytest

from tests.codegen.cpu.contract.test_contract import TARGETS
from tests.codegen.regions import Runner


@pytest.fixture(params=TARGETS)
def runner(request: pytest.FixtureRequest, compile_kernel: Any) -> Runner:
    return Runner(compile_kernel, TARGETS[request.param]())

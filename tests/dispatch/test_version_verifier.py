"""A region that reads what another has overwritten is found."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import jax.numpy as jnp
import numpy as np
import pytest

from stagejit.dispatch.formation import form
from stagejit.dispatch.region import Draft
from stagejit.dispatch.version_verifier import verify_versions
from stagejit.errors import VerificationError
from tests.schedule.planning import prepared

X = np.ones((8, 4), np.float32)


def updated(x: Any) -> Any:
    first = jnp.zeros((8, 4)).at[2:].set(jnp.exp(x[2:]))
    total = jnp.cumsum(first, 0)
    return first.at[:3].set(x[:3] @ jnp.ones((4, 4))), total


@pytest.fixture
def regions() -> list[Draft]:
    return form(prepared(updated, (X,)))[0]


def test_updates_after_the_last_reader_are_right(regions: list[Draft]) -> None:
    verify_versions(regions)


def test_a_reader_after_the_update_is_wrong(regions: list[Draft]) -> None:
    reader = next(region for region in regions if region.kind == "cumulative")
    late = [*(region for region in regions if region is not reader), reader]
    assert late != regions
    with pytest.raises(VerificationError, match=r"which contract\S* overwrites"):
        verify_versions(late)


def test_a_reader_beside_the_update_is_wrong(regions: list[Draft]) -> None:
    reader = next(region for region in regions if region.kind == "cumulative")
    writer = next(region for region in regions if region.kind == "contract")
    others = [region for region in regions if region not in (reader, writer)]
    others.append(replace(reader, borders=(writer,)))
    with pytest.raises(VerificationError, match="overwrites"):
        verify_versions(others)

"""Random regions around products and convolutions: right on a GPU, too, in tiles or not."""

from __future__ import annotations

from dataclasses import replace

import pytest

from stagejit.codegen.cuda.contract import kernel as policy
from tests.cuda.machine import GPU
from tests.cuda.products.random_regions import faults_of
from tests.sampling import examples

CASES = examples()
KINDS = ("contract", "conv")


@pytest.mark.fuzz
@pytest.mark.timeout(1800)
@pytest.mark.parametrize("tiled", [False, True])
def test_random_products(monkeypatch: pytest.MonkeyPatch, tiled: bool) -> None:
    device = GPU
    if tiled:  # even where a thread for each sum would be faster
        monkeypatch.setattr(policy, "single_seconds", lambda plan, device: 1.0)
        monkeypatch.setattr(policy, "dots", lambda plan: [])
        device = replace(GPU, name="in tiles")
    for number in range(CASES):
        for job, what in faults_of(5 + tiled, number, KINDS, device):
            assert not what, f"case {number}: {job and job.region}: {what}"

"""NumPyro: whole chains, its own driver, variational inference."""

from __future__ import annotations

import jax
import numpy as np
import pytest

import stagejit
from stagejit.runtime.cpu.loader import call_count
from tests.ecosystem.harness import check, require

require("numpyro")

from stagejit.bench.ecosystem import numpyro as programs  # noqa: E402


@pytest.mark.parametrize("name", ["numpyro NUTS logistic", "numpyro NUTS eight schools"])
def test_nuts(name: str) -> None:
    check(name, wide=True)


def test_variational_inference() -> None:
    check("numpyro SVI")


def test_its_own_driver() -> None:
    """MCMC.run jits by itself; the posterior is where the data put it."""
    from numpyro.infer import MCMC, NUTS

    data, before = programs._logistic_data(), call_count()
    with stagejit.enabled():
        chain = MCMC(
            NUTS(programs._logistic_model), num_warmup=200, num_samples=300, progress_bar=False
        )
        chain.run(jax.random.key(0), *data)
        found = {name: np.asarray(draws) for name, draws in chain.get_samples().items()}
    assert call_count() > before
    assert found["w"].shape == (300, 5)
    truth = np.array([1.0, -0.5, 0.3, 0.0, 2.0])
    assert np.all(np.abs(found["w"].mean(0) - truth) < 4 * found["w"].std(0) + 0.1)

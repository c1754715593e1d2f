"""NumPyro: NUTS on logistic regression and on eight schools, and variational inference.

Input: nothing. Output: `PROGRAMS`. Invariant: chains are short enough that the rounding of two
compilers does not send them apart.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax
import numpy as np

from stagejit.bench.ecosystem.program import LibraryProgram

Made = tuple[Callable[..., Any], tuple[Any, ...]]


def _logistic_data() -> tuple[Any, Any]:
    rng = np.random.default_rng(0)
    x = rng.standard_normal((200, 5)).astype(np.float32)
    weights = np.array([1.0, -0.5, 0.3, 0.0, 2.0], np.float32)
    y = (rng.random(200) < 1 / (1 + np.exp(-x @ weights))).astype(np.int32)
    return x, y


def _logistic_model(x: Any, y: Any) -> None:
    import numpyro
    import numpyro.distributions as dist

    weights = numpyro.sample("w", dist.Normal(0.0, 1.0).expand([x.shape[1]]).to_event(1))
    bias = numpyro.sample("b", dist.Normal(0.0, 1.0))
    numpyro.sample("y", dist.Bernoulli(logits=x @ weights + bias), obs=y)


def _eight_schools(sigma: Any, y: Any) -> None:
    import numpyro
    import numpyro.distributions as dist
    from numpyro.infer.reparam import TransformReparam

    mu = numpyro.sample("mu", dist.Normal(0.0, 5.0))
    tau = numpyro.sample("tau", dist.HalfCauchy(5.0))
    affine = dist.transforms.AffineTransform(mu, tau)
    with (
        numpyro.plate("schools", 8),
        numpyro.handlers.reparam(config={"theta": TransformReparam()}),
    ):
        theta = numpyro.sample("theta", dist.TransformedDistribution(dist.Normal(0.0, 1.0), affine))
        numpyro.sample("obs", dist.Normal(theta, sigma), obs=y)


def _nuts(model: Callable[..., None], data: tuple[Any, ...]) -> Made:
    from numpyro.infer import MCMC, NUTS

    def run(key: Any, *data: Any) -> Any:
        mcmc = MCMC(NUTS(model), num_warmup=30, num_samples=30, progress_bar=False)
        mcmc.run(key, *data)
        return mcmc.get_samples()

    return run, (jax.random.key(1), *data)


def nuts_logistic() -> Made:
    return _nuts(_logistic_model, _logistic_data())


def nuts_eight_schools() -> Made:
    y = np.array([28.0, 8.0, -3.0, 7.0, -1.0, 1.0, 18.0, 12.0], np.float32)
    sigma = np.array([15.0, 10.0, 16.0, 11.0, 9.0, 11.0, 10.0, 18.0], np.float32)
    return _nuts(_eight_schools, (sigma, y))


def svi_logistic() -> Made:
    from numpyro.infer import SVI, Trace_ELBO
    from numpyro.infer.autoguide import AutoNormal
    from numpyro.optim import Adam

    def run(key: Any, x: Any, y: Any) -> Any:
        svi = SVI(_logistic_model, AutoNormal(_logistic_model), Adam(0.02), Trace_ELBO())
        found = svi.run(key, 200, x, y, progress_bar=False)
        return found.params, found.losses

    return run, (jax.random.key(2), *_logistic_data())


PROGRAMS = (
    LibraryProgram("numpyro NUTS logistic", ("numpyro",), nuts_logistic, 1e-2),
    LibraryProgram("numpyro NUTS eight schools", ("numpyro",), nuts_eight_schools, 1e-2),
    LibraryProgram("numpyro SVI", ("numpyro",), svi_logistic, 1e-3),
)

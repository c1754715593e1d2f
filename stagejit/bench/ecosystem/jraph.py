"""jraph: a training step of a graph network.

Input: nothing. Output: `PROGRAMS`. Invariant: see `program`.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from stagejit.bench.ecosystem.program import LibraryProgram

Made = tuple[Callable[..., Any], tuple[Any, ...]]


def graph_network() -> Made:
    import jraph

    rng = np.random.default_rng(0)
    nodes, edges = 100, 400
    graph = jraph.GraphsTuple(
        nodes=jnp.asarray(rng.standard_normal((nodes, 8)), jnp.float32),
        edges=jnp.asarray(rng.standard_normal((edges, 4)), jnp.float32),
        senders=jnp.asarray(rng.integers(0, nodes, edges), jnp.int32),
        receivers=jnp.asarray(rng.integers(0, nodes, edges), jnp.int32),
        globals=jnp.zeros((4, 8)),
        n_node=jnp.full((4,), nodes // 4), n_edge=jnp.full((4,), edges // 4),
    )  # fmt: skip

    def network(params: Any, graph: Any) -> Any:
        net = jraph.GraphNetwork(
            lambda e, s, r, g: jax.nn.relu(jnp.concatenate([e, s, r, g], -1) @ params["edge"]),
            lambda n, s, r, g: jax.nn.relu(jnp.concatenate([n, s, r, g], -1) @ params["node"]),
            lambda n, e, g: jnp.concatenate([n, e, g], -1) @ params["global"],
        )
        return net(net(graph)._replace(edges=graph.edges, nodes=graph.nodes)).globals

    def step(params: Any, graph: Any) -> Any:
        def loss(params: Any) -> Any:
            return jnp.mean((network(params, graph) - 1.0) ** 2)

        value, grads = jax.value_and_grad(loss)(params)
        return jax.tree.map(lambda p, g: p - 0.01 * g, params, grads), value

    key = jax.random.split(jax.random.key(0), 3)
    params = {
        "edge": jax.random.normal(key[0], (28, 16)) * 0.2,
        "node": jax.random.normal(key[1], (48, 16)) * 0.2,
        "global": jax.random.normal(key[2], (40, 8)) * 0.2,
    }
    return step, (params, graph)


PROGRAMS = (LibraryProgram("jraph graph network", ("jraph",), graph_network, 1e-4),)

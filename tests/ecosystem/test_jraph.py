"""jraph: a graph network."""

from __future__ import annotations

from tests.ecosystem.harness import check, require

require("jraph")


def test_graph_network() -> None:
    check("jraph graph network")

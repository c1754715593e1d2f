"""Acceptance cases run on every target that runs here: this machine's CPU, and an emulated GPU.

All run on the CPU; of those on the GPU one in `_EVERY`, or all with `--all-targets`. What is about
a CPU's kernels is marked `native`.
"""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.sampling import keep_some

TARGETS = ("native", "cuda-emulated")
_EVERY = 72


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    if "on_target" in metafunc.fixturenames:
        native = metafunc.definition.get_closest_marker("native")
        targets = TARGETS[:1] if native else TARGETS
        metafunc.parametrize("on_target", targets, indirect=True)


@pytest.fixture(autouse=True)
def on_target(request: pytest.FixtureRequest) -> Iterator[str]:
    """What programs of the test are compiled for, where it does not say."""
    from stagejit.options import Options

    target: str = request.param
    if target == TARGETS[0]:
        yield target
    else:
        with Options(target=target):
            yield target


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    keep_some(config, items, _EVERY, _is_emulated, and_firsts=False)


def _is_emulated(item: pytest.Item) -> bool:
    call = getattr(item, "callspec", None)
    return call is not None and call.params.get("on_target") == TARGETS[1]

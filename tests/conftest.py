"""Shared test configuration: a private object cache, hypothesis profiles, the `gpu` marker.

Importing stagejit or jax here is deliberately avoided, so that tests/test_imports.py and the
command line tests see a fresh process.
"""

from __future__ import annotations

import gc
import importlib.util
import os
import shutil
import tempfile
import zlib
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Protocol, TypeVar

import pytest
from hypothesis import HealthCheck, settings

from tests.harness import levels, xla
from tests.randomness import RNG
from tests.sampling import keep_some_of_marked, try_all

T = TypeVar("T")
REPOSITORY = Path(__file__).resolve().parent.parent

# Tests neither read nor fill the user's object cache; a test of the cache makes its own folder.
# Set at import, because a test module may compile while it is collected. Processes of pytest-xdist
# have that of the process that started them.
_STARTED_BY_ANOTHER = "PYTEST_XDIST_WORKER" in os.environ
if not _STARTED_BY_ANOTHER:
    os.environ["STAGEJIT_CACHE_DIR"] = tempfile.mkdtemp(prefix="stagejit-tests-")
_CACHE_DIR = os.environ["STAGEJIT_CACHE_DIR"]
os.environ["STAGEJIT_STRICT"] = "1"  # a fault of ours fails the test; without, XLA would cover it
# Processes that tests start find what they import compiled: a second for each of them.
os.environ.pop("PYTHONDONTWRITEBYTECODE", None)

for _profile, _examples in (("stagejit", 10), ("all cases", 25)):
    settings.register_profile(
        _profile,
        deadline=None,  # the first example of a shape compiles
        derandomize=True,  # a red run is red again; fuzzing proper varies the seed
        max_examples=int(os.environ.get("STAGEJIT_FUZZ_EXAMPLES", _examples)),
        suppress_health_check=[HealthCheck.too_slow, HealthCheck.data_too_large],
        print_blob=True,
    )
settings.load_profile("stagejit")


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption(
        "--update-golden",
        action="store_true",
        help="write the expected text of golden tests anew; then read the difference",
    )
    parser.addoption(
        "--xla-as-shipped",
        action="store_true",
        help="let XLA optimize what it compiles, as it does for users; see `_XLA_FLAGS`",
    )
    parser.addoption(
        "--all-targets",
        action="store_true",
        help="run all cases of an emulated GPU, not some of them",
    )
    parser.addoption(
        "--all-cases",
        action="store_true",
        help="try all of what tests try some of by default (`some_of`, `mark.some`, `budget`)",
    )


# What XLA compiles in tests is what results are compared to, and what is left to it: of either,
# only the values matter, and most of it runs once, on few elements. Its code generators take most
# of that time, and less without optimizations and emitters of fusions (`tests/harness/xla.py`). Its
# own passes run all the same. Flags that an XLA does not know would end the process.
_XLA_FLAGS = ["--xla_backend_optimization_level=0", "--xla_cpu_parallel_codegen_split_count=1"]


def pytest_configure(config: pytest.Config) -> None:
    if config.getoption("--all-cases"):  # before test modules say how many examples they want
        settings.load_profile("all cases")
        try_all()
    if not config.getoption("--xla-as-shipped"):  # the last of equal flags wins
        os.environ["XLA_FLAGS"] = " ".join([*_XLA_FLAGS, os.environ.get("XLA_FLAGS", "")])


class SomeOf(Protocol):
    """Of alternatives that only multiply a test."""

    def __call__(self, alternatives: Iterable[T], count: int) -> list[T]: ...


@pytest.fixture
def some_of(request: pytest.FixtureRequest) -> SomeOf:
    """`some_of(alternatives, count)`: neighbours, others in each test, always the same ones;
    all of them with `--all-cases`."""

    def chosen(alternatives: Iterable[T], count: int) -> list[T]:
        every = list(alternatives)
        if request.config.getoption("--all-cases") or count >= len(every):
            return every
        first = zlib.crc32(request.node.nodeid.encode())
        return [every[(first + k) % len(every)] for k in range(count)]

    return chosen


@pytest.fixture(autouse=True)
def data_of_this_test(request: pytest.FixtureRequest) -> Iterator[None]:
    """What a test draws from `RNG` does not depend on which tests ran before it."""
    with RNG.inside(request.node.nodeid):
        yield


@pytest.fixture(autouse=True, scope="module")
def xla_for_tests(request: pytest.FixtureRequest) -> None:
    """Before the first test of a module, which has imported JAX if it uses it."""
    xla.of_next_module(as_shipped=request.config.getoption("--xla-as-shipped"))


# Kernels of tests have few elements each, and LLVM takes a good part of the time of tests that
# compile some. Its code generator without optimizations takes a third of that.
@pytest.fixture(autouse=True)
def level_of_this_test(request: pytest.FixtureRequest) -> None:
    """LLVM optimizes what one test of so many compiles, drawn by name and seed; what all do that
    say `as_shipped`, or look at stored objects; and of all with --all-targets."""
    shipped = (
        request.config.getoption("--all-targets")
        or not {"as_shipped", "cache_dir"}.isdisjoint(request.fixturenames)
        or levels.drawn_as_shipped(request.node.nodeid)
    )
    levels.compile_at(levels.AS_SHIPPED if shipped else 0)


@pytest.fixture
def as_shipped() -> None:
    """LLVM's code generator optimizes in this test, see `level_of_this_test`."""


gc.set_threshold(20_000, 20, 20)  # collections took a twentieth of the time of tests

_GROWTH_NBYTES = 1 << 29
_after_whole_collection_nbytes = 0


@pytest.fixture(autouse=True, scope="module")
def collections_stay_short() -> None:
    """Python's collector leaves alone what is there before a module's tests: all the tests, and
    what JAX keeps of those that ran. Tests that collect would go through it again and again.
    Cycles of it that are garbage by now go whenever the process has grown by much."""
    global _after_whole_collection_nbytes
    grown = _resident_nbytes() - _after_whole_collection_nbytes > _GROWTH_NBYTES
    if grown:
        gc.unfreeze()
    gc.collect()
    gc.freeze()
    if grown:
        _after_whole_collection_nbytes = _resident_nbytes()


def _resident_nbytes() -> int:
    """Memory of this process that is in use, 0 where nothing says so."""
    try:
        pages = int(Path("/proc/self/statm").read_text().split()[1])
    except OSError:
        return 0
    return pages * os.sysconf("SC_PAGE_SIZE")


@pytest.fixture
def update_golden(request: pytest.FixtureRequest) -> bool:
    """Whether a golden test should write what it finds, instead of comparing."""
    return bool(request.config.getoption("--update-golden"))


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Leave out cases of what is marked `some`; skip `gpu` tests, with the reason, where they
    cannot run."""
    keep_some_of_marked(config, items)
    if _has_gpu():
        return
    no_gpu = pytest.mark.skip(reason="needs an NVIDIA GPU and the `cuda` extra")
    for item in items:
        if "gpu" in item.keywords:
            item.add_marker(no_gpu)


def pytest_unconfigure() -> None:
    if not _STARTED_BY_ANOTHER:
        shutil.rmtree(_CACHE_DIR, ignore_errors=True)


@pytest.fixture
def cache_dir(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An empty object cache folder for this test alone."""
    folder = tmp_path / "object-cache"
    monkeypatch.setenv("STAGEJIT_CACHE_DIR", str(folder))
    return folder


@pytest.fixture
def repository() -> Path:
    """The root of the source tree."""
    return REPOSITORY


def _has_gpu() -> bool:
    return importlib.util.find_spec("pycuda") is not None and os.path.exists("/dev/nvidia0")

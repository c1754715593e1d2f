"""Whether what was compiled before changes a value: the same programs in other orders, with and
without object code from disk, on one thread and on several.

Input: seeds. Output: a `Disorder` for each program that gave other bits in one setting than in the
first. Invariant: nothing is compared with a tolerance; a result belongs to a program and its
arguments, never to the process in which it was computed.
"""

from __future__ import annotations

import hashlib
import os
import random
import tempfile
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from multiprocessing.connection import Connection

import jax

from tests.fuzz.programs import verdicts
from tests.fuzz.programs.generate import Program, random_program
from tests.fuzz.programs.workers import FORK, become_worker

PATIENCE_SECONDS = 1200.0  # for all programs of a setting


@dataclass(frozen=True)
class Setting:
    """How programs are compiled in one process: in which order, on how many threads, and whether
    their object code may come from disk."""

    name: str
    seeds: tuple[int, ...]
    threads: int = 1
    from_disk: bool = True


@dataclass(frozen=True)
class Disorder:
    """A program that gave other bits in a setting than in the first one. after: which programs have
    to be compiled before it, as far as they could be reduced; empty on several threads."""

    seed: int
    setting: str
    after: tuple[int, ...]
    detail: str

    def __str__(self) -> str:
        before = f" after {list(self.after)}" if self.after else ""
        return f"seed {self.seed}: {self.detail} in setting '{self.setting}'{before}"


def disorders(seeds: Sequence[int], features: frozenset[str], *, shuffle: int) -> list[Disorder]:
    """Runs the programs in each setting. shuffle: seed of the orders."""
    rng = random.Random(shuffle)

    def shuffled() -> tuple[int, ...]:
        return tuple(rng.sample(list(seeds), len(seeds)))

    settings = (
        Setting("in order, compiled", tuple(seeds)),
        Setting("another order, from disk", shuffled()),
        Setting("another order, compiled", shuffled(), from_disk=False),
        Setting("four threads, compiled", shuffled(), threads=4, from_disk=False),
        Setting("four threads, from disk", shuffled(), threads=4),
    )
    with tempfile.TemporaryDirectory(prefix="stagejit-order-") as folder:
        found = [digests(setting, features, folder) for setting in settings]
        return [
            _told(seed, setting, features, folder, (found[0].get(seed, ""), given.get(seed, "")))
            for setting, given in zip(settings[1:], found[1:], strict=True)
            for seed in seeds
            if given.get(seed) != found[0].get(seed)
        ]


def _told(
    seed: int, setting: Setting, features: frozenset[str], folder: str, differing: tuple[str, str]
) -> Disorder:
    after: tuple[int, ...] = ()
    if setting.threads == 1:
        before = setting.seeds[: setting.seeds.index(seed)]
        after = _needed(before, seed, setting, features, folder, differing[0])
    return Disorder(seed, setting.name, after, f"{differing[1]} instead of {differing[0]}")


def _needed(
    before: tuple[int, ...],
    seed: int,
    setting: Setting,
    features: frozenset[str],
    folder: str,
    expected: str,
) -> tuple[int, ...]:
    """The programs before `seed` without halves, quarters, ... that are not needed to go wrong."""
    size = len(before)
    while size:
        for start in range(0, len(before), size):
            fewer = before[:start] + before[start + size :]
            tried = replace(setting, seeds=(*fewer, seed))
            if digests(tried, features, folder).get(seed) != expected:
                before = fewer
                break
        else:
            size //= 2
    return before


def digests(setting: Setting, features: frozenset[str], folder: str) -> dict[int, str]:
    """By seed: a digest of all bits of the results, or the error, in a process of its own."""
    ours, theirs = FORK.Pipe()
    arguments = (theirs, setting, features, folder)
    process = FORK.Process(target=_serve, args=arguments, daemon=True)
    process.start()
    theirs.close()
    found: dict[int, str] = {}
    try:
        while ours.poll(PATIENCE_SECONDS):
            seed, digest = ours.recv()
            found[seed] = digest
            if len(found) == len(set(setting.seeds)):
                process.join(5)  # it removes its folder
                break
    except EOFError:
        pass  # what is missing differs
    finally:
        ours.close()
        process.terminate()
        process.join()
    return found


def _serve(connection: Connection, setting: Setting, features: frozenset[str], folder: str) -> None:
    become_worker()
    with tempfile.TemporaryDirectory(prefix="stagejit-order-") as own:
        os.environ["STAGEJIT_CACHE_DIR"] = folder if setting.from_disk else own
        programs = [random_program(seed, features) for seed in setting.seeds]
        with ThreadPoolExecutor(setting.threads) as pool:
            for program, digest in zip(programs, pool.map(digest_of, programs), strict=True):
                connection.send((program.seed, digest))


def digest_of(program: Program) -> str:
    """Of the results' bits, types and shapes."""
    with jax.enable_x64(program.x64):
        try:
            leaves, tree = verdicts.leaves_of(verdicts.staged(program)())
        except Exception as error:
            return f"{type(error).__name__}: {str(error)[:80]}"
    digest = hashlib.sha256(str(tree).encode())
    for leaf in leaves:
        digest.update(f"{leaf.dtype}{leaf.shape}".encode())
        digest.update(leaf.tobytes())
    return digest.hexdigest()[:16]

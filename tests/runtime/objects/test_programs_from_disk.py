"""Machine trouble on purpose: whatever lies in the cache folder, values are right."""

from __future__ import annotations

import os
import textwrap
from pathlib import Path

import pytest

from stagejit.runtime.objects import engine as engine_module
from stagejit.runtime.objects.engine import Engine, cache_key
from stagejit.runtime.objects.object_cache import ObjectCache
from tests.runtime.objects.folders import call, run_python

# -- objects ---------------------------------------------------------------------------------------


def returns(value: int, name: str) -> str:
    return f"define i64 @{name}() {{\n  ret i64 {value}\n}}\n"


@pytest.mark.parametrize("kind", ["garbage", "empty", "half", "header only", "another symbol's"])
def test_a_stored_object_that_does_not_link_is_compiled_anew(kind: str, tmp_path: Path) -> None:
    """Stored under the right key, with the right seal, and still useless."""
    name = f"cache_folder_{kind.split()[0].replace(chr(39), '')}"
    ir, cache = returns(41, name), ObjectCache(tmp_path)
    first = Engine()
    first.load({name: ir, "cache_folder_other": returns(1, "cache_folder_other")}, cache=cache)
    good = cache.get(cache_key(ir)) or b""
    other = cache.get(cache_key(returns(1, "cache_folder_other"))) or b""
    bad = {
        "garbage": b"\0garbage" * 99,
        "empty": b"",
        "half": good[: len(good) // 2],
        "header only": good[:64],
        "another symbol's": other,
    }[kind]
    cache.put(cache_key(ir), bad)
    second = Engine()
    assert call(second.load({name: ir}, cache=cache), name) == 41
    assert (second.compiled_count, second.cached_count) == (1, 0)
    assert cache.get(cache_key(ir)) == good


def test_the_key_names_the_version_of_llvm(monkeypatch: pytest.MonkeyPatch) -> None:
    before = cache_key("text")
    monkeypatch.setattr(engine_module.llvm, "llvm_version_info", (99, 0, 0))
    assert cache_key("text") != before


# -- whole programs --------------------------------------------------------------------------------


WHOLE = textwrap.dedent("""
    import warnings
    warnings.simplefilter("error")
    warnings.filterwarnings("default", message="stagejit")
    import os, sys
    import jax, numpy as np, stagejit
    from stagejit.runtime.objects.engine import engine
    stagejit.jit(jax.numpy.sin, options=stagejit.Options(cache_dir=""))(1.0)  # loads the compiler
    if "nobody" in sys.argv:
        os.setuid(54321)
    for k in range(4):
        y = stagejit.jit(lambda x: x * (2 + k))(np.ones(5, np.float32))
        assert np.array_equal(y, np.full(5, 2 + k)), y
    print(engine().cached_count)
""")


def test_whole_programs_run_from_a_folder_full_of_trouble(tmp_path: Path) -> None:
    folder = tmp_path / "cache"
    run_python(WHOLE, STAGEJIT_CACHE_DIR=str(folder))
    stored = sorted(folder.rglob("*.sjo"))
    assert len(stored) >= 4
    bodies = [path.read_bytes() for path in stored]
    for path, body in zip(stored, bodies[1:] + bodies[:1], strict=True):
        path.write_bytes(body)  # each under its neighbour's name
    stored[0].unlink()
    os.mkfifo(stored[0])
    assert run_python(WHOLE, STAGEJIT_CACHE_DIR=str(folder)) == ("0\n", "")
    printed, warned = run_python(WHOLE, STAGEJIT_CACHE_DIR=str(folder))
    assert (int(printed), warned) == (len(stored), "")


def test_whole_programs_run_without_a_cache(tmp_path: Path) -> None:
    assert run_python(WHOLE, STAGEJIT_CACHE_DIR="", HOME=str(tmp_path)) == ("0\n", "")
    assert not list(tmp_path.rglob("*.sjo"))


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can become nobody")
def test_whole_programs_run_without_a_home(tmp_path: Path) -> None:
    nobody = {"STAGEJIT_CACHE_DIR": None, "HOME": None, "XDG_CACHE_HOME": None}
    printed, warned = run_python(WHOLE, "nobody", **nobody)
    assert printed == "0\n"
    assert warned.count("stagejit has no folder") == 1


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can give files away")
def test_whole_programs_run_beside_a_folder_of_somebody_else(tmp_path: Path) -> None:
    folder = tmp_path / "cache"
    run_python(WHOLE, STAGEJIT_CACHE_DIR=str(folder))
    os.chown(folder, 54321, 54321)
    printed, warned = run_python(WHOLE, STAGEJIT_CACHE_DIR=str(folder))
    assert printed == "0\n"
    assert warned.count("belongs to user 54321") == 1

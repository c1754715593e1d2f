"""What `explain` tells of the dense block: which parts of which concatenation were placed where,
which were refused, and why, by the user's line."""

from __future__ import annotations

import importlib.util
import re
from pathlib import Path
from typing import Any

import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax
from typer.testing import CliRunner

import stagejit
from stagejit.base.decisions import Decision
from stagejit.base.loc import Loc
from stagejit.bench import cli
from stagejit.inspect.explain import Explanation
from stagejit.inspect.explain.notes import PartOf
from stagejit.inspect.explain.rendering.lines import blocks_of
from stagejit.inspect.explain.rendering.wording import ops_text
from stagejit.options import Options
from tests.inspect.pages import rows_of

BLOCK = """
import jax.numpy as jnp
import numpy as np
from jax import lax


def layer(x, w):
    y = lax.conv(x, w, (1, 1), "SAME")
    return jnp.where(y > 0, y, 0.2 * y)


def block(a, b, weights):
    x = a + b
    x1 = layer(x, weights[0])
    c2 = jnp.concatenate([x, x1], 1)
    x2 = layer(c2, weights[1])
    c3 = jnp.concatenate([x, x1, x2], 1)
    x3 = layer(c3, weights[2])
    c4 = jnp.concatenate([x, x1, x2, x3], 1)
    x4 = layer(c4, weights[3])
    c5 = jnp.concatenate([x, x1, x2, x3, x4], 1)
    x5 = lax.conv(c5, weights[4], (1, 1), "SAME")
    skip = jnp.concatenate([b, x4], 1)
    return x5 * 0.2 + x, skip


def images():
    shapes = (64, 32), (96, 32), (128, 32), (160, 32), (192, 64)
    image = np.zeros((1, 64, 90, 62), np.float32)
    return image, image, [np.zeros((o, i, 3, 3), np.float32) for i, o in shapes]


BENCH = {"block": (block, images)}
"""
CHANNELS = ("0:64", "64:96", "96:128", "128:160", "160:192")


@pytest.fixture(name="user_file")
def _user_file(tmp_path: Path) -> Path:
    path = tmp_path / "model.py"
    path.write_text(BLOCK)
    return path


def explained(path: Path, *disable: str, **more: Any) -> Explanation:
    spec = importlib.util.spec_from_file_location("model", path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    fn = stagejit.jit(module.block, options=Options(disable=disable, **more))
    explanation: Explanation = fn.explain(*module.images())
    return explanation


def notes_at(text: str, path: Path, start: str) -> list[str]:
    """What is said of the user's line that begins with `start`."""
    (number,) = (n for n, s in enumerate(BLOCK.splitlines(), 1) if s.strip().startswith(start))
    source = BLOCK.splitlines()[number - 1].strip()
    (found,) = (b for b in text.split("\n\n") if b.startswith(f"{path}:{number} "))
    head, *notes = found.splitlines()
    assert head == f"{path}:{number}    {source}"
    return [note.strip() for note in notes if not note.startswith("  >")]


def placed(notes: list[str]) -> list[tuple[str, str]]:
    """Destination and channels of each placement."""
    found = (re.fullmatch(r"= @\S+ writes (\w+)\[0:1, (\d+:\d+), .*\]", note) for note in notes)
    return [(match[1], match[2]) for match in found if match]


def times(cell: str) -> int:
    """How many notes a row stands for."""
    found = re.search(r"x (\d+)", cell)
    return int(found[1]) if found else 1


def test_prefix_sharing_of_the_dense_block(user_file: Path) -> None:
    """One buffer: four concatenations begin the fifth one, whose line says who writes what."""
    text = explained(user_file).as_text(collapse=False)
    for parts, line in enumerate(("c2 =", "c3 =", "c4 ="), 2):
        (shared,) = notes_at(text, user_file, line)
        assert shared.startswith("+ share-prefixes @ insert_slice")
        assert f": the first {parts} parts of insert_slice" in shared
    notes = notes_at(text, user_file, "c5 =")
    buffers, channels = zip(*placed(notes), strict=True)
    assert channels == CHANNELS
    assert len(set(buffers)) == 1
    assert sum(note.startswith("+ fuse-insert") for note in notes) == 5
    assert not [note for note in notes if note.startswith("-")]


def test_the_border_of_the_shared_buffer_is_told_once(user_file: Path) -> None:
    notes = notes_at(str(explained(user_file, borders="always")), user_file, "c5 =")
    assert [channels for _, channels in placed(notes)] == list(CHANNELS)
    assert sum(note.endswith("writes the border of t0") for note in notes) == 1
    assert any(note.startswith("+ border-buffers @ insert_slice") for note in notes)


def test_multi_stores_of_the_dense_block(user_file: Path) -> None:
    """Four buffers: each line says which channels of its own buffer are written."""
    text = explained(user_file, "share-prefixes").as_text(collapse=False)
    destinations = []
    for parts, line in enumerate(("c2 =", "c3 =", "c4 =", "c5 ="), 2):
        notes = notes_at(text, user_file, line)
        buffers, channels = zip(*placed(notes), strict=True)
        assert channels == CHANNELS[:parts]
        destinations += sorted(set(buffers))
        assert sum(note.startswith("+ fuse-insert") for note in notes) == parts
    assert len(destinations) == len(set(destinations)) == 4


def test_a_refused_insertion_says_why_and_who_copies_it(user_file: Path) -> None:
    notes = notes_at(str(explained(user_file)), user_file, "skip =")
    (refused,) = (note for note in notes if note.startswith("-"))
    assert re.fullmatch(r"- fuse-insert @ @copy\.\d+: f32\[1,96,90,62\]: .+", refused)
    assert "what is copied is the argument b, which nobody computes" in refused
    assert placed(notes) == [("r1", "0:64"), ("r1", "64:96")]
    assert any(note.startswith("= @copy.") and "r1[0:1, 0:64" in note for note in notes)


def test_switched_off_every_part_is_written_by_a_copy(user_file: Path) -> None:
    text = str(explained(user_file, "share-prefixes", "fuse-insert"))
    writers = re.findall(r"= @(\w+)\.\d+ writes", text)
    assert writers == ["copy"] * 16


def test_html_says_the_same(user_file: Path) -> None:
    explanation = explained(user_file)
    page = explanation._repr_html_()
    rows = rows_of(page)
    assert sum(row[0] == "placed" for row in rows) == len(explanation.placements) == 5 + 2
    declined = sum(not decision.applied for decision in explanation.decisions)
    items = [item for block in blocks_of(explanation.notes()) for item in block.items]
    moot = [note for item in items if item.is_moot for note in item.notes]
    gone = sum(isinstance(note, Decision) and not note.applied for note in moot)
    assert sum(times(row[2]) for row in rows if row[0] == "declined") == declined - gone
    assert "<code>c5 = jnp.concatenate([x, x1, x2, x3, x4], 1)</code>" in page
    for channels in CHANNELS:
        assert f"writes t0[0:1, {channels}, 0:90, 0:62]" in {row[-1] for row in rows}
    reason = "what is copied is the argument b, which nobody computes"
    assert reason in {row[-1] for row in rows}


def test_the_command_line_prints_it(user_file: Path) -> None:
    result = CliRunner().invoke(cli.app, ["explain", str(user_file)])
    assert result.exit_code == 0, result.output
    assert result.output.strip() == str(explained(user_file)).strip()


def test_an_offset_is_called_what_the_plan_calls_it() -> None:
    def update(d: Any, x: Any, i: Any) -> Any:
        return lax.dynamic_update_slice(d, jnp.exp(x), (i, 0))

    arrays = np.zeros((4, 8), np.float32), np.zeros((1, 8), np.float32), np.int32(2)
    jitted = stagejit.jit(update, donate_argnums=0)
    assert "symbol s0 in 0:4" in str(jitted.plan(*arrays))
    (placement,) = jitted.explain(*arrays).placements
    assert placement.where == "d[s0:s0+1, 0:8]"


def test_placements_in_loops_are_told() -> None:
    def rows(d: Any, xs: Any) -> Any:
        def step(carry: Any, x: Any) -> Any:
            return lax.dynamic_update_slice(carry, jnp.exp(x)[None], (2, 0)), None

        return lax.scan(step, d, xs)[0]

    arrays = np.zeros((4, 8), np.float32), np.zeros((3, 8), np.float32)
    explanation = stagejit.jit(rows, donate_argnums=0).explain(*arrays)
    (placement,) = explanation.placements
    assert placement.where.endswith("[2:3, 0:8]")
    assert placement.loc.file == __file__


def test_what_stands_at_other_lines_is_alike_where_the_line_is() -> None:
    first, other = Loc("model.py", 3), Loc("model.py", 4)
    notes = [PartOf(f"map.{n}", "map", main, Loc("model.py", 5)) for n, main in
             enumerate((first, first, other))]  # fmt: skip
    (block,) = blocks_of(notes)
    assert [item.count for item in block.items] == [2, 1]


def test_many_ops_are_counted() -> None:
    assert ops_text(("mul", "add", "mul")) == "mul, add, mul"
    assert ops_text(("mul", "add") * 5) == "5 mul, 5 add"


def test_lines_of_which_the_same_is_said_are_one() -> None:
    def network(x: Any) -> Any:
        a = jnp.sort(x * 2.0, axis=1)
        b = jnp.sort(a * 3.0, axis=1)
        return jnp.sort(b * 4.0, axis=1)

    def other(x: Any) -> Any:
        x = jnp.sort(x * 2.0, axis=1)
        x = jnp.sort(x * 3.0, axis=1)
        x = jnp.sort(x * 4.0, axis=1)
        return x

    array = np.ones((4, 8), np.float32)
    assert "lines like it" not in str(stagejit.jit(network).explain(array))
    assert "and 1 line like it" in str(stagejit.jit(other).explain(array))

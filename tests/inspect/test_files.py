"""Files are there as a whole or not at all; what is no file is written to as it is."""

from __future__ import annotations

import os
import subprocess
import sys
import threading
from pathlib import Path

import pytest

from stagejit.inspect.files import write


def test_a_file_takes_the_place_of_the_one_before(tmp_path: Path) -> None:
    file = tmp_path / "page.html"
    for text in ("first", "second, with an ü"):
        write(file, text)
        assert file.read_text(encoding="utf-8") == text
    assert [each.name for each in tmp_path.iterdir()] == ["page.html"]


def test_what_was_there_stays_where_nothing_can_be_written(tmp_path: Path) -> None:
    file = tmp_path / "page.html"
    write(file, "first")
    with pytest.raises(UnicodeEncodeError):
        write(file, "\ud800")
    assert file.read_text() == "first"
    assert [each.name for each in tmp_path.iterdir()] == ["page.html"]
    with pytest.raises(OSError, match="No such file"):
        write(tmp_path / "nowhere" / "page.html", "text")


def test_a_pipe_is_written_through(tmp_path: Path) -> None:
    pipe, read = tmp_path / "pipe", list[str]()
    os.mkfifo(pipe)
    reader = threading.Thread(target=lambda: read.append(pipe.read_text()))
    reader.start()
    write(pipe, "text")
    reader.join(60)
    assert read == ["text"]
    assert pipe.is_fifo()


def test_a_link_stays_one(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("before")
    (tmp_path / "link").symlink_to("file")
    write(tmp_path / "link", "text")
    assert (tmp_path / "link").is_symlink()
    assert (tmp_path / "file").read_text() == "text"


@pytest.mark.parametrize("to_a_file", [False, True])
def test_standard_output_is_written_through(tmp_path: Path, to_a_file: bool) -> None:
    code = "from pathlib import Path\nfrom stagejit.inspect.files import write\n"
    code += "write(Path('/dev/stdout'), 'text')"
    if not to_a_file:
        done = subprocess.run([sys.executable, "-c", code], capture_output=True, check=True)
        assert done.stdout == b"text"
        return
    with open(tmp_path / "out", "wb") as out:
        subprocess.run([sys.executable, "-c", code], stdout=out, check=True)
    assert (tmp_path / "out").read_text() == "text"

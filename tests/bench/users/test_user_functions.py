"""Functions and arguments from the command line."""

from __future__ import annotations

import re
from pathlib import Path
from types import ModuleType

import jax
import numpy as np
import pytest

from stagejit.bench.programs import CommandError
from stagejit.bench.users.user_functions import arguments_of, call_of, calls_of
from stagejit.stages import Lowered

SOURCE = """
import jax.numpy as jnp
import stagejit
params = {"w": jnp.ones((8, 3))}
examples = (2.0, params)
settings = {"scale": 3.0}
class Model:
    @staticmethod
    def apply(x):
        return x * 2
def loss(x, p, scale=1.0):
    return (x @ p["w"]).sum() * scale
@stagejit.jit(options=stagejit.Options(disable=("fuse-pad",)))
def jitted(x):
    return jnp.pad(x, 1)
"""
TABLE = 'BENCH = {"mine": (loss, (jnp.ones((2, 8)), params)), "other": (Model.apply, (3.0,))}\n'


@pytest.fixture
def file(tmp_path: Path) -> Path:
    path = tmp_path / "users_model.py"
    path.write_text(SOURCE)
    return path


def test_a_function_of_a_file(file: Path) -> None:
    call = call_of(f"{file}:loss", "f32[4,8], params, scale=0.5")
    assert call.name == "loss"
    assert call.kwargs == {"scale": 0.5}
    assert call.args[0] == jax.ShapeDtypeStruct((4, 8), np.float32)
    assert call.args[1]["w"].shape == (8, 3)
    lowered = call.lower()
    assert isinstance(lowered, Lowered)
    assert lowered.out_info.shape == ()


def test_items_and_all_of_a_tuple_and_a_dictionary(file: Path) -> None:
    call = call_of(f"{file}:loss", "*examples, **settings")
    assert call.args == (2.0, call.args[1])
    assert call.kwargs == {"scale": 3.0}
    item = call_of(f"{file}:loss", "examples[0], {'w': params['w']}")
    assert item.args[0] == 2.0
    assert item.args[1]["w"].shape == (8, 3)


def test_a_function_of_a_module(file: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(file.parent)
    assert call_of("users_model:Model.apply", "i32[]").name == "Model.apply"


def test_a_jitted_function_keeps_its_options(file: Path) -> None:
    lowered = call_of(f"{file}:jitted", "f32[4]").lower()
    assert lowered.compilation.request.options.disable == ("fuse-pad",)
    assert (
        call_of(f"{file}:jitted", "f32[4]")
        .lower("cuda-emulated")
        .compilation.request.options.on_gpu
    )


def test_programs_of_a_file_bring_their_arguments(file: Path) -> None:
    file.write_text(SOURCE + TABLE)
    assert [call.name for call in calls_of(str(file))] == ["mine", "other"]
    assert call_of(f"{file}:mine").args[0].shape == (2, 8)
    assert call_of(f"{file}:loss", "f32[4,8], params").name == "loss"  # another function of it
    with pytest.raises(CommandError, match="of mine, other"):
        call_of(str(file))


@pytest.mark.parametrize(
    ("text", "args"),
    [
        ("", ()),
        ("1, -2.5, 'a', None, True", (1, -2.5, "a", None, True)),
        ("[f32[2], (bf16[1,2],)]", ([("float32", (2,)), (("bfloat16", (1, 2)),)],)),
        ("{'a': i8[3], 2: u32[]}", ({"a": ("int8", (3,)), 2: ("uint32", ())},)),
        ("bool[4], c64[1], float16[2]", (("bool", (4,)), ("complex64", (1,)), ("float16", (2,)))),
        ("x.y", (7,)),
    ],
)
def test_arguments(text: str, args: object) -> None:
    module = ModuleType("m")
    module.x = type("X", (), {"y": 7})  # type: ignore[attr-defined]

    def plain(value: object) -> object:
        if isinstance(value, jax.ShapeDtypeStruct):
            return value.dtype.name, value.shape
        if isinstance(value, dict):
            return {key: plain(each) for key, each in value.items()}
        return type(value)(map(plain, value)) if isinstance(value, list | tuple) else value

    assert plain(arguments_of(text, module)[0]) == args


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("open('x')", "is no argument"),
        ("f32[n]", "has no shape"),
        ("f32[-1]", "has no shape"),
        ("f33[2]", "is no type"),
        ('params["v"]', "there is no params['v']: KeyError: 'v'"),
        ("params[0, 1]", "there is no params"),
        ("*params", "*params is a dict"),
        ("**examples", "**examples is a tuple"),
        ("nothing", "has no 'nothing'"),
        ("1) + f(2", "are no arguments"),
        ("1,,", "are no arguments"),
    ],
)
def test_other_arguments_are_refused(text: str, message: str) -> None:
    module = ModuleType("m")
    vars(module).update(params={"w": 1}, examples=(1, 2))
    with pytest.raises(CommandError, match=re.escape(message)):
        arguments_of(text, module)


@pytest.mark.parametrize(
    ("program", "args", "message"),
    [
        ("nothing.here:f", None, "there is no module 'nothing'"),
        ("{file}", None, "the file defines no programs"),
        ("json", None, "names no function"),
        ("{file}:absent", None, r"\.py has no 'absent'"),
        ("{file}:lose", None, "did you mean 'loss'"),
        ("{file}:params", None, "is a dict"),
        ("{file}:loss", "f32[4,8]", r"do not fit loss\(x, p, scale\)"),
        ("/no/such.py:f", None, "there is no file"),
    ],
)
def test_other_programs_are_refused(file: Path, program: str, args: str, message: str) -> None:
    with pytest.raises(CommandError, match=message):
        call_of(program.replace("{file}", str(file)), args)


def test_errors_of_the_users_own_pass_through(tmp_path: Path) -> None:
    path = tmp_path / "users_broken.py"
    path.write_text("import nothing_of_that_name")
    with pytest.raises(ModuleNotFoundError, match="nothing_of_that_name"):
        call_of(f"{path}:f")

"""What attributes are drawn, and that machines are."""

from __future__ import annotations

from collections.abc import Iterator

from stagejit.graph.ir import Op
from stagejit.graph.ops.moving.splits import is_uneven
from tests.fuzz.kernels.case import draw_case
from tests.fuzz.kernels.choices import Choices
from tests.fuzz.kernels.steps import general

THEMES = (
    (general.over, general.box, general.look_up, general.bits, general.contract, general.conv,
     general.parts),
)  # fmt: skip
WANTED = {
    "overlay with holes", "overlay of a value", "batch groups", "feature groups", "parts", "border",
    "negative padding", "three dimensions", "two starts", "stride", "table", "bits",
    "two axes summed", "two batch axes", "uneven parts", "parts of what is the same everywhere",
}  # fmt: skip


def kinds(op: Op) -> Iterator[str]:
    attrs = op.attrs
    if op.kind == "overlay":
        yield from ["overlay with holes"] if max(attrs["strides"]) > 1 else []
        yield from ["overlay of a value"] if op.operands[1].op.kind != "fill" else []
    elif op.kind == "conv":
        yield from ["batch groups"] if attrs["batch_groups"] > 1 else []
        yield from ["feature groups"] if attrs["feature_groups"] > 1 else []
        yield from ["parts"] if "split" in attrs else []
        yield from ["border"] if "border" in attrs else []
        yield from ["negative padding"] if min(map(min, attrs["padding"])) < 0 else []
        yield from ["three dimensions"] if len(attrs["strides"]) == 3 else []
    elif op.kind == "extract_slice":
        yield from ["two starts"] if len(op.operands) > 2 else []
        yield from ["stride"] if len(op.operands) > 1 and max(attrs["strides"]) > 1 else []
    elif op.kind == "contract":
        yield from ["two axes summed"] if len(attrs["contracting"][0]) > 1 else []
        yield from ["two batch axes"] if len(attrs["batch"][0]) > 1 else []
    elif op.kind == "split_axis":
        yield from ["uneven parts"] if is_uneven(op) else []
        same = op.operands[0].op.kind == "broadcast"
        yield from ["parts of what is the same everywhere"] if same else []
    elif op.kind in ("gather", "bitcast"):
        yield {"gather": "table", "bitcast": "bits"}[op.kind]


def test_all_kinds_of_attributes_are_drawn() -> None:
    found: set[str] = set()
    for number in range(600):
        graph = draw_case(Choices.drawn("general", number), THEMES).graph
        found.update(kind for op in graph.ops() for kind in kinds(op))
        if found >= WANTED:
            return
    assert found >= WANTED


def test_machines_are_drawn() -> None:
    settings = [draw_case(Choices.drawn("machines", number)).setting for number in range(100)]
    assert len({setting.machine for setting in settings}) > 10
    assert sum(setting.machine == 0 for setting in settings) > 20

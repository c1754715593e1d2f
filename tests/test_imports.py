"""The layout of the package, enforced on the source text: import direction, file sizes, names.

Every import statement counts: at module level, inside functions, and under TYPE_CHECKING. There
is no list of exceptions; a module that needs one belongs in another layer.
"""

from __future__ import annotations

import ast
import functools
import graphlib
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import pytest

PACKAGE = Path(__file__).resolve().parent.parent / "stagejit"

# From the bottom up; a module may import from its own row and from the rows above it in this list.
LAYERS: tuple[tuple[str, ...], ...] = (
    ("base", "errors", "options"),
    ("index",),
    ("types", "compat", "crossing"),
    ("graph",),
    ("trace",),
    ("rewrites",),
    ("dispatch",),
    ("schedule",),
    ("codegen",),
    ("runtime",),
    ("extending",),
    ("inspect",),
    ("pipeline",),
    ("explaining",),
    ("stages",),
    ("gpu_calls",),
    ("api",),
    ("binding",),
    ("__init__",),
    ("bench",),
    ("__main__",),
)
# The same of a stage that is several layers, by its folders and files.
WITHIN: dict[str, tuple[tuple[str, ...], ...]] = {
    "dispatch": (
        ("bodies", "outputs", "ranges", "regions"),
        ("groups", "in_place", "layouts", "operands", "verifier"),
        ("forming",),
        ("assembly", "encodings", "origins", "packs", "rewrites", "ties_verifier"),
    ),
    "schedule": (
        ("conflicts",),
        ("memory",),
        ("plans",),
        ("schedule",),
        ("bodies", "slots", "verifier"),
        ("bufferize", "threads"),
        ("reuse",),
        ("build",),
    ),
    "codegen": (
        ("ir", "closed", "target", "templates"),
        ("kernel", "math"),
        ("backend", "choices", "costs", "reducers"),
        ("places",),
        ("elements",),
        ("nest",),
        ("contraction", "rows", "sorting"),
        ("cpu", "cuda"),
        ("meaning", "own"),
        ("generate",),
        ("uses",),
    ),
}
RANK = {name: rank for rank, names in enumerate(LAYERS) for name in names}
MAX_LINES, MAX_FILES = 400, 12
OURS = ("stagejit", "tests")
NAMES_THAT_SAY_NOTHING = {"utils", "util", "helpers", "helper", "misc", "common", "manager"}

FILES = sorted(PACKAGE.rglob("*.py"))
TESTS = sorted((PACKAGE.parent / "tests").rglob("*.py"))  # held to the same sizes and names
FUZZ = [path for path in TESTS if path.is_relative_to(PACKAGE.parent / "tests" / "fuzz")]


def module_name(path: Path) -> str:
    """graph/ir.py --> stagejit.graph.ir, graph/__init__.py --> stagejit.graph."""
    parts = path.relative_to(PACKAGE.parent).with_suffix("").parts
    return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)


def layer_of(module: str) -> str:
    parts = module.split(".")
    return parts[1] if len(parts) > 1 else "__init__"


MODULES = {module_name(path): path for path in (*FILES, *FUZZ)}
OF_THE_PACKAGE = sorted(map(module_name, FILES))


@functools.cache
def import_statements(path: Path) -> tuple[ast.Import | ast.ImportFrom, ...]:
    nodes = ast.walk(ast.parse(path.read_text(encoding="utf-8")))
    return tuple(node for node in nodes if isinstance(node, ast.Import | ast.ImportFrom))


@functools.cache
def imported_modules(path: Path) -> tuple[tuple[str, int], ...]:
    """(module of ours, line) for every import statement in the file, resolved to the module."""
    return tuple(_imported_modules(path))


def _imported_modules(path: Path) -> Iterator[tuple[str, int]]:
    package = module_name(path).split(".")
    if path.name != "__init__.py":
        package = package[:-1]
    for node in import_statements(path):
        if isinstance(node, ast.Import):
            for alias in node.names:
                if alias.name.split(".")[0] in OURS:
                    yield alias.name, node.lineno
        else:
            base = package[: len(package) - node.level + 1] if node.level else []
            target = ".".join([*base, *([node.module] if node.module else [])])
            if target.split(".")[0] not in OURS:
                continue
            for alias in node.names:
                submodule = f"{target}.{alias.name}"
                yield (submodule if submodule in MODULES else target), node.lineno


def test_the_package_was_found() -> None:
    assert {"stagejit.types", "stagejit.options", "tests.fuzz.session"} <= MODULES.keys()


def imports_of_the_package() -> Iterator[tuple[str, str, str]]:
    """(module, what it imports, where) for all of the package."""
    for module in OF_THE_PACKAGE:
        for target, line in imported_modules(MODULES[module]):
            yield module, target, f"{MODULES[module]}:{line}"


def test_the_package_imports_nothing_of_its_tests() -> None:
    found = list(imports_of_the_package())
    assert len(found) > 2 * len(OF_THE_PACKAGE)
    assert [where for _, target, where in found if target.split(".")[0] == "tests"] == []


def test_imports_point_from_later_layers_to_earlier_ones() -> None:
    backwards = [
        f"{where}: {layer_of(module)} imports {target}"
        for module, target, where in imports_of_the_package()
        if RANK[layer_of(target)] > RANK[layer_of(module)]
    ]
    assert not backwards, "\n".join(backwards)


def ranks_within(layers: tuple[tuple[str, ...], ...]) -> dict[str, int]:
    return {name: rank for rank, names in enumerate(layers) for name in names}


def points_backwards(module: str, target: str) -> bool:
    """Whether an import within a stage is from an earlier layer of it to a later one."""
    (_, stage, *own), (_, other, *part) = module.split("."), (*target.split("."), "")[:3]
    if stage != other or stage not in WITHIN or not own or not part[0]:
        return False
    ranks = ranks_within(WITHIN[stage])
    return ranks[part[0]] > ranks[own[0]]


def test_layers_within_a_stage_point_the_same_way() -> None:
    assert [
        where
        for module, target, where in imports_of_the_package()
        if module.count(".") > 1 and target.count(".") and points_backwards(module, target)
    ] == []


def test_layers_within_a_stage_are_all_of_it() -> None:
    for stage, layers in WITHIN.items():
        there = {
            path.relative_to(PACKAGE / stage).parts[0].removesuffix(".py")
            for path in FILES
            if path.is_relative_to(PACKAGE / stage)
        }
        assert ranks_within(layers).keys() == there - {"__init__"}


def test_an_import_from_a_later_layer_of_the_stage_is_seen() -> None:
    places, elements = "stagejit.codegen.places.loops", "stagejit.codegen.elements.elements"
    assert points_backwards(places, elements)
    assert points_backwards("stagejit.codegen.nest.tree", "stagejit.codegen.cpu")
    assert not points_backwards(elements, places)
    assert not points_backwards(places, "stagejit.codegen")


# What is written for one kind of machine knows nothing of the other.
APART = (("codegen.cpu", "codegen.cuda"), ("runtime.cpu", "runtime.cuda"))
ONLY_IMPORTERS = {"pycuda": "stagejit.runtime.cuda"}  # of libraries, by their names


def lies_in(module: str, folder: str) -> bool:
    return f"{module}.".startswith(f"{folder}.")


def stands_apart(module: str, target: str) -> bool:
    pairs = [(f"stagejit.{a}", f"stagejit.{b}") for a, b in APART]
    return not any(
        lies_in(module, one) and lies_in(target, other)
        for pair in pairs
        for one, other in (pair, pair[::-1])
    )


def test_targets_do_not_import_each_other() -> None:
    found = imports_of_the_package()
    assert [where for module, target, where in found if not stands_apart(module, target)] == []


def test_an_import_of_the_other_target_is_seen() -> None:
    assert not stands_apart("stagejit.codegen.cuda.text.printer", "stagejit.codegen.cpu.llvm.text")
    assert not stands_apart("stagejit.runtime.cpu.loader", "stagejit.runtime.cuda")
    assert stands_apart("stagejit.codegen.cuda.text.printer", "stagejit.codegen.ir.nodes")


def names_imported(node: ast.Import | ast.ImportFrom) -> list[str]:
    if isinstance(node, ast.Import):
        return [alias.name for alias in node.names]
    return [] if node.level else [node.module or ""]


def test_libraries_of_a_gpu_have_one_importer() -> None:
    importers = dict[str, set[str]]()
    for module in OF_THE_PACKAGE:
        for node in import_statements(MODULES[module]):
            for name in names_imported(node):
                importers.setdefault(name.split(".")[0], set()).add(module)
    for library, importer in ONLY_IMPORTERS.items():
        assert {module for module in importers[library] if not lies_in(module, importer)} == set()


def test_modules_do_not_import_each_other_in_a_circle() -> None:
    edges = {
        module: {target for target, _ in imported_modules(path) if target != module}
        for module, path in MODULES.items()
    }
    graphlib.TopologicalSorter(edges).prepare()  # CycleError names the modules of the circle


def test_top_level_names_are_those_of_the_design() -> None:
    names = {path.stem for path in PACKAGE.iterdir() if path.suffix == ".py"}
    folders = {
        path.parent.relative_to(PACKAGE).parts[0] for path in FILES if path.parent != PACKAGE
    }
    assert names | folders <= RANK.keys()


def test_files_are_short_and_named_for_their_content() -> None:
    long = []
    for path in (*FILES, *TESTS):
        lines = path.read_text(encoding="utf-8").count("\n")
        if lines > MAX_LINES:
            long.append(f"{path} has {lines} lines, more than {MAX_LINES}; is it still one thing?")
    assert not long, "\n".join(long)
    assert [path for path in (*FILES, *TESTS) if path.stem in NAMES_THAT_SAY_NOTHING] == []


def test_a_folder_has_a_dozen_files() -> None:
    """`__init__.py` aside; more than that are layers, which have folders of their own."""
    files = Counter(path.parent for path in (*FILES, *TESTS) if path.name != "__init__.py")
    crowded = {str(folder): count for folder, count in files.items() if count > MAX_FILES}
    assert not crowded, f"more than {MAX_FILES} files: {crowded}"


@pytest.mark.parametrize(
    ("importer", "statement"),
    [
        ("types.py", "from stagejit.graph import ir"),
        ("types.py", "import stagejit.graph.ir"),
        ("types.py", "from .graph import ir"),
        ("types.py", "def f():\n    from stagejit import graph"),
        (
            "types.py",
            "from typing import TYPE_CHECKING\nif TYPE_CHECKING:\n    import stagejit.api",
        ),
        ("types.py", "import stagejit"),
        ("graph/ir.py", "from ..rewrites import driver"),
    ],
)
def test_a_backward_import_is_seen_in_every_form(
    importer: str, statement: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    package = tmp_path / "stagejit"
    for folder in ("graph", "rewrites"):
        (package / folder).mkdir(parents=True)
        (package / folder / "__init__.py").touch()
    (package / importer).write_text(statement)
    monkeypatch.setitem(globals(), "PACKAGE", package)
    monkeypatch.setitem(
        globals(), "MODULES", {module_name(path): path for path in package.rglob("*.py")}
    )
    own = layer_of(module_name(package / importer))
    found = [RANK[layer_of(target)] for target, _ in imported_modules(package / importer)]
    assert any(rank > RANK[own] for rank in found)

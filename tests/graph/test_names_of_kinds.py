"""Passes ask what an op does, which its `OpDef` says, and not what it is called.

Counted are comparisons of an op's `.kind` with names of kinds, in the package without the files
that declare kinds. Patterns of rewrites name kinds, too, but in their declarations (`roots`, `of`).
"""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path

import stagejit
from stagejit.graph.definition import _DEFINITIONS

PACKAGE = Path(stagejit.__file__).parent
DECLARATIONS = PACKAGE / "graph" / "ops"
POLICIES = PACKAGE / "codegen"  # which has code for each of the package's kinds
MOST_IN_POLICIES = 8
# What has a `.kind` that is no op's: a dispatch of a plan, which has no anchor to ask, an index
# variable, a note of an explanation, a span of a profile.
NOT_OPS = frozenset({"region", "part", "dispatch", "d", "var", "note", "span"})


def _names_kinds(node: ast.AST, known: dict[str, ast.AST]) -> bool:
    """Whether an expression, or what a name in it was assigned, has the name of a kind."""
    return any(
        (isinstance(part, ast.Constant) and part.value in _DEFINITIONS)
        or (isinstance(part, ast.Name) and part.id in known and _names_kinds(known[part.id], {}))
        for part in ast.walk(node)
    )


def _is_kind_of_op(node: ast.AST) -> bool:
    if not isinstance(node, ast.Attribute) or node.attr != "kind":
        return False
    owner = node.value
    return (owner.id if isinstance(owner, ast.Name) else getattr(owner, "attr", "")) not in NOT_OPS


def _tests(source: str) -> Iterator[int]:
    """The lines that test the kind of an op."""
    tree = ast.parse(source)
    known = {
        target.id: node.value
        for node in ast.walk(tree)
        if isinstance(node, ast.Assign)
        for target in node.targets
        if isinstance(target, ast.Name)
    }
    for node in ast.walk(tree):
        match node:
            case ast.Compare():
                sides = [node.left, *node.comparators]
            case ast.Match():
                sides = [node.subject, *(case.pattern for case in node.cases)]
            case ast.Subscript():
                sides = [node.slice, node.value]
            case ast.Call(func=ast.Attribute() as function):
                sides = [*node.args, function.value]
            case _:
                continue
        if any(map(_is_kind_of_op, sides)) and any(_names_kinds(side, known) for side in sides):
            yield node.lineno


def test_what_counts_is_found() -> None:
    source = """
NAMES = frozenset({"fill", "iota"})
a = op.kind == "fill"
b = value.op.kind not in NAMES
c = op.definition.is_splat or region.kind == "reduce" or op.kind == "nothing"
d = {"fill": 1}.get(op.kind)
e = {"fill": 1}[op.kind]
match op.kind:
    case "fill":
        pass
"""
    assert list(_tests(source)) == [8, 3, 4, 6, 7]


def test_only_policies_of_code_ask_for_names() -> None:
    found = {
        path: [f"{path.relative_to(PACKAGE)}:{line}" for line in _tests(path.read_text())]
        for path in sorted(PACKAGE.rglob("*.py"))
        if DECLARATIONS not in path.parents
    }
    in_policies = {path: lines for path, lines in found.items() if POLICIES in path.parents}
    assert {path: lines for path, lines in found.items() if lines and path not in in_policies} == {}
    assert sum(map(len, in_policies.values())) <= MOST_IN_POLICIES

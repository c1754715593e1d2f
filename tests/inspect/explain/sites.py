"""Where the package makes decisions, choices and reasons, read from its source.

Every call of a function that names a decision or a choice is found, whoever makes it; its name is
resolved to the text that it stands for, through constants of the same and of other modules.
"""

from __future__ import annotations

import ast
import inspect
from collections.abc import Callable
from dataclasses import dataclass
from functools import cache
from pathlib import Path

import stagejit

PACKAGE = Path(stagejit.__file__).parent


@dataclass(frozen=True)
class Site:
    """A call: its file and line, what is called, with how many arguments, and the expression of
    the first. text: what that stands for; None where it is no constant."""

    where: str
    called: str
    count: int
    expression: str
    text: str | None


def sites(*names: str) -> list[Site]:
    """The calls of functions and methods of these names, in the whole package but its bench."""
    return [
        Site(_where(path, call), called, len(call.args), *_argument(path, call))
        for path in sorted(PACKAGE.rglob("*.py"))
        if "bench" not in path.relative_to(PACKAGE).parts  # which calls the compiler from outside
        if any(f"{name}(" in _text(path) for name in names)  # few are parsed
        for call, called in _calls(path)
        if called in names and call.args
    ]


def _where(path: Path, call: ast.Call) -> str:
    return f"{path.relative_to(PACKAGE)}:{call.lineno}"


@cache
def _calls(path: Path) -> tuple[tuple[ast.Call, str], ...]:
    calls = [node for node in ast.walk(_tree(path)) if isinstance(node, ast.Call)]
    return tuple((c, getattr(c.func, "id", getattr(c.func, "attr", ""))) for c in calls)


def _argument(path: Path, call: ast.Call) -> tuple[str, str | None]:
    first = call.args[0]
    return ast.unparse(first), text_of(path, first)


def text_of(path: Path, node: ast.expr) -> str | None:
    """The text that an expression of a file stands for; an f-string has `{}` for its fields."""
    if isinstance(node, ast.Constant):
        return node.value if isinstance(node.value, str) else None
    if isinstance(node, ast.JoinedStr):
        parts = (p.value if isinstance(p, ast.Constant) else "{}" for p in node.values)
        return "".join(map(str, parts))
    if isinstance(node, ast.Name):
        return _constant(path, node.id)
    if isinstance(node, ast.Attribute) and isinstance(node.value, ast.Name):
        module = _imports(path).get(node.value.id)
        return None if module is None else _constant(_file(".".join(module)), node.attr)
    return None


def _constant(path: Path | None, name: str) -> str | None:
    if path is None:
        return None
    for node in _tree(path).body:
        targets = node.targets if isinstance(node, ast.Assign) else []
        if isinstance(node, ast.Assign) and any(ast.unparse(target) == name for target in targets):
            return text_of(path, node.value)
    if name in _imports(path):
        module, original = _imports(path)[name]
        return _constant(_file(module), original)
    return None


@cache
def _imports(path: Path) -> dict[str, tuple[str, str]]:
    """Names that a file imports from modules of the package: (module, name there)."""
    return {
        alias.asname or alias.name: (node.module, alias.name)
        for node in ast.walk(_tree(path))
        if isinstance(node, ast.ImportFrom) and node.module
        for alias in node.names
    }


def _file(module: str) -> Path | None:
    path = PACKAGE.parent / module.replace(".", "/")
    found = [each for each in (path.with_suffix(".py"), path / "__init__.py") if each.exists()]
    return found[0] if found else None


@cache
def _text(path: Path) -> str:
    return path.read_text(encoding="utf-8")


@cache
def _tree(path: Path) -> ast.Module:
    return ast.parse(_text(path))


def texts_in(function: Callable[..., object]) -> list[str]:
    """The texts in what a function returns, `{}` standing for what is not known before."""
    path, tree = Path(inspect.getfile(function)), ast.parse(inspect.getsource(function))
    returned = [node.value for node in ast.walk(tree) if isinstance(node, ast.Return)]
    found = (text_of(path, part) for value in returned if value for part in _alternatives(value))
    return [text for text in found if text]


def _alternatives(node: ast.expr) -> list[ast.expr]:
    if isinstance(node, ast.IfExp):
        return [*_alternatives(node.body), *_alternatives(node.orelse)]
    return [node]

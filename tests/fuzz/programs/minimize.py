"""`minimized`: the smallest program that we find with the same kind of failure.

Input: a program and a test of whether another one still fails. Output: a program of a few lines.
Invariant: what it gives fails the test; it never gives a larger program.

The text is reduced as a syntax tree: statements go, calls are replaced by one of their arguments,
values by arrays of ones, numbers by smaller ones, for as long as something still can be.
"""

from __future__ import annotations

import ast
import copy
import re
import time
from collections.abc import Callable, Iterator

from stagejit.options import Options
from tests.fuzz.programs.generate import Program

Fails = Callable[[Program], bool]


def minimized(program: Program, fails: Fails, seconds: float = 120.0) -> Program:
    """The smallest failing program found in that time."""
    return _Search(program, fails, time.monotonic() + seconds).run()


class _Search:
    def __init__(self, program: Program, fails: Fails, deadline: float) -> None:
        self.best, self.fails, self.deadline = program, fails, deadline
        self.seen: set[str] = {program.source}

    def run(self) -> Program:
        self._plain_options()
        while True:
            before = len(self.best.source)
            for reductions in (_without_statements, _with_parts, _without_arguments, _with_smaller):
                self._exhaust(reductions)
            self._without_unused()
            if len(self.best.source) >= before or time.monotonic() > self.deadline:
                return self.best

    def _plain_options(self) -> None:
        plain = Program(self.best.seed, self.best.source, self.best.x64, Options())
        if self.best.options != Options() and self._holds(plain):
            self.best = plain
        by_position = self.best.with_source(re.sub(r"(?m)^NAMED = .*\n", "", self.best.source))
        if by_position.source != self.best.source and self._holds(by_position):
            self.best = by_position

    def _exhaust(self, reductions: Callable[[ast.Module], Iterator[ast.Module]]) -> None:
        """Tries reductions one after the other; after one that holds it goes on from there."""
        skip = 0
        while True:
            for number, tree in enumerate(reductions(ast.parse(self.best.source))):
                if number < skip:
                    continue
                if time.monotonic() > self.deadline:
                    return
                skip = number
                if self._try(tree):
                    break
            else:
                return

    def _without_unused(self) -> None:
        tree = ast.parse(self.best.source)
        if _drop_unused(tree):
            self._try(tree)

    def _try(self, tree: ast.Module) -> bool:
        source = ast.unparse(ast.fix_missing_locations(tree)) + "\n"
        if source in self.seen or len(source) > len(self.best.source) + 8:
            return False
        self.seen.add(source)
        candidate = self.best.with_source(source)
        if not self._holds(candidate):
            return False
        self.best = candidate
        return True

    def _holds(self, candidate: Program) -> bool:
        try:
            return self.fails(candidate)
        except Exception:
            return False


def _drop_unused(tree: ast.Module) -> bool:
    """Removes bindings of names that nobody reads, in place."""
    dropped = False
    while True:
        read = {
            n.id for n in ast.walk(tree) if isinstance(n, ast.Name) and isinstance(n.ctx, ast.Load)
        }
        changed = False
        for body in _bodies(tree):
            for at in reversed(range(len(body))):
                if (
                    body is not tree.body
                    and len(body) > 1
                    and not _defined(body[at]) & read
                    and _defined(body[at])
                ):
                    del body[at]
                    changed = dropped = True
        if not changed:
            return dropped


def _defined(statement: ast.stmt) -> set[str]:
    if isinstance(statement, ast.FunctionDef):
        return {statement.name}
    return {
        node.id
        for node in ast.walk(statement)
        if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store)
    }


def _bodies(tree: ast.Module) -> Iterator[list[ast.stmt]]:
    yield tree.body
    for node in ast.walk(tree):
        if isinstance(node, ast.FunctionDef):
            yield node.body


def _without_statements(tree: ast.Module) -> Iterator[ast.Module]:
    """Halves, quarters, ... of each function's statements, with what only they need."""
    for number, body in enumerate(_bodies(tree)):
        if body is tree.body:
            continue
        count = len(body) - 1
        size = count
        while size:
            for start in range(0, count, size):
                made = copy.deepcopy(tree)
                of_copy = list(_bodies(made))[number]
                del of_copy[start : min(start + size, count)]
                yield made
            size //= 2


def _with_parts(tree: ast.Module) -> Iterator[ast.Module]:
    """An expression becomes one of its parts, an element of a tuple goes, or a number takes its
    place. Outer expressions first."""
    functions = [
        node for node in tree.body if isinstance(node, ast.FunctionDef) and node.name == "f"
    ]
    for function in functions:
        for path in _paths(function):
            for replacement in _replacements(_at(function, path)):
                made = copy.deepcopy(tree)
                of_copy = made.body[tree.body.index(function)]
                _put(of_copy, path, copy.deepcopy(replacement))
                _drop_unused(made)
                yield made


_Path = tuple[tuple[str, int | None], ...]


def _paths(node: ast.AST, prefix: _Path = ()) -> Iterator[_Path]:
    """Where expressions are, from the last statement to the first, outer ones first."""
    if isinstance(node, ast.expr):
        yield prefix
    for field, value in reversed(list(ast.iter_fields(node))):
        if isinstance(value, ast.AST) and field not in ("args", "ctx", "targets", "func"):
            yield from _paths(value, (*prefix, (field, None)))
        elif isinstance(value, list) and field != "targets":
            for at in reversed(range(len(value))):
                if isinstance(value[at], ast.AST):
                    yield from _paths(value[at], (*prefix, (field, at)))


def _at(node: ast.AST, path: _Path) -> ast.AST:
    for field, at in path:
        value = getattr(node, field)
        node = value if at is None else value[at]
    return node


def _put(node: ast.AST, path: _Path, new: ast.AST) -> None:
    parent = _at(node, path[:-1])
    field, at = path[-1]
    if at is None:
        setattr(parent, field, new)
    else:
        getattr(parent, field)[at] = new


def _replacements(node: ast.AST) -> Iterator[ast.AST]:
    if isinstance(node, ast.Tuple | ast.List) and len(node.elts) > 1:
        for at in range(len(node.elts)):
            made = copy.deepcopy(node)
            del made.elts[at]
            yield made
    elif isinstance(node, ast.Dict):
        yield from node.values
    elif isinstance(node, ast.Call):
        yield from (part for part in node.args if not isinstance(part, ast.Constant))
        if isinstance(node.func, ast.Attribute):
            yield node.func.value
        if node.keywords:
            made_call = copy.deepcopy(node)
            made_call.keywords.pop()
            yield made_call
    elif isinstance(node, ast.BinOp):
        yield node.left
        yield node.right
    elif isinstance(node, ast.UnaryOp):
        yield node.operand
    elif isinstance(node, ast.Compare):
        yield node.left
    elif isinstance(node, ast.Subscript | ast.Attribute):
        yield node.value


def _without_arguments(tree: ast.Module) -> Iterator[ast.Module]:
    """A parameter goes together with what is passed for it, then the options of the jit."""
    for at in range(_argument_count(tree)):
        made = copy.deepcopy(tree)
        f, args, _ = made.body
        assert isinstance(f, ast.FunctionDef)
        assert isinstance(args, ast.FunctionDef)
        given = args.body[-1]
        if isinstance(given, ast.Return) and isinstance(given.value, ast.Tuple):
            del f.args.args[at], given.value.elts[at]
            yield made
    made = copy.deepcopy(tree)
    jit = made.body[-1]
    if isinstance(jit, ast.Assign) and isinstance(jit.value, ast.Dict) and jit.value.keys:
        jit.value = ast.Dict([], [])
        yield made


def _argument_count(tree: ast.Module) -> int:
    f = tree.body[0]
    return len(f.args.args) if isinstance(f, ast.FunctionDef) else 0


def _with_smaller(tree: ast.Module) -> Iterator[ast.Module]:
    """One number becomes smaller wherever it stands: sizes have to go together."""
    numbers = sorted({
        node.value
        for node in ast.walk(tree)
        if isinstance(node, ast.Constant) and type(node.value) is int and node.value > 1
    }, reverse=True)  # fmt: skip
    for number in numbers:
        for smaller in sorted({1, 2, 3, number // 2}):
            if smaller < number:
                made = copy.deepcopy(tree)
                for node in ast.walk(made):
                    if isinstance(node, ast.Constant) and node.value == number:
                        node.value = smaller
                yield made

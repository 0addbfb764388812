"""Finds tests that can pass without having compared anything: their asserts all stand where they may not run.

An assert runs for certain if it stands in the body of the test itself, under ``with`` or ``try``, in both branches of
an ``if``, or in a loop over something that is visibly not empty: a literal with an element, ``range(5)``, ``zip`` or
``product`` of those, or a name that is assigned one of them. ``while`` is no certainty. A call of a helper
``check...`` or ``assert...`` counts as an assert. Tests without an assert of their own are not looked at: they leave
all comparisons to helpers.
"""

from __future__ import annotations

import ast
from collections.abc import Iterator, Mapping
from pathlib import Path

_OF_ARGUMENTS = {"enumerate", "zip", "product", "permutations", "combinations", "sorted", "reversed", "list", "tuple",
                 "set", "dict", "chain"}  # fmt: skip
"""Calls whose result has an element if every argument has one."""
Test = ast.FunctionDef | ast.AsyncFunctionDef


def uncertain_tests(path: Path) -> list[str]:
    """``line: name`` of every test of a file that asserts, but nothing for certain."""
    tree = ast.parse(path.read_text(encoding="utf-8"))
    constants = _assigned(tree)
    found: list[str] = []
    for test in ast.walk(tree):
        if isinstance(test, Test) and test.name.startswith("test_"):
            names = {**constants, **_assigned(test)}
            given = {argument.arg for argument in test.args.args}
            known = {name: value for name, value in names.items() if name not in given}
            if any(True for _ in _asserts(test)) and not _certain(test.body, known):
                found.append(f"{test.lineno}: {test.name}")
    return found


def _assigned(scope: ast.Module | Test) -> dict[str, ast.expr]:
    """Names that a scope assigns once, with what they are given."""
    values: dict[str, list[ast.expr]] = {}
    for node in scope.body:
        if isinstance(node, ast.Assign):
            for target in node.targets:
                for name, value in _pairs(target, node.value):
                    values.setdefault(name, []).append(value)
        elif isinstance(node, ast.AnnAssign) and isinstance(node.target, ast.Name) and node.value is not None:
            values.setdefault(node.target.id, []).append(node.value)
    return {name: given[0] for name, given in values.items() if len(given) == 1}


def _pairs(target: ast.expr, value: ast.expr) -> Iterator[tuple[str, ast.expr]]:
    if isinstance(target, ast.Name):
        yield target.id, value
    elif isinstance(target, ast.Tuple) and isinstance(value, ast.Tuple) and len(target.elts) == len(value.elts):
        for one, given in zip(target.elts, value.elts, strict=True):
            yield from _pairs(one, given)


def _asserts(node: ast.AST) -> Iterator[ast.AST]:
    for child in ast.iter_child_nodes(node):
        if isinstance(child, (*Test.__args__, ast.Lambda)):
            continue
        if _compares(child):
            yield child
        yield from _asserts(child)


def _compares(node: ast.AST) -> bool:
    """An assert, ``with pytest.raises(...)``, or a call of a helper that is named as one that asserts."""
    if isinstance(node, ast.With):
        return any("raises(" in ast.unparse(item) for item in node.items)
    if isinstance(node, ast.Expr) and isinstance(node.value, ast.Call):
        return ast.unparse(node.value.func).rpartition(".")[2].startswith(("check", "assert"))
    return isinstance(node, ast.Assert)


def _certain(body: list[ast.stmt], names: Mapping[str, ast.expr]) -> bool:
    """Whether some assert of these statements runs whenever they do."""
    for node in body:
        if _compares(node):
            return True
        if isinstance(node, ast.If) and _certain(node.body, names) and _certain(node.orelse, names):
            return True
        inner = node.body if isinstance(node, (ast.With, ast.AsyncWith, ast.Try)) else []
        if isinstance(node, ast.For) and _has_element(node.iter, names):
            inner = node.body
        if _certain(inner, names):
            return True
    return False


def _has_element(node: ast.expr, names: Mapping[str, ast.expr]) -> bool:
    if isinstance(node, (ast.Tuple, ast.List, ast.Set)):
        return any(not isinstance(e, ast.Starred) or _has_element(e.value, names) for e in node.elts)
    if isinstance(node, ast.Dict):
        return any(key is not None for key in node.keys)
    if isinstance(node, ast.Constant):
        return isinstance(node.value, (str, bytes)) and bool(node.value)
    if isinstance(node, ast.Name):
        rest = {name: value for name, value in names.items() if name != node.id}
        return node.id in names and _has_element(names[node.id], rest)
    if isinstance(node, ast.BinOp):
        either = _has_element(node.left, names), _has_element(node.right, names)
        return any(either) if isinstance(node.op, (ast.Add, ast.BitOr)) else False
    if isinstance(node, ast.IfExp):
        return _has_element(node.body, names) and _has_element(node.orelse, names)
    if isinstance(node, ast.Call):
        return _call_has_element(node, names)
    if isinstance(node, (ast.ListComp, ast.SetComp, ast.DictComp, ast.GeneratorExp)):
        return all(not g.ifs and _has_element(g.iter, names) for g in node.generators)
    return False


def _call_has_element(node: ast.Call, names: Mapping[str, ast.expr]) -> bool:
    if isinstance(node.func, ast.Attribute) and node.func.attr in ("items", "values", "keys") and not node.args:
        return _has_element(node.func.value, names)
    name = ast.unparse(node.func).rpartition(".")[2]
    if name == "range":
        given = [names.get(a.id) if isinstance(a, ast.Name) else a for a in node.args]
        ends = [a.value for a in given if isinstance(a, ast.Constant) and isinstance(a.value, int)]
        return len(ends) == len(node.args) and len(range(*ends)) > 0
    if name == "zip":  # strict: as long as any of them; else as short as the shortest
        strict = any(k.arg == "strict" and getattr(k.value, "value", False) for k in node.keywords)
        return (any if strict else all)(_has_element(argument, names) for argument in node.args)
    return name in _OF_ARGUMENTS and bool(node.args) and all(_has_element(a, names) for a in node.args)

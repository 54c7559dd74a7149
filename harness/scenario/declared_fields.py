"""Reads what a scenario's file declares, without running any of it. A program of its
own.

It is started by :mod:`mmrepro.scenario.reading` as ``python -I -S declared_fields.py <
FILE``, and prints one JSON document. Parsing alone can take all memory, or end the
interpreter where a file is nested deep enough: hence a process of its own, with limits.
It imports nothing of mmrepro.

Only what stands there literally is known: texts, numbers, tuples, names that are bound
to those, f-strings of them, and the calls with which scenarios are written
(``cure("name", "--option")``)."""

from __future__ import annotations

import ast
import json
import resource
import sys
from collections.abc import Iterator
from typing import Any

_CPU_S = 5
_MEMORY_BYTES = 1 << 30
_MOST_STEPS = 50_000
"""Expressions that are looked at, of the whole file."""
_MOST_DEPTH = 20
_MOST_CHARS = 4000
"""Of one text."""
_MOST_ITEMS = 200
"""Of one list."""
_GAP = "…"
"""Replaces the part of a text that is not known without running the file."""

_TEXTS = ("name", "engine", "release", "affected", "server", "variant")
_PARTS = {"preconditions": "precondition", "symptoms": "symptom", "causes": "cause"}
"""Attributes of a scenario that hold conditions, and which part of the signature they
are."""


class _Unreadable(Exception):
    """The file holds no scenario that can be read so; a sentence's end says why."""


class _UnknownValue(Exception):
    """A value that only a run of the file would show."""


class _RecordedCall:
    """A call that was written down, and was not made."""

    def __init__(self, name: str, positional: list[Any], named: dict[str, Any]) -> None:
        self.name, self.positional, self.named = name, positional, named

    def text(self, at: int, *names: str) -> str:
        """The argument at that position, or of one of those names; "": none that is a
        text."""
        values = [self.named[name] for name in names if name in self.named]
        if 0 <= at < len(self.positional):
            values.append(self.positional[at])
        for value in values:
            if isinstance(value, str):
                return value
        return ""

    def given(self, at: int, name: str) -> Any:
        """The argument of that name, or at that position; None: neither is given."""
        if name in self.named:
            return self.named[name]
        return self.positional[at] if len(self.positional) > at else None


class _DeclaredFile:
    """The names that a module binds, and the values that stand there."""

    def __init__(self, tree: ast.Module) -> None:
        self.bound: dict[str, ast.expr] = {}
        self.classes: dict[str, ast.ClassDef] = {}
        self._steps = 0
        for statement in tree.body:
            if isinstance(statement, ast.ClassDef):
                self.classes[statement.name] = statement
            self.bound.update(_bindings(statement))

    def value(self, node: ast.expr, local: dict[str, ast.expr], depth: int = 0) -> Any:
        """The value of an expression. Raises _UnknownValue."""
        # A file may be written to be expensive: values are bounded, not only its size.
        self._steps += 1
        if depth > _MOST_DEPTH or self._steps > _MOST_STEPS:
            raise _UnknownValue
        match node:
            case ast.Constant():
                return _literal(node.value)
            case ast.Name():
                bound = local.get(node.id) or self.bound.get(node.id)
                if bound is None:
                    raise _UnknownValue
                return self.value(bound, local, depth + 1)
            case ast.Attribute():
                # FailureClass.SILENT_HANG
                return node.attr
            case ast.Tuple() | ast.List():
                return self._items(node.elts, local, depth)
            case ast.JoinedStr():
                return self._joined(node, local, depth)
            case ast.BinOp():
                return self._combined(node, local, depth)
            case ast.Call():
                return self._called(node, local, depth)
            case _:
                raise _UnknownValue

    def value_or_none(
        self, node: ast.expr, local: dict[str, ast.expr], depth: int = 0
    ) -> Any:
        """The value of an expression; None: it is not known."""
        try:
            return self.value(node, local, depth)
        except _UnknownValue:
            return None

    def _items(
        self, nodes: list[ast.expr], local: dict[str, ast.expr], depth: int
    ) -> list[Any]:
        values: list[Any] = []
        for node in nodes[:_MOST_ITEMS]:
            is_starred = isinstance(node, ast.Starred)
            inner = node.value if isinstance(node, ast.Starred) else node
            value = self.value_or_none(inner, local, depth + 1)
            if is_starred and isinstance(value, list):
                values += value
            else:
                values.append(value)
        return values[:_MOST_ITEMS]

    def _joined(
        self, node: ast.JoinedStr, local: dict[str, ast.expr], depth: int
    ) -> str:
        text = ""
        for part in node.values:
            inner = part.value if isinstance(part, ast.FormattedValue) else part
            value = self.value_or_none(inner, local, depth + 1)
            text += str(value) if isinstance(value, str | int) else _GAP
            if len(text) > _MOST_CHARS:
                break
        return text[:_MOST_CHARS]

    def _combined(self, node: ast.BinOp, local: dict[str, ast.expr], depth: int) -> Any:
        left = self.value(node.left, local, depth + 1)
        right = self.value(node.right, local, depth + 1)
        adds = isinstance(node.op, ast.Add)
        if adds and isinstance(left, str) and isinstance(right, str):
            return (left + right)[:_MOST_CHARS]
        if adds and isinstance(left, list) and isinstance(right, list):
            return (left + right)[:_MOST_ITEMS]
        if not isinstance(left, int) or not isinstance(right, int):
            raise _UnknownValue

        if adds:
            return _literal(left + right)
        if isinstance(node.op, ast.Sub):
            return _literal(left - right)
        if isinstance(node.op, ast.Mult):
            return _literal(left * right)
        raise _UnknownValue

    def _called(
        self, node: ast.Call, local: dict[str, ast.expr], depth: int
    ) -> _RecordedCall:
        name = _name_of(node.func)
        if not name:
            raise _UnknownValue
        named: dict[str, Any] = {}
        for keyword in node.keywords[:_MOST_ITEMS]:
            if keyword.arg:
                named[keyword.arg] = self.value_or_none(keyword.value, local, depth + 1)
        return _RecordedCall(name, self._items(node.args, local, depth), named)


def _literal(value: object) -> str | int:
    """A constant that can be shown. Raises _UnknownValue."""
    if isinstance(value, str):
        # A lone surrogate can be written in a file, and printed nowhere.
        return value[:_MOST_CHARS].encode("utf-8", "replace").decode()
    if isinstance(value, int) and value.bit_length() < 64:
        return value
    raise _UnknownValue


def _name_of(node: ast.expr) -> str:
    """``cure`` of ``cure`` and of ``scenario.cure``; "": it is no name."""
    if isinstance(node, ast.Attribute):
        return node.attr
    return node.id if isinstance(node, ast.Name) else ""


def _bindings(statement: ast.stmt) -> Iterator[tuple[str, ast.expr]]:
    """The names that an assignment binds, with the expression of each."""
    if isinstance(statement, ast.AnnAssign):
        annotated = statement.target
        if statement.value is not None and isinstance(annotated, ast.Name):
            yield annotated.id, statement.value
    if not isinstance(statement, ast.Assign):
        return
    for target in statement.targets:
        if isinstance(target, ast.Name):
            yield target.id, statement.value
        elif isinstance(target, ast.Tuple) and isinstance(statement.value, ast.Tuple):
            pairs = zip(target.elts, statement.value.elts, strict=False)
            for name, value in pairs:
                if isinstance(name, ast.Name):
                    yield name.id, value


def _scenario_classes(file: _DeclaredFile) -> list[ast.ClassDef]:
    """The classes of what is bound to SCENARIO, the default first. Raises
    _Unreadable."""
    bound = file.bound.get("SCENARIO")
    names: list[str] = []
    if isinstance(bound, ast.Call):
        names = [_name_of(bound.func)]
        if names == ["with_variants"]:
            made = [
                argument for argument in bound.args if isinstance(argument, ast.Call)
            ]
            names = [_name_of(call.func) for call in made]
    classes = [file.classes[name] for name in names if name in file.classes]
    if not classes:
        raise _Unreadable("binds no scenario of a class in it to the name SCENARIO")
    return classes


def _with_bases(file: _DeclaredFile, wanted: ast.ClassDef) -> list[ast.ClassDef]:
    """The class and those of the same file that it inherits from, the nearest first."""
    line: list[ast.ClassDef] = []
    waiting = [wanted]
    # A class may name itself among its bases: then the line would never end.
    while waiting and len(line) < _MOST_DEPTH:
        nearest = waiting.pop(0)
        if nearest in line:
            continue
        line.append(nearest)
        for base in nearest.bases:
            name = _name_of(base)
            if name in file.classes:
                waiting.append(file.classes[name])
    return line


def _condition_of(called: _RecordedCall, part: str, method: str = "") -> dict[str, Any]:
    """A condition as its declaration has it."""
    id_ = called.text(-1, "id") or method.replace("_", "-")
    statement = called.text(0, "statement")
    # A function of a library writes the statement.
    if called.name not in _PARTS.values():
        statement = f"{called.name}({_GAP})"
    return {
        "id": id_ or _GAP,
        "part": part,
        "statement": statement,
        "required": called.named.get("required") is not False,
    }


def _mitigation_of(called: _RecordedCall) -> dict[str, str] | None:
    if called.name == "upgrade":
        release = called.text(0, "release")
        about = called.text(1, "description") or f"upgrade to {release}"
        return {"name": "release", "description": about, "release": release}
    if called.name == "cure":
        about = called.text(2, "description") or called.text(1, "server")
    elif called.name == "Mitigation":
        about = called.text(1, "description")
    else:
        return None
    return {
        "name": called.text(0, "name"),
        "description": about,
        "release": called.text(-1, "release"),
    }


def _reference_of(called: Any) -> dict[str, str] | None:
    if not isinstance(called, _RecordedCall):
        return None
    if called.name not in ("issue", "pull", "Reference"):
        return None
    return {
        "kind": called.name,
        "id": called.text(0, "id", "name"),
        "title": called.text(1, "title"),
        "url": called.text(2, "url") if called.name == "Reference" else "",
    }


def _upstream_of(called: Any) -> dict[str, Any]:
    if not isinstance(called, _RecordedCall):
        return {}
    state = called.text(0, "state").lower().replace("_", "-")
    return {
        "state": state,
        "source": _reference_of(called.given(1, "source")),
        "looked_up": called.text(2, "looked_up"),
        "release": called.text(3, "release"),
    }


class _DeclaredClass:
    """One scenario's class: its attributes, and what they say."""

    def __init__(self, file: _DeclaredFile, wanted: ast.ClassDef) -> None:
        self.file = file
        self.line = _with_bases(file, wanted)
        self.local: dict[str, ast.expr] = {}
        # The nearest class comes last: what it binds replaces its bases'.
        for inherited in reversed(self.line):
            for statement in inherited.body:
                self.local.update(_bindings(statement))

    def get(self, name: str) -> Any:
        """The value of an attribute; None: it is not known."""
        node = self.local.get(name)
        return None if node is None else self.file.value_or_none(node, self.local)

    def items(self, name: str) -> list[Any]:
        """The items of an attribute that is a list or a tuple; of another none."""
        value = self.get(name)
        return value if isinstance(value, list) else []

    def text(self, name: str) -> str:
        """An attribute that is a text; "": it is none."""
        value = self.get(name)
        return value if isinstance(value, str) else ""

    def calls(self, name: str) -> list[_RecordedCall]:
        """The calls among the items of an attribute."""
        return [item for item in self.items(name) if isinstance(item, _RecordedCall)]

    @property
    def docstrings(self) -> list[str]:
        """Docstrings of the class and of its bases, the nearest first."""
        texts: list[str] = []
        for inherited in self.line:
            text = ast.get_docstring(inherited)
            if text:
                texts.append(str(_literal(text[: 4 * _MOST_CHARS])))
        return texts

    def _inherits_from_elsewhere(self) -> bool:
        bases: set[str] = set()
        for inherited in self.line:
            bases.update(_name_of(base) for base in inherited.bases)
        return not bases <= {"Scenario", *self.file.classes}

    def conditions(self) -> list[dict[str, Any]]:
        """The conditions in the order of the parts of a signature."""
        conditions: list[dict[str, Any]] = []
        for attribute, part in _PARTS.items():
            for called in self.calls(attribute):
                conditions.append(_condition_of(called, part))
            conditions += self._methods(part)
        return conditions[:_MOST_ITEMS]

    def _methods(self, part: str) -> Iterator[dict[str, Any]]:
        """Conditions of this part that are methods with a decorator."""
        for inherited in self.line:
            for method in inherited.body:
                if not isinstance(method, ast.FunctionDef):
                    continue
                for decorator in method.decorator_list:
                    called = self.file.value_or_none(decorator, self.local)
                    if isinstance(called, _RecordedCall) and called.name == part:
                        yield _condition_of(called, part, method.name)

    def fields(self) -> dict[str, Any]:
        """All that is declared, as it is printed."""
        fields: dict[str, Any] = {name: self.text(name) for name in _TEXTS}
        if not fields["engine"] and self._inherits_from_elsewhere():
            fields["engine"] = _GAP
        devices = self.get("devices") or ()
        fields["devices"] = [name for name in devices if isinstance(name, str)]
        fields["failure_class"] = self.text("failure_class").lower().replace("_", "-")
        fields["severity"] = self.text("severity").lower()
        fields["docstrings"] = self.docstrings
        fields["conditions"] = self.conditions()

        mitigations = [_mitigation_of(called) for called in self.calls("mitigations")]
        references = [_reference_of(item) for item in self.items("references")]
        fields["mitigations"] = [known for known in mitigations if known is not None]
        fields["references"] = [known for known in references if known is not None]
        fields["upstream"] = _upstream_of(self.get("upstream"))
        return fields


def _declared(source: bytes) -> dict[str, Any]:
    """The fields of the scenario in a file. Raises _Unreadable."""
    try:
        tree = ast.parse(source)
    except SyntaxError as error:
        where = f"line {error.lineno} " if error.lineno else ""
        raise _Unreadable(f"{where}is not valid Python: {error.msg}") from None
    except (RecursionError, MemoryError, ValueError, OverflowError):
        raise _Unreadable("is not valid Python, or nested too deep") from None

    file = _DeclaredFile(tree)
    default, *others = _scenario_classes(file)
    fields = _DeclaredClass(file, default).fields()
    fields["variants"] = []
    if others:
        variants = [_DeclaredClass(file, each) for each in (default, *others)]
        names = [variant.text("variant") for variant in variants]
        fields["variants"] = names[:_MOST_ITEMS]
    return fields


def main() -> None:
    """Print what the file on standard input declares, as JSON."""
    limits = {
        resource.RLIMIT_AS: _MEMORY_BYTES,
        resource.RLIMIT_CPU: _CPU_S,
        resource.RLIMIT_FSIZE: 0,
        resource.RLIMIT_CORE: 0,
    }
    for kind, most in limits.items():
        resource.setrlimit(kind, (most, most))
    try:
        declared: dict[str, Any] = {"fields": _declared(sys.stdin.buffer.read())}
    except _Unreadable as error:
        declared = {"unreadable": str(_literal(str(error)))}
    except (RecursionError, MemoryError):
        declared = {"unreadable": "is nested too deep"}
    sys.stdout.write(json.dumps(declared))


if __name__ == "__main__":
    main()

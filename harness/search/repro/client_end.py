"""How a report's client ended, read from what it printed: its own words, which are
evidence for the claim. Pure functions.

An assertion of a client counts where it holds an answer against what a server promises,
whatever a model says. What a model with random weights says is no evidence."""

from __future__ import annotations

import ast
import contextlib
import re
from collections.abc import Iterator
from typing import Final

from mmrepro.base.text import one_line
from mmrepro.failure.documents.replay import ClientEnd
from mmrepro.search.repro.claim import ECHOES, EXCEPTION
from mmrepro.traffic.capture import ClientRun

_RAISED: Final = re.compile(
    r'^\s*File "(?:[^"\n]*/)?([^"/\n]{1,120})", line (\d{1,6})', re.MULTILINE
)
_LAST: Final = re.compile(r"^([A-Za-z_][\w.]{0,120})(?::|$)")
_STOPPED: Final = "SystemExit"
_OF_MODEL: Final = frozenset(
    {
        "content",
        "text",
        "output_text",
        "reasoning",
        "reasoning_content",
        "arguments",
        "tool_calls",
        "function_call",
        "token",
        "tokens",
        "token_ids",
        "output_ids",
        "logprob",
        "token_logprobs",
        "embedding",
        "score",
        "relevance_score",
    }
)
"""Fields of an answer that hold what a model says, or computes."""
_OF_WORDS: Final = frozenset({"finish_reason", "stop_reason", "status", "type"})
"""Fields whose value is one of a few words: which one, the model decides."""
_OF_REFUSAL: Final = frozenset({"status_code", "ok", "error", "detail", "code"})
_OF_TIME: Final = frozenset({"elapsed", "perf_counter", "monotonic", "time", "ttft"})
_MOST_NODES: Final = 5_000


def client_end(
    run: ClientRun, name: str, script: str, *, offline: bool = False
) -> ClientEnd:
    """Read the end of a client.

    Args:
        name: of its script's file.
        script: its text; "": not known.
        offline: it has the engine in its own process.
    """
    end = ClientEnd(code=run.code, ended=run.ended)
    if run.ended or not run.code:
        return end
    end.exception, end.message, end.line = _raised(run.output, name)
    if offline and (_is_of_engine(run.output, name) or not end.exception):
        end.in_engine = True
        found = dict.fromkeys(EXCEPTION.findall(run.output))
        end.raised = [raised for raised in found if raised not in ECHOES][:20]
        return end
    tree = _python(script)
    if tree is not None and end.line:
        # A stranger's script may be nested deeper than anybody reads.
        with contextlib.suppress(RecursionError):
            end.is_check = _is_check(tree, end.line)
    return end


def _raised(output: str, name: str) -> tuple[str, str, int]:
    """The exception that ended a script, its words, and the script's line; ("", "", 0):
    none did."""
    begun = output.rfind("Traceback (most recent call last)")
    if begun < 0:
        return "", "", 0
    told = output[begun:]
    lines = [int(at) for file, at in _RAISED.findall(told) if file == name]
    exception = message = ""
    for line in told.splitlines()[1:]:
        # A traceback's own lines are indented; the exception's begins its line.
        ended = _LAST.match(line)
        if ended is not None:
            exception = ended[1].rpartition(".")[2]
            message = one_line(line.partition(": ")[2], 300)
            break
    return exception, message, lines[-1] if lines else 0


def _is_of_engine(output: str, name: str) -> bool:
    """Whether the last exception was raised by a package, and not by the script."""
    begun = output.rfind("Traceback (most recent call last)")
    if begun < 0:
        return False
    frames = _FRAME.findall(output[begun:])
    return bool(frames) and "site-packages/" in frames[-1]


_FRAME: Final = re.compile(r'^\s*File "([^"\n]{1,400})", line \d', re.MULTILINE)


def _python(script: str) -> ast.Module | None:
    try:
        return ast.parse(script)
    except (SyntaxError, ValueError, RecursionError, MemoryError):
        return None


# ------------------------------------------------------------------ what a line checks


def _is_check(tree: ast.Module, line: int) -> bool:
    """Whether the line raises because an answer lacks what a server promises."""
    test = _tested_at(tree, line)
    if test is None:
        return False
    reading = _Reading(tree, test)
    if reading.is_unknown or reading.fields & (_OF_MODEL | _OF_REFUSAL | _OF_TIME):
        return False
    if not reading.fields:
        return False
    return not _compares_words(test, reading)


def _tested_at(tree: ast.Module, line: int) -> ast.expr | None:
    """The condition of the assertion at ``line``, or of the ``if`` that raises there."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Assert) and _spans(node, line):
            return node.test
        if not isinstance(node, ast.If):
            continue
        for inner in node.body:
            if isinstance(inner, ast.Raise) and _spans(inner, line):
                return node.test
    return None


def _spans(node: ast.stmt, line: int) -> bool:
    return node.lineno <= line <= (node.end_lineno or node.lineno)


def _compares_words(test: ast.expr, reading: _Reading) -> bool:
    """Whether a value of a few words, or a number of tokens, is held against one that
    is written out: the model, or its tokenizer, decides that."""
    decided = bool(reading.fields & _OF_WORDS)
    decided = decided or any(field.endswith("tokens") for field in reading.fields)
    if not decided:
        return False
    for node in ast.walk(test):
        if not isinstance(node, ast.Compare):
            continue
        for side in (node.left, *node.comparators):
            if isinstance(side, ast.Constant) and side.value is not None:
                return True
            if isinstance(side, ast.List | ast.Tuple | ast.Set):
                return True
    return False


class _Reading:
    """What an expression of a script reads, with what its names stand for.

    Attributes:
        fields: attributes and keys.
        is_unknown: it rests on what cannot be read here.
    """

    def __init__(self, tree: ast.Module, test: ast.expr) -> None:
        self.fields: set[str] = set()
        self.is_unknown = False
        self._meant: dict[str, list[ast.AST]] = {}
        self._left = _MOST_NODES
        for node in ast.walk(tree):
            for name, value in _bound(node):
                self._meant.setdefault(name, []).append(value)
        self._read(test, set())

    def _read(self, root: ast.AST, known: set[str]) -> None:
        for node in ast.walk(root):
            self._left -= 1
            if self._left < 0:
                self.is_unknown = True
                return
            match node:
                case ast.Attribute(attr=name):
                    self.fields.add(name)
                case ast.Subscript(slice=ast.Constant(value=str(name))):
                    self.fields.add(name)
                case ast.Call(func=ast.Attribute(attr="get"), args=[first, *_]):
                    if isinstance(first, ast.Constant):
                        self.fields.add(str(first.value))
                case ast.Compare(left=ast.Constant(value=str(name)), ops=[op]):
                    if isinstance(op, ast.In | ast.NotIn):
                        self.fields.add(name)
                case ast.Name(id=name) if name not in known:
                    known.add(name)
                    for value in self._meant.get(name, ()):
                        self._read(value, known)
                case ast.arg():
                    self.is_unknown = True


def _bound(node: ast.AST) -> Iterator[tuple[str, ast.AST]]:
    """Names that a statement gives a meaning, and that."""
    match node:
        case ast.Assign(targets=targets, value=value):
            for target in targets:
                for inner in ast.walk(target):
                    if isinstance(inner, ast.Name):
                        yield inner.id, value
        case ast.AugAssign(target=ast.Name(id=name), value=value):
            yield name, value
        case ast.AnnAssign(target=ast.Name(id=name), value=ast.expr() as value):
            yield name, value
        case ast.NamedExpr(target=ast.Name(id=name), value=value):
            yield name, value
        case (
            ast.For(target=target, iter=value) | ast.AsyncFor(target=target, iter=value)
        ):
            for inner in ast.walk(target):
                if isinstance(inner, ast.Name):
                    yield inner.id, value
        case ast.FunctionDef(name=name) | ast.AsyncFunctionDef(name=name):
            yield name, node

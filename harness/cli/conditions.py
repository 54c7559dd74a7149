"""docs/conditions.md: what a condition of a scenario may ask, by the docstrings.

    python -m mmrepro.cli.conditions > docs/conditions.md

A test holds the page against this."""

from __future__ import annotations

import inspect
import re
from collections.abc import Callable, Iterator
from typing import Any, Final

from mmrepro.failure.signature import (
    Logs,
    Measured,
    Metrics,
    Processes,
    Reproducers,
    Requests,
)
from mmrepro.scenario import common
from mmrepro.scenario.parts import RunFacts
from mmrepro.traffic import Drive
from mmrepro.traffic.evidence import RequestRecord

_HEAD: Final = """# What a condition may ask

A condition is a method of a scenario with `@symptom`, `@cause` or `@precondition`, a claim
one with `@claim`. It asks for evidence by the types of its parameters, and returns a
`Finding`: `Finding.of(truth, "what was observed")`. What is not there raises `Missing`, and
the condition is unknown. [A first scenario](first-scenario.md) writes one.

```python
@cause("the cache evicts without end")
def evicts(self, metrics: Metrics, logs: Logs) -> Finding:
    first, *_, last = metrics.readings(["vllm:evictions"])
    return Finding.of(last > first, f"{first:g}, then {last:g}")
```

This page is made from docstrings: `python -m mmrepro.cli.conditions`.
"""
_VIEWS: Final = (Requests, Logs, Metrics, Processes, Reproducers, Measured)
_DECORATORS: Final = (
    ("@symptom(statement)", "What a user observes. A failure meets all of these."),
    ("@cause(statement)", "What tells this failure from others that look alike."),
    (
        "@precondition(statement, removed_by)",
        "What is there once the trigger came as far as the failure needs it. Without it "
        "the verdict is inconclusive, never not-reproduced.",
    ),
    (
        "@claim(id, text, source)",
        "A statement of the original report: confirmed or refuted.",
    ),
)


_STARS: Final[dict[Any, str]] = {
    inspect.Parameter.VAR_POSITIONAL: "*",
    inspect.Parameter.VAR_KEYWORD: "**",
}


def page() -> str:
    """Return the page, which ends with a newline."""
    lines = [_HEAD, "## Evidence, by the type of a parameter", ""]
    for view in _VIEWS:
        lines += [f"### {view.__name__}", "", _docstring(view), ""]
        lines += [*_rows("method", _methods(view)), ""]
    lines += [
        "Besides: `RunFacts` (below), the data of a probe (`StacksData`, `MetricsData`,",
        "… of `mmrepro.scenario.more`; of the check, all samples in one) and `Evidence`",
        "as a whole, where nothing narrower does.",
        "",
        "### RequestRecord",
        "",
        "What `Requests` gives, and `Drive.chat` and `Drive.ask` return.",
        "",
        *_rows("field", _fields()),
        "",
        "### RunFacts",
        "",
        _docstring(RunFacts),
        "",
        "## Declaring",
        "",
        *_rows("decorator", iter(_DECORATORS)),
        "",
        "## Ready-made conditions",
        "",
        "Of `mmrepro.scenario.common`; those of one engine are in the module beside it",
        "(`mmrepro.scenario.vllm`).",
        "",
        *_rows("condition", _functions(common)),
        "",
        "## Drive: what the warm-up check and the trigger do",
        "",
        _docstring(Drive),
        "",
        *_rows("method", _methods(Drive)),
    ]
    return "\n".join(lines) + "\n"


def _rows(head: str, rows: Iterator[tuple[str, str]]) -> Iterator[str]:
    yield f"| {head} | what |"
    yield "|---|---|"
    for name, text in rows:
        yield f"| `{_cell(name)}` | {_cell(text)} |"


def _methods(kind: type[Any]) -> Iterator[tuple[str, str]]:
    for name, method in vars(kind).items():
        if inspect.isfunction(method) and not name.startswith("_"):
            yield f"{name}{_signature(method)}", _docstring(method)


def _functions(module: Any) -> Iterator[tuple[str, str]]:
    for name, function in vars(module).items():
        is_own = inspect.isfunction(function) and function.__module__ == module.__name__
        if is_own and not name.startswith("_"):
            yield f"{name}{_signature(function)}", _docstring(function)


def _fields() -> Iterator[tuple[str, str]]:
    for name, field in RequestRecord.model_fields.items():
        if field.description:
            yield name, field.description
    for name, member in vars(RequestRecord).items():
        if isinstance(member, property):
            yield name, _docstring(member.fget)


def _signature(function: Callable[..., Any]) -> str:
    """``(label, message)``: names alone, since types are in the code."""
    shown = []
    for parameter in inspect.signature(function).parameters.values():
        if parameter.name == "self":
            continue
        shown.append(_STARS.get(parameter.kind, "") + parameter.name)
    return f"({', '.join(shown)})"


def _docstring(documented: Any) -> str:
    """Its docstring on one line, without roles of Sphinx."""
    text = inspect.getdoc(documented) or ""
    text = re.sub(r":[a-z]+:`~?\.?([^`]+)`", r"`\1`", text)
    return " ".join(text.replace("``", "`").split())


def _cell(text: str) -> str:
    return text.replace("|", "\\|")


if __name__ == "__main__":
    print(page(), end="")

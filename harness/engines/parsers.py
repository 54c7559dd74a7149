"""Which parsers of a model's output a release registers, as its own files list them.

An engine's ``parsers.toml`` says which files those are. Nothing of the engine is
imported."""

from __future__ import annotations

import json
import re
import subprocess
import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from mmrepro.base.errors import EnvironmentBuildError, UsageError
from mmrepro.engines.base import option_of
from mmrepro.engines.folders import made_of, table
from mmrepro.engines.models.families import calls_as, families, thinks_as
from mmrepro.engines.models.script_file import ScriptedAnswer, Scripts
from mmrepro.reproducers import reproducer_path

if TYPE_CHECKING:
    from mmrepro.engines.environments import Environment


@dataclass(frozen=True)
class ParserKind:
    """One kind of parsers of an engine.

    Attributes:
        option: of its server, with the parser's name.
        beside: further options that it takes.
        places: files below the engine's package, and the expression of a name in them.
        program: of the reproducers, which tries parsers on a text; "": there is none.
    """

    option: str = ""
    beside: tuple[str, ...] = ()
    places: tuple[Sequence[str], ...] = ()
    program: str = ""

    def args(self, name: str) -> list[str]:
        """Options of a server with the parser ``name``."""
        return [*self.beside, f"{self.option}={name}"]

    def names_in(self, package: Path) -> tuple[str, ...]:
        """Names of the parsers that the release in ``package`` registers, in its
        order."""
        names: dict[str, None] = {}
        for files, pattern in self.places:
            for file in sorted(package.glob(files)):
                text = file.read_text("utf-8", "replace")
                names.update(dict.fromkeys(re.findall(pattern, text, re.MULTILINE)))
        return tuple(names)


@dataclass(frozen=True)
class RegisteredParsers:
    """Parsers that a release registers.

    Attributes:
        tools, reasoning: their names.
    """

    engine: str
    tools: tuple[str, ...] = ()
    reasoning: tuple[str, ...] = ()
    kinds: Mapping[str, ParserKind] = field(default_factory=dict)

    def chosen(self, args: Sequence[str]) -> RegisteredParsers:
        """Only those that a server's options name, where they name some; the options
        themselves are left to the server."""
        named = {
            name: option_of(args, kind.option) for name, kind in self.kinds.items()
        }
        if not any(named.values()):
            return self
        tools, reasoning = named.get("tools", ""), named.get("reasoning", "")
        return replace(
            self,
            tools=(tools,) if tools else (),
            reasoning=(reasoning,) if reasoning else (),
        )

    def args(self, tools: str, reasoning: str) -> list[str]:
        """Options of a server with these parsers; "": with none of that kind."""
        args: list[str] = []
        if tools:
            args += self.kinds["tools"].args(tools)
        if reasoning:
            args += self.kinds["reasoning"].args(reasoning)
        return args


def parser_kinds(engine: str) -> dict[str, ParserKind]:
    """Kinds of parsers of an engine: ``tools`` and ``reasoning``, as far as it has
    them."""
    return {
        name: made_of(ParserKind, row)
        for name, row in table(engine, "parsers.toml").items()
    }


def registered_parsers(engine: str, site_packages: Path) -> RegisteredParsers:
    """Parsers of the release of ``engine`` that is installed there."""
    kinds = parser_kinds(engine)
    names = {
        name: kind.names_in(site_packages / engine) for name, kind in kinds.items()
    }
    return RegisteredParsers(
        engine,
        tools=names.get("tools", ()),
        reasoning=names.get("reasoning", ()),
        kinds=kinds,
    )


# ---------------------------------------------------------------------- what they take

_TRIED_S: Final = 300.0
_CALL: Final = ("search", {"query": "ships"})
_THOUGHT: Final = "Let me see."
_TOOL: Final = {
    "type": "function",
    "function": {
        "name": "search",
        "parameters": {
            "type": "object",
            "properties": {"query": {"type": "string"}},
        },
    },
}


@dataclass(frozen=True)
class ParserTried:
    """What one parser makes of a tokenizer and of the plainest text.

    Attributes:
        kind: ``tools`` or ``reasoning``.
        family: whose form the text has; "": none is listed for it.
        starts: it takes the tokenizer of a scripted model.
        reads: it finds the call or the thought; None: only a server asks it.
        why: the engine's words, where it does not.
    """

    kind: str
    name: str
    family: str
    starts: bool
    reads: bool | None
    why: str


def tried_parsers(environment: Environment, models: Path) -> list[ParserTried]:
    """Try each parser of a release on the tokenizer of a scripted model, and on one
    call or thought in the form of its family. Raises EnvironmentBuildError: the
    engine's program fails; UsageError: there is none for the engine."""
    engine = environment.spec.engine
    registered = registered_parsers(engine, environment.site_packages)
    program = registered.kinds["tools"].program if registered.kinds else ""
    if not program:
        raise UsageError(
            f"Parsers of {engine} are not tried without a server.",
            hint=f"mmrepro fuzz {engine} --scripts",
        )
    calls = {name: calls_as(name).calling([_CALL]) for name in registered.tools}
    thoughts = {name: _thinking(name) for name in registered.reasoning}
    said = Scripts(script=[ScriptedAnswer(text=_THOUGHT)]).model()
    asked = {
        "model": str(said.write(models)),
        "tools": [_TOOL],
        "calls": calls,
        "thoughts": thoughts,
    }
    seen = _answers(environment, program, asked)
    rows: list[ParserTried] = []
    for name, answer in seen["calls"].items():
        rows.append(_row("tools", name, _family(name, "tool_parsers"), answer))
    for name, answer in seen["thoughts"].items():
        rows.append(_row("reasoning", name, _family(name, "reasoning_parsers"), answer))
    return rows


def _thinking(name: str) -> str:
    return thinks_as(name).thinking(_THOUGHT) + "It is done."


def _family(parser: str, kind: str) -> str:
    """The family that lists a parser; "": none does."""
    for name, family in families().items():
        if parser in getattr(family, kind):
            return name
    return ""


def _row(kind: str, name: str, family: str, answer: Mapping[str, Any]) -> ParserTried:
    why = " ".join(str(answer.get("why", "")).split())
    reads: bool | None = None
    if "read" in answer:
        found = json.dumps(answer["read"], ensure_ascii=False)
        reads = _is_call(answer["read"]) if kind == "tools" else _is_thought(found)
    return ParserTried(kind, name, family, answer["starts"], reads, why)


def _is_call(read: object) -> bool:
    name, arguments = _CALL
    if not isinstance(read, list) or len(read) != 1:
        return False
    return [read[0][0], json.loads(read[0][1] or "{}")] == [name, arguments]


def _is_thought(read: str) -> bool:
    """Whether the thought and the text after it are apart, without tags."""
    return _THOUGHT in read and "think" not in read and "null" not in read


def _answers(
    environment: Environment, program: str, asked: Mapping[str, Any]
) -> dict[str, dict[str, Any]]:
    with tempfile.TemporaryDirectory(prefix="mmrepro-parsers-") as folder:
        file = Path(folder) / "asked.json"
        file.write_text(json.dumps(asked), encoding="utf-8")
        words = [str(environment.python), str(reproducer_path(program)), str(file)]
        done = subprocess.run(
            words,
            capture_output=True,
            text=True,
            timeout=_TRIED_S,
            check=False,
            cwd=folder,
        )
    lines = done.stdout.splitlines()
    if done.returncode or not lines:
        raise EnvironmentBuildError(
            f"The parsers of {environment.spec.engine} could not be tried.",
            detail=done.stderr.splitlines()[-20:],
        )
    answers: dict[str, dict[str, Any]] = json.loads(lines[-1])
    return answers

"""Which parsers of a model's output a release registers, as its own files list them.

An engine's ``parsers.toml`` says which files those are. Nothing of the engine is
imported."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

from mmrepro.engines.base import option_of
from mmrepro.engines.folders import made_of, table


@dataclass(frozen=True)
class ParserKind:
    """One kind of parsers of an engine.

    Attributes:
        option: of its server, with the parser's name.
        beside: further options that it takes.
        places: files below the engine's package, and the expression of a name in them.
    """

    option: str = ""
    beside: tuple[str, ...] = ()
    places: tuple[Sequence[str], ...] = ()

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
        update = {name: (parser,) if parser else () for name, parser in named.items()}
        return replace(self, **update)

    def args(self, tools: str, reasoning: str) -> list[str]:
        """Options of a server with these parsers; "": with none of that kind."""
        args: list[str] = []
        if tools:
            args += self.kinds["tools"].args(tools)
        if reasoning:
            args += self.kinds["reasoning"].args(reasoning)
        return args


def registered_parsers(engine: str, site_packages: Path) -> RegisteredParsers:
    """Parsers of the release of ``engine`` that is installed there."""
    kinds = {
        name: made_of(ParserKind, row)
        for name, row in table(engine, "parsers.toml").items()
    }
    names = {
        name: kind.names_in(site_packages / engine) for name, kind in kinds.items()
    }
    return RegisteredParsers(
        engine,
        tools=names.get("tools", ()),
        reasoning=names.get("reasoning", ()),
        kinds=kinds,
    )

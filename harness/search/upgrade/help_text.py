"""The options of a server, read from what its ``--help`` prints: argparse's form, any
formatter.

vLLM prints the default of each option behind its text, LMDeploy within it, SGLang and
minivllm not at all."""

from __future__ import annotations

import re
from collections.abc import Iterator

from mmrepro.engines import Engine
from mmrepro.engines.environments.spec import Environment
from mmrepro.failure.documents.upgrade import OptionSeen

WIDE = {"COLUMNS": "1000"}
"""Variables with which hardly a text is wrapped: argparse cuts words at their
hyphens."""
_SUBCOMMAND = {"lmdeploy": ("serve", "api_server")}
_HELP = {"vllm": ("--help=all", "--help")}
"""vLLM from 0.10 on lists its options only if it is asked for all."""
_HEAD = re.compile(r"^  (?=--?[A-Za-z0-9])")
_SPELLING = re.compile(
    r"(--?[A-Za-z0-9][\w.-]*)(?: (?!-)(.*?))?(?:, (?=--?[A-Za-z])|$)"
)
_CHOICES = re.compile(r"\[?[{\[](?P<all>[^{}\[\]]+)[}\]]")
_DEFAULT = re.compile(r"\(default: (?P<value>(?:(?!\(default: ).)*)\)$", re.DOTALL)
_WITHIN = re.compile(r"\bDefault: (?P<value>.+?)(?:\. Type: \w+)?$")
_TYPE = re.compile(r"\.? ?Type: \w+$")


def commands(engine: Engine, environment: Environment) -> list[list[str]]:
    """What prints the options of the engine's server: the first one that lists some
    counts."""
    module = engine.module_in(environment.site_packages)
    words = [*engine.interpreter_args(module), *_SUBCOMMAND.get(engine.name, ())]
    helps = _HELP.get(engine.name, ("--help",))
    return [[str(environment.python), *words, asked] for asked in helps]


def read(text: str) -> list[OptionSeen]:
    """The options that ``text`` lists, in its order, without ``--help`` and positional
    ones."""
    found: list[tuple[str, list[str]]] = []
    current: list[str] | None = None
    usage = False
    for line in text.splitlines():
        usage = bool(line.strip()) and (usage or line.lower().startswith("usage:"))
        if usage or not line.strip():
            continue
        if _HEAD.match(line):
            head, _, tail = line.strip().partition("  ")
            current = [tail.strip()]
            found.append((head, current))
        elif line.startswith(" " * 3) and current is not None:
            current.append(line.strip())
        else:  # a group's title, or what is said of it
            current = None
    options: dict[str, OptionSeen] = {}  # LMDeploy lists some in two groups
    for head, lines in found:
        one = _option(head, " ".join(filter(None, lines)))
        options.setdefault(one.name, one)
    options.pop("--help", None)
    return [*options.values()]


def _option(head: str, text: str) -> OptionSeen:
    pairs = _SPELLING.findall(head)
    names = [name for name, _ in pairs]
    long = [
        name for name in names if name.startswith("--") and not name.startswith("--no-")
    ]
    value = next((told for _, told in pairs if told), "")
    default = _DEFAULT.search(text) or _WITHIN.search(text)
    if default:
        text = text[: default.start()]
    name = next(
        iter(long or [name for name in names if name.startswith("--")] or names)
    )
    return OptionSeen(
        name=name,
        aliases=[one for one in names if one != name],
        value=value,
        default=default["value"] if default else None,
        choices=list(_choices(value)),
        text=_TYPE.sub("", text).strip(),
    )


def _choices(value: str) -> Iterator[str]:
    """Of a placeholder such as ``{a,b}``, ``{a,b} or …`` and ``['a', 'b']``; of ``[N
    ...]`` none."""
    found = _CHOICES.match(value)
    if found and (value.startswith(("{", "[{")) or "'" in value):
        yield from (one.strip(" '\"") for one in found["all"].split(","))

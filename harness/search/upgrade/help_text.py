"""The options of a server, read from what its ``--help`` prints: argparse's form, any
formatter.

vLLM prints the default of each option behind its text, LMDeploy within it, SGLang and
minivllm not at all."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence

from mmrepro.engines import Engine
from mmrepro.engines.environments import Environment
from mmrepro.engines.serving import serving
from mmrepro.failure.documents import OptionSeen

WIDE = {"COLUMNS": "1000"}
"""Variables with which hardly a text is wrapped: argparse cuts words at their
hyphens."""
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
    facts = serving(engine.name)
    words = [*engine.interpreter_args(module), *facts.subcommand]
    return [[str(environment.python), *words, asked] for asked in facts.helps]


def read(text: str) -> list[OptionSeen]:
    """Read the options that ``text`` lists, in its order, without ``--help`` and
    positional ones."""
    entries: list[tuple[str, list[str]]] = []
    current: list[str] | None = None
    in_usage = False
    for line in text.splitlines():
        if not line.strip():
            in_usage = False
            continue
        if in_usage or line.lower().startswith("usage:"):
            in_usage = True
            continue
        if _HEAD.match(line):
            head, _, tail = line.strip().partition("  ")
            current = [tail.strip()]
            entries.append((head, current))
        elif line.startswith(" " * 3) and current is not None:
            current.append(line.strip())
        else:  # a group's title, or its description
            current = None

    options: dict[str, OptionSeen] = {}  # LMDeploy lists some in two groups
    for head, lines in entries:
        option = _option(head, " ".join(filter(None, lines)))
        options.setdefault(option.name, option)
    options.pop("--help", None)
    return [*options.values()]


def _option(head: str, text: str) -> OptionSeen:
    pairs = _SPELLING.findall(head)
    names = [name for name, _ in pairs]
    name = _main_name(names)
    value = next((placeholder for _, placeholder in pairs if placeholder), "")
    # The default behind the text is vLLM's form, the one within it LMDeploy's.
    default = _DEFAULT.search(text) or _WITHIN.search(text)
    if default:
        text = text[: default.start()]
    return OptionSeen(
        name=name,
        aliases=[alias for alias in names if alias != name],
        value=value,
        default=default["value"] if default else None,
        choices=list(_choices(value)),
        text=_TYPE.sub("", text).strip(),
    )


def _main_name(names: Sequence[str]) -> str:
    """The first long name that switches nothing off, else the first long one, else the
    first."""
    long = [name for name in names if name.startswith("--")]
    for name in long:
        if not name.startswith("--no-"):
            return name
    return long[0] if long else names[0]


def _choices(value: str) -> Iterator[str]:
    """Of a placeholder such as ``{a,b}``, ``{a,b} or …`` and ``['a', 'b']``; of ``[N
    ...]`` none."""
    listed = _CHOICES.match(value)
    if listed is None:
        return
    if value.startswith(("{", "[{")) or "'" in value:
        for choice in listed["all"].split(","):
            yield choice.strip(" '\"")

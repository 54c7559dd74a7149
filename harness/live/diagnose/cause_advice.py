"""What to do next, by class, platform and part: concrete, with the setting's name, and
each with its source. The rows are those of ``engines/rules/advice.toml`` and of the
``advice.toml`` in an engine's folder. Where none fits no advice is given."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from functools import cache

from mmrepro.engines.folders import folders, table
from mmrepro.engines.log_rules import shipped_rows, shipped_rules
from mmrepro.failure.documents import CauseClass as C

_FILE = "advice.toml"
_OF_ONE_PLATFORM = (
    (
        "cuda",
        re.compile(
            r"nvidia|\bxid\b|CUDA_|--gpus all|\bNCCL_|\bcompute-sanitizer", re.I
        ),
    ),
    ("rocm", re.compile(r"rocm-smi|amd-smi|AMD_SERIALIZE|amdgpu")),
    ("npu", re.compile(r"npu-smi|ASCEND_")),
    ("xpu", re.compile(r"xpu-smi")),
)
"""Tools and variables of one platform, in advice that is written elsewhere."""
_SHARED = {"rocm": re.compile(r"\bNCCL_|CUDA_VISIBLE_DEVICES")}
"""RCCL reads NCCL's variables."""


@dataclass(frozen=True)
class AdviceRow:
    """A row of ``advice.toml``, which explains the fields."""

    name: C
    text: str
    source: str
    platforms: tuple[str, ...] = ()
    when: re.Pattern[str] | None = None
    unless: re.Pattern[str] | None = None

    def fits(self, failure: str, platform: str, log: str) -> bool:
        """Whether it is about this failure, on this platform."""
        if self.platforms and platform not in self.platforms:
            return False
        if self.when is not None and not self.when.search(failure):
            return False
        return self.unless is None or not self.unless.search(log)


def _rows_of(rows: Iterable[dict[str, object]]) -> Iterator[AdviceRow]:
    for row in rows:
        when, unless = row.get("when"), row.get("unless")
        platforms = row.get("platforms", [])
        assert isinstance(platforms, list)
        yield AdviceRow(
            name=C(str(row["class"])),
            text=str(row["text"]),
            source=str(row["source"]),
            platforms=tuple(platforms),
            when=re.compile(str(when)) if when else None,
            unless=re.compile(str(unless)) if unless else None,
        )


@cache
def advice_rows(engine: str = "") -> tuple[AdviceRow, ...]:
    """The rows of an engine's folder; of no engine: those that hold for each."""
    if not engine:
        return tuple(_rows_of(shipped_rows(_FILE)["advice"]))
    return tuple(_rows_of(table(engine, _FILE).get("advice", ())))


def advice_of_class(name: C) -> tuple[str, ...]:
    """All that may help where a class is named, whatever the engine or platform."""
    return tuple(row.text for row in advice_rows() if row.name is name)


@cache
def _platform_rules() -> tuple[tuple[str, re.Pattern[str]], ...]:
    rules = shipped_rules("platforms.toml")
    return tuple((rule.name, re.compile(rule.expression)) for rule in rules)


def platform_of(texts: Iterable[str]) -> str:
    """The platform by what a log says; "": it does not tell."""
    whole = "\n".join(texts)
    for name, expression in _platform_rules():
        if expression.search(whole):
            return name
    return ""


def of_other_platform(advice: str, platform: str) -> bool:
    """Whether ``advice`` names a tool or a variable that ``platform`` does not have."""
    if not platform:
        return False
    shared = _SHARED.get(platform)
    text = shared.sub("", advice) if shared is not None else advice
    foreign = [words for name, words in _OF_ONE_PLATFORM if name != platform]
    return any(words.search(text) for words in foreign)


def _in_force(advice: str, settings: str) -> bool:
    """Whether the server has the switch with which ``advice`` begins, by its own
    log."""
    switch = re.match(r"--((?:disable|enable|enforce|eager|no)-?[\w-]*)", advice)
    if switch is None:
        return False
    field = switch[1].replace("-", "_")
    return (
        re.search(rf"\b{field}['\"]?(?:=|: ?)True\b|--{switch[1]}\b", settings)
        is not None
    )


def advice_for(
    name: C,
    engine: str,
    text: str,
    settings: str = "",
    *,
    platform: str = "",
    log: str = "",
) -> list[str]:
    """What to do next, the engine's own first, without what is in force already.

    Args:
        text: what the log says of it: the exception, its frames.
        settings: lines in which the server logs its own.
        platform: "": by ``text``, or not known.
        log: all that the log says.
    """
    platform = platform or platform_of([text])
    rows = [*advice_rows()]
    if engine in folders():
        rows = [*advice_rows(engine), *rows]
    advice = []
    for row in rows:
        if row.name is not name or not row.fits(text, platform, log or text):
            continue
        if not _in_force(row.text, settings):
            advice.append(row.text)
    return advice

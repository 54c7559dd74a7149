"""Which known failure, class or finding a text belongs to, by a small index: ``mmrepro
find``.

It imports no scenario and asks no network. What a text is by an issue's name, or by a
pattern of an engine's own words, it *is*; words that it shares with a description make
it *perhaps* that."""

from __future__ import annotations

import json
import math
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from functools import lru_cache
from pathlib import Path
from typing import Any, Literal, NamedTuple

INDEX = Path(__file__).with_name("index.json")
"""Made by ``python -m mmrepro.cli.find_index``; a test holds it against the
scenarios."""

_MAX_CHARS = 1 << 20
"""Of a text; of a longer one its end."""
_MAX_LINE = 4000
_MIN_FRAGMENT = 10
"""Characters of a piece of a known message that stand for it."""
_MAX_PERHAPS = 5
_LEAST_COVER = 0.5
"""Part of a question's words, by their weight, that a description shares with it."""
_LEAST_SHARE = 0.6
"""A description that fits by less than that part of the best one is left out."""
_LONG = 40
"""Words: a longer text is a paste, in which only messages and functions are looked
for."""

_Sure = Literal["this", "perhaps"]

_REFERENCE = re.compile(
    r"https?://(?:www\.)?github\.com/(?P<owner>[\w.-]+)/(?P<name>[\w.-]+)/"
    r"(?:issues|pull|discussions)/(?P<number>\d+)"
    r"|(?<![\w/.-])(?:(?P<owner2>[\w.-]+)/)?(?P<name2>[A-Za-z][\w.-]*)#(?P<number2>\d+)\b"
    r"|(?P<advisory>\b(?i:CVE|PYSEC|GHSA)-[\w-]+)"
)
ECHO = re.compile(
    r"EngineDeadError|[Ss]ee (?:the )?(?:stack trace|root cause|error)s? \(?above"
    r"|Internal Server Error|died unexpectedly|Engine core initialization failed"
    r"|child processes? failed"
)
"""Lines that follow any failure."""
_BARE = re.compile(r"#?(\d{2,6})$")
_WORD = re.compile(r"[A-Za-z_][A-Za-z0-9_]*|\d{3,}")
_PART = re.compile(r"[A-Z]+(?=[A-Z][a-z])|[A-Z]?[a-z]+|[A-Z]+|\d{3,}")
_FUNCTION = re.compile(
    r", in (?:[\w.<>]+\.)?(\w+)$|^\s*(?:[\w.<>]+\.)?(\w+) \([^()]+:\d+\)$", re.M
)
_STOP = frozenset(
    """a an and are as at be been by can does for from has have how i if in into is it its my no not
    of on one or our so than that the then there this to was we were what when where which while who
    why will with without you your error failed failure file line py vllm sglang lmdeploy minivllm
    server engine request requests model most recent call last traceback enginedeaderror dead see
    stack trace above root cause internal""".split()  # noqa: SIM905
)


@dataclass(frozen=True)
class Pattern:
    """An expression of an engine's own words.

    Attributes:
        texts: its fixed parts.
        sure: a line that matches belongs to the failure; else other failures print it
            too, and two of them are needed.
        rank: of the rules that class a line, the first one that fits decides; None: it
            is none.
    """

    name: str
    regex: str
    texts: tuple[str, ...] = ()
    sure: bool = True
    rank: int | None = None


@dataclass(frozen=True)
class IndexEntry:
    """One thing that a text may belong to."""

    kind: Literal["scenario", "class", "finding"]
    name: str
    title: str
    engine: str = ""
    affected: str = ""
    fixed: str = ""
    workarounds: tuple[str, ...] = ()
    references: tuple[tuple[str, str, str], ...] = ()
    """Name, title, address."""
    patterns: tuple[Pattern, ...] = ()
    frames: tuple[str, ...] = ()
    """Functions of its stack, innermost first."""
    see: tuple[str, ...] = ()
    words: str = ""
    row: tuple[str, ...] = ()
    """The line of ``mmrepro list``; () for what is no scenario."""
    planted: bool = False
    """Whether its engine is a teaching one, which has others' faults."""


class Matched(NamedTuple):
    """Lines of a log that match an expression: how many, and the first one's number and
    own words, without a client's."""

    many: int
    number: int
    words: str


@dataclass
class IndexHit:
    """An entry that the text may be about, and what speaks for it."""

    entry: IndexEntry
    sure: _Sure
    because: list[str] = field(default_factory=list)
    score: float = 0.0

    def to_dict(self) -> dict[str, Any]:
        entry = asdict(self.entry)
        for left_out in ("words", "patterns", "frames"):
            del entry[left_out]

        entry["references"] = [
            {"id": id_, "title": title, "url": url}
            for id_, title, url in self.entry.references
        ]
        return {"certainty": self.sure, "because": self.because, **entry}


# ------------------------------------------------------------------ the index


def _entry_of(made: Mapping[str, Any]) -> IndexEntry:
    patterns = tuple(
        Pattern(p["name"], p["regex"], tuple(p["texts"]), p["sure"], p["rank"])
        for p in made["patterns"]
    )
    references = tuple((r[0], r[1], r[2]) for r in made["references"])
    lists = {name: tuple(made[name]) for name in ("workarounds", "frames", "see")}
    return IndexEntry(
        **{**made, **lists, "patterns": patterns, "references": references}
    )


@lru_cache(maxsize=1)
def entries() -> tuple[IndexEntry, ...]:
    """All that the index holds."""
    return tuple(
        _entry_of(one) for one in json.loads(INDEX.read_text(encoding="utf-8"))
    )


# ------------------------------------------------------------------ the search


def find(
    text: str,
    among: Sequence[IndexEntry] = (),
    *,
    matched: Mapping[str, Matched] | None = None,
) -> list[IndexHit]:
    """What ``text`` belongs to, surest and best first; []: nothing is known of it.

    Args:
        among: what is looked through; (): the index.
        matched: of a log, in place of its text: the lines that match each expression.
    """
    known = among or entries()
    text = text[-_MAX_CHARS:]
    named = _by_reference(text, known)
    patterns = (
        _by_pattern(text, known) if matched is None else _of_lines(matched, known)
    )
    sure = _merged([*named, *patterns])
    taken = {(f.entry.kind, f.entry.name) for f in sure}
    perhaps = [
        f for f in _by_words(text, known) if (f.entry.kind, f.entry.name) not in taken
    ]
    if any(f.sure == "this" for f in sure):
        perhaps = perhaps[:2] if len(_tokens(text)) <= _LONG else []
    ordered = sorted(sure, key=lambda f: (f.sure != "this", *_order(f)))
    return [*ordered, *perhaps]


def _order(found: IndexHit) -> tuple[int, float, str]:
    """A known failure is more precise than its class, and than a planted copy."""
    of_class = found.entry.kind == "class"
    return of_class + 2 * found.entry.planted, -found.score, found.entry.name


def references_in(text: str) -> list[str]:
    """Issues that a text names, as ``owner/name#number``, or without the owner as it
    stands; and advisories."""
    found = []
    for match in _REFERENCE.finditer(text):
        if match["advisory"]:
            found.append(match["advisory"].upper())
            continue
        owner = match["owner"] or match["owner2"] or ""
        name, number = (
            match["name"] or match["name2"],
            match["number"] or match["number2"],
        )
        found.append(f"{owner}/{name}#{number}".lstrip("/").lower())

    return list(dict.fromkeys(found))


def is_echo(text: str) -> bool:
    """Whether it is an echo of a failure that was logged before."""
    return ECHO.search(text) is not None


def is_reference(text: str) -> bool:
    """Whether a text is the name of an issue and nothing else."""
    return bool(
        _REFERENCE.fullmatch(text.strip().split("#issuecomment")[0].rstrip("/"))
    )


def _names(reference: tuple[str, str, str]) -> set[str]:
    """Under which a reference is asked for: ``vllm#1``, ``vllm-project/vllm#1``."""
    name, _, url = reference
    names = {name.lower(), name.upper()}
    for match in _REFERENCE.finditer(url):
        if match["number"]:
            issue = f"{match['name']}#{match['number']}".lower()
            names |= {issue, f"{match['owner'].lower()}/{issue}"}

    return names


def _by_reference(text: str, known: Iterable[IndexEntry]) -> list[IndexHit]:
    asked = references_in(text)
    bare = _BARE.fullmatch(text.strip())
    found = []
    for entry in known:
        for reference in entry.references:
            names = _names(reference)
            if hits := [one for one in asked if one in names]:
                found.append(IndexHit(entry, "this", [f"it names {hits[0]}"], 10.0))
                break
            if bare and any(one.endswith(f"#{bare[1]}") for one in names):
                found.append(
                    IndexHit(entry, "perhaps", [f"{reference[0]} has that number"], 2.0)
                )
                break

    return found


def _by_pattern(text: str, known: Iterable[IndexEntry]) -> list[IndexHit]:
    lines = [line[:_MAX_LINE] for line in text.splitlines()]
    whole = _plain(text)
    fragment = (
        whole
        if len(lines) <= 2 and len(whole) >= _MIN_FRAGMENT and " " in whole
        else ""
    )
    functions = [a or b for a, b in _FUNCTION.findall(text)]
    deciding = _deciding(lines, known)
    found = []
    for entry in known:
        shown = {
            p: part
            for p in entry.patterns
            if (p.rank is None or p.rank in deciding or fragment)
            and (part := _shows(p, lines, fragment))
        }
        hits = [*shown]
        because = [f"its {p.name}: {part}" for p, part in shown.items()]
        sure = any(p.sure for p in hits)
        if stands := _stands(entry, functions):
            because.append(f"it stands in {stands}")
            sure = sure or bool(hits)
        if because:
            found.append(_counted(entry, because, sure=sure or len(hits) > 1))

    return found


def _deciding(lines: Sequence[str], known: Iterable[IndexEntry]) -> set[int]:
    """Ranks of the rules that fit a line first."""
    rules = []
    for entry in known:
        for pattern in entry.patterns:
            if pattern.rank is not None:
                rules.append((pattern.rank, pattern))

    rules.sort(key=lambda rule: rule[0])
    deciding = set()
    for line in lines:
        for rank, pattern in rules:
            if _matches(pattern, line):
                deciding.add(rank)
                break

    return deciding


def _matches(pattern: Pattern, line: str) -> bool:
    texts = pattern.texts
    if texts and not any(text in line for text in texts):
        return False
    return re.search(pattern.regex, line) is not None


def _of_lines(
    matched: Mapping[str, Matched], known: Iterable[IndexEntry]
) -> list[IndexHit]:
    found = []
    for entry in known:
        hits = [pattern for pattern in entry.patterns if pattern.regex in matched]
        if not hits:
            continue
        because = []
        for pattern in hits:
            line = _first(pattern, matched[pattern.regex])
            because.append(f"its {pattern.name}, {line}")

        # Two patterns that are not sure by themselves are together.
        sure = len(hits) > 1 or hits[0].sure
        found.append(_counted(entry, because, sure=sure))

    return found


def _first(pattern: Pattern, lines: Matched) -> str:
    """``line 12: AssertionError: Expected a cached item``, and how many more there
    are."""
    fits = re.search(pattern.regex, lines.words)
    words = fits[0].strip() if fits else " | ".join(pattern.texts)
    more = f", and {lines.many - 1} more" if lines.many > 1 else ""
    return f"line {lines.number}{more}: {words[:100]}"


def _counted(entry: IndexEntry, because: list[str], *, sure: bool) -> IndexHit:
    return IndexHit(entry, "this" if sure else "perhaps", because, 1.0 + len(because))


def _shows(pattern: Pattern, lines: Sequence[str], fragment: str) -> str:
    """What of the text the pattern fits; "": nothing."""
    if fragment and any(fragment in _plain(text) for text in pattern.texts):
        return fragment
    for line in lines:
        if _matches(pattern, line):
            fit = re.search(pattern.regex, line)
            words = fit[0].strip() if fit else ""
            return words[:100] or line.strip()[:100]

    return ""


def _stands(entry: IndexEntry, functions: Sequence[str]) -> str:
    """The innermost functions of its stack, where the text holds them next to each
    other."""
    wanted = entry.frames[:3]
    if len(wanted) < 2:
        return ""
    # A traceback has the innermost function last, py-spy has it first.
    orders = (wanted, wanted[::-1])
    for start in range(len(functions)):
        neighbours = tuple(functions[start : start + len(wanted)])
        if neighbours in orders:
            return " ← ".join(wanted)

    return ""


def _plain(text: str) -> str:
    return " ".join(text.split()).strip("\"'`").lower()


# ------------------------------------------------------------------ words


def _tokens(text: str) -> list[str]:
    """Words of three letters at least, and the parts of names: ``EngineCore`` is
    ``enginecore``, ``engine`` and ``core``."""
    words = []
    for word in _WORD.findall(text):
        words.append(word.lower())
        parts = _PART.findall(word)
        if len(parts) > 1:
            words += [part.lower() for part in parts]

    return [_stem(word) for word in words if len(word) > 2 and word not in _STOP]


def _stem(word: str) -> str:
    for end in ("ings", "ing", "ies", "ed", "es", "s"):
        if word.endswith(end) and len(word) - len(end) >= 3:
            return word[: -len(end)]
    return word


def _by_words(text: str, known: Sequence[IndexEntry]) -> list[IndexHit]:
    asked = set(_tokens(text))
    if not asked or len(asked) > _LONG or is_reference(text):
        return []
    bags = [set(_tokens(f"{e.name} {e.title} {e.words}")) for e in known]
    weight = _weights(asked, bags)
    total = sum(weight.values())
    found = []
    for entry, bag in zip(known, bags, strict=True):
        shared = asked & bag
        heading = asked & set(_tokens(f"{entry.name} {entry.title}"))
        if not _says_enough(asked, shared, heading):
            continue
        cover = sum(weight[token] for token in shared) / total
        if cover < _LEAST_COVER:
            continue
        # What is in the heading counts half as much again.
        score = cover + 0.5 * sum(weight[token] for token in heading) / total
        shown = set(sorted(shared, key=lambda token: -weight[token])[:6])
        because = f"words: {', '.join(_words_of(text, shown)[:8])}"
        found.append(IndexHit(entry, "perhaps", [because], score))

    found.sort(key=lambda hit: (-hit.score, hit.entry.name))
    best = found[0].score if found else 0.0
    near = [hit for hit in found if hit.score >= _LEAST_SHARE * best]
    return near[:_MAX_PERHAPS]


def _weights(asked: set[str], bags: Sequence[set[str]]) -> dict[str, float]:
    """The rarer a word is among the entries, the more it tells."""
    weights = {}
    for token in asked:
        often = sum(token in bag for bag in bags)
        weights[token] = math.log(1 + len(bags) / (1 + often))

    return weights


def _says_enough(asked: set[str], shared: set[str], heading: set[str]) -> bool:
    """Two words in common; one alone where only one is asked for, in the heading."""
    if len(shared) >= 2:
        return True
    return len(shared) == len(asked) == 1 and bool(heading)


def _words_of(text: str, tokens: set[str]) -> list[str]:
    """The words of the text that have one of the tokens, each once."""
    words = dict.fromkeys(_WORD.findall(text))
    return [word for word in words if not tokens.isdisjoint(_tokens(word))]


def _merged(found: Iterable[IndexHit]) -> list[IndexHit]:
    """Each entry once, with all that speaks for it."""
    by_entry: dict[tuple[str, str], IndexHit] = {}
    for one in found:
        key = (one.entry.kind, one.entry.name)
        if key not in by_entry:
            by_entry[key] = one
            continue
        known = by_entry[key]
        known.because += [text for text in one.because if text not in known.because]
        known.score += one.score
        known.sure = "this" if "this" in (known.sure, one.sure) else "perhaps"

    return list(by_entry.values())

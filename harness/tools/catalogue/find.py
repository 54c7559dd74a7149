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

_GROUP = "mmrepro.scenarios"
"""Of entry points: scenarios that are installed, whoever brings them."""
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
class FailureCard:
    """What the end screen of ``mmrepro show`` prints of a known failure.

    Attributes:
        name: as ``run`` takes it, with the variant that is shown.
        kind: its class and severity.
        texts: paragraphs, with names between backticks.
        counts: of what it declares, such as ``3 conditions``.
    """

    name: str
    title: str
    kind: str
    texts: tuple[str, ...]
    counts: tuple[str, ...]


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
    card: FailureCard | None = None
    """None: what is no scenario."""


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
        for left_out in ("words", "patterns", "frames", "card"):
            del entry[left_out]

        references = []
        for name, title, url in self.entry.references:
            references.append({"id": name, "title": title, "url": url})

        entry["references"] = references
        return {"certainty": self.sure, "because": self.because, **entry}

    @property
    def key(self) -> tuple[str, str]:
        """A class and a scenario may have one name."""
        return self.entry.kind, self.entry.name


# ------------------------------------------------------------------ the index


def _entry_of(made: Mapping[str, Any]) -> IndexEntry:
    patterns = []
    for pattern in made["patterns"]:
        patterns.append(
            Pattern(
                name=pattern["name"],
                regex=pattern["regex"],
                texts=tuple(pattern["texts"]),
                sure=pattern["sure"],
                rank=pattern["rank"],
            )
        )

    # JSON has lists where an entry has tuples.
    fields = dict(made)
    for name in ("workarounds", "frames", "see"):
        fields[name] = tuple(made[name])

    card = made["card"]
    if card:
        fields["card"] = FailureCard(
            name=card["name"],
            title=card["title"],
            kind=card["kind"],
            texts=tuple(card["texts"]),
            counts=tuple(card["counts"]),
        )
    fields["patterns"] = tuple(patterns)
    fields["references"] = tuple(map(tuple, made["references"]))
    return IndexEntry(**fields)


@lru_cache(maxsize=1)
def entries() -> tuple[IndexEntry, ...]:
    """All that the index holds."""
    index = json.loads(INDEX.read_text(encoding="utf-8"))
    return tuple(map(_entry_of, index))


# ------------------------------------------------------------------ the search


def foreign() -> set[str]:
    """Scenarios that the index does not have: those of other distributions, also where
    one takes a name of ours."""
    from importlib.metadata import entry_points

    points = {point.name: point.module for point in entry_points(group=_GROUP)}
    ours: set[str] = set()
    for entry in entries():
        module = points.get(entry.name, "")
        if entry.kind == "scenario" and module.startswith("mmrepro.scenarios."):
            ours.add(entry.name)
    return points.keys() - ours


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
    shown = _by_pattern(text, known) if matched is None else _of_lines(matched, known)
    hits = _merged([*named, *shown])
    taken = {hit.key for hit in hits}
    perhaps = [hit for hit in _by_words(text, known) if hit.key not in taken]
    if any(hit.sure == "this" for hit in hits):
        # Beside a sure answer a paste has no further question; a short text may.
        is_paste = len(_tokens(text)) > _LONG
        perhaps = [] if is_paste else perhaps[:2]

    hits.sort(key=_order)
    return [*hits, *perhaps]


def _order(hit: IndexHit) -> tuple[bool, int, float, str]:
    """The sure ones first. A known failure is more precise than its class, and than a
    planted copy."""
    imprecise = hit.entry.kind == "class"
    rank = imprecise + 2 * hit.entry.planted
    return hit.sure != "this", rank, -hit.score, hit.entry.name


def references_in(text: str) -> list[str]:
    """Issues that a text names, as ``owner/name#number``, or without the owner as it
    stands; and advisories."""
    references = []
    for match in _REFERENCE.finditer(text):
        if match["advisory"]:
            references.append(match["advisory"].upper())
            continue

        # An address has the first group of each pair, a short name the second.
        owner = match["owner"] or match["owner2"] or ""
        name = match["name"] or match["name2"]
        number = match["number"] or match["number2"]
        references.append(f"{owner}/{name}#{number}".lstrip("/").lower())

    return list(dict.fromkeys(references))


def is_echo(text: str) -> bool:
    """Whether it is an echo of a failure that was logged before."""
    return ECHO.search(text) is not None


def is_reference(text: str) -> bool:
    """Whether a text is the name of an issue and nothing else."""
    # The address of a comment names its issue.
    address, _, _ = text.strip().partition("#issuecomment")
    return _REFERENCE.fullmatch(address.rstrip("/")) is not None


def _names(reference: tuple[str, str, str]) -> set[str]:
    """Names under which a reference is asked for: ``vllm#1``,
    ``vllm-project/vllm#1``."""
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
    number = bare[1] if bare else ""
    hits = []
    for entry in known:
        hit = _named_by(entry, asked, number)
        if hit is not None:
            hits.append(hit)

    return hits


def _named_by(entry: IndexEntry, asked: Sequence[str], number: str) -> IndexHit | None:
    """The entry by the first of its references that is asked for, or that has the
    ``number``; None: neither."""
    for reference in entry.references:
        names = _names(reference)
        for name in asked:
            if name in names:
                return IndexHit(entry, "this", [f"it names {name}"], 10.0)

        if number and any(name.endswith(f"#{number}") for name in names):
            # Any project may have an issue of that number.
            return IndexHit(entry, "perhaps", [f"{reference[0]} has that number"], 2.0)

    return None


def _by_pattern(text: str, known: Iterable[IndexEntry]) -> list[IndexHit]:
    lines = [line[:_MAX_LINE] for line in text.splitlines()]
    fragment = _fragment(text, lines)
    functions = [last or first for last, first in _FUNCTION.findall(text)]
    deciding = _deciding(lines, known)
    hits = []
    for entry in known:
        because = []
        fitting = []
        for pattern in entry.patterns:
            # A rule that another one comes before says nothing of a whole line.
            if (
                pattern.rank is not None
                and pattern.rank not in deciding
                and not fragment
            ):
                continue
            part = _shows(pattern, lines, fragment)
            if part:
                fitting.append(pattern)
                because.append(f"its {pattern.name}: {part}")

        # Two patterns that are not sure by themselves are together.
        sure = len(fitting) > 1 or any(pattern.sure for pattern in fitting)
        frames = _stands(entry, functions)
        if frames:
            because.append(f"its stack is in {frames}")
            sure = sure or bool(fitting)

        if because:
            hits.append(_counted(entry, because, sure=sure))

    return hits


def _fragment(text: str, lines: Sequence[str]) -> str:
    """A short text of several words, which may be a piece of a message; else empty."""
    whole = _plain(text)
    if len(lines) > 2 or len(whole) < _MIN_FRAGMENT or " " not in whole:
        return ""
    return whole


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
    entry_hits = []
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
        entry_hits.append(_counted(entry, because, sure=sure))

    return entry_hits


def _first(pattern: Pattern, lines: Matched) -> str:
    """Describe the lines that match: ``line 12: AssertionError: Expected a cached
    item``, and how many more there are."""
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
    bags = []
    for entry in known:
        words = f"{entry.name} {entry.title} {entry.words}"
        bags.append(set(_tokens(words)))

    weights = _weights(asked, bags)
    hits = []
    for entry, bag in zip(known, bags, strict=True):
        hit = _by_shared_words(text, entry, asked & bag, weights)
        if hit is not None:
            hits.append(hit)

    hits.sort(key=lambda hit: (-hit.score, hit.entry.name))
    best = hits[0].score if hits else 0.0
    near = [hit for hit in hits if hit.score >= _LEAST_SHARE * best]
    return near[:_MAX_PERHAPS]


def _by_shared_words(
    text: str, entry: IndexEntry, shared: set[str], weights: Mapping[str, float]
) -> IndexHit | None:
    """The entry by the words that the text shares with it; None: they are too few.

    Args:
        weights: of each word of the text.
    """
    heading = set(_tokens(f"{entry.name} {entry.title}")).intersection(weights)
    if not _says_enough(len(weights), shared, heading):
        return None
    total = sum(weights.values())
    cover = sum(weights[token] for token in shared) / total
    if cover < _LEAST_COVER:
        return None

    # What is in the heading counts half as much again.
    score = cover + 0.5 * sum(weights[token] for token in heading) / total
    heaviest = sorted(sorted(shared), key=lambda token: -weights[token])
    words = _words_of(text, set(heaviest[:6]))
    return IndexHit(entry, "perhaps", [f"words: {', '.join(words[:8])}"], score)


def _weights(asked: set[str], bags: Sequence[set[str]]) -> dict[str, float]:
    """The rarer a word is among the entries, the more it tells."""
    weights = {}
    for token in asked:
        often = sum(token in bag for bag in bags)
        weights[token] = math.log(1 + len(bags) / (1 + often))

    return weights


def _says_enough(asked: int, shared: set[str], heading: set[str]) -> bool:
    """Two words in common; one alone where only one is asked for, in the heading."""
    if len(shared) >= 2:
        return True
    return asked == len(shared) == 1 and bool(heading)


def _words_of(text: str, tokens: set[str]) -> list[str]:
    """The words of the text that have one of the tokens, each once."""
    words = dict.fromkeys(_WORD.findall(text))
    return [word for word in words if not tokens.isdisjoint(_tokens(word))]


def _merged(hits: Iterable[IndexHit]) -> list[IndexHit]:
    """Each entry once, with all that speaks for it."""
    by_entry: dict[tuple[str, str], IndexHit] = {}
    for hit in hits:
        if hit.key not in by_entry:
            by_entry[hit.key] = hit
            continue

        known = by_entry[hit.key]
        known.because += [text for text in hit.because if text not in known.because]
        known.score += hit.score
        if hit.sure == "this":
            known.sure = "this"

    return list(by_entry.values())

"""What stands around a log's lines, found from the text itself.

An engine's own beginning of a line is known: its process, its level, its bracket with a
time. Where it stands further right in nearly every line, what is before it is somebody
else's: a prefix of fixed columns, a row of a table, a pair of a key and a value, a box.
Only what is so in most of a sample's lines is taken off, and nothing of a line that
begins as an engine's."""

from __future__ import annotations

import ast
import csv
import io
import json
import re
from collections import Counter, deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Final

from mmrepro.probes.log_collectors import (
    MOST,
    Bare,
    Wrapping,
    from_json,
    text_time,
    time_keys,
    whose,
)
from mmrepro.probes.log_forms import (
    ERROR_LEVELS,
    FORMS,
    MARK,
    Form,
    is_closed,
    read_line,
)

NEARLY_ALL: Final = 0.9
RAILED: Final = 0.8
"""Part of a sample's lines that are of a box, or end in the same way."""
MAX_PREFIX: Final = 240
MAX_LOOKED: Final = 2000
"""Characters of a line in which an engine's beginning is looked for."""
MAX_COLUMNS: Final = 64
MAX_RECORD_LINES: Final = 400
MAX_RECORD_BYTES: Final = 256 << 10
"""Of one record that several lines are; more is no record."""
MAX_GLUED: Final = 20_000
"""Lines that are glued together to one."""

# ------------------------------------------------------------------ an engine's beginning


def _nameless(form: Form) -> str:
    return re.sub(r"\?P<\w+>", "?:", form.pattern.pattern)


def _any_of(forms: Iterable[Form]) -> str:
    return "|".join(map(_nameless, forms))


def _is_a_time(form: Form) -> bool:
    """Whether a time in brackets alone has the form: a collector's may be one."""
    return form.pattern.match("[2026-01-02 03:04:05] ") is not None


_OF_ENGINES: Final = [form for form in FORMS if form.engine]
_TIMED: Final = _any_of(filter(_is_a_time, _OF_ENGINES))
_ENGINES_OWN: Final = _any_of(form for form in _OF_ENGINES if not _is_a_time(form))
_RANKS_OWN: Final = _any_of(f for f in FORMS if f.name in ("c10", "torch-rank"))
_MARKS: Final = "(?:" + re.sub(r"\?P<\w+>", "?:", MARK.pattern) + ")+"
_HEAD: Final = re.compile(
    rf"(?:(?=[(\[])|(?<![A-Za-z0-9_]))(?:{_MARKS}(?:{_ENGINES_OWN})?|{_ENGINES_OWN}"
    rf"|(?P<ranked>{_RANKS_OWN})|(?P<timed>{_TIMED})"
    r"|(?P<plain>(?:INFO:     |WARNING:  |ERROR:    )(?=\S)))"
)
MAX_GAP: Final = 60
"""Between a collector's time and the engine's beginning."""
_QUOTES: Final = frozenset("'\"`")
_A_RANK: Final = re.compile(r"\b(?:TP|DP|PP|EP|CP)\d")
_NO_PREFIX: Final = re.compile(r"%\||it/s\]|s/it\]|what\(\):")
"""A bar of progress, and what C++ prints before an exception's own words."""
_TRACEBACK_LIKE: Final = re.compile(
    r"\s|Traceback \(most|File \"|During handling|The above exception|[\^~]+$|"
    r"(?:[A-Za-z_]\w*\.)*[A-Za-z_]\w*(?:Error|Exception|Exit|Interrupt)(?::|$)"
)


def engine_head(text: str, start: int = 0) -> re.Match[str] | None:
    """The first beginning of an engine's line in ``text``.

    A time in brackets, and glog's beginning, may be a collector's: then the engine's
    own stands right of it."""
    match = _HEAD.search(text, start)
    while match is not None and _is_anybodys(match):
        inner = _HEAD.search(text, match.end())
        if inner is None or inner["plain"] or inner.start() - match.end() > MAX_GAP:
            return match
        if _QUOTES & set(text[match.end() : inner.start()]):
            return match
        match = inner
    return match


def _is_anybodys(head: re.Match[str]) -> bool:
    if head["timed"]:
        return _A_RANK.search(head[0]) is None
    return head["ranked"] is not None


def _begins_as_an_engines(text: str) -> bool:
    """Whether nobody else can have written the beginning."""
    match = _HEAD.match(text)
    return match is not None and not _is_anybodys(match)


def _head_at(text: str) -> int:
    """Where an engine's beginning stands; -1: nowhere."""
    match = engine_head(text[:MAX_LOOKED])
    return -1 if match is None else match.start()


# ------------------------------------------------------------------ the kinds, in turn


def structure_of(lines: Sequence[Bare]) -> Wrapping | None:
    """What most of the lines have around them; None: nothing of a kind that is
    known."""
    texts = [line.text.decode("utf-8", "replace") for line in lines]
    texts = [text for text in texts if text.strip()]
    if not texts:
        return None
    kinds: tuple[Callable[[Sequence[str]], Wrapping | None], ...] = (
        _objects_over_lines,
        _strings,
        _objects,
        _rows,
        _pairs,
        _box,
        _text_newlines,
        _suffix_of,
        _glued,
        _prefix_of,
    )
    for kind in kinds:
        wrapping = kind(texts)
        if wrapping is not None:
            return wrapping
    return None


def _inner(line: Bare, text: str, time: str = "", *, part: bool = False) -> Bare:
    raw = text.encode("utf-8", "replace")
    return Bare(raw, line.stream, time or line.time, part=part or line.part)


def _text_of(line: Bare) -> str:
    return line.text.decode("utf-8", "replace")


# ------------------------------------------------------------------ records over lines


@dataclass
class _Record:
    """Lines that are one record, until it is whole."""

    text: str = ""
    lines: int = 0

    def add(self, text: str) -> str:
        self.text = f"{self.text}\n{text}" if self.lines else text
        self.lines += 1
        return self.text

    def forget(self) -> None:
        self.text, self.lines = "", 0

    @property
    def too_long(self) -> bool:
        return self.lines > MAX_RECORD_LINES or len(self.text) > MAX_RECORD_BYTES


_OBJECT_LINE: Final = re.compile(r'\s*(?:[\[\]{}],?|[\[\]{}]+,?|"[^"]{1,200}": .*)$')


def _objects_over_lines(texts: Sequence[str]) -> Wrapping | None:
    """JSON as it is printed for people: ``gcloud logging read --format=json``, jq."""
    if not any(text.strip() in ("{", "[{") for text in texts):
        return None
    fitting = sum(_OBJECT_LINE.match(text) is not None for text in texts)
    if fitting < NEARLY_ALL * len(texts):
        return None
    record = _Record()

    def take(line: Bare) -> list[Bare] | None:
        text = _text_of(line)
        if not record.lines:
            if text.strip() not in ("{", "[{"):
                return [] if text.strip() in ("[", "]", "") else None
            record.add(text)
            return []
        whole = record.add(text).strip().lstrip("[").rstrip(",]")
        if text.strip(" ,]") == "}":
            values = _loaded(whole)
            if values is not None:
                record.forget()
                return from_json(values, line) or []
        if record.too_long:
            record.forget()
        return []

    wrapping = Wrapping("objects over lines", take, forget=record.forget)
    heads = 0
    for text in texts:
        for inner in take(Bare(text.encode("utf-8", "replace"))) or []:
            heads += _head_at(_text_of(inner)) >= 0
    record.forget()
    return wrapping if heads else _members(texts)


_MEMBER: Final = re.compile(
    r'\s*"(?P<key>[^"]{1,200})": (?P<value>"(?:[^"\\]|\\.)*"),?\s*$'
)


def _members(texts: Sequence[str]) -> Wrapping | None:
    """Of one object that is many lines, the member that holds the log's."""
    keys: Counter[str] = Counter()
    for text in texts:
        match = _MEMBER.match(text)
        if match is not None and _is_a_line(
            match["key"], _string(match["value"]) or ""
        ):
            keys[match["key"]] += 1
    if not keys:
        return None
    wanted = keys.most_common(1)[0][0]
    time = ""

    def take(line: Bare) -> list[Bare] | None:
        nonlocal time
        match = _MEMBER.match(_text_of(line))
        if match is None:
            return []
        value = _string(match["value"]) or ""
        if match["key"] != wanted:
            time = (time_keys([match["key"]]) and text_time(value)) or time
            return []
        parts = value.removesuffix("\n").split("\n")
        return [_inner(line, part, time, part=n > 0) for n, part in enumerate(parts)]

    return Wrapping("members", take)


def _loaded(text: str) -> dict[str, object] | None:
    try:
        values = json.loads(text)
    except (ValueError, RecursionError):
        return None
    return values if isinstance(values, dict) else None


_STRING: Final = re.compile(r"""\s*\[?("(?:[^"\\]|\\.)*"|'(?:[^'\\]|\\.)*'),?\]?\s*$""")


def _strings(texts: Sequence[str]) -> Wrapping | None:
    """A list of strings, one a line, as JSON has it or Python: ``jq .log``."""
    inner = [text for text in map(_string, texts) if text is not None]
    if len(inner) < MOST * len(texts) or not any(_head_at(t) >= 0 for t in inner):
        return None

    def take(line: Bare) -> list[Bare] | None:
        text = _string(_text_of(line))
        if text is None:
            return None
        parts = text.removesuffix("\n").split("\n")
        return [_inner(line, part, part=n > 0) for n, part in enumerate(parts)]

    return Wrapping("strings", take)


def _string(text: str) -> str | None:
    match = _STRING.match(text)
    if match is None:
        return None
    value = _evaluated(match[1])
    return value if isinstance(value, str) else None


def _evaluated(text: str) -> object:
    """What a text is as JSON, or as Python prints it; None: neither."""
    try:
        return json.loads(text)
    except (ValueError, RecursionError):
        pass
    try:
        return ast.literal_eval(text)
    except (ValueError, SyntaxError, RecursionError, MemoryError):
        return None


def _objects(texts: Sequence[str]) -> Wrapping | None:
    """Objects, one a line, whose message has another name than collectors give it; or
    as Python prints them; or many in one object."""
    keys: Counter[str] = Counter()
    objects = 0
    for text in texts:
        if text.lstrip()[:1] not in ("{", "["):
            continue
        members = list(_strings_in(_evaluated(text.strip().rstrip(","))))
        objects += bool(members)
        keys.update({key for key, value in members if _is_a_line(key, value)})
    if not keys or objects < MOST * len(texts):
        return None
    wanted = keys.most_common(1)[0][0]

    def take(line: Bare) -> list[Bare] | None:
        text = _text_of(line)
        if text.lstrip()[:1] not in ("{", "["):
            return None
        members = list(_strings_in(_evaluated(text.strip().rstrip(","))))
        stamps = [text_time(value) for key, value in members if time_keys([key])]
        time = stamps[0] if len(stamps) == 1 else ""
        inner = []
        for key, value in members:
            if key == wanted:
                for n, part in enumerate(value.removesuffix("\n").split("\n")):
                    inner.append(_inner(line, part, time, part=n > 0))
        return inner or None

    return Wrapping("objects", take)


_OF_CLIENTS: Final = frozenset(
    {
        "arguments",
        "args",
        "completion",
        "content",
        "detail",
        "input",
        "inputs",
        "obj",
        "output",
        "outputs",
        "prompt",
        "prompts",
        "query",
        "response",
        "text",
        "texts",
    }
)
"""Members of an engine's own log of requests: a client's words, however they begin."""
MAX_MEMBERS: Final = 100_000


def _is_a_line(key: str, value: str) -> bool:
    return key not in _OF_CLIENTS and _head_at(value) == 0


def _strings_in(value: object, key: str = "") -> Iterator[tuple[str, str]]:
    """The strings in a value, in their order, with the names of their members."""
    left = deque([(key, value)])
    for _ in range(MAX_MEMBERS):
        if not left:
            return
        name, inner = left.popleft()
        if isinstance(inner, str):
            yield name, inner
        elif isinstance(inner, dict):
            left.extendleft(reversed([(str(k), v) for k, v in inner.items()]))
        elif isinstance(inner, list):
            left.extendleft((name, v) for v in reversed(inner))


# ------------------------------------------------------------------ tables


@dataclass(frozen=True)
class _CellTable:
    """Columns, counted from 0; ``time`` -1: none has times."""

    delimiter: str
    columns: int
    message: int
    time: int
    names: tuple[str, ...]


def _rows(texts: Sequence[str]) -> Wrapping | None:
    """Rows with quoted cells, of which one is the line: an export as CSV or TSV.

    Without quotation marks such a row is a prefix."""
    table = None
    for delimiter in (",", "\t", ";", "|"):
        if any(f'{delimiter}"' in text or text[:1] == '"' for text in texts):
            table = _table(texts, delimiter)
        if table is not None:
            return _row_wrapping(table)
    return None


def _table(texts: Sequence[str], delimiter: str) -> _CellTable | None:
    rows = _cells("\n".join(texts), delimiter)
    if not rows:
        return None
    columns = Counter(len(row) for row in rows).most_common(1)[0][0]
    full = [row for row in rows if len(row) == columns]
    if not 2 <= columns <= MAX_COLUMNS or len(full) < RAILED * len(rows):
        return None

    names: tuple[str, ...] = ()
    if not any(_head_at(cell) >= 0 for cell in full[0]):
        names = tuple(cell.strip().lower() for cell in full[0])
    heads = [0] * columns
    times = [0] * columns
    for row in full:
        for n, cell in enumerate(row):
            heads[n] += _head_at(cell) == 0
            times[n] += bool(text_time(cell)) and len(cell) < 48
    message = heads.index(max(heads))
    if not heads[message]:
        return None
    dated = [n for n in range(columns) if n != message and times[n] >= MOST * len(full)]
    if message == 0 and not dated:
        return None  # an engine's own line with signs in it
    return _CellTable(delimiter, columns, message, dated[0] if dated else -1, names)


def _cells(text: str, delimiter: str) -> list[list[str]]:
    try:
        rows = csv.reader(io.StringIO(text, newline="\n"), delimiter=delimiter)
        return [row for row in rows if row]
    except csv.Error:
        return []


def _row_wrapping(table: _CellTable) -> Wrapping:
    record = _Record()

    def take(line: Bare) -> list[Bare] | None:
        whole = record.add(_text_of(line))
        if whole.count('"') % 2 and not record.too_long:
            return []  # a cell goes on in the next line
        record.forget()
        rows = _cells(whole, table.delimiter)
        if len(rows) != 1 or len(rows[0]) != table.columns:
            return None
        (cells,) = rows
        if tuple(cell.strip().lower() for cell in cells) == table.names:
            return []
        time = text_time(cells[table.time]) if table.time >= 0 else ""
        parts = cells[table.message].removesuffix("\n").split("\n")
        return [_inner(line, part, time, part=n > 0) for n, part in enumerate(parts)]

    return Wrapping("rows", take, forget=record.forget)


# ------------------------------------------------------------------ keys and values

_PAIR: Final = re.compile(
    r'(?P<key>[A-Za-z_@][\w.@/-]{0,80})=(?P<value>"(?:[^"\\]|\\.)*"|[^\s"]*)(?:[ \t]+|$)'
)


def _pairs(texts: Sequence[str]) -> Wrapping | None:
    """logfmt: ``time=… level=info msg="…"``."""
    found = [pairs for pairs in map(_pairs_of, texts) if pairs]
    if len(found) < MOST * len(texts):
        return None
    keys: Counter[str] = Counter()
    for pairs in found:
        for key, value in pairs.items():
            keys[key] += _head_at(value) >= 0
    best, count = keys.most_common(1)[0]
    if not count:
        return None

    wanted = _value_of(best)
    # Within a value a quotation mark is escaped: what is found is a pair of the line.
    named = {key: _value_of(key) for key in keys if key != best and whose({key: "x"})}
    stamps = [_value_of(key) for key in time_keys(keys)]

    def take(line: Bare) -> list[Bare] | None:
        text = _text_of(line)
        match = wanted.search(text)
        if match is None or not _PAIR.match(text):
            return None
        time = ""
        for stamp in stamps:
            time = time or text_time(_unquoted(stamp, text))
        values = {key: _unquoted(pattern, text) for key, pattern in named.items()}
        stream = f"{line.stream} {whose(dict(values))}".strip()
        owner = Bare(b"", stream, line.time, part=line.part)
        message = _string(match["value"]) or match["value"].strip('"')
        parts = message.removesuffix("\n").split("\n")
        return [_inner(owner, part, time, part=n > 0) for n, part in enumerate(parts)]

    return Wrapping("pairs", take)


def _value_of(key: str) -> re.Pattern[str]:
    return re.compile(
        rf'(?:^|[ \t]){re.escape(key)}=(?P<value>"(?:[^"\\]|\\.)*"|[^\s"]*)(?=[ \t]|$)'
    )


def _unquoted(key: re.Pattern[str], text: str) -> str:
    match = key.search(text)
    return match["value"].strip('"') if match else ""


def _pairs_of(text: str) -> dict[str, str]:
    """The pairs of a line that is nothing but pairs; {}: it is something else."""
    pairs: dict[str, str] = {}
    at = len(text) - len(text.lstrip())
    while at < len(text):
        match = _PAIR.match(text, at)
        if match is None or len(pairs) >= MAX_COLUMNS:
            return {}
        value = match["value"]
        pairs[match["key"]] = _string(value) or value.strip('"')
        at = match.end()
    return pairs if len(pairs) > 1 else {}


# ------------------------------------------------------------------ boxes and ends

_RAIL: Final = re.compile(
    r"^\s*(?P<left>[│┃║|]) ?(?P<text>.*?)\s*(?P<right>[│┃║|])\s*$"
)
_BORDER: Final = re.compile(r"^[\s\u2500-\u257f+=-]*$")


def _box(texts: Sequence[str]) -> Wrapping | None:
    """A terminal's pane: the same sign at both ends of each line."""
    inside = []
    for text in texts:
        match = _RAIL.match(text)
        if match is not None and match["left"] == match["right"]:
            inside.append(match["text"])
    if len(inside) < RAILED * len(texts) or not any(_head_at(t) >= 0 for t in inside):
        return None

    def take(line: Bare) -> list[Bare] | None:
        text = _text_of(line)
        match = _RAIL.match(text)
        if match is not None:
            return [_inner(line, match["text"])]
        # A border is no line of the log; it is kept, empty.
        return [_inner(line, "")] if text.strip() and _BORDER.match(text) else None

    return Wrapping("box", take)


_NEWLINES: Final = ("\\r\\n", "\\n")


def _text_newlines(texts: Sequence[str]) -> Wrapping | None:
    """A line's end that became text."""
    for end in _NEWLINES:
        ends = sum(text.endswith(end) for text in texts)
        if ends >= RAILED * len(texts) and any(_head_at(t) >= 0 for t in texts):
            break
    else:
        return None

    def take(line: Bare) -> list[Bare] | None:
        text = _text_of(line)
        return [_inner(line, text.removesuffix(end))] if text.endswith(end) else None

    return Wrapping("newlines as text", take)


# ------------------------------------------------------------------ behind each line

_SUFFIXES: Final = tuple(
    re.compile(pattern)
    for pattern in (
        r" \| [\w.:/-]{1,80}$",
        r" \{[^{}]{1,160}\}$",
        r" \[[\w.-]{1,40}=[^\[\]]{1,160}\]$",
        r" #\d{1,12}$",
        r"\t[^\t]{1,80}$",
        r" {2,}[\w.:/-]{1,60}$",
    )
)
"""What is written behind a line, with what sets it apart. Words alone are none: lines
of one kind end alike (``HTTP/1.1" 200 OK``)."""
_LEAST_SUFFIXED: Final = 4


def _suffix_of(texts: Sequence[str]) -> Wrapping | None:
    """The same behind each line, but for numbers: a host, labels, a count, a time."""
    if len(texts) < _LEAST_SUFFIXED or not any(_head_at(text) >= 0 for text in texts):
        return None
    for pattern in _SUFFIXES:
        ends = [match[0] for text in texts if (match := pattern.search(text))]
        if len(ends) < NEARLY_ALL * len(texts):
            continue
        ending, often = Counter(map(_without_numbers, ends)).most_common(1)[0]
        if often >= NEARLY_ALL * len(texts):
            return _suffix_wrapping(pattern, ending)
    return None


def _without_numbers(text: str) -> str:
    # A column that is filled up with spaces begins at another width in each line.
    return re.sub(r"\d+", "0", re.sub(r" {2,}", "  ", text))


def _suffix_wrapping(pattern: re.Pattern[str], ending: str) -> Wrapping:
    def take(line: Bare) -> list[Bare] | None:
        text = _text_of(line)
        match = pattern.search(text)
        if match is None or _without_numbers(match[0]) != ending:
            return None
        return [_inner(line, text[: match.start()].rstrip(), text_time(match[0]))]

    return Wrapping("suffix", take)


# ------------------------------------------------------------------ lines glued to one

_MOST_ONE_LINERS: Final = 3
_LINES_OF_TRACEBACK: Final = re.compile(
    r" (?=(?: {2})?File \"[^\"\n]{1,400}\", line \d+)"
    r"| (?= {4}\S)"
    r"| (?=(?:[A-Za-z_]\w*\.)*[A-Z]\w*(?:Error|Exception|Exit|Interrupt)(?:: |$))"
)
_IN_TRACEBACK: Final = "Traceback (most recent call last):"


def _glued(texts: Sequence[str]) -> Wrapping | None:
    """A whole log on a line or two: its newlines became spaces, or text."""
    if len(texts) > _MOST_ONE_LINERS:
        return None
    if all(len(_unglued(text)) < 3 for text in texts):
        return None

    def take(line: Bare) -> list[Bare] | None:
        parts = _unglued(_text_of(line))
        if len(parts) < 2:
            return None
        return [_inner(line, part) for part in parts]

    return Wrapping("glued", take)


def _unglued(text: str) -> list[str]:
    """The lines in a line. What may be a client's words is not cut."""
    if text.count("\\n") >= 2:
        begins = [m.end() for m in re.finditer(r"(?:\\r)?\\n", text)]
    else:
        begins = [at for at in _heads(text) if at > 0 and text[at - 1].isspace()]
    parts: list[str] = []
    begin = 0
    for at in [*begins[:MAX_GLUED], len(text)]:
        if at < len(text) and _client_speaks(text[begin:at]):
            break
        parts += _lines_of(text[begin:at])
        begin = at
    if begin < len(text):
        parts.append(text[begin:])
    return [part for part in parts if part.strip()]


def _heads(text: str) -> Iterator[int]:
    """Where lines begin in a line: an engine's beginning, but for its second part."""
    end = -1
    for match in _HEAD.finditer(text):
        if match.start() != end:
            yield match.start()
        end = match.end()


def _client_speaks(text: str) -> bool:
    """Whether a client's words may go on behind ``text``."""
    reading = read_line(text)
    return reading.open or any(end == len(reading.text) for _, end in reading.spans)


def _lines_of(text: str) -> list[str]:
    """Without the newline's remains; a traceback's lines each for itself."""
    text = re.sub(r"(?:\\r)?\\n$", "", text)
    text = text.removesuffix(" ")
    head, mark, rest = text.partition(_IN_TRACEBACK)
    if not mark or not rest.strip():
        return [text]
    return [head + mark, *(part for part in _LINES_OF_TRACEBACK.split(rest) if part)]


# ------------------------------------------------------------------ a prefix

_LEVEL: Final = re.compile(
    r"(?<![A-Za-z])(?:trace|debug|info|warn(?:ing)?|error|critical|fatal)(?![A-Za-z])",
    re.IGNORECASE,
)
_WORDS: Final = re.compile(r"\w+| +|.", re.DOTALL)


def _prefix_of(texts: Sequence[str]) -> Wrapping | None:
    """Columns before each line: a time, a host, a number, whatever stands there."""
    heads = [(text, _head_at(text)) for text in texts]
    inside = [(text, head) for text, head in heads if 0 < head <= MAX_PREFIX]
    outside = sum(_begins_as_an_engines(text) for text in texts)
    if not inside or outside > (1 - NEARLY_ALL) * len(inside):
        return None
    prefixes = [text[:head] for text, head in inside]
    if len(prefixes) == 1 and not text_time(prefixes[0]):
        return None  # what stands once is no column
    if any(_NO_PREFIX.search(prefix) for prefix in prefixes):
        return None
    # What stands in quotation marks may be a client's.
    if not all(is_closed(prefix) and "`" not in prefix for prefix in prefixes):
        return None

    best = _best_of(_templates(prefixes), inside)
    if best is None:
        return None
    narrow, pattern = best
    fitting = sum(pattern.match(text) is not None for text in texts)
    # Lines that go on with one above them may have none.
    going_on = sum(
        head < 0 and not pattern.match(text) and bool(_TRACEBACK_LIKE.match(text))
        for text, head in heads
    )
    if fitting + going_on < MOST * len(texts):
        return None
    # A wide expression would cut words off lines that have no prefix.
    if not narrow and fitting < NEARLY_ALL * len(texts):
        return None
    return _prefix_wrapping(pattern, prefixes)


def _best_of(
    templates: Iterable[re.Pattern[str]], inside: Sequence[tuple[str, int]]
) -> tuple[bool, re.Pattern[str]] | None:
    """The first expression that cuts the most lines where their heads stand, and
    whether it is the narrowest; None: none cuts nearly all."""
    best: tuple[bool, re.Pattern[str]] | None = None
    most = NEARLY_ALL * len(inside)
    for place, pattern in enumerate(templates):
        right = sum(_width(pattern, text) == head for text, head in inside)
        if right > most or (best is None and right >= most):
            best, most = (place == 0, pattern), right
    return best


def _width(pattern: re.Pattern[str], text: str) -> int:
    match = pattern.match(text)
    return match.end() if match else -1


def _prefix_wrapping(pattern: re.Pattern[str], prefixes: Sequence[str]) -> Wrapping:
    levels = {level.upper() for prefix in prefixes for level in _LEVEL.findall(prefix)}
    # Where all is an error, as what stderr gets, the word says nothing.
    telling = bool(levels) and not levels <= ERROR_LEVELS

    def take(line: Bare) -> list[Bare] | None:
        text = _text_of(line)
        match = pattern.match(text)
        if match is None or _begins_as_an_engines(text):
            return None
        rest = text[match.end() :]
        own = {level.upper() for level in _LEVEL.findall(match[0])} & ERROR_LEVELS
        if telling and own and _head_at(rest) != 0 and not _TRACEBACK_LIKE.match(rest):
            return None  # the other program's own error
        return [_inner(line, rest, text_time(match[0]))]

    def is_error(prefix: bytes) -> bool:
        found = _LEVEL.findall(prefix.decode("utf-8", "replace"))
        return not ERROR_LEVELS.isdisjoint(level.upper() for level in found)

    return Wrapping("prefix", take, prefix=True, each=is_error if telling else None)


def _templates(prefixes: Sequence[str]) -> Iterator[re.Pattern[str]]:
    """Expressions of what most of the prefixes are, the narrowest first."""
    shapes = Counter(map(_signature, prefixes))
    shape = shapes.most_common(1)[0][0]
    same = [prefix for prefix in prefixes if _signature(prefix) == shape]
    yield re.compile(_of_words(same))

    example = same[0]
    tabs = example.count("\t")
    if tabs:
        last = [prefix.rpartition("\t")[2] for prefix in same]
        yield re.compile(rf"(?:[^\t\n]*\t){{{tabs}}}{_of_words(last)}")
    columns = len(example.split())
    if example[-1:] == " " and columns:
        gap = " " * _least_gap(same)
        yield re.compile(rf"\s*(?:\S+\s+){{{columns - 1}}}\S+{gap}")
    ending = _ending(prefixes)
    if ending.strip() or ending == "\t":
        count = example.count(ending)
        one = rf"(?:(?!{re.escape(ending)}).)*{re.escape(ending)}"
        yield re.compile(rf"(?:{one}){{{count}}}")


def _signature(prefix: str) -> str:
    """Its signs, with one letter for each word and one space for each gap."""
    signs = []
    for part in _WORDS.findall(prefix):
        if part[0] == " ":
            signs.append(" ")
        elif part[0].isalnum() or part[0] == "_":
            signs.append("w")
        else:
            signs.append(part)
    return "".join(signs)


def _of_words(prefixes: Sequence[str]) -> str:
    """An expression of prefixes with one signature: words may be any, and gaps but the
    last one of any width."""
    parts = _WORDS.findall(prefixes[0])
    out = []
    for n, part in enumerate(parts):
        if part[0] == " " and n == len(parts) - 1:
            out.append(" " * _least_gap(prefixes))
        elif part[0] == " " and n == 0:
            out.append(" *")
        elif part[0] == " ":
            out.append(" " if len(part) == 1 else " +")
        elif part[0].isalnum() or part[0] == "_":
            out.append(r"\w+")
        else:
            out.append(re.escape(part))
    # A word that is wide in one line and narrow in another is padded.
    return "".join(out).replace(r"\w+ \w", r"\w+ +\w")


def _least_gap(prefixes: Sequence[str]) -> int:
    """Spaces at the end that each prefix has."""
    return min(len(prefix) - len(prefix.rstrip(" ")) for prefix in prefixes)


def _ending(prefixes: Sequence[str]) -> str:
    """The signs with which each prefix ends."""
    ending = ""
    for length in range(1, min(map(len, prefixes)) + 1):
        last = prefixes[0][-length:]
        if last[0].isalnum() or not all(p.endswith(last) for p in prefixes):
            break
        ending = last
    return ending

"""Exceptions as logs print them: whose, with which frames, and which of a chain came
first."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field

from mmrepro.probes.data import LogLine
from mmrepro.probes.log_words import public_line

MAX_CHARS = 2000
_MAX_MORE = 12
"""Lines of a message after its first."""
MAX_FRAMES = 200

TRACEBACK = "Traceback (most recent call last)"
_ENDS = (
    r"(?:Error|Exception|Exit|Interrupt|Timeout|TimedOut|Failure|Empty|Full|Died|Again|"
    r"Disconnect|StopIteration|Cancelled)"
)
_RAISED = re.compile(
    rf"^(?P<kind>(?:[A-Za-z_]\w*\.)*[A-Za-z_]*{_ENDS}\d*)(?:\([A-Za-z_]\w*\))?(?::(?: "
    rf"|$)|$)"
)
"""At the line's beginning: ``torch.OutOfMemoryError: …``, ``AssertionError``, and of
Ray ``RayTaskError(ValueError): …``."""
_INSIDE = re.compile(
    r"^(?P<kind>(?:[A-Za-z_]\w*\.)+[A-Za-z_]\w*|[A-Z]\w*)(?:\([A-Za-z_]\w*\))?(?::(?: "
    r"|$)|$)"
)
"""Below the frames of a traceback any class is an exception's."""
_QUOTED = re.compile(
    rf"^(?P<kind>(?:[A-Za-z_]\w*\.)*[A-Za-z_]*{_ENDS})\((?P<said>['\"].*)\)$"
)
"""``RuntimeError('Engine process (pid 77) died.')``: how vLLM's V0 client logs one."""
_AFTER = re.compile(
    r"(?:^|[ :])(?P<kind>(?:[A-Za-z_]\w*\.)*[A-Z][A-Za-z]*(?:Error|Exception)): (?=\S)"
)
"""Within a line that a logger wrote: ``… failed with error: ValueError: …``."""
_FRAME = re.compile(
    r'^\s*File "(?P<file>[^"]{1,400})", line (?P<line>\d+)(?:, in (?P<name>.+))?'
)
_RAY = re.compile(r"^(?:ray\.exceptions\.)?RayTaskError\(\w+\): ")
"""Of what a worker raised; its frames and its own type follow."""
_REPEATED = re.compile(r" \[repeated \d+x across cluster\].*$")
"""Ray's, on lines of which it shows one only."""
_HINT = re.compile(
    r"CUDA kernel errors might be asynchronously|For debugging consider passing|"
    r"Compile with `?TORCH_USE_|Search for `\w+' in http|Device-side assertions were"
)
"""What torch adds to each error of CUDA: they say nothing of this one."""
_ENDED = re.compile(
    r"^(?:Killed|Aborted|Terminated|Segmentation fault|Bus error|Illegal instruction)"
    r"|core dumped|"
    r"^Fatal Python error|^terminate called|^Process \w|^Exception in thread|^\[rank\d"
)
"""What a shell, an interpreter or another process says next: no message goes on with
it."""
_RANK = re.compile(r"^\[rank(\d+)\]:\s?(?!\[)")
_UNCAUGHT = re.compile(
    r"Uncaught exception \| <class '(?:[\w.]*\.)?(?P<kind>\w+)'>; (?P<said>.*)"
)
_BOX = re.compile(r"^\s*[│┃] ?|\s*[│┃]?\s*$")
"""What a terminal's pane puts around lines that are copied from it."""
_GROUP = re.compile(r"^\s*(?:[|+]\s?)+(?:-+ ?\d* ?-*)?")
_CHAINS = (
    "The above exception was the direct cause of the following exception",
    "During handling of the above exception, another exception occurred",
)
_UNTELLING = re.compile(
    r"^(?:_?queue\.|asyncio\.|concurrent\.futures\.|zmq\.error\.|anyio\.|_queue\.)*"
    r"(?:Empty|Full|CancelledError|Again|StopIteration|StopAsyncIteration|WouldBlock|"
    r"EndOfStream|BlockingIOError)\b|^asyncio\.exceptions\.(?:CancelledError"
    r"|TimeoutError)|"
    r"^TimeoutError:?$"
)
"""In a chain these are how a wait ended: what was raised because of them tells more."""


@dataclass(frozen=True)
class _CodeFrame:
    file: str
    line: int
    name: str
    source: str = ""


@dataclass
class LogException:
    """One exception.

    Attributes:
        line: the line that has its type.
        text: type and message, its further lines after a newline, a client's words
            blanked.
        raw: the same with them, to be shown; nothing is concluded from it.
        frames: outermost first.
        intro: what the logger said before the traceback.
        follows: another one of its chain, printed before it, is what matters.
    """

    line: LogLine
    kind: str
    text: str
    raw: str
    process: str = ""
    time: str = ""
    when: float | None = None
    source: str = ""
    frames: list[_CodeFrame] = field(default_factory=list)
    intro: str = ""
    follows: bool = False
    more: int = 0

    @property
    def number(self) -> int:
        return self.line.number

    @property
    def told(self) -> str:
        """Its first line; of one without a message, the code that raised it as well."""
        first = self.raw.partition("\n")[0].strip()
        if first.rstrip(":") == self.kind and self.frames and self.frames[-1].source:
            frame = self.frames[-1]
            return (
                f"{self.kind} ({frame.source}; "
                f"{frame.file.rpartition('/')[2]}:{frame.line})"
            )
        if first.endswith(":") and "\n" in self.raw:
            return f"{first} {self.raw.split(chr(10))[1].strip()}"
        return first


@dataclass
class _State:
    """Of one process's output."""

    opener: LogLine | None = None
    frames: list[_CodeFrame] = field(default_factory=list)
    open: bool = False
    intro: str = ""
    before: str = ""
    marked: LogLine | None = None
    quoted: LogException | None = None
    chained: LogException | None = None
    last: LogException | None = None


def bare(line: LogLine) -> bool:
    """Whether nothing says who wrote it: it goes on with what was written before."""
    return not (line.process or line.level or line.time)


@dataclass
class Read:
    """``raised``: every exception, as it came; ``taken``: numbers of the lines of
    tracebacks."""

    raised: list[LogException] = field(default_factory=list)
    taken: set[int] = field(default_factory=set)


def read(lines: Iterable[LogLine]) -> Read:
    """The exceptions of these lines, which are in their order."""
    states: dict[str, _State] = {}
    told = Read()
    owner = ""
    for line in lines:
        text = _REPEATED.sub("", line.own_words)
        key = line.process
        if match := _RANK.match(text):
            key, text = f"rank {match[1]}", text[match.end() :]
        if text.lstrip()[:1] in "|+" and text.strip():
            text = _GROUP.sub("", text)
        elif text.lstrip()[:1] in "│┃" and text.strip():
            text = _BOX.sub("", text)
        if bare(line) and not match:
            key = owner
        state = states.setdefault(key, _State())
        if TRACEBACK in text:
            if state.quoted is not None and state.quoted.line.source == line.source:
                state.quoted.follows = (
                    True  # what it quotes is printed now, with its cause
                )
            state.quoted = None
            head = text.partition(TRACEBACK)[0].rstrip(" :")
            state.intro = head or state.before
            state.opener = state.marked if bare(line) and state.marked else line
            state.frames, state.open, owner = [], True, key
            continue
        if frame := _FRAME.match(text):
            if not state.open:
                state.opener, state.frames, state.open = line, [], True
                state.intro = state.before
            if len(state.frames) < MAX_FRAMES:
                place = (
                    frame["file"],
                    int(frame["line"]),
                    (frame["name"] or "").strip(),
                )
                state.frames.append(_CodeFrame(*place))
            state.last = None
            told.taken.add(line.number)
            continue
        stripped = text.strip()
        if any(chain in stripped for chain in _CHAINS):
            state.chained = state.last or state.chained
            continue
        if _RAY.match(stripped):
            state.opener, state.frames, state.open, state.intro = (
                line,
                [],
                True,
                stripped,
            )
            told.taken.add(line.number)
            continue
        if one := _one(line, text, state):
            one.process = key or one.process
            told.raised.append(one)
            told.taken.add(line.number)
            state.last, state.open, state.frames, state.chained = one, False, [], None
            state.quoted = one if _QUOTED.match(text) else state.quoted
            if key.startswith("rank ") or not bare(line):
                owner = key
            continue
        below = state.open and bool(state.frames) and not state.frames[-1].source
        if stripped and (
            below or (text[:1] in " \t" and (state.open or not bare(line)))
        ):
            told.taken.add(line.number)
            if not state.open:  # its head is not in the log
                state.opener, state.frames, state.open = line, [], True
                state.intro = state.before
            if not set(stripped) <= set("^~ -"):
                last = state.frames.pop() if state.frames else _CodeFrame("", 0, "")
                if last.source:
                    state.frames.append(last)
                    last = _CodeFrame("", 0, "")
                source = stripped[:200]
                state.frames.append(_CodeFrame(last.file, last.line, last.name, source))
            continue
        if state.last is not None and _goes_on(state.last, line, stripped):
            if not _HINT.search(stripped):
                state.last.text = f"{state.last.text}\n{stripped}"[:MAX_CHARS]
                state.last.raw = f"{state.last.raw}\n{public_line(line).strip()}"[
                    :MAX_CHARS
                ]
            state.last.more += 1
            told.taken.add(line.number)
            continue
        if stripped:
            state.before = stripped
            state.last = None if not bare(line) else state.last
            if not bare(line):
                state.open, owner, state.marked = False, key, line
    return told


def _one(line: LogLine, text: str, state: _State) -> LogException | None:
    """The exception that this line holds."""
    inside = state.open and bool(state.frames or state.opener is not None)
    pattern = _INSIDE if inside and state.frames else _RAISED
    match, said = pattern.match(text), text
    if match is None and text[:1].isspace() and inside:
        match, said = _RAISED.match(text.strip()), text.strip()
    if match is None and (match := _QUOTED.match(text)):
        said = f"{match['kind']}: {match['said'].strip(chr(34) + chr(39))}"
    if match is None and (match := _UNCAUGHT.search(text)):
        said = f"{match['kind']}: {match['said']}"
    loud = line.level in ("ERROR", "CRITICAL", "FATAL", "WARNING")
    if match is None and loud and not inside and (match := _AFTER.search(text)):
        said = text[match.start("kind") :]
    # NCCL's, within a message of torch's.
    if match is None or match["kind"].startswith("nccl"):
        return None
    opener = (state.opener if inside else state.marked if bare(line) else None) or line
    shown = line if line.time or line.process else opener
    first = state.chained
    if first is not None and _UNTELLING.match(first.text.partition("\n")[0]):
        first.follows, first = True, None
    at = line.own_words.find(said)
    raw = public_line(line, begin=at, end=at + len(said)) if at >= 0 else said
    return LogException(
        line=line,
        kind=match["kind"],
        text=said.strip()[:MAX_CHARS],
        raw=raw.strip()[:MAX_CHARS],
        process=line.process or shown.process,
        time=line.time or opener.time,
        when=line.when if line.when is not None else opener.when,
        source=line.source or opener.source,
        frames=list(state.frames) if inside else [],
        intro=state.intro
        if inside
        else text[: match.start("kind")].strip() or state.before,
        follows=first is not None,
    )


def _goes_on(last: LogException, line: LogLine, stripped: str) -> bool:
    if last.more >= _MAX_MORE:
        return False
    if bare(line):
        return bool(stripped) and not _ENDED.search(stripped)
    if not stripped:
        return False
    same = (line.process, line.level, line.time, line.source)
    return same == (
        last.line.process,
        last.line.level,
        last.line.time,
        last.line.source,
    ) and bool(line.source)


def frames_text(one: LogException, innermost: int) -> str:
    """Names, files and code of its innermost frames."""
    return "\n".join(f"{f.file} {f.name} {f.source}" for f in one.frames[-innermost:])


def roots(found: Sequence[LogException]) -> list[LogException]:
    """Without those that another one of their chain caused."""
    return [one for one in found if not one.follows]

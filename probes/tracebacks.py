"""Exceptions as logs print them: whose, with which frames, and which of a chain came
first.

One reader for all forms: Python's own, several processes that write in turn, exception
groups with their rails, rich's boxes, Ray's remote tasks, and anyhow's chain of causes.
A log may have lost the head, the tail, or the indentation of a traceback."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field, replace
from enum import StrEnum
from typing import Final

from mmrepro.probes.data import LogLine
from mmrepro.probes.log_forms import has_form, read_line
from mmrepro.probes.log_words import own_line, public_line

MAX_CHARS: Final = 2000
MAX_MESSAGE_LINES: Final = 40
MAX_FRAMES: Final = 200
MAX_CODE_LINES: Final = 12
"""Python prints a statement of several lines up to that length."""
MAX_CODE_CHARS: Final = 400

TRACEBACK: Final = "Traceback (most recent call last)"

# ------------------------------------------------------------------ forms of lines

_ENDS: Final = (
    r"(?:Error|Exception|Exit|Interrupt|Timeout|TimedOut|Failure|Empty|Full|Died|Again|"
    r"Disconnect|StopIteration|Cancelled|NotFound)"
)
# Ray names the class of the task's own exception in brackets; a call has none.
_OF_TASK: Final = r"(?:(?<=TaskError)\([A-Za-z_]\w*\))?"
_SAYS: Final = r"(?::(?: |$)|$)"
_RAISED: Final = re.compile(
    rf"^(?P<kind>(?:[A-Za-z_]\w*\.)*[A-Za-z_]*{_ENDS}\d*){_OF_TASK}{_SAYS}"
)
"""At the line's beginning: ``torch.OutOfMemoryError: …``, ``AssertionError``, and of
Ray ``RayTaskError(ValueError): …``."""
_NO_KINDS: Final = r"(?!(?:Message|Arguments|Note|Hint|Solution|Reason|Details?):)"
"""What loggers and libraries write below frames, and is no exception."""
_BELOW_FRAMES: Final = re.compile(
    rf"^{_NO_KINDS}(?P<kind>(?:[A-Za-z_]\w*\.)+[A-Za-z_]\w*|[A-Z]\w*){_OF_TASK}{_SAYS}"
)
"""Below the frames of a traceback any class is an exception's."""
_WITHOUT_INDENT: Final = re.compile(
    rf"^{_NO_KINDS}(?P<kind>(?:[A-Za-z_]\w*\.)*(?:[A-Z]\w*|[a-z]*(?:error|timeout)))"
    rf"{_OF_TASK}{_SAYS}"
)
"""Where code is not indented, ``self.model`` is code, and ``socket.gaierror`` none."""
_QUOTED: Final = re.compile(
    rf"^(?P<kind>(?:[A-Za-z_]\w*\.)*[A-Za-z_]*{_ENDS})\((?P<said>['\"].*)\)$"
)
"""``RuntimeError('Engine process (pid 77) died.')``: how vLLM's V0 client logs one."""
_AFTER: Final = re.compile(
    r"(?:^|[ :])(?P<kind>(?:[A-Za-z_]\w*\.)*[A-Z][A-Za-z]*(?:Error|Exception)): (?=\S)"
)
"""Within a line that a logger wrote: ``… failed with error: ValueError: …``."""
_UNCAUGHT: Final = re.compile(
    r"Uncaught exception \| <class '(?:[\w.]*\.)?(?P<kind>\w+)'>; (?P<said>.*)"
)
_FRAME: Final = re.compile(
    r'^\s*File "(?P<file>[^"]{1,400})", line (?P<line>\d+)(?:, in (?P<name>.+))?'
)
_NATIVE_FRAME: Final = re.compile(r'^\s*File "[^"]{1,400}", line \d+ in \S')
"""CPython's faulthandler: no code follows, and no exception."""
_TASK: Final = re.compile(
    r"^(?:ray\.exceptions\.)?RayTaskError\(\w+\): |^ray::[^\s(]{1,200}\(\)"
)
"""Of what a worker of Ray raised; its frames and its own type follow."""
_REPEATED: Final = re.compile(r" \[repeated \d+x across cluster\].*$")
"""Ray's, on lines of which it shows one only."""
_CUDA_HINT: Final = re.compile(
    r"CUDA kernel errors might be asynchronously|For debugging consider passing|"
    r"Compile with `?TORCH_USE_|Search for `\w+' in http|Device-side assertions were"
)
"""What torch adds to each error of CUDA: they say nothing of this one."""
_ENDED: Final = re.compile(
    r"^(?:Killed|Aborted|Terminated|Segmentation fault|Bus error|Illegal instruction)"
    r"|core dumped|"
    r"^Fatal Python error|^terminate called|^Process \w|^Exception in thread|^\[rank\d"
)
"""What a shell, an interpreter or another process says next: no message goes on with
it."""
_RANK: Final = re.compile(r"^\[rank(\d+)\]:\s?(?!\[)")
_ERROR_LEVELS: Final = ("ERROR", "CRITICAL", "FATAL", "WARNING")
_LOCATORS: Final = frozenset("^~ -")
"""What Python draws below code."""

_RAILS: Final = re.compile(r"^\s*(?:[|+]\s?)+(?:-+ ?\d* ?-*)?")
_MEMBER: Final = re.compile(
    r"^(?P<rails>\s*(?:\|\s*)*\+(?:-\+)?)-{3,}(?: (?P<n>\d+) )?"
)
"""Between the members of an exception group: ``+-+---- 1 ----``, ``+---- 2 ----``."""
_PANE: Final = re.compile(r"^\s*[│┃] ?|\s*[│┃]?\s*$")
"""What a terminal's pane puts around lines that are copied from it."""
_BOX_TOP: Final = re.compile(rf"^\s*[╭┏╔].*{re.escape(TRACEBACK)}")
_BOX_END: Final = re.compile(r"^\s*[╰┗╚]")
_BOX_FRAME: Final = re.compile(r"^(?P<file>\S.*?):(?P<line>\d+) in ?(?P<name>\S.*)?$")
_BOX_CODE: Final = re.compile(r"^❱ *\d+ *[│┃]?(?P<code>.*)$")

_CAUSED_BY: Final = re.compile(r"^\s*Caused by:\s*$")
_CAUSE: Final = re.compile(r"^\s*(?:(?P<n>\d+): )?(?P<text>\S.*)$")


class ChainLink(StrEnum):
    """How an exception is tied to the one that was printed before it."""

    NONE = ""
    DIRECT = "direct cause"
    HANDLING = "during handling"
    MEMBER = "member of a group"
    CAUSED_BY = "caused by"


_CHAINS: Final = {
    "The above exception was the direct cause of the following exception": (
        ChainLink.DIRECT
    ),
    "During handling of the above exception, another exception occurred": (
        ChainLink.HANDLING
    ),
}
_UNTELLING: Final = re.compile(
    r"^(?:_?queue\.|asyncio\.|concurrent\.futures\.|zmq\.error\.|anyio\.|_queue\.)*"
    r"(?:Empty|Full|CancelledError|Again|StopIteration|StopAsyncIteration|WouldBlock|"
    r"EndOfStream|BlockingIOError)\b|^asyncio\.exceptions\.(?:CancelledError"
    r"|TimeoutError)|"
    r"^TimeoutError:?$"
)
"""In a chain these are how a wait ended: what was raised because of them tells more."""


# ------------------------------------------------------------------ what is read


@dataclass(frozen=True)
class TracebackFrame:
    """A function that was being run.

    Attributes:
        file: "": the log has only the code of it.
        source: the code there, of one line or of a statement's; "": it was not printed.
    """

    file: str
    line: int
    name: str
    source: str = ""


@dataclass
class RaisedException:
    """One exception.

    Attributes:
        line: the line that has its type.
        kind: the class, with its modules; of anyhow's chain ``Error``.
        message: what it says, as it was printed, with all its lines.
        words: ``message`` with a client's words blanked, of the same length.
        head: the line with type and message, a client's words blanked.
        raw: type and message to be shown; nothing is concluded from it.
        own: the same for the user's own screen.
        frames: outermost first.
        intro: what the logger said before the traceback.
        headed: a traceback's first line stood before it.
        within: a logger wrote it into a line of its own words.
        before: the one of its chain that was printed before it, tied to it by ``link``.
        members: of an exception group, the exceptions in it.
        follows: another one of its chain is what matters.
    """

    line: LogLine
    kind: str
    message: str
    words: str
    head: str
    raw: str
    own: str = ""
    process: str = ""
    time: str = ""
    when: float | None = None
    source: str = ""
    frames: list[TracebackFrame] = field(default_factory=list)
    intro: str = ""
    headed: bool = False
    within: bool = False
    before: RaisedException | None = None
    link: ChainLink = ChainLink.NONE
    members: list[RaisedException] = field(default_factory=list)
    follows: bool = False
    message_lines: int = 1

    @property
    def number(self) -> int:
        return self.line.number

    @property
    def text(self) -> str:
        """Type and message, without what torch adds to each: what rules are tried
        on."""
        lines = [self.head]
        for line in self.words.split("\n")[1:]:
            if not _CUDA_HINT.search(line):
                lines.append(line.strip())
        return "\n".join(lines)[:MAX_CHARS]

    @property
    def told(self) -> str:
        """Its first line; of one without a message, the code that raised it as well."""
        first, _, rest = self.raw.partition("\n")
        first = first.strip()
        if first.rstrip(":") == self.kind and self.frames and self.frames[-1].source:
            frame = self.frames[-1]
            place = f"{frame.file.rpartition('/')[2]}:{frame.line}"
            code, _, _ = frame.source.partition("\n")
            return f"{self.kind} ({code}; {place})"
        if first.endswith(":") and rest:
            return f"{first} {rest.partition(chr(10))[0].strip()}"
        return first


@dataclass
class Tracebacks:
    """What was read.

    Attributes:
        raised: every exception, as it came.
        stack: places, among the lines that were read, of heads, frames and code.
        heads: places of the lines with an exception's type.
        taken: frames, code, exceptions and their messages.
        cut: frames at the end of what a process wrote, without an exception.
    """

    raised: list[RaisedException] = field(default_factory=list)
    stack: set[int] = field(default_factory=set)
    heads: set[int] = field(default_factory=set)
    taken: set[int] = field(default_factory=set)
    cut: list[list[TracebackFrame]] = field(default_factory=list)


def bare(line: LogLine) -> bool:
    """Whether nothing says who wrote it: it goes on with what was written before."""
    return not (line.process or line.level or line.time)


def frames_text(raised: RaisedException, innermost: int) -> str:
    """Names, files and code of its innermost frames."""
    frames = raised.frames[-innermost:]
    return "\n".join(f"{frame.file} {frame.name} {frame.source}" for frame in frames)


def roots(raised: Sequence[RaisedException]) -> list[RaisedException]:
    """Without those that another one of their chain caused."""
    return [exception for exception in raised if not exception.follows]


def exceptions_in(
    lines: Iterable[LogLine], words: Callable[[LogLine], str] | None = None
) -> Tracebacks:
    """The exceptions of these lines, which are in their order.

    Args:
        words: what of a line counts; None: all but a client's words.
    """
    reader = _TracebackReader(words or _own_words)
    for place, line in enumerate(lines):
        reader.add(place, line)
    return reader.result()


def _own_words(line: LogLine) -> str:
    return line.own_words


# ------------------------------------------------------------------ the reader


@dataclass
class _Output:
    """What one process has written so far.

    Attributes:
        open: a traceback has begun and its exception has not come.
        flush: its frames are not indented: the log lost that.
        code_lines: lines of code since the last frame.
        box: the lines of a box of rich's are read; ``split``: its frame that is cut.
        marked: the last line that says who wrote it; ``before``: what the last one
            says.
        chained: the exception that the next one follows from, by ``link``.
        quoted: an exception that a client's logger quoted.
        causes: whose causes anyhow lists now.
        groups: the exception groups that are open, with the column of their rails.
    """

    opener: LogLine | None = None
    frames: list[TracebackFrame] = field(default_factory=list)
    open: bool = False
    headed: bool = False
    flush: bool = False
    code_lines: int = 0
    box: bool = False
    split: str = ""
    intro: str = ""
    before: str = ""
    marked: LogLine | None = None
    quoted: RaisedException | None = None
    chained: RaisedException | None = None
    link: ChainLink = ChainLink.NONE
    last: RaisedException | None = None
    causes: RaisedException | None = None
    groups: list[tuple[int, RaisedException | None]] = field(default_factory=list)

    @property
    def expects_code(self) -> bool:
        """Whether the last line was a frame, which its code follows."""
        return self.open and bool(self.frames) and not self.frames[-1].source

    def begin(self, line: LogLine, intro: str, *, headed: bool = False) -> None:
        """A traceback begins with ``line``."""
        self.opener, self.intro, self.headed = line, intro, headed
        self.frames, self.open, self.flush = [], True, False
        self.code_lines = 0

    def add_frame(self, frame: TracebackFrame) -> None:
        self.frames.append(frame)
        if len(self.frames) > MAX_FRAMES:
            del self.frames[0]

    def add_code(self, code: str) -> None:
        """The code of the last frame; of one that the log lost, where there is none."""
        self.code_lines += 1
        known = bool(self.frames) and self.frames[-1].file != ""
        if not known or self.code_lines > MAX_CODE_LINES:
            self.add_frame(TracebackFrame("", 0, "", code[:MAX_CODE_CHARS]))
            return
        last = self.frames.pop()
        # A statement may be several lines.
        source = f"{last.source}\n{code}" if last.source else code
        self.frames.append(replace(last, source=source[:MAX_CODE_CHARS]))


@dataclass(frozen=True)
class _Piece:
    """A line, and what of it counts, without rails and a pane's sides."""

    place: int
    line: LogLine
    text: str
    key: str
    railed: bool

    @property
    def stripped(self) -> str:
        return self.text.strip()

    @property
    def indent(self) -> int:
        return len(self.text) - len(self.text.lstrip())


class _TracebackReader:
    """Reads line after line; each process has a state of its own."""

    def __init__(self, words: Callable[[LogLine], str]) -> None:
        self._words = words
        self._outputs: dict[str, _Output] = {}
        self._owner = ""
        self._found = Tracebacks()

    def result(self) -> Tracebacks:
        for output in self._outputs.values():
            if output.open and output.frames:
                self._found.cut.append(output.frames)
        return self._found

    def add(self, place: int, line: LogLine) -> None:
        text = _REPEATED.sub("", self._words(line))
        key = line.process
        if has_form(text):
            # Another logger's line within this one's.
            inner = read_line(text, words=False)
            if inner.mark or inner.engine:
                key, text = inner.process or key, inner.text
        rank = _RANK.match(text)
        if rank:
            key, text = f"rank {rank[1]}", text[rank.end() :]
        elif bare(line):
            key = self._owner
        output = self._outputs.setdefault(key, _Output())

        if self._boxed(place, line, text, key, output):
            return
        railed = text.lstrip()[:1] in ("|", "+")
        if railed and self._between_members(place, text, output):
            return
        if railed:
            text = _RAILS.sub("", text)
        elif text.lstrip()[:1] in ("│", "┃"):
            text = _PANE.sub("", text)
        self._read(_Piece(place, line, text, key, railed), output)

    def _read(self, piece: _Piece, output: _Output) -> None:
        """The first that knows the line takes it."""
        taken = (
            self._head(piece, output)
            or self._frame(piece, output)
            or self._chain(piece, output)
            or self._causes(piece, output)
            or self._task(piece, output)
            or self._exception(piece, output)
            or self._message(piece, output)
            or self._code(piece, output)
        )
        if not taken and piece.stripped:
            self._other(piece, output)

    # ------------------------------------------------------------ boxes and rails

    def _boxed(
        self, place: int, line: LogLine, text: str, key: str, output: _Output
    ) -> bool:
        """A box of rich's: a frame is ``file:line in name``, code has its number."""
        if _BOX_TOP.match(text):
            output.begin(line, output.before, headed=True)
            output.box, output.split, self._owner = True, "", key
        elif not output.box:
            return False
        elif _BOX_END.match(text):
            output.box = False
        elif text.lstrip()[:1] not in ("│", "┃", "║"):
            # The box was cut: this line is none of it.
            output.box = False
            return False
        else:
            self._inside_box(text.strip()[1:-1].strip(), output)
        self._found.stack.add(place)
        self._found.taken.add(place)
        return True

    @staticmethod
    def _inside_box(text: str, output: _Output) -> None:
        code = _BOX_CODE.match(text)
        if code is not None:
            if output.frames:
                output.add_code(code["code"].strip(" │┃"))
            return
        # A path that is wider than the box goes on in the next line.
        frame = _BOX_FRAME.match(output.split + text)
        if frame is not None and not frame["name"]:
            output.split = f"{output.split}{text} "
        elif frame is not None:
            place = frame["file"], int(frame["line"]), frame["name"].strip()
            output.add_frame(TracebackFrame(*place))
            output.split = ""
        else:
            output.split = text if text.startswith("/") else ""

    def _between_members(self, place: int, text: str, output: _Output) -> bool:
        """The line between two exceptions of a group."""
        member = _MEMBER.match(text)
        if member is None:
            return False
        column = member["rails"].rindex("+")
        known = [group for at, group in output.groups if at == column]
        output.groups = [entry for entry in output.groups if entry[0] < column]
        if member["n"]:
            last = output.last
            new = last if last is not None and last.kind.endswith("Group") else None
            output.groups.append((column, known[0] if known else new))
        output.open = False
        self._found.stack.add(place)
        self._found.taken.add(place)
        return True

    # ------------------------------------------------------------ parts of a traceback

    def _stack_line(self, piece: _Piece) -> None:
        self._found.stack.add(piece.place)
        self._found.taken.add(piece.place)

    def _head(self, piece: _Piece, output: _Output) -> bool:
        if TRACEBACK not in piece.text:
            return False
        quoted = output.quoted
        if quoted is not None and quoted.line.source == piece.line.source:
            # What it quotes is printed now, with its cause.
            quoted.follows = True
        output.quoted = output.causes = None
        head = piece.text.partition(TRACEBACK)[0].rstrip(" :")
        if head.strip() == "Exception Group":
            head = ""
        opener = piece.line
        if bare(piece.line) and output.marked is not None:
            opener = output.marked
        output.begin(opener, head or output.before, headed=True)
        self._found.stack.add(piece.place)
        self._owner = piece.key
        return True

    def _frame(self, piece: _Piece, output: _Output) -> bool:
        frame = _FRAME.match(piece.text)
        if frame is None:
            return False
        self._stack_line(piece)
        output.last = None
        if _NATIVE_FRAME.match(piece.text):
            return True
        if not output.open:  # its head is not in the log
            output.begin(piece.line, output.before)
        place = frame["file"], int(frame["line"]), (frame["name"] or "").strip()
        output.add_frame(TracebackFrame(*place))
        output.flush, output.code_lines = piece.indent == 0, 0
        return True

    def _chain(self, piece: _Piece, output: _Output) -> bool:
        for words, link in _CHAINS.items():
            if words in piece.text:
                output.chained = output.last or output.chained
                output.link = link
                self._found.stack.add(piece.place)
                return True
        return False

    def _task(self, piece: _Piece, output: _Output) -> bool:
        if not _TASK.match(piece.stripped):
            return False
        output.begin(piece.line, piece.stripped)
        self._stack_line(piece)
        return True

    def _code(self, piece: _Piece, output: _Output) -> bool:
        if not piece.stripped or not self._is_code(piece, output):
            return False
        self._stack_line(piece)
        if not output.open:  # its head is not in the log
            output.begin(piece.line, output.before)
        if not set(piece.stripped) <= _LOCATORS:
            output.add_code(piece.stripped)
        return True

    @staticmethod
    def _is_code(piece: _Piece, output: _Output) -> bool:
        if output.expects_code:
            return True
        if piece.text[:1] in (" ", "\t"):
            return output.open or not bare(piece.line)
        # A statement of several lines, in a log that lost its indentation.
        return (
            output.open
            and output.flush
            and bool(output.frames)
            and output.code_lines < MAX_CODE_LINES
            and _of_one_record(output.opener, piece.line)
        )

    # ------------------------------------------------------------ the exception

    def _exception(self, piece: _Piece, output: _Output) -> bool:
        match, said, within = self._says(piece, output)
        # NCCL's, within a message of torch's.
        if match is None or match["kind"].startswith("nccl"):
            return False
        raised = self._raised(piece, output, match, said)
        raised.within = within
        raised.process = piece.key or raised.process
        self._tie(piece, output, raised)
        self._keep(piece.place, output, raised)
        if _QUOTED.match(piece.text):
            output.quoted = raised
        if piece.key.startswith("rank ") or not bare(piece.line):
            self._owner = piece.key
        return True

    @staticmethod
    def _says(piece: _Piece, output: _Output) -> tuple[re.Match[str] | None, str, bool]:
        """The exception in a line, its words, and whether a logger wrote it there."""
        text, line = piece.text, piece.line
        inside = output.open and bool(output.frames or output.opener is not None)
        pattern = _RAISED
        if inside and output.frames:
            pattern = _WITHOUT_INDENT if output.flush else _BELOW_FRAMES
        if output.expects_code:
            # A frame's code follows it, unless the log has none: then what stands
            # further left, or is a class of exceptions by its name, is the exception.
            pattern = _RAISED if output.flush or piece.indent else _BELOW_FRAMES
        match = pattern.match(text)
        if match is not None:
            return match, text, False
        if text[:1].isspace() and inside and not output.expects_code:
            match = _RAISED.match(text.strip())
            if match is not None:
                return match, text.strip(), False
        if output.flush and inside and output.frames:
            return None, "", False
        match = _QUOTED.match(text)
        if match is not None:
            quoted = match["said"].strip("\"'")
            return match, f"{match['kind']}: {quoted}", True
        match = _UNCAUGHT.search(text)
        if match is not None:
            return match, f"{match['kind']}: {match['said']}", True
        if line.level in _ERROR_LEVELS and not inside:
            match = _AFTER.search(text)
            if match is not None:
                return match, text[match.start("kind") :], True
        return None, "", False

    def _raised(
        self, piece: _Piece, output: _Output, match: re.Match[str], said: str
    ) -> RaisedException:
        line = piece.line
        inside = output.open and bool(output.frames or output.opener is not None)
        opener = line
        if inside and output.opener is not None:
            opener = output.opener
        elif not inside and bare(line) and output.marked is not None:
            opener = output.marked
        shown = line if line.time or line.process else opener
        intro = output.intro
        if not inside:
            intro = piece.text[: match.start("kind")].strip() or output.before

        at = self._words(line).find(said)
        raw = own = printed = said
        if at >= 0:
            end = at + len(said)
            printed = line.text[at:end]
            raw = public_line(line, begin=at, end=end)
            own = own_line(line, begin=at, end=end)
        begin = _message_at(said, match["kind"])
        return RaisedException(
            line=line,
            kind=match["kind"],
            message=printed[begin:],
            words=said[begin:],
            head=said.strip(),
            raw=raw.strip()[:MAX_CHARS],
            own=own.strip()[:MAX_CHARS],
            process=line.process or shown.process,
            time=line.time or opener.time,
            when=line.when if line.when is not None else opener.when,
            source=line.source or opener.source,
            frames=list(output.frames) if inside else [],
            intro=intro,
            headed=inside and output.headed,
        )

    @staticmethod
    def _tie(piece: _Piece, output: _Output, raised: RaisedException) -> None:
        """To the exception that it follows from, or to its group."""
        first = output.chained
        if first is not None:
            raised.before, raised.link = first, output.link
            if _UNTELLING.match(first.text.partition("\n")[0]):
                first.follows = True
            else:
                raised.follows = True
        if not piece.railed:
            output.groups = []
        elif output.groups:
            group = output.groups[-1][1]
            if group is not None and group is not raised:
                group.members.append(raised)
                # What is in a group tells more than that there is one.
                group.follows = True
                if raised.before is None:
                    raised.before, raised.link = group, ChainLink.MEMBER

    def _keep(self, place: int, output: _Output, raised: RaisedException) -> None:
        self._found.raised.append(raised)
        self._found.heads.add(place)
        self._found.taken.add(place)
        output.last, output.open, output.frames = raised, False, []
        output.chained, output.link, output.causes = None, ChainLink.NONE, None

    def _message(self, piece: _Piece, output: _Output) -> bool:
        last = output.last
        if last is None or output.open or not _goes_on(last, piece):
            return False
        own = self._words(piece.line)
        if len(last.message) < MAX_CHARS * 4:
            printed = piece.text
            if len(own) == len(piece.line.text) and own.endswith(piece.text):
                printed = piece.line.text[len(own) - len(piece.text) :]
            last.message = f"{last.message}\n{printed}"
            last.words = f"{last.words}\n{piece.text}"
        last.own = f"{last.own}\n{own_line(piece.line).rstrip()}"[:MAX_CHARS]
        if not _CUDA_HINT.search(piece.text):
            more = public_line(piece.line).strip()
            last.raw = f"{last.raw}\n{more}"[:MAX_CHARS]
        last.message_lines += 1
        self._found.taken.add(piece.place)
        return True

    # ------------------------------------------------------------ anyhow's causes

    def _causes(self, piece: _Piece, output: _Output) -> bool:
        """``Caused by:`` and the causes below it: the last one is the root."""
        if _CAUSED_BY.match(piece.text):
            output.causes = output.last or _said_before(piece, output)
            self._found.taken.add(piece.place)
            return True
        outer = output.causes
        if outer is None:
            return False
        cause = _CAUSE.match(piece.text)
        known = output.last if output.last is not outer else None
        if cause is None or not _of_one_record(outer.line, piece.line):
            output.causes = None
            return False
        if known is not None and not cause["n"]:
            output.causes = None
            return False
        text = cause["text"].strip()
        raw = public_line(piece.line).strip()
        if cause["n"]:
            raw = raw.removeprefix(f"{cause['n']}: ")
        root = RaisedException(
            line=piece.line,
            kind="Error",
            message=text,
            words=text,
            head=text,
            raw=raw,
            own=raw,
            process=outer.process,
            time=piece.line.time or outer.time,
            when=piece.line.when if piece.line.when is not None else outer.when,
            source=outer.source,
            frames=outer.frames,
            intro=outer.intro,
            headed=outer.headed,
            before=known or outer,
            link=ChainLink.CAUSED_BY,
        )
        (known or outer).follows = True
        self._keep(piece.place, output, root)
        output.causes = outer
        return True

    # ------------------------------------------------------------ any other line

    def _other(self, piece: _Piece, output: _Output) -> None:
        output.before = piece.stripped
        output.causes = None
        if not bare(piece.line):
            output.last, output.open = None, False
            output.marked, self._owner = piece.line, piece.key


def _said_before(piece: _Piece, output: _Output) -> RaisedException:
    """What a logger said of an error before its causes, as an exception."""
    text = output.before
    line = output.marked or piece.line
    return RaisedException(
        line=line,
        kind="Error",
        message=text,
        words=text,
        head=text,
        raw=text,
        own=text,
        process=piece.key or line.process,
        time=line.time,
        when=line.when,
        source=line.source,
    )


def _message_at(said: str, kind: str) -> int:
    """Where the message begins in a line that begins with the type."""
    begin = len(said) - len(said.lstrip()) + len(kind)
    if said[begin : begin + 1] == "(":
        begin = said.find(")", begin) + 1
    if said[begin : begin + 2] == ": ":
        return begin + 2
    return min(begin + 1, len(said))


def _of_one_record(first: LogLine | None, line: LogLine) -> bool:
    """Whether a logger wrote both lines at once, or nothing says who wrote the
    second."""
    if bare(line):
        return True
    if first is None:
        return False
    return (first.process, first.level, first.source) == (
        line.process,
        line.level,
        line.source,
    )


def _goes_on(last: RaisedException, piece: _Piece) -> bool:
    """Whether a line is still of the last exception's message."""
    line = piece.line
    if last.message_lines > MAX_MESSAGE_LINES or not piece.stripped:
        return False
    if bare(line):
        return not _ENDED.search(piece.stripped)
    same = (line.process, line.level, line.time, line.source)
    first = last.line
    return bool(line.source) and same == (
        first.process,
        first.level,
        first.time,
        first.source,
    )

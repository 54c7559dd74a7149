"""Forms of log lines, and which of their words are a client's.

A table has one row a form, with the engine whose lines have it and where it comes from.
What a client wrote (prompts, outputs, names, schemas) is found by form as well and
never by its content; what is cut, or whose end is unclear, counts as the client's."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from functools import cached_property, lru_cache

from mmrepro.probes.data import QUOTED_CHAR, LogLine

MAX_TEXT_CHARS = 2000
TRACEBACK = "Traceback (most recent call last)"

# ------------------------------------------------------------------ marks and forms

_LEVEL = r"(?P<level>TRACE|DEBUG|INFO|WARNING|WARN|ERROR|CRITICAL|FATAL|REQUEST)"
_CLOCK = r"\d\d:\d\d(?::\d\d(?:[.,]\d{1,9})?)?"
_DAY = rf"(?:\d{{4}}-)?\d\d-\d\d[ T]{_CLOCK}"
_TIME = rf"(?P<time>{_DAY})"
_MONTH = rf"[A-Z][a-z]{{2}} [ \d]\d {_CLOCK}"
_RANKS = r"[A-Z_]*(?:TP|DP|PP|EP|CP)\d+(?: [A-Z_]+\d+)*"
_PLACE = r"[^\s\[\]:]{1,200}:\d+"

MARK = re.compile(
    r"\((?!ServeReplica:|ProxyActor|ServeController)"
    r"(?P<name>[A-Za-z_][^()\s]{0,120}(?: [^()\s]{1,40}){0,3}) pid=(?P<pid>\d+)"
    r"(?:, ip=[\d.a-fA-F:]+)?\) ?"
)
"""What begins a process's lines; nested ones stand one after the other, the outermost
first. Ray's marks of whole servers are a collector's."""
_RANK_IN_NAME = re.compile(r"(?:(?<=[_ ])|^)(?:TP|DP|PP|EP|DCP|PCP|CP)\d+")
_RANK_NUMBER = re.compile(r"\brank=(\d+)")
ERROR_LEVELS = frozenset({"ERROR", "CRITICAL", "FATAL"})
_LETTERS = {"I": "INFO", "W": "WARNING", "E": "ERROR", "F": "CRITICAL"}


@dataclass(frozen=True)
class Form:
    """How a program begins its lines.

    Attributes:
        pattern: groups time, level, source, rank, pid where the form has them.
        engine: whose lines have it; empty: any program's.
        process: what the process is called.
        origin: file and release that it was read in.
    """

    name: str
    pattern: re.Pattern[str]
    origin: str
    engine: str = ""
    process: str = ""


def _form(
    name: str, pattern: str, origin: str, engine: str = "", process: str = ""
) -> Form:
    return Form(name, re.compile(pattern), origin, engine, process)


FORMS = (
    _form(
        "vllm",
        rf"{_LEVEL} {_TIME} \[(?P<source>[^\]\n]{{1,200}})\] ?",
        "vllm/logger.py, 0.8 to 0.32; without seconds: VLLM_LOGGING_DATE_FORMAT",
        "vllm",
    ),
    _form(
        "vllm-v0",
        rf"{_LEVEL} {_TIME} (?P<source>{_PLACE})\] ?",
        "vllm/logger.py, 0.3 to 0.7",
        "vllm",
    ),
    _form(
        "vllm-timeless",
        rf"{_LEVEL} \[(?P<source>{_PLACE})\] ?",
        "the same with its date format empty",
        "vllm",
    ),
    _form(
        "sglang",
        rf"\[(?P<time>\d{{4}}-\d\d-\d\d[ T]{_CLOCK}|{_CLOCK})(?: (?P<rank>{_RANKS}))?\]"
        rf" (?:{_LEVEL}: +)?",
        (
            "sglang/srt/utils/common.py configure_logger, scheduler.py prefix: 0.3 to "
            "0.5.23"
        ),
        "sglang",
    ),
    _form(
        "sglang-timeless",
        rf"\[(?P<rank>{_RANKS})\] (?:{_LEVEL}: +)?",
        "the same by a logging configuration without a time",
        "sglang",
    ),
    _form(
        "sglang-gpu",
        r"\[gpu(?:_id)?=(?P<rank>\d+)\] ",
        "sglang/srt/managers/controller, 0.2 to 0.3",
        "sglang",
    ),
    _form(
        "turbomind",
        rf"\[TM\]\[{_LEVEL}\] ?",
        "lmdeploy src/turbomind/utils/logger.h, 0.2 to 0.9",
        "lmdeploy",
    ),
    _form(
        "lmdeploy",
        rf"{_TIME} - lmdeploy[\w.]* - {_LEVEL} - "
        rf"(?:\[pid=(?P<pid>\d+) ppid=\d+\] - )?(?:(?P<source>[\w./]+:\d+) - )?",
        "lmdeploy/utils.py get_logger, 0.6.4 and 0.18.0",
        "lmdeploy",
    ),
    _form(
        "logging",
        rf"{_TIME} - [\w.]+ - {_LEVEL} - (?:(?P<source>[\w./]+:\d+) - )?",
        "Python's logging as its HOWTO writes it",
    ),
    _form(
        "loguru",
        rf"{_TIME}Z?\s(?:[-|] ?)?\[?{_LEVEL}\]?\s*(?:[-|:]{{1,2}} ?)?"
        r"(?:(?P<source>[\w./<>]{1,200}(?::[\w<>]{1,80})?:\d+)(?::| ?-{1,2}| \|)? )?",
        (
            "loguru's default; Ray's `2026-01-01 00:00:00,123 INFO worker.py:1 -- `; "
            "Rust's tracing"
        ),
    ),
    _form(
        "kserve",
        rf"{_TIME} (?P<pid>\d{{1,7}}) [\w.]{{1,80}} {_LEVEL} "
        r"\[(?P<source>[^\]\n]{1,200})\] ?",
        "kserve/logging.py, 0.14",
    ),
    _form(
        "c10",
        r"(?:\[rank(?P<rank>\d+)\]:)?\[?(?P<letter>[IWEF])"
        rf"(?P<time>\d{{3,4}} {_CLOCK})?(?: +(?P<pid>\d+))? (?P<source>{_PLACE})\] ?",
        "c10/util/Logging.cpp and torch/_logging: 2.1 to 2.11; glog",
    ),
    _form(
        "torch-rank",
        r"\[rank(?P<rank>\d+)\]: ?",
        "torch/distributed, the hook of exceptions since 2.4",
    ),
    _form(
        "nccl",
        rf"(?:\[{_TIME}\] )?[\w.-]{{1,255}}:(?P<pid>\d+):\d+ \[(?P<rank>-?\d+)\] "
        r"(?:\S{1,200} )?NCCL (?:(?P<level>WARN|INFO|ERROR|TRACE) )?",
        "nccl src/debug.cc, 2.14 to 2.28",
    ),
    _form("uvicorn", rf"{_LEVEL}:\s+", "uvicorn/logging.py DefaultFormatter"),
    _form("basic", rf"{_LEVEL}:(?P<source>[\w.]+):", "logging.BASIC_FORMAT"),
    _form(
        "syslog-kernel",
        rf"(?:<\d+>(?:1 )?)?(?P<time>{_MONTH}|\d{{4}}-\d\d-\d\dT{_CLOCK})"
        r"(?:Z|[+-]\d\d:?\d\d)? \S{1,255} kernel(?:: ?| - - - )(?:\[ *\d+\.\d+\] ?)?",
        "journald and syslog, of the kernel",
        "",
        "kernel",
    ),
    _form("dmesg", r"\[ *(?P<time>\d+\.\d{6})\] ", "dmesg", "", "kernel"),
    _form(
        "dmesg-T",
        rf"\[(?P<time>[A-Z][a-z]{{2}} {_MONTH} \d{{4}})\] ",
        "dmesg -T",
        "",
        "kernel",
    ),
)
ENGINE_NAMES = frozenset(form.engine for form in FORMS if form.engine)

_GLUED = re.compile(
    r"[^|\n]{0,200}?\d{1,3}%\|[^|\n]{0,200}\| [\d.]+[kMG]?/[\d.]+[kMG]? \[[^\]\n]{0,80}\] *(?=\S)"
)
"""A bar of tqdm: what is printed next stands on the same line."""


def has_form(line: str) -> bool:
    """Whether a line, after its marks, begins as one of the ``FORMS``."""
    at = 0
    while match := MARK.match(line, at):
        at = match.end()
    return at > 0 or any(form.pattern.match(line, at) for form in FORMS)


# ------------------------------------------------------------------ times

_ISO = re.compile(
    r"(?:(?P<y>\d{4})-)?(?:(?P<m>\d{1,2})-?(?P<d>\d\d)[ T])?"
    r"(?P<H>\d\d):(?P<M>\d\d)(?::(?P<S>\d\d)(?:[.,](?P<f>\d{1,9}))?)?"
)
_NAMED = re.compile(
    r"(?:[A-Z][a-z]{2} )?(?P<mon>[A-Z][a-z]{2}) +(?P<d>\d{1,2}) "
    r"(?P<H>\d\d):(?P<M>\d\d)(?::(?P<S>\d\d)(?:[.,](?P<f>\d{1,9}))?)?(?: (?P<y>\d{4}))?"
)
_MONTHS = "JanFebMarAprMayJunJulAugSepOctNovDec"
UNKNOWN = datetime(2000, 1, 1)  # a leap year: each day is in it


@lru_cache(4096)
def written(time: str, near: datetime = UNKNOWN) -> datetime | None:
    """What a log's time means, in the log's own zone; None: it is no time of the day.

    Args:
        near: of what is not printed (year, day) the one that brings it closest to this
            is taken.
    """
    match = _ISO.match(time) or _NAMED.match(time)
    if match is None:
        return None
    parts = match.groupdict()
    month = parts.get("m")
    if name := parts.get("mon"):
        month = str(_MONTHS.find(name) // 3 + 1)
    clock = [int(parts[key] or 0) for key in "HMS"]
    micros = int((parts["f"] or "0").ljust(6, "0")[:6])
    years = [int(parts["y"])] if parts["y"] else [near.year]
    if not parts["y"] and near != UNKNOWN:
        years = [near.year - 1, near.year, near.year + 1]
    found = []
    for year in years:
        try:
            day = (int(month), int(parts["d"])) if month else (near.month, near.day)
            hour, minute, second = clock
            at = datetime(year, day[0], day[1], hour, minute, second, micros)
            found.append(at)
        except ValueError:
            continue
    return min(found, key=lambda one: abs(one - near), default=None)


CLOCKS = timedelta(seconds=5)
"""Processes of one machine write past each other by less."""


def seconds(time: str, near: datetime = UNKNOWN) -> float | None:
    """``written`` in seconds since 1970, as if the log's zone were UTC."""
    at = written(time, near) if time else None
    return None if at is None else at.replace(tzinfo=UTC).timestamp()


# ------------------------------------------------------------------ whose words

STRING = re.compile(
    r"""(?<![A-Za-z]{2})'(?:[^'\\\n]|\\.)*(?:'|\\?\Z)|"(?:[^"\\\n]|\\.)*(?:"|\\?\Z)""",
    re.DOTALL,
)
"""A text as ``repr`` or JSON prints it; one without an end reaches to the line's. The
mark within a word, as in can't, begins none; a prefix (b, u) is one letter."""
_WITHIN = re.compile(r"(?<=[A-Za-z]{2})'(?=[a-z])")

_NUMBERS = re.compile(r"\b[a-z_]{2,40}=(?:-?\d[\d.e-]{0,40}|\[[\d, ]*\])(?:, |(?=\)))")
_VALIDATION = re.compile(r"\d+ validation errors? for \w{1,80}")
_REASON = re.compile(r"(?<=input_value=)'[a-z_]{1,20}', input_type=")
"""Of pydantic's errors the values that are names of an enumeration."""
_KEY = re.compile(r"['\"][a-z_]{1,40}['\"]")
"""A name in a dictionary as it is printed: the program's."""

_REST = re.compile(
    # vllm/entrypoints/logger.py, 0.5 to 0.24; serve/utils/request_logger.py,
    # log_response.py, 0.32
    r"Received request |Request (?=.{1,400}(?: details: | JSON body: ))"
    r"|Generated response |"
    r"(?:response|request)_body=|Received [\w ]{0,40}request (?=[{\[])|"
    r"Convert(?:ed)? [^:{]{1,80}[:{]|"
    r".{0,80}[Rr]equest[ _]id: |"
    # sglang/srt/utils/request_logger.py, tokenizer_manager.py; openai/serving_chat.py
    r"(?:Receive OpenAI|Receive|Finish): "
    r"|\{\"timestamp\": \"[^\"]{0,40}\", \"event\": \"request\.|"
    r"(?:Tool call|Reasoning) parsing error: |Unparsed [^:]{1,120}: "
    r"|\[http_server\] Error: |"
    # lmdeploy/logger.py, tokenizer.py
    r"session(?:_id)?=\d+, (?=.{0,4000}?(?:prompt|response)=)|no model name: |"
    r"The token |"
    # any program's
    r"(?:[Uu]ser |[Ff]ull |[Ff]inal |[Ii]nput |[Rr]aw |[Ff]ormatted |[Rr]endered "
    r"|[Mm]odel )?"
    r"(?:[Pp]rompt|[Mm]essages?|[Cc]ompletion|[Oo]utput|[Rr]esponse|[Gg]enerated text"
    r"|[Tt]ext|"
    r"[Qq]uery|[Qq]uestion|[Cc]ontent|[Tt]ool[_ ][Cc]alls?|[Aa]rguments|[Cc]onversation"
    r"|"
    r"[Bb]ody|[Pp]ayload|[Ss]chema|[Gg]rammar|model_output|cur_text|delta_text)s? ?(?:="
    r"|: )"
)
"""Beginnings of lines after which all is a client's."""

_ID = re.compile(
    r"(?:Added|Adding|Aborted|Aborting|Abort|Finished|Freeing) request(?:\(s\)|s)? "
)
_ID_END = re.compile(r"(?:: \d+ tokens?)?\.?\Z")
_ABOUT = re.compile(r"Request (?=\S)")
_ABOUT_END = re.compile(
    r" (?:was|is|has|failed|aborted|cancelled|canceled|finished|exceeds|not)\b"
)

_FIELD = re.compile(
    r"\b(?:r?id|req_id|request_id|response_id|prompt|prompts|text|texts|message"
    r"|messages|content|"
    r"inputs?|input_value|outputs?|output_text|response|stop|stop_words|bad_words|model"
    r"|model_path|"
    r"model_name|served_model_name|tokenizer|tokenizer_path|lora_name|lora_path"
    r"|adapter_name|tools?|"
    r"tool_choice|tool_calls?|arguments|json|regex|choice|grammar|ebnf|json_schema"
    r"|schema|"
    r"structural_tag|structured_outputs|guided_decoding|image_url|image_data|url|path"
    r"|query|user|"
    r"name|params|sampling_params|chat_template|chat_template_kwargs|response_format"
    r"|extra_body|"
    r"error_message|detail|obj|args)\b['\"]?\s?[=:]\s?(?=['\"\[{(]|[A-Z]\w*\()"
)
"""Names whose values are a client's or an operator's: each text from there on is."""
_SETTINGS = re.compile(
    r"server_args=|non-default args: |Initializing an? [\w. ]{1,20}engine .{0,40}config: "
)
"""Beginnings of a line in which a server prints its own settings: where it is cut,
nobody's words go on in the next one."""
_DUMP = re.compile(
    r"\bwith config: |\bserver_args=|\bargs: |SchedulerOutput\(|SamplingParams\("
)
_TICKS = re.compile(r"`.*`|`.*", re.DOTALL)
_ACCESS = re.compile(r'"[A-Z]{3,10} (?P<path>\S+)')
_ROUTE = re.compile(r"(?:/[a-z0-9_.-]{1,40}){1,6}|/")
EXCEPTION = re.compile(
    r"(?P<name>(?:[A-Za-z_]\w*\.)*[A-Z]\w*(?:Error|Exception|Exit|Interrupt|Warning"
    r"|Timeout))"
    r"(?:: |:?\Z)"
)
"""The last line of a traceback."""
_QUOTING = re.compile(
    r"(?:jinja2\.|pydantic|fastapi\.|starlette\.|json\.|openai_harmony\.)|"
    r"(?:Template|Undefined|Security|Validation|JSONDecode|HTTP|Harmony"
    r"|ToolCall)\w*(?:Error|Exception)\Z"
)
"""Exceptions whose text quotes the request."""

_MOUTH = re.compile(
    r"(?:^|[/.])(?:(?:request_)?logger|log_response|chat_utils|\w*serving\w*|"
    r"preprocess|protocol|chat_template\w*|renderer\w*|io_processor|\w*middleware"
    r"|validation|"
    r"error_response|api_router)(?:\.py:|\Z)"
)
"""Source files that speak of one request: what they quote of it is the client's."""
_PARSER = re.compile(
    r"(?:^|[/.])(?:harmony\w*|\w*parser\w*)(?:\.py:|\Z)|(?:^|[/.])(?:tool_parsers"
    r"|reasoning)[/.]"
)
"""Source files that speak of nothing but what a model wrote."""
_JUDGES = re.compile(
    r"[/\\](?:structured_output|guided_decoding|constrained|xgrammar|outlines\w*"
    r"|llguidance|lark|"
    r"lmformatenforcer|jsonschema|jinja2|json|pydantic\w*|urllib3/util|yarl|PIL"
    r"|openai_harmony|"
    r"mistral_common|tool_parsers?|function_call|reasoning|multimodal/media|media)[/\\]"
    r"|"
    r"[/\\](?:base64|binascii|chat_utils|sampling_params|protocol|validators"
    r"|\w*serving\w*|"
    r"multimodal/(?:image|video|audio|utils)|tokenization_\w+|renderers?)\.py\Z"
)
"""Files that judge what a request holds: the text of an exception that they raise
quotes it, and of one that is raised in what they call."""
_ENGINES = re.compile(r"[/\\](?:vllm|sglang|lmdeploy|minivllm)[/\\]")
_WORKS = re.compile(r"[Cc]ore|[Ww]orker|[Ss]cheduler|[Ee]ngine|[Ee]xecutor|\b[TDP]P\d")
"""Who fails by such an exception: it is the engine's own failure, whatever the request
held."""
_RAISED_IN = re.compile(r'\s+File "([^"]{1,400})", line \d+')
_MOUTH_OWN = re.compile(r"[^:='\"`{\[(<]*")
_FRAME = re.compile(
    r"\s|Traceback \(most|During handling of the above|The above exception was|\Z"
)


@dataclass
class Reading:
    """One line, read by its form.

    Attributes:
        head: what stands before the message, as printed.
        text: the message, whole.
        spans: what of it is a client's.
        open: a client's words may go on in the next line.
        mark: the outermost one of several processes' marks.
        rest: it goes on with a message of one request's, which was told of in one line.
        clock: the time of the last line that has one, where it was asked.
        judging: the innermost frame so far, of a traceback, is of a file that judges
            requests.
    """

    line: str
    head: int = 0
    process: str = ""
    pid: int | None = None
    rank: str = ""
    level: str = ""
    time: str = ""
    source: str = ""
    engine: str = ""
    form: str = ""
    spans: list[tuple[int, int]] = field(default_factory=list)
    open: bool = False
    mark: str = ""
    rest: bool = False
    clock: str = ""
    judging: bool = False

    @property
    def text(self) -> str:
        return self.line[self.head :]

    @property
    def bare(self) -> bool:
        """It has no form but a mark at most: it may go on with the line before it."""
        return self.form in ("", "mark")

    def goes_on(self, other: Reading) -> bool:
        """Whether it may be of the same message as the line before it."""
        marked = self.process in ("", other.process) or (
            self.mark and self.mark == other.mark
        )
        return self.same_record(other) or (self.bare and bool(marked))

    @cached_property
    def own(self) -> str:
        """The printed line with a client's words blanked: what patterns are tried
        on."""
        line = self.line
        for begin, end in self.spans:
            begin, end = begin + self.head, end + self.head
            line = line[:begin] + QUOTED_CHAR * (end - begin) + line[end:]
        return line

    def same_record(self, other: Reading) -> bool:
        """Whether both have the same beginning, which vLLM repeats on each line of a
        message."""
        return not self.bare and self.line[: self.head] == other.line[: other.head]

    @property
    def of_one(self) -> bool:
        """It tells of one request, by its id, in one line; so do all lines of its
        place."""
        return self.rest or bool(_ID.match(self.text) or _ABOUT.match(self.text))

    def after(self, before: Reading, *, part: bool) -> None:
        """Take what the line before it says of whose words it has.

        Args:
            part: both are of one message, whatever they look like.
        """
        self.clock = self.time or before.clock
        pasted = before.open and self._older(before.clock)
        if before.open and (part or pasted or self.goes_on(before)):
            self.quote_all(form_too=(part or pasted) and not self.same_record(before))
            self.clock = before.clock
        elif (
            before.of_one
            and self.source
            and self.same_record(before)
            and not self.of_one
        ):
            self.quote_all(form_too=False)
            self.open, self.rest = False, True
        elif frame := _RAISED_IN.match(self.text):
            inner = (
                before.judging
                and self.goes_on(before)
                and not _ENGINES.search(frame[1])
            )
            works = _WORKS.search(f"{self.process} {self.source}")
            self.judging = not works and (inner or _JUDGES.search(frame[1]) is not None)
        elif before.judging and self.goes_on(before):
            self.judging = self.text[:1] in ("", " ")
            if not self.judging and (raised := EXCEPTION.match(self.text)):
                self.quote_all(form_too=False)
                self.spans = [(raised.end(), len(self.text))]

    def _older(self, clock: str) -> bool:
        """Whether it is older than the last line before it that has a time: what is
        pasted into a text was logged before. Either may print no year."""
        if self.bare or not self.time or not clock:
            return False
        last = written(clock, written(self.time) or UNKNOWN)
        at = written(self.time, last or UNKNOWN)
        return bool(at and last and at < last - CLOCKS)

    def logged(self, level: str, time: str, logger: str) -> None:
        """Take what a logger that writes JSON said beside the message."""
        self.level, self.time, self.source, self.form = level, time, logger, "json"
        top = logger.partition(".")[0]
        self.engine = top if top in ENGINE_NAMES else ""
        self.spans, self.open = quoted(self.text, logger, level)
        self.__dict__.pop("own", None)

    def quote_all(self, *, form_too: bool) -> None:
        """It goes on with a client's words; ``form_too``: what looks like a form is
        theirs too."""
        if form_too:
            self.__dict__.update(Reading(self.line).__dict__)
        self.spans, self.open = [(0, len(self.text))] if self.text else [], True
        self.__dict__.pop("own", None)

    def record(
        self,
        number: int,
        near: datetime = UNKNOWN,
        stream: str = "",
        when: float | None = None,
    ) -> LogLine:
        at = seconds(self.time, near)
        text = self.text[:MAX_TEXT_CHARS]
        return LogLine(
            number=number,
            process=self.process,
            level=self.level,
            time=self.time,
            source=self.source,
            text=text,
            when=when if at is None else at,
            pid=self.pid,
            rank=self.rank,
            stream=stream,
            engine=self.engine,
            quoted=[(b, min(e, len(text))) for b, e in self.spans if b < len(text)],
        )


def read_line(line: str, *, words: bool = True) -> Reading:
    """``line``, cleaned, by its form; never raises.

    Args:
        words: False: whose words its message has is not asked.
    """
    if "%|" in line and (bar := _GLUED.match(line)) and has_form(line[bar.end() :]):
        line = line[bar.end() :]
    found = Reading(line)
    at = 0
    while match := MARK.match(line, at):
        at = match.end()
        found.mark = found.mark or match[0]
        name, pid = match["name"], match["pid"]
        found.process, found.pid = f"{name} pid={pid}", int(pid[:12])
        number = _RANK_NUMBER.search(name)
        found.rank = number[1] if number else " ".join(_RANK_IN_NAME.findall(name))
        found.form = "mark"
    for form in FORMS:
        if match := form.pattern.match(line, at):
            parts = match.groupdict()
            level = parts.get("level") or _LETTERS.get(parts.get("letter") or "", "")
            found.level, found.time = level, parts.get("time") or ""
            found.source, found.form = parts.get("source") or "", form.name
            if rank := parts.get("rank"):
                found.rank = rank
                torch = form.name in ("c10", "torch-rank", "nccl", "sglang-gpu")
                found.process = found.process or (f"rank{rank}" if torch else rank)
            if pid := parts.get("pid"):
                found.pid = int(pid[:12])
            found.process = found.process or form.process
            found.engine = form.engine
            at = match.end()
            break
    found.head, found.clock = at, found.time
    if words:
        found.spans, found.open = quoted(found.text, found.source, found.level)
    return found


def parse_line(number: int, line: str) -> LogLine:
    """``line`` (cleaned) split into its prefix and its text; never raises."""
    return read_line(line).record(number)


def is_error(line: Reading) -> bool:
    return line.level in ERROR_LEVELS or TRACEBACK in line.own


def quoted(
    text: str, source: str = "", level: str = ""
) -> tuple[list[tuple[int, int]], bool]:
    """What of a message is a client's, and whether it may go on in the next line."""
    end = len(text)
    if match := _REST.match(text):
        rest = text[match.end() :]
        printed = rest[:1] in "'\"{[" or "prompt: " in rest or "=" in rest
        return [*_rest(text, match.end())], not (printed and is_closed(rest))
    if match := _ID.match(text):
        tail = _ID_END.search(text, match.end())
        return [(match.end(), tail.start() if tail else end)], False
    if text[:2] == '{"':  # an event of a logger's, or JSON that was cut
        return [(0, end)], False
    if source and _PARSER.search(source):
        return [(0, end)] if text else [], True
    mouth = bool(source) and _MOUTH.search(source) is not None
    spans = []
    if match := EXCEPTION.match(text):
        begin = match.end()
        if mouth or _QUOTING.search(match["name"]):
            if kept := _VALIDATION.match(text, begin):
                begin = kept.end()
            return ([(begin, end)], True) if begin < end else ([], mouth)
        # A text of several words is somebody's; a name or a key is not, nor another
        # exception.
        words = [s for s in _strings(text, begin) if " " in text[slice(*s)]]
        spans += [s for s in words if not text[: s[0] - 1].endswith("with error ")]
    elif mouth and not _FRAME.match(text):
        own = _MOUTH_OWN.match(text)
        begin = own.end() if own else 0
        return ([(begin, end)], True) if begin < end else ([], False)
    match = _ABOUT.match(text)
    # Failed (bad request): the exception's text, which quotes it.
    if match and ": " in text:
        return [(match.end(), end)], False
    if match:
        tails = [tail.start() for tail in _ABOUT_END.finditer(text)]
        spans.append((match.end(), tails[-1] if tails else end))
    for match in _ACCESS.finditer(text):
        start, stop = match.span("path")
        route = _ROUTE.match(text, start, stop)
        # The route as the server has it; a query, and a path that nobody serves, are
        # the client's.
        query = start if route is None else route.end()
        if query < stop and text[query] != "?":
            query = start
        spans += [(query, stop)] if query < stop else []
    begins = [m.end() for m in (_FIELD.search(text), _DUMP.search(text)) if m]
    if begins:
        spans += _strings(text, min(begins))
    spans += [m.span() for m in _TICKS.finditer(text)] if "`" in text else []
    if _SETTINGS.match(text):
        return sorted(spans), False
    return sorted(spans), bool(begins) and not is_closed(text[min(begins) :])


def _strings(text: str, begin: int) -> Iterator[tuple[int, int]]:
    """What is between quotation marks from ``begin`` on, but for the names in
    dictionaries."""
    for match in STRING.finditer(text, begin):
        if _KEY.fullmatch(match[0]) and text[match.end() : match.end() + 1] == ":":
            continue
        if _REASON.match(text, match.start()):
            continue
        yield match.start() + 1, match.end() - _whole(match[0])


def _rest(text: str, begin: int) -> Iterator[tuple[int, int]]:
    """All from ``begin`` on, but for numbers and the names of what they are."""
    for match in _NUMBERS.finditer(text, begin):
        if begin < match.start():
            yield begin, match.start()
        begin = match.end()
    if begin < len(text):
        yield begin, len(text)


def _whole(printed: str) -> bool:
    """Whether a text has an end."""
    return len(printed) > 1 and printed[-1] == printed[0]


def is_closed(text: str) -> bool:
    """Whether each text that is printed there has an end."""
    return not any(c in STRING.sub(_cut, _WITHIN.sub("", text)) for c in "'\"")


def _cut(match: re.Match[str]) -> str:
    return "" if _whole(match[0]) else match[0]

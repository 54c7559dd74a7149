"""A bug report as GitHub shows it: Markdown with the sections of an issue form, and
what is in it.

The forms are those of vLLM, SGLang and LMDeploy; text that follows none is read as
well."""

from __future__ import annotations

import ast
import dataclasses
import json
import re
import shlex
import textwrap
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cache
from itertools import islice
from typing import Any, Final

from mmrepro.base.errors import InfrastructureError, UsageError
from mmrepro.base.machine import (
    OverLimit,
    WorkFailed,
    WorkLimits,
    read_yaml,
    within_limits,
)
from mmrepro.base.records import FindingClass
from mmrepro.engines.folders import folders, published
from mmrepro.engines.serving import serving
from mmrepro.failure.documents.replay import Claim
from mmrepro.search.repro.benchmark import benchmark_form, script_of
from mmrepro.search.repro.claim import fails_at_start, read_claim, what_about
from mmrepro.search.repro.client_names import filled_names
from mmrepro.search.repro.fences import fences, with_fences, without_fences
from mmrepro.search.repro.made_request import parsers_named
from mmrepro.search.repro.other_servers import (
    batch_of,
    of_logged_options,
    offline_command,
)
from mmrepro.search.repro.server_command import (
    CONTINUED,
    PROMPT,
    RELEASE,
    is_server_command,
    listed_arguments,
    of_manifest,
    parse,
)
from mmrepro.search.repro.shell_text import FUNCTION, ShellText, as_typed
from mmrepro.search.repro.shown_answer import answer_in, has_no_beginning, shown_in
from mmrepro.search.repro.speech import Speech
from pydantic import TypeAdapter, ValidationError

_HEADING: Final = re.compile(r"^#{1,6}[ \t]+(.+?)[ \t]*#*$", re.MULTILINE)
_SECTION: Final = re.compile(r"^#{2,6}[ \t]+\S", re.MULTILINE)
_TITLE: Final = re.compile(r"^(?:#[ \t]+|title:[ \t]*[\"']?)(.+?)[\"']?$", re.MULTILINE)
_INLINE: Final = re.compile(r"(?<!`)`([^`\n]{8,400})`(?!`)")
_INDENTED: Final = re.compile(
    r"(?:\A|\n[ \t]*\n)((?:(?: {4}|\t)[^\n]*(?:\n[ \t]*(?=\n))*(?:\n|\Z))+)"
)
_CLIENT_CODE: Final = re.compile(
    r"^[ \t]*(?:from|import)\s+(?:[\w.]+(?:\s+as\s+\w+)?\s*,\s*)*(?:openai|requests"
    r"|httpx|aiohttp|"
    r"urllib|http\.client|anthropic|litellm|urllib3|websockets|langchain_openai"
    r"|instructor|"
    r"lmdeploy\.serve\.openai\.api_client)\b|\bRuntimeEndpoint\(",
    re.MULTILINE,
)
_IMPORTS: Final = re.compile(
    r"^[ \t]*(?:from\s+[\w.]+\s+import|import)\s+\w", re.MULTILINE
)
_CALLS: Final = re.compile(
    r"\blocalhost\b|\b127\.0\.0\.1\b|\b0\.0\.0\.0\b|\bbase_url\b|\bapi_base\b|/v1\b"
)
"""In a Python script of other libraries: a server's address."""
_SHELLS: Final = ("bash", "sh", "shell", "zsh", "console", "")
_WINDOWS: Final = ("powershell", "pwsh", "ps1", "cmd", "bat", "batch", "dosbatch")
_OTHER_CLIENTS: Final = (
    (
        "PowerShell's Invoke-RestMethod",
        r"\bInvoke-(?:RestMethod|WebRequest)\b|\birm\s+-",
    ),
    (
        "JavaScript",
        r"\bfetch\(\s*[`\"']http|\bfrom [\"']openai[\"']|\brequire\([\"'](?:openai"
        r"|axios)|"
        r"\baxios\.",
    ),
    (
        "a benchmark",
        r"\bvllm bench\b|sglang\.bench_|\bgenai-perf\b|\bguidellm\b|\bevalscope\b",
    ),
    (
        "a load generator",
        (
            r"^[ \t]*(?:[$>%]\s+)?(?:hey|ab|wrk2?|vegeta|oha|k6|siege)\s+(?:-|run\b"
            r"|attack\b)"
        ),
    ),
    ("Go", r"^package main\b"),
    ("Java", r"\bHttpClient\.new|\bOkHttpClient\("),
)
"""Clients that are noticed and not run."""
_OTHER_ENGINES: Final = (
    ("TGI", r"text-generation-(?:inference|launcher)|\bTGI\b"),
    ("Ollama", r"\bollama\b"),
    ("llama.cpp", r"\bllama\.cpp\b|\bllama-server\b"),
    ("TensorRT-LLM", r"\btrtllm-serve\b|\btensorrt[-_]llm\b"),
    ("MLC LLM", r"\bmlc[-_ ]llm\b"),
    ("KTransformers", r"\bktransformers\b"),
    ("LM Studio", r"\blm ?studio\b"),
)
_IN_SHELL: Final = re.compile(
    r"^[ \t]*(?:[$>]\s+)?(?:\w+=\S*[ \t]+)*"
    r"(?:cat\s*>|cat\s*<<|\S*python[\d.]*\s+(?:-c\b|-?\s*<<|-$))",
    re.MULTILINE,
)
"""A shell that brings Python: in a heredoc, or after ``-c``."""
_OFFLINE: Final = re.compile(
    r"^[ \t]*from\s+vllm(?:\.entrypoints\.llm)?\s+import\b[^#]{0,300}?\bLLM\b"
    r"|\bvllm\.LLM\(|\bsgl(?:ang)?\.Engine\(|from\s+sglang\s+import\b.*\bEngine\b|"
    r"from\s+lmdeploy\s+import\b.*\bpipeline\b|\blmdeploy\.pipeline\("
    r"|AsyncLLM(?:Engine)?\.from_",
    re.MULTILINE,
)
_CURL: Final = re.compile(
    r"^[^#\n]*\b(?:curl|wget)\s+(?!(?:\.{3}|…)(?:\s|$))", re.MULTILINE
)
"""Not ``curl ... -d``, whose writer left out whom it asks."""
_CLIENT_WORDS: Final = re.compile(
    r"\bimport\s+(?:\w+,\s*)*(?:openai|requests|httpx|urllib)\b"
)
_TO_NUMBER: Final = (
    r"(?:-openai)?+(?:\s++(?:version|nightly|release|main|latest|image|docker"
    r"|commit)\b)*+[\"'` |*]*+"
    r"(?:==|:|@|=|version|v|is|版本|为|是|的)*+[\s:=v：|*`]*+"
)
"""What stands between an engine's name and its release. None of it holds a digit, so
that nothing of it need be given back."""
_WELL_BEFORE: Final = re.compile(
    r"\b(?:works?|worked|working|fine|ok|good|no (?:issue|problem|error)s?|previous\w*|"
    r"earlier|older|before|from|downgrad\w+|not (?:in|with|on|affected)|fixed in|since"
    r"|until)\b"
    r"[^.;,\n]*$|"
    r"(?:正常|没有问题|降级|之前)[^。;,,\n]*$",
    re.IGNORECASE,
)
_WELL_AFTER: Final = re.compile(
    r"\W{0,3}(?:it |which |everything |all |this )?(?:works?|worked|is fine|was fine"
    r"|ran (?!in)"
    r"|is ok|"
    r"does ?n.t|did ?n.t|does not|did not|没有问题|正常)",
    re.IGNORECASE,
)
_NUMBER: Final = f"({RELEASE})"
_LOGGED: Final = re.compile(
    r"(?:vLLM API server version|LLM engine \(v|Tested (?:with|on) \w+|version)[ :=]*v?"
    + _NUMBER,
    re.IGNORECASE,
)
_ENVIRONMENT: Final = re.compile(
    r"environment|collect_env|versions?\b|系统|环境", re.IGNORECASE
)
_LOG_LINE: Final = re.compile(
    r"^\(?\w+ pid=\d+\)|^(?:INFO|ERROR|WARNING|DEBUG)\b|^\[\d{4}-|^\s*#"
)
_PLAIN: Final = re.compile(
    r"\s*(?:[A-Za-z_]\w*=\S*\s+)*(?:\S*/)?(?:vllm|sglang|lmdeploy|python[\d.]*\s+-m"
    r"|docker|podman)\s"
    r"[^\n]*?(?:\s--?\w|\s[\w.-]+/[\w.-]+)"
)
_PROGRAM: Final = re.compile(
    r"\s*+(?:(?:[A-Za-z_]\w*=\S*+|sudo|nohup|time|exec|env|uv run|poetry run|pixi run|"
    r"numactl\s\S++)\s++)*+(?:\S*/)?"
    r"(?:vllm|sglang|lmdeploy|python[\d.]*|docker|podman|nerdctl)\b"
)


def _starts(line: str) -> bool:
    """Whether a line calls a program that may start a server, first or after other
    commands."""
    for command in re.split(r"(?:&&|;)(?=\s)", line):
        if _PROGRAM.match(command):
            return True
        if "#" in command or "&" in command:
            return False
    return False


@dataclass(frozen=True)
class _ReportBlock:
    """A fenced or an indented block. ``section``: the heading above it; ``line``: the
    last line of text before it."""

    text: str
    kind: str
    section: str
    line: str = ""


@dataclass
class Issue:
    """What a report brings.

    Attributes:
        server: the command; "": none was found.
        client: what is run: a script, curl lines, or a request's body; "": none was
            found.
        client_kind: ``python``, ``shell``, ``json``, ``batch`` or ``offline``.
        notes: sentences: what else there was.
        other_client: what its client is written for, where that is not run.
        other_engine: whose report it is, where that is none of ours.
        files: further files of the client, by name.
        speech: what it shows of the model's words.
        answer: the answer of the API that it shows as observed.
        options: of the server, that its prose names.
        tool_parser, reasoning_parser: that it names.
        streams: whether its words are about a stream.
    """

    title: str = ""
    server: str = ""
    client: str = ""
    client_kind: str = ""
    engine: str = ""
    release: str = ""
    claim: Claim = field(default_factory=Claim)
    notes: list[str] = field(default_factory=list)
    offline: bool = False
    other_client: str = ""
    other_engine: str = ""
    files: dict[str, str] = field(default_factory=dict)
    speech: Speech = field(default_factory=Speech)
    answer: Speech = field(default_factory=Speech)
    options: list[str] = field(default_factory=list)
    tool_parser: str = ""
    reasoning_parser: str = ""
    streams: bool = False


LIMITS: Final = WorkLimits()


def read_issue(text: str) -> Issue:
    """Read a report; what is not in it stays empty.

    It is read in a child with limits: its writer is nobody whom we know.

    Raises:
        UsageError: its server's command cannot be read, or reading takes more than a
            limit.
    """
    try:
        fields = within_limits(
            lambda: _as_json(read_here(text)), LIMITS, expected=UsageError
        )
        return _form().validate_json(json.dumps(fields), strict=True)
    except OverLimit as error:
        why = f"The report {error}."
    except WorkFailed as error:
        why = f"The report cannot be read: {error}."
    except ValidationError:
        why = (
            "The report cannot be read: what was found in it has another form "
            "than expected."
        )
    except OSError as error:
        raise InfrastructureError(
            f"No process to read the report in: {error.strerror}."
        ) from error

    raise UsageError(
        why, hint='--server "vllm serve MODEL" --client "python client.py"'
    )


@cache
def _form() -> TypeAdapter[Issue]:
    """What a child may hand back."""
    return TypeAdapter(Issue)


def _as_json(issue: Issue) -> dict[str, Any]:
    names = [item.name for item in dataclasses.fields(issue)]
    values = {name: getattr(issue, name) for name in names}
    records = {"claim": issue.claim, "speech": issue.speech, "answer": issue.answer}
    dumped = {name: record.model_dump(mode="json") for name, record in records.items()}
    return values | dumped


def read_here(text: str) -> Issue:
    """Read a report in this process. Raises UsageError: its server's command cannot be
    read."""
    text = text.replace("\r\n", "\n").removeprefix("\ufeff").replace("\0", "\ufffd")
    text = with_fences(text)
    issue = Issue(title=_title(text))
    blocks = list(_blocks(text))
    prose = without_fences(text, "\n")
    _server(issue, blocks, prose)
    if not issue.server:
        issue.options = list(_options_in(prose))
    _client(issue, blocks, prose)
    _release(issue, text)
    shown = [block.text for block in blocks if not _ENVIRONMENT.search(block.section)]
    observed = "\n".join([prose, *shown])
    for taken in (issue.client, issue.server):
        if taken:
            observed = observed.replace(taken, " ")
    issue.claim = read_claim(issue.title, observed)
    issue.claim.about = what_about(issue.title, prose)
    asks_nothing = issue.client_kind == "offline" or not (
        issue.client or issue.other_client
    )
    if asks_nothing and fails_at_start(issue.title, observed):
        start = FindingClass.START_FAILURE
        issue.claim.classes = list(dict.fromkeys([start, *issue.claim.classes]))
    issue.tool_parser, issue.reasoning_parser = parsers_named(text)
    issue.streams = _STREAMS.search(f"{issue.title}\n{prose}") is not None
    run = (issue.client.strip(), issue.server.strip())
    others = [(b.text, b.line) for b in blocks if b.text.strip() not in run]
    others += [(text, "") for text in _INLINE.findall(prose)]
    issue.speech, issue.answer = shown_in(others), answer_in(others)
    issue.speech.unopened = has_no_beginning(f"{issue.title}\n{prose}")
    return issue


_STREAMS: Final = re.compile(r"\bstream|流式|ストリーム", re.IGNORECASE)


def _title(text: str) -> str:
    """The title, else the first line of a report that begins with none."""
    title = _TITLE.search(text)
    if title:
        return title[1].strip()
    first = next((line.strip() for line in text.splitlines() if line.strip()), "")
    return "" if first.startswith("#") else first[:300].strip()


def _blocks(text: str) -> Iterator[_ReportBlock]:
    section, read = "", 0
    for fence in fences(text):
        for heading in _HEADING.finditer(text, read, fence.begin):
            section = heading[1]
        read = fence.begin
        lines = [line.removeprefix(fence.indent) for line in fence.text.splitlines()]
        # A block in a list has the list's blanks before each line.
        kind, inside = fence.kind.lower(), textwrap.dedent("\n".join(lines))
        if kind in _SHELLS:
            inside = as_typed(_with_lost_marks(inside), _is_typed)
        yield _ReportBlock(inside, kind, section, fence.above)
    for indented in _INDENTED.finditer(without_fences(text, "\n\n")):
        yield _ReportBlock(textwrap.dedent(indented[1]).strip("\n"), "", "")


_ASKS_SERVER: Final = re.compile(
    r"[ \t]*(?:curl|wget)\s+(?:-|\S{0,200}(?:localhost|[/\d]))"
)


def _is_typed(line: str) -> bool:
    """Whether a line without a prompt starts a server, or asks one."""
    if _ASKS_SERVER.match(line):
        return True
    return is_server_command(line) and _starts(line)


_OPTIONS_NAMED: Final = re.compile(r"--[a-z][\w-]*(?:[= ]\S+)?(?:\s+--?\S.*)?")
_OTHERWISE: Final = re.compile(
    r"\b(?:without|instead|work(?:s|ed|ing|around)?|fix(?:es|ed)?|help(?:s|ed)?|fine|"
    r"if|add(?:ing)?|remov\w+|disabl\w+|unless|try|tried|should|not|goes away)\b|n't\b",
    re.IGNORECASE,
)
_MOST_OPTIONS: Final = 40


def _options_in(prose: str) -> Iterator[str]:
    """Options that sentences name as the server's, and not as a way out."""
    number = 0
    for sentence in re.split(r"(?<=[.!?])\s|\n", prose):
        if _OTHERWISE.search(_INLINE.sub(" ", sentence)):
            continue
        for named in _INLINE.findall(sentence):
            if _OPTIONS_NAMED.fullmatch(named) and number < _MOST_OPTIONS:
                number += 1
                yield named


def _logical(text: str) -> list[str]:
    """Lines, those that a backslash continues as one."""
    lines: list[str] = []
    going = False
    for line in text.splitlines():
        if going:
            lines[-1] += "\n" + line
        else:
            lines.append(line)
        going = line.rstrip().endswith("\\")

    return lines


_OPTION_LINE: Final = re.compile(r"[ \t]*--?[A-Za-z][\w.-]*(?:[= \t]+\S.*)?\s*$")


def _with_lost_marks(text: str) -> str:
    """Put back the backslashes that were lost between a server's command and the lines
    of options below it, as copying from a page loses them."""
    lines = text.split("\n")
    in_command = False
    for place, line in enumerate(lines[:-1]):
        in_command = in_command or _is_typed(PROMPT.sub("", line))
        if line.rstrip().endswith("\\"):
            continue
        in_command = in_command and _OPTION_LINE.match(lines[place + 1]) is not None
        if in_command:
            lines[place] = line.rstrip() + " \\"
    return "\n".join(lines)


def _server(issue: Issue, blocks: Sequence[_ReportBlock], prose: str) -> None:
    """The first command that starts a server, with the variables set in its block."""
    commands: list[str] = []
    for block in blocks:
        if block.kind not in ("python", "py", "json"):
            commands += _typed_in(block)
    if not commands:
        commands += _batches_in(blocks)
    commands += [text for text in _INLINE.findall(prose) if is_server_command(text)]
    for line in _logical(prose):  # without a fence
        plain = PROMPT.sub("", line)
        if is_server_command(plain) and _is_whole_command(plain):
            commands.append(plain.strip())
        else:
            commands += _between_words(plain)

    commands += filter(None, (of_manifest(block.text) for block in blocks))
    if not commands:
        commands += _model_with_options(issue, blocks, prose)
    if not commands:
        for block in blocks:
            commands += _started_by(block.text)
            if not commands:
                commands += _lines_of_log(block)

    logged = of_logged_options("\n".join([*(b.text for b in blocks), prose]))
    if not commands and logged:
        commands.append(logged)
        issue.notes.append("The server's options are those that its log prints.")
    if not commands:
        return
    issue.server = _configured(_first_readable(commands), blocks)
    count = len(set(commands))
    if count > 1:
        issue.notes.append(
            f"The report has {count} servers' commands: the first one is run."
        )


_MODEL_WITH_OPTIONS: Final = re.compile(
    r"[\w.-]+/[\w.-]+(?:\s+--?[a-z]\S*(?:\s+[^\s-]\S*)?)+"
)


def _model_with_options(
    issue: Issue, blocks: Sequence[_ReportBlock], prose: str
) -> Iterator[str]:
    """Commands of which a report shows what follows the program: a model with options in
    a sentence, or the list of ``args`` of a container."""
    texts = [*(block.text for block in blocks), prose, issue.title]
    engine = _engine_named("\n".join(texts))[0]
    if not engine:
        return
    program = shlex.join(serving(engine).program)
    for inline in _INLINE.findall(prose):
        if _MODEL_WITH_OPTIONS.fullmatch(inline):
            yield f"{program} {inline}"
    for block in blocks:
        words = listed_arguments(block.text)
        if words:
            yield f"{program} {shlex.join(words)}"


def _first_readable(commands: Sequence[str]) -> str:
    """The first command that starts a server: a container may be started before the
    server in it. Where none can be read, the first one, of which that is said."""
    for command in commands:
        try:
            parse(command)
        except UsageError:
            continue
        return command
    return commands[0]


_OPTION_OR_MODEL: Final = re.compile(r"\s--?\w|\s[\w.-]+/[\w.-]+")


def _is_whole_command(line: str) -> bool:
    """Whether a line of prose begins with a program and has options or a model."""
    joined = CONTINUED.sub(" ", line)
    return _starts(joined) and _OPTION_OR_MODEL.search(joined) is not None


_NO_LETTERS: Final = re.compile(r"[\u2e80-\u9fff\uac00-\ud7af\uff00-\uffef]+")
"""Chinese, Japanese and Korean, which stand beside a command without a blank."""


def _between_words(line: str) -> Iterator[str]:
    """Commands in a sentence of a language that puts no blanks around them."""
    parts = _NO_LETTERS.split(line)
    for part in parts if len(parts) > 1 else []:
        if is_server_command(part) and _PLAIN.match(part):
            yield part.strip()


def _typed_in(block: _ReportBlock) -> Iterator[str]:
    """Commands of a block that start a server, each with the variables that are set
    before it."""
    before: list[str] = []
    lines = _logical(block.text)
    for place, line in enumerate(lines):
        plain = PROMPT.sub("", line)
        begins = _PROGRAM.match(plain) is not None
        plain = _with_open_quote(plain, lines[place + 1 :]) if begins else plain
        if is_server_command(plain) and _starts(plain):
            yield "\n".join([*before[-_MOST_BEFORE:], plain])
        elif re.match(r"\s*(?:export\s+)?[A-Za-z_]\w*=\S*(?<![,)])\s*$", plain):
            before.append(plain.strip())


def _with_open_quote(command: str, below: Sequence[str]) -> str:
    """A command with the lines below it, as far as a quote that it opens goes on: the
    script of ``bash -c``. One that is never closed is left as it is."""
    text = ShellText()
    text.read(command)
    lines = [command]
    for line in below[:_MOST_BEFORE]:
        if not text.quote:
            break
        text.read(line)
        lines.append(line)
    return command if text.quote else "\n".join(lines)


def _batches_in(blocks: Sequence[_ReportBlock]) -> Iterator[str]:
    """Servers that would answer the files of requests which lines have answered."""
    for block in blocks:
        for line in _logical(block.text):
            batch = batch_of(PROMPT.sub("", line))
            if batch is not None:
                yield batch.command


def _lines_of_log(block: _ReportBlock) -> Iterator[str]:
    """Lines with a server's command that no log wrote, whatever is before it."""
    for line in _logical(block.text):
        if is_server_command(line) and not _LOG_LINE.search(line):
            yield PROMPT.sub("", line)


_MOST_BEFORE: Final = 200
"""Lines with variables that go before a command."""


def _configured(command: str, blocks: Sequence[_ReportBlock]) -> str:
    """A command with the options of its ``--config``, where the report shows that
    file."""
    given = re.search(r"--config[= ]\s*(\S+)", command)
    if given is None:
        return command
    shown = _named(blocks).get(given[1].rpartition("/")[2])
    options = next(iter(read_yaml(shown)), None) if shown is not None else None
    if options is None:
        return command
    words: list[str] = []
    for name, value in options.items() if isinstance(options, dict) else ():
        if value is True:
            words.append(f"--{name}")
        elif value:
            plain = json.dumps(value) if isinstance(value, dict) else str(value)
            words += [f"--{name}", plain]

    return f"{command[: given.start()]}{shlex.join(words)}{command[given.end() :]}"


def _started_by(script: str) -> Iterator[str]:
    """Servers' commands in a Python script: a list of words, or one text."""
    tree = _python(script)
    if tree is None:
        return
    known: dict[str, str] = {}
    for node in ast.walk(tree):
        if isinstance(node, ast.Assign) and isinstance(node.targets[0], ast.Name):
            known[node.targets[0].id] = _word(node.value, known)
    for node in ast.walk(tree):
        if isinstance(node, ast.Name):
            continue
        elements = getattr(node, "elts", [])[:_MOST_LISTED]
        words = [_word(element, known) for element in elements]
        text = shlex.join(filter(None, words)) or _word(node, known)
        if is_server_command(text):
            yield text


def _word(node: ast.AST, known: Mapping[str, str]) -> str:
    """What an expression is as text; "": that is not known, or longer than any
    command."""
    text = _whole_word(node, known)
    return text if len(text) <= _LONGEST_WORD else ""


def _whole_word(node: ast.AST, known: Mapping[str, str]) -> str:
    match node:
        case ast.Constant(value=int(value)):
            return _number(value)
        case ast.Constant(value=value):
            return str(value)
        case ast.Name(id=name):
            return known.get(name, "")
        case ast.JoinedStr(values=values):
            return "".join(_word(value, known) for value in values)
        case ast.FormattedValue(value=value):
            return _word(value, known)
        case ast.Attribute(attr="executable"):  # sys.executable
            return "python"
        case ast.Call(func=ast.Name(id="str"), args=[value, *_]):
            return _word(value, known)

    return ""


_LONGEST_WORD: Final = 2000
_MOST_LISTED: Final = 500
"""Words of one list in a script."""


def _number(value: int) -> str:
    """Python refuses to print one of more than 4,300 digits."""
    return str(value) if value.bit_length() < 1000 else ""


def _client(issue: Issue, blocks: Sequence[_ReportBlock], prose: str) -> None:
    clients = _Clients()
    for block in blocks:
        _sort(issue, clients, block)
    if not clients.curls:
        clients.curls += [c for c in _INLINE.findall(prose) if re.match(r"curl\s", c)]
    if not clients.any:
        script = _bare_python(prose, _CLIENT_CODE)
        if script:
            clients.scripts.append(script)

    bare = re.search(r"^(?:[$#] )?curl\s", prose, re.MULTILINE)  # without a fence
    if bare and not clients.any:
        typed = as_typed(prose[bare.start() :], _is_typed)
        clients.curls.append(_without_server(typed))
    if not (clients.any or clients.offline):
        script = _bare_python(prose, _engine_code())
        if _OFFLINE.search(script):
            issue.offline = True
            clients.offline.append(script)
    if not (clients.any or clients.offline):
        clients.bodies += _bodies_of_lines(prose)

    in_order = clients.in_order()
    if not in_order:
        _offline_client(issue, clients.offline)
        return
    issue.client_kind, issue.client = in_order[0]
    issue.offline, issue.other_client = False, ""
    others = [kind for kind, _ in in_order[1:] if kind != "json"]
    if others:
        more = "1 more client" if len(others) == 1 else f"{len(others)} more clients"
        issue.notes.append(f"The report has {more}: the first one is run.")
    _files(issue, blocks)
    _fill_names(issue)


def _fill_names(issue: Issue) -> None:
    """Set what the client's scripts read and the report leaves out: the address, a
    key."""
    model = parse(issue.server).model if issue.server else ""
    values: dict[str, str] = {}
    if issue.client_kind == "python":
        names = filled_names(issue.client, model)
        issue.client, values = names.before(issue.client), names.values
    for file, text in issue.files.items():
        if file.endswith(".py"):
            names = filled_names(text, model)
            issue.files[file] = names.before(text)
            values |= names.values
    if values:
        shown = ", ".join(f"{name} = {value}" for name, value in values.items())
        issue.notes.append(f"The report's client does not set all its names: {shown}.")


def _offline_client(issue: Issue, scripts: Sequence[str]) -> None:
    """The first script that has an engine in its own process, and the server that has
    the same options."""
    for script in scripts:
        command = offline_command(script)
        if command:
            issue.client_kind, issue.client = "offline", script
            issue.server = issue.server or command
            return


@dataclass
class _Clients:
    """What of a report's blocks may be run.

    Attributes:
        scripts: Python that calls a server.
        perhaps: Python that may call one: it names an address.
        curls: lines of a shell.
        bodies: of requests.
        batches: files of requests, one on each line.
        benchmarks: scripts in place of an engine's own benchmark.
        offline: scripts that have the engine in their own process.
    """

    scripts: list[str] = field(default_factory=list)
    perhaps: list[str] = field(default_factory=list)
    curls: list[str] = field(default_factory=list)
    bodies: list[str] = field(default_factory=list)
    batches: list[str] = field(default_factory=list)
    benchmarks: list[str] = field(default_factory=list)
    offline: list[str] = field(default_factory=list)

    @property
    def any(self) -> bool:
        asking = self.curls or self.scripts or self.bodies or self.perhaps
        return bool(asking or self.batches or self.benchmarks)

    def in_order(self) -> list[tuple[str, str]]:
        """Kinds and texts, the likeliest client first."""
        clients = [("python", script) for script in self.scripts]
        if self.curls:
            clients.append(("shell", "\n".join(self.curls)))
        clients += [("python", script) for script in self.perhaps]
        clients += [("json", body) for body in self.bodies]
        clients += [("batch", batch) for batch in self.batches]
        clients += [("python", script) for script in self.benchmarks]
        return clients


def _sort(issue: Issue, clients: _Clients, block: _ReportBlock) -> None:
    """Put a block among the clients of its kind; note one that is not run."""
    text = block.text
    if block.kind in (*_SHELLS, *_WINDOWS):
        text = _as_bash(block)
    shell = block.kind in _SHELLS and _IN_SHELL.search(text)
    written = block.kind not in ("diff", "text", "log")
    # One that has the engine in its own process may fetch a picture by requests.
    offline = _OFFLINE.search(text) is not None and not _CALLS.search(text)
    code = written or (block.kind == "text" and _is_python(text))
    surely = code and not offline and _CLIENT_CODE.search(text)
    python = surely or (code and (_may_call(text) or _lacks_imports(text)))
    if python and not shell:
        scripts = clients.scripts if surely else clients.perhaps
        scripts.append(_script_in(text))
        return

    text = _without_fetch(_without_httpie(text))
    if python or _asks_by_line(text) or (shell and _CLIENT_WORDS.search(text)):
        clients.curls.append(_without_server(text))
        return
    raw = _RAW_HTTP.match(text)
    if raw:
        clients.curls.append(_curl_of(raw))
        return
    body = _body(text) if block.kind != "diff" else ""
    if body:
        clients.bodies.append(body)
    elif _is_batch(text):
        clients.batches.append(text)
    elif benchmark_form().search(text):
        clients.benchmarks += _benchmarks_in(text)
    elif _OFFLINE.search(text):
        issue.offline = True
        clients.offline.append(_script_in(text))
    elif written and not issue.other_client:
        issue.other_client = _other_client(text)


@cache
def _engine_code() -> re.Pattern[str]:
    """The form of a line of Python that imports an engine."""
    engines = "|".join(published())
    return re.compile(rf"^[ \t]*(?:from|import)\s+(?:{engines})\b", re.MULTILINE)


@cache
def _engines_clients() -> re.Pattern[str]:
    """The form of a line that starts an engine's own client."""
    forms = filter(None, (serving(engine).clients for engine in folders()))
    return re.compile(rf"^[^#\n]*\b(?:{'|'.join(forms)})", re.MULTILINE)


def _asks_by_line(text: str) -> bool:
    """Whether a line of a shell asks a server."""
    return bool(_CURL.search(text) or _engines_clients().search(text))


def _is_batch(text: str) -> bool:
    """Whether each line is a request as a batch file has it."""
    lines = [line for line in text.splitlines() if line.strip()]
    for line in lines:
        try:
            request = json.loads(line)
        except (ValueError, RecursionError):
            return False
        if not isinstance(request, dict) or not {"url", "body"} <= request.keys():
            return False
    return bool(lines)


def _benchmarks_in(text: str) -> Iterator[str]:
    """Scripts in place of the benchmarks that a shell's lines start."""
    for line in _logical(text):
        plain = CONTINUED.sub(" ", PROMPT.sub("", line))
        if benchmark_form().match(plain):
            yield script_of(plain)


_HTTPIE: Final = re.compile(
    r"^([ \t]*(?:[$>%][ \t]+)?)https?[ \t]+((?:--?[\w-]+[ \t]+)*)"
    r"(?:(GET|POST|PUT|DELETE)[ \t]+)?((?:https?://|localhost|127\.|:\d)\S*)([^\n]*)$",
    re.MULTILINE,
)
_ITEM: Final = re.compile(r"([\w.-]+)(:=|==|=|:)(.*)", re.DOTALL)


def _without_httpie(text: str) -> str:
    """Write lines of HTTPie as lines of curl."""
    return _HTTPIE.sub(lambda typed: typed[1] + _as_curl(typed), text)


def _as_curl(typed: re.Match[str]) -> str:
    _, _, method, address, rest = typed.groups()
    try:
        items = shlex.split(rest, comments=True)
    except ValueError:
        return typed[0].strip()
    body: dict[str, Any] = {}
    words: list[str] = []
    for item in filter(None, map(_ITEM.fullmatch, items)):
        name, mark, value = item.groups()
        if mark == ":":
            words += ["-H", f"{name}: {value}"]
        elif mark == "=":
            body[name] = value
        elif mark == ":=":
            try:
                body[name] = json.loads(value)
            except (ValueError, RecursionError):
                return typed[0].strip()
    url = f"http://localhost{address}" if address.startswith(":") else address
    curl = ["curl", "-X", method or ("POST" if body else "GET"), url, *words]
    if body:
        curl += ["-H", "Content-Type: application/json", "-d", json.dumps(body)]
    return shlex.join(curl)


_FETCH: Final = re.compile(
    r"\bfetch\(\s*[\"'`](https?://[^\"'`\s$]{1,300})[\"'`]\s*,\s*"
)
_METHOD: Final = re.compile(r"\bmethod:\s*[\"'](GET|POST|PUT|DELETE)[\"']")
_JS_TEXT: Final = re.compile(r"\"[^\"\n]*\"|'[^'\n]*'")
_JS_NAME: Final = re.compile(
    r"\.\.\.|[`(]|(?<![\w$])(?!(?:true|false|null)\b)[A-Za-z_$][\w$]*+(?!\s*:)"
)
_BRACE: Final = re.compile(r"[{}]")
_MOST_FETCHES, _FETCH_CHARS = 64, 16_384
"""Calls of a report that are read, and what each may have: one that is never closed is
read to its bound."""
_JS_BODY: Final = re.compile(r"\bbody:\s*JSON\.stringify\(\s*")


def _without_fetch(text: str) -> str:
    """Write calls of JavaScript's fetch as lines of curl, as far as they are written
    out; other text stays as it is."""
    curls: list[str] = []
    for called in islice(_FETCH.finditer(text), _MOST_FETCHES):
        options = _braced(text, called.end())
        method = _METHOD.search(options)
        words = ["curl", "-X", method[1] if method else "GET", called[1]]
        body = _JS_BODY.search(options)
        if body:
            written = _braced(options, body.end())
            if _JS_NAME.search(_JS_TEXT.sub('""', written)):
                continue  # a value of the script's
            # An object of JavaScript, written out, is a mapping of YAML.
            read = next(iter(read_yaml(written)), None)
            if not isinstance(read, dict):
                continue
            words += ["-H", "Content-Type: application/json", "-d", json.dumps(read)]
        curls.append(shlex.join(words))
    return "\n".join(curls) or text


def _braced(text: str, begin: int) -> str:
    """What stands between a brace at ``begin`` and the one that closes it; "": none
    does. A brace inside a text counts, too."""
    if not text.startswith("{", begin):
        return ""
    open_braces = 0
    for brace in _BRACE.finditer(text, begin, begin + _FETCH_CHARS):
        open_braces += 1 if brace[0] == "{" else -1
        if open_braces == 0:
            return text[begin : brace.end()]
    return ""


def _may_call(text: str) -> bool:
    """Whether it is Python that names a server's address."""
    if _OFFLINE.search(text):
        return False
    if not (_IMPORTS.search(text) and _CALLS.search(text)):
        return False
    return _is_python(text)


_CALLS_CLIENT: Final = re.compile(
    r"\b(?:requests|httpx)\.(?:post|get|request)\(|\.completions\.create\("
    r"|\.responses\.create\(|\.embeddings\.create\(|\b(?:Async)?OpenAI\("
)


def _lacks_imports(text: str) -> bool:
    """Whether it is Python that calls a server and leaves out nothing but what each
    client has: imports, the address, the model's name."""
    if _OFFLINE.search(text) or not _CALLS_CLIENT.search(text):
        return False
    return _is_python(text) and not filled_names(text).left


def _other_client(text: str) -> str:
    """What a client is written for that is not run; "": it is none."""
    for name, form in _OTHER_CLIENTS:
        if re.search(form, text, re.MULTILINE):
            return name
    return ""


def _bare_python(prose: str, form: re.Pattern[str]) -> str:
    """A script without a fence: from its imports, one of which has the ``form``, as far
    as it is Python, to the next heading."""
    begins = form.search(prose)
    if begins is None:
        return ""
    above = prose[: begins.start()].split("\n")
    at = begins.start()
    while len(above) > 1 and _IMPORTS.match(above[-2]):
        at -= len(above[-2]) + 1
        above.pop()
    below = prose[at:].lstrip("\n")
    # One "#" begins a comment; what is no Python below it is cut off as well.
    section = _SECTION.split(below, maxsplit=1)[0]
    return "\n".join(_python_beginning(section.splitlines())).strip()


def _python_beginning(lines: Sequence[str]) -> list[str]:
    """The lines as far as they are Python; []: no beginning of them is."""
    kept = list(lines)
    for _ in range(_MOST_TRIES):
        try:
            ast.parse(_without_prompt("\n".join(kept)))
            return kept
        except SyntaxError as error:
            # What follows the line that is wrong is no part of the script.
            wrong = (error.lineno or len(kept)) - 1
            kept = kept[: max(0, min(wrong, len(kept) - 1))]
        except (ValueError, RecursionError, MemoryError):
            break
    return []


_MOST_TRIES: Final = 60


_RAW_HTTP: Final = re.compile(
    r"\s*(GET|POST|PUT|DELETE)[ \t]+(\S+)(?:[ \t]+HTTP/[\d.]+)?[ \t]*\n"
    r"((?:[\w-]+:[^\n]*\n)*)\s*(.*)\Z",
    re.DOTALL,
)


def _curl_of(request: re.Match[str]) -> str:
    """A request as it goes over the wire, as a shell's line."""
    method, path, headers, body = request.groups()
    host = re.search(r"^host:[ \t]*(\S+)", headers, re.MULTILINE | re.IGNORECASE)
    url = path if "://" in path else f"http://{host[1] if host else '127.0.0.1'}{path}"
    left_out = ("host", "content-length", "connection", "accept-encoding")
    words = ["curl", "-X", method, url]
    for line in headers.splitlines():
        if line.partition(":")[0].lower() not in left_out:
            words += ["-H", line.strip()]
    if body.strip():
        words += ["--data-raw", body.strip()]
        if "content-type" not in headers.lower():
            words += ["-H", "Content-Type: application/json"]

    return shlex.join(words)


def _as_bash(block: _ReportBlock) -> str:
    """A block's curl lines as bash has them: PowerShell and cmd continue lines and
    quote by other marks."""
    text = block.text
    if block.kind not in _WINDOWS and "curl.exe" not in text:
        curls = [line for line in text.splitlines() if "curl" in line]
        if not any(line.rstrip().endswith((" `", " ^")) for line in curls):
            return text
    text = CONTINUED.sub(" \\\n", re.sub(r"\bcurl\.exe\b", "curl", text))
    return re.sub(r"'[^']*'", lambda quoted: quoted[0].replace('\\"', '"'), text)


def _is_python(text: str) -> bool:
    return _python(_without_prompt(text)) is not None


def _python(text: str) -> ast.Module | None:
    """None: it is no Python, or nested deeper than Python itself reads."""
    try:
        return ast.parse(text)
    except (SyntaxError, ValueError, RecursionError, MemoryError):
        return None


_FILE_NAME: Final = re.compile(
    r"(?<![\w./-])[\w./-]{0,255}(?<=\w)\.(?:json|jsonl|txt|py|ya?ml|jinja|csv)\b"
)
_RUN: Final = re.compile(
    r"^[ \t]*(?:[$>%]\s+)?(?:\w+=\S*[ \t]+)*python[\d.]*\s+(\S+\.py)\b[^\n]*",
    re.MULTILINE,
)


def _named(blocks: Sequence[_ReportBlock]) -> dict[str, str]:
    """Blocks below a line that ends with a file's name, by that."""
    named: dict[str, str] = {}
    for block in blocks:
        names = _FILE_NAME.findall(block.line)
        if names:
            named[names[-1].rpartition("/")[2]] = block.text
    return named


def _files(issue: Issue, blocks: Sequence[_ReportBlock]) -> None:
    """Blocks that the report names as files, where its client opens them; a Python
    script's own command, where that has arguments."""
    named = _named(blocks)
    bodies = [block.text for block in blocks if _body(block.text)]
    for opened in _FILE_NAME.finditer(issue.client):
        name = opened[0].rpartition("/")[2]
        if name in named:
            issue.files[name] = named[name]
        elif len(bodies) == 1 and _is_sent(issue.client, opened.start()):
            issue.files[name] = bodies[0]

    if issue.client_kind == "python":
        _run_by_command(issue, blocks, named)


def _run_by_command(
    issue: Issue, blocks: Sequence[_ReportBlock], named: Mapping[str, str]
) -> None:
    """Run a script by the command that the report shows, if that has arguments."""
    scripts = [b for b in blocks if _script_in(b.text) == issue.client]
    if not scripts:
        return
    for block in blocks:
        for command in _RUN.finditer(_joined(block.text)):
            name = command[1].rpartition("/")[2]
            lone = name not in named or named[name] == scripts[0].text
            bare = command[0][: command.end(1) - command.start()]
            if lone and command[0].rstrip() != bare:
                issue.files[name], issue.client_kind = issue.client, "shell"
                issue.client = command[0].strip().replace(command[1], name) + "\n"
                return


def _is_sent(client: str, at: int) -> bool:
    """Whether the name of a file at ``at`` stands in a word with an @ before it, as
    curl has it."""
    before = client[max(0, at - _LONGEST_PATH) : at]
    if not before or before[-1].isspace():
        return False
    return "@" in before.split()[-1]


_LONGEST_PATH: Final = 255


def _joined(text: str) -> str:
    return CONTINUED.sub(" ", PROMPT.sub("", text))


def _without_prompt(text: str) -> str:
    lines = text.splitlines()
    if any(line.startswith(">>> ") for line in lines):
        typed = [line[4:] for line in lines if line.startswith((">>> ", "... "))]
        return "\n".join(typed)
    if lines and re.match(r"\s*[$#%] cat \S+\.py\s*$", lines[0]):
        lines = lines[1:]  # what it prints is the script
    # A notebook's lines for a shell, and its magics, are no Python.
    plain = [line for line in lines if not re.match(r"[!%]\w", line)]
    return "\n".join(plain)


def _script_in(block: str) -> str:
    """The script of a block, without what stands below it, as its output does. A block
    of which no beginning asks anything is left as it is."""
    text = _without_prompt(block)
    lines = text.split("\n")
    kept = _python_beginning(lines)
    script = "\n".join(kept).rstrip()
    asks = _CALLS_CLIENT.search(script) or re.search(r"\.(?:generate|chat)\(", script)
    return script if asks and len(kept) < len(lines) else text


_MOST_CHARS: Final = 65_536
"""No report on GitHub is longer, and no block in it is read further."""


def _without_server(text: str) -> str:
    """The lines of the client in a block that has a server's command and output as
    well.

    Where lines have a shell's prompt, only those with one are typed; else the client's
    own lines are, assignments, functions and their calls, and what belongs to a loop or
    a condition."""
    lines = _logical(text[:_MOST_CHARS])
    typed = any(re.match(r"\s*\$ ", line) for line in lines)
    kept: list[str] = []
    functions: set[str] = set()
    open_text = ShellText()
    waits = False
    compounds = 0
    for line in lines:
        inside = open_text.is_open
        plain = line if inside else PROMPT.sub("", line)
        if not inside and is_server_command(plain):
            waits = True
            continue
        if waits and re.match(r"\s*sleep\s", plain):
            continue  # for the server's start
        # The pause after a server's start is not the client's.
        waits = waits and not plain.strip()
        begins = None if inside else FUNCTION.match(plain)
        if begins:
            functions.add(begins[1] or begins[2])
        called = re.match(r"\s*([\w-]+)", plain)
        is_call = called is not None and called[1] in functions
        asks = _CLIENT_LINE.match(plain) or _engines_clients().match(plain)
        command = asks is not None or is_call
        is_shell = compounds > 0 or _SHELL_LINE.match(plain) is not None
        shell = plain != line if typed else is_shell
        if inside or command or begins or shell:
            kept.append(plain)
            compounds += len(_BEGINS.findall(plain)) - len(_ENDS.findall(plain))
            open_text.read(plain)

    return "\n".join(kept).strip() + "\n"


_CLIENT_LINE: Final = re.compile(
    r"[^#]*\b(?:curl|wget)\s+\S|\s*(?:[\w.]+=\S*\s+)*(?:time\s+)?python[\d.]*\s+(?:-c\b"
    r"|-|<<|\S+\.py)"
)
_COMPOUND: Final = (
    r"(?:for\s+(?:\w+\s+in\b|\(\()|(?:while|until|if)\s+(?:[\[!($:]|(?:curl|test|true"
    r"|grep)\b|"
    r"[^;\n]{0,200};\s*(?:then|do)\b))"
)
_SHELL_LINE: Final = re.compile(
    rf"\s*(?:export\s+|declare\s+|local\s+)?[A-Za-z_]\w*=|\s*{_COMPOUND}|\s*(?:do|done|then|else|elif|"
    r"fi|cat|echo|printf|sleep|wait|seq|jq|mkdir|EOF)\b|\s*[}{)(]\s*(?:$|[&|>])|\s*[#|]"
    r"|\s*$"
)
_BEGINS: Final = re.compile(rf"(?:^|;|&&|\bdo\b|\bthen\b)\s*{_COMPOUND}")
_ENDS: Final = re.compile(r"(?:^|;)\s*(?:done|fi)\b")


_MOST_BODIES: Final = 50


def _bodies_of_lines(prose: str) -> list[str]:
    """Bodies of requests that stand on a line of their own, without a fence."""
    begun = [line.strip() for line in prose.splitlines() if line.lstrip()[:1] == "{"]
    bodies: list[str] = []
    for line in begun[:_MOST_BODIES]:
        body = _body(line)
        if body:
            bodies.append(body)
    return bodies


def _body(text: str) -> str:
    """A request's body, as JSON; "": it is none. Python's literals, comments and a last
    comma are read as they are meant."""
    if not text.lstrip().startswith("{"):
        return ""
    plain = "\n".join(_without_comment(line) for line in text.split("\n"))
    plain = re.sub(r",(\s*[}\]])", r"\1", plain)
    ways: tuple[tuple[str, Callable[[str], Any]], ...] = (
        (text, json.loads),
        (plain, json.loads),
        (text, ast.literal_eval),
    )
    for number, (written, read) in enumerate(ways):
        try:
            body = read(written)
        except (ValueError, SyntaxError, TypeError, MemoryError, RecursionError):
            continue
        if _is_request(body):
            return json.dumps(body) if number else text

    return ""


def _is_request(body: object) -> bool:
    """Whether an object has what a request asks with, and nothing of an answer."""
    if not isinstance(body, dict):
        return False
    asks = {"messages", "prompt", "input", "text", "token_ids", "input_ids", "text_1"}
    pairs = ({"query", "documents"}, {"query", "items"})
    answers = {"choices", "meta_info", "usage", "object", "error"}
    is_asking = bool(asks & body.keys()) or any(pair <= body.keys() for pair in pairs)
    return is_asking and answers.isdisjoint(body)


def _without_comment(line: str) -> str:
    """A line of JSON without the comment after its last string."""
    after = line.rfind('"') + 1
    comment = _COMMENT.search(line, after)
    return line if comment is None else line[: comment.start()]


_COMMENT: Final = re.compile(r"(?:^|(?<=[\s,{\[]))(?://|#)")


def _release(issue: Issue, text: str) -> None:
    if issue.server:
        asked = parse(issue.server)
        issue.engine, issue.release = asked.engine, asked.release
    if not issue.engine:
        _engine(issue, text)
    if issue.release:
        return
    if issue.engine:
        pattern = issue.engine + _TO_NUMBER + _NUMBER
        releases = list(re.finditer(pattern, text, re.IGNORECASE))
        # One in which all is well is none that fails, unless there is no other.
        failing = [release for release in releases if not _works(release, text)]
        failing = failing or releases
        failing.sort(key=lambda release: not _is_declared(release, text))
        if failing:
            issue.release = failing[0][1]
            return

    logged = _LOGGED.search(text)
    if logged:
        issue.release = logged[1]


def _engine(issue: Issue, text: str) -> None:
    issue.engine, issue.other_engine = _engine_named(text)


def _engine_named(text: str) -> tuple[str, str]:
    """The engine that a text names most often, and the other one that it is about in
    place of ours; "": none."""
    counts: dict[str, int] = {}
    for engine in published():
        counts[engine] = len(re.findall(engine, text, re.IGNORECASE))
    most = max(counts, key=lambda engine: counts[engine])
    others: dict[str, int] = {}
    for name, form in _OTHER_ENGINES:
        others[name] = len(re.findall(form, text, re.IGNORECASE))
    other = max(others, key=lambda name: others[name])
    # A report of ours may compare with another engine.
    if others[other] > counts[most]:
        return "", other
    return (most if counts[most] else ""), ""


def _is_declared(release: re.Match[str], text: str) -> bool:
    """Whether a line says nothing but the release, as those of an environment do."""
    line_begin = text.rfind("\n", 0, release.start()) + 1
    before = text[line_begin : release.start()]
    if not re.fullmatch(r"[\s|*>#`-]*", before):
        return False
    return re.search(r"[:=|：]", release[0]) is not None


def _works(release: re.Match[str], text: str) -> bool:
    """Whether a text has a release as one in which nothing is wrong."""
    before = text[max(0, release.start() - 60) : release.start()]
    after = text[release.end() : release.end() + 60]
    return bool(_WELL_BEFORE.search(before) or _WELL_AFTER.match(after))

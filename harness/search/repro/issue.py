"""A bug report as GitHub shows it: Markdown with the sections of an issue form, and what is in it.

The forms are those of vLLM, SGLang and LMDeploy; text that follows none is read as well.
"""

from __future__ import annotations

import ast
import json
import re
import shlex
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final

from mmrepro.failure.documents.replay import Claim
from mmrepro.search.repro.claim import read_claim
from mmrepro.search.repro.server_command import is_server_command, of_manifest, parse

_FENCE: Final = re.compile(
    r"^(?P<indent>[ \t>]*)(?P<mark>`{3,}|~{3,})[ \t]*(?P<kind>[\w+-]*)[^\n]*\n(?P<text>.*?)"
    r"(?:^[ \t>]*(?P=mark)[`~]*[ \t]*$|\Z)",
    re.MULTILINE | re.DOTALL,
)
_HEADING: Final = re.compile(r"^#{1,6}[ \t]+(.+?)[ \t]*#*$", re.MULTILINE)
_TITLE: Final = re.compile(r"^(?:#[ \t]+|title:[ \t]*[\"']?)(.+?)[\"']?$", re.MULTILINE)
_INLINE: Final = re.compile(r"(?<!`)`([^`\n]{8,400})`(?!`)")
_PROMPT: Final = re.compile(
    r"^[ \t]*(?:[$%>]|\(\w+\)[ \t]*\$|[\w.-]+@[\w.-]+:[^$#\n]{0,60}[$#])[ \t]+"
)
_CLIENT_CODE: Final = re.compile(
    r"^\s*(?:from|import)\s+(?:[\w.]+(?:\s+as\s+\w+)?\s*,\s*)*(?:openai|requests|httpx|aiohttp|"
    r"urllib|http\.client|anthropic|litellm|urllib3|websockets|langchain_openai|instructor|"
    r"lmdeploy\.serve\.openai\.api_client)\b|\bRuntimeEndpoint\(",
    re.MULTILINE,
)
_SHELLS: Final = ("bash", "sh", "shell", "zsh", "console", "")
_IN_SHELL: Final = re.compile(
    r"^[ \t]*(?:[$>]\s+)?(?:\w+=\S*\s+)*(?:cat\s*>|cat\s*<<|\S*python[\d.]*\s+(?:-c\b|-?\s*<<|-$))",
    re.MULTILINE,
)
"""A shell that brings Python: in a heredoc, or after ``-c``."""
_OFFLINE: Final = re.compile(
    r"^\s*from\s+vllm\s+import\b.*\bLLM\b|\bvllm\.LLM\(|\bsgl(?:ang)?\.Engine\(|"
    r"from\s+lmdeploy\s+import\b.*\bpipeline\b|AsyncLLM(?:Engine)?\.from_",
    re.MULTILINE,
)
_CURL: Final = re.compile(r"^[^#\n]*\b(?:curl|wget)\s+", re.MULTILINE)
_CLIENT_WORDS: Final = re.compile(r"\bimport\s+(?:\w+,\s*)*(?:openai|requests|httpx|urllib)\b")
_RELEASES: Final[Sequence[tuple[str, str]]] = (
    (r"vllm(?:\s+Version)?[\"'` ]*(?:==|:|@|=|version|v|is)?[\s:=v]*", "vllm"),
    (r"sglang(?:\s+Version)?[\"'` ]*(?:==|:|@|=|version|v|is)?[\s:=v]*", "sglang"),
    (r"lmdeploy(?:\s+Version)?[\"'` ]*(?:==|:|@|=|version|v|is)?[\s:=v]*", "lmdeploy"),
)
_NUMBER: Final = r"(\d+\.\d+\.\d+(?:\.?(?:post|rc)\d+)?)"
_LOGGED: Final = re.compile(
    r"(?:vLLM API server version|LLM engine \(v|Tested (?:with|on) \w+|version)[ :=]*v?" + _NUMBER,
    re.IGNORECASE,
)
_ENVIRONMENT: Final = re.compile(r"environment|collect_env|versions?\b|系统|环境", re.IGNORECASE)
_LOG_LINE: Final = re.compile(r"^\(?\w+ pid=\d+\)|^(?:INFO|ERROR|WARNING|DEBUG)\b|^\[\d{4}-|^\s*#")
_PLAIN: Final = re.compile(
    r"\s*(?:[A-Za-z_]\w*=\S*\s+)*(?:\S*/)?(?:vllm|sglang|lmdeploy|python[\d.]*\s+-m|docker|podman)\s"
    r"[^\n]*?(?:\s--?\w|\s[\w.-]+/[\w.-]+)"
)
_STARTS: Final = re.compile(
    r"\s*(?:[A-Za-z_]\w*=\S*\s+)*(?:(?:sudo|nohup|time|exec|env|uv run|poetry run|pixi run|"
    r"numactl\s\S+|[^#\s][^&;#]*(?:&&|;))\s+)*(?:[A-Za-z_]\w*=\S*\s+)*(?:\S*/)?"
    r"(?:vllm|sglang|lmdeploy|python[\d.]*|docker|podman|nerdctl)\b"
)


@dataclass(frozen=True)
class Block:
    """A fenced block. ``section``: the heading above it."""

    text: str
    kind: str
    section: str


@dataclass
class Issue:
    """What a report brings.

    Attributes:
        server: the command; "": none was found.
        client: what is run: a script, curl lines, or a request's body; "": none was found.
        client_kind: ``python``, ``shell`` or ``json``.
        notes: sentences: what else there was.
        missing: what it lacks, as it is asked for.
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


def read_issue(text: str) -> Issue:
    """Read a report; what is not in it stays empty."""
    text = text.replace("\r\n", "\n").removeprefix("\ufeff")
    title = _TITLE.search(text)
    first = next((line.strip() for line in text.splitlines() if line.strip()), "")
    named = title[1] if title else "" if first.startswith("#") else first[:300]
    issue = Issue(title=named.strip())
    blocks = list(_blocks(text))
    prose = _FENCE.sub("\n", text)
    _server(issue, blocks, prose)
    _client(issue, blocks, prose)
    _release(issue, text)
    said = prose + "\n".join(
        block.text for block in blocks if not _ENVIRONMENT.search(block.section)
    )
    for taken in (issue.client, issue.server):
        said = said.replace(taken, " ") if taken else said
    issue.claim = read_claim(issue.title, said)
    return issue


def _blocks(text: str) -> Iterator[Block]:
    section, read = "", 0
    for found in _FENCE.finditer(text):
        for heading in _HEADING.finditer(text, read, found.start()):
            section = heading[1]
        read = found.start()
        indent = found["indent"]
        lines = [line.removeprefix(indent) for line in found["text"].splitlines()]
        yield Block("\n".join(lines), found["kind"].lower(), section)


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


def _server(issue: Issue, blocks: Sequence[Block], prose: str) -> None:
    """The first command that starts a server, with the variables set in its block."""
    found: list[str] = []
    for block in blocks:
        if block.kind in ("python", "py", "json"):
            continue
        before: list[str] = []
        for line in _logical(block.text):
            plain = _PROMPT.sub("", line)
            if is_server_command(plain) and _STARTS.match(plain):
                found.append("\n".join([*before, plain]))
            elif re.match(r"\s*(?:export\s+)?[A-Za-z_]\w*=\S*\s*$", plain):
                before.append(plain.strip())
    found += [one for one in _INLINE.findall(prose) if is_server_command(one)]
    bare = (_PROMPT.sub("", line) for line in _logical(prose))  # without a fence
    found += [one.strip() for one in bare if is_server_command(one) and _PLAIN.match(one)]
    found += filter(None, (of_manifest(block.text) for block in blocks))
    if not found:  # a script that starts its server itself
        for block in blocks:
            found += started_by(block.text)
            if not found:
                lines = [line for line in _logical(block.text) if is_server_command(line)]
                found += [_PROMPT.sub("", line) for line in lines if not _LOG_LINE.search(line)]
    if found:
        issue.server = found[0]
        if len(dict.fromkeys(found)) > 1:
            count = len(dict.fromkeys(found))
            issue.notes.append(f"The report has {count} servers' commands: the first one is run.")


def started_by(script: str) -> Iterator[str]:
    """Servers' commands in a Python script: a list of words, or one text."""
    try:
        tree = ast.parse(script)
    except (SyntaxError, ValueError):
        return
    known: dict[str, str] = {}
    for node in ast.walk(tree):
        if isinstance(node, ast.Assign) and isinstance(node.targets[0], ast.Name):
            known[node.targets[0].id] = _word(node.value, known)
    for node in ast.walk(tree):
        words = [_word(one, known) for one in getattr(node, "elts", [])]
        text = shlex.join(filter(None, words)) or _word(node, known)
        if is_server_command(text) and not isinstance(node, ast.Name):
            yield text


def _word(node: ast.AST, known: Mapping[str, str]) -> str:
    """What an expression is as text; "": that is not known."""
    if isinstance(node, ast.Constant):
        return str(node.value)
    if isinstance(node, ast.Name):
        return known.get(node.id, "")
    if isinstance(node, ast.JoinedStr):
        return "".join(_word(one, known) for one in node.values)
    if isinstance(node, ast.FormattedValue):
        return _word(node.value, known)
    if isinstance(node, ast.Attribute):
        return "python" if node.attr == "executable" else ""
    if isinstance(node, ast.Call) and getattr(node.func, "id", "") == "str" and node.args:
        return _word(node.args[0], known)
    return ""


def _client(issue: Issue, blocks: Sequence[Block], prose: str) -> None:
    scripts: list[tuple[str, str]] = []
    curls: list[str] = []
    bodies: list[str] = []
    for block in blocks:
        text = block.text
        shell = block.kind in _SHELLS and _IN_SHELL.search(text)
        python = _CLIENT_CODE.search(text) and block.kind not in ("diff", "text", "log")
        if python and not shell:
            scripts.append(("python", _without_prompt(text)))
        elif python or _CURL.search(text) or (shell and _CLIENT_WORDS.search(text)):
            curls.append(_without_server(text))
        elif block.kind in ("json", "") and _is_body(text):
            bodies.append(text)
        elif _OFFLINE.search(text):
            issue.offline = True
    curls += (
        [one for one in _INLINE.findall(prose) if re.match(r"curl\s", one)] if not curls else []
    )
    bare = re.search(r"^(?:\$ )?curl\s", prose, re.MULTILINE)  # without a fence
    if bare and not (curls or scripts or bodies):
        curls.append(_without_server(prose[bare.start() :]))
    if curls:
        scripts.append(("shell", "\n".join(curls)))
    scripts += [("json", body) for body in bodies]
    if scripts:
        issue.client_kind, issue.client = scripts[0]
        issue.offline = False
        others = [kind for kind, _ in scripts[1:] if kind != "json"]
        if others:
            more = len(others)
            issue.notes.append(
                f"The report has {more} more client{'s' * (more > 1)}: the first one is run."
            )


def _without_prompt(text: str) -> str:
    lines = text.splitlines()
    if any(line.startswith(">>> ") for line in lines):
        return "\n".join(line[4:] for line in lines if line.startswith((">>> ", "... ")))
    return "\n".join(line for line in lines if not re.match(r"[!%]\w", line))  # a notebook's


def _without_server(text: str) -> str:
    """The lines of the client in a block that has a server's command and output as well.

    Where lines have a shell's prompt, only those with one are typed; else the client's own lines
    are, assignments, functions and their calls, and what belongs to a loop or a condition.
    """
    lines = _logical(text)
    typed = any(re.match(r"\s*\$ ", line) for line in lines)
    kept: list[str] = []
    functions: list[str] = []
    inside = waits = False
    for line in lines:
        plain = line if inside else _PROMPT.sub("", line)
        if not inside and is_server_command(plain):
            waits = True
            continue
        if waits and re.match(r"\s*sleep\s", plain):
            continue  # for the server's start
        waits = waits and not plain.strip()
        if begins := None if inside else _FUNCTION.match(plain):
            functions.append(begins[1] or begins[2])
        called = re.match(r"\s*([\w-]+)", plain)
        command = _CLIENT_LINE.match(plain) or (called is not None and called[1] in functions)
        shell = plain != line if typed else _SHELL_LINE.match(plain) or _in_compound(kept)
        if inside or command or begins or shell:
            kept.append(plain)
            so_far = "\n".join(kept)
            inside = _in_quotes(so_far) or _in_heredoc(so_far) or _in_function(kept)
    return "\n".join(kept).strip() + "\n"


_CLIENT_LINE: Final = re.compile(
    r"[^#]*\b(?:curl|wget)\s+\S|\s*(?:[\w.]+=\S*\s+)*(?:time\s+)?python[\d.]*\s+(?:-c\b|-|<<|\S+\.py)"
)
_FUNCTION: Final = re.compile(r"\s*(?:function\s+([\w-]+)(?:\s*\(\))?|([\w-]+)\s*\(\))\s*\{?")
_COMPOUND: Final = (
    r"(?:for\s+(?:\w+\s+in\b|\(\()|(?:while|until|if)\s+(?:[\[!($:]|(?:curl|test|true|grep)\b|"
    r"[^;\n]*;\s*(?:then|do)\b))"
)
_SHELL_LINE: Final = re.compile(
    rf"\s*(?:export\s+|declare\s+|local\s+)?[A-Za-z_]\w*=|\s*{_COMPOUND}|\s*(?:do|done|then|else|elif|"
    r"fi|cat|echo|printf|sleep|wait|seq|jq|mkdir|EOF)\b|\s*[}{)(]\s*(?:$|[&|>])|\s*[#|]|\s*$"
)
_BEGINS: Final = re.compile(rf"(?:^|;|&&|\bdo\b|\bthen\b)\s*{_COMPOUND}")
_ENDS: Final = re.compile(r"(?:^|;)\s*(?:done|fi)\b")


def _in_compound(kept: Sequence[str]) -> bool:
    """Whether a loop or a condition is open."""
    return sum(len(_BEGINS.findall(line)) - len(_ENDS.findall(line)) for line in kept) > 0


def _in_function(kept: Sequence[str]) -> bool:
    """Whether a function is open: its brace is closed on a line of its own, or at a line's end."""
    began = next((n for n in range(len(kept) - 1, -1, -1) if _FUNCTION.match(kept[n])), None)
    if began is None:
        return False
    rest = kept[began:]
    return not any(re.match(r"\s*\}|[^#]*;\s*\}\s*$", line) for line in rest)


def _in_quotes(text: str) -> bool:
    """Whether a quote is open at the end of a shell's text. A comment and a heredoc open none."""
    text = _HEREDOC.sub(r"\2", text)
    mark, place = "", 0
    while place < len(text):
        char = text[place]
        if mark == "'":
            mark = "" if char == "'" else mark
        elif char == "\\":
            place += 1
        elif mark:
            mark = "" if char == mark else mark
        elif char in "'\"":
            mark = char
        elif char == "#" and text[place - 1 : place].strip() == "":
            place = text.find("\n", place) if "\n" in text[place:] else len(text)
        place += 1
    return bool(mark)


_OPENED: Final = r"(?<!<)<<(?!<)-?[ \t]*[\"']?([A-Za-z_]\w*)"
_HEREDOC: Final = re.compile(
    _OPENED + r"[\"']?([^\n]*\n)(?:.*?\n)??[ \t]*\1[ \t]*(?=\n|\Z)", re.DOTALL
)


def _in_heredoc(text: str) -> bool:
    return re.search(_OPENED, _HEREDOC.sub(r"\2", text)) is not None


def _is_body(text: str) -> bool:
    try:
        body = json.loads(text)
    except ValueError:
        return False
    keys = {"messages", "prompt", "input", "text", "token_ids", "input_ids"}
    return isinstance(body, dict) and bool(keys & body.keys()) and "choices" not in body


def _release(issue: Issue, text: str) -> None:
    if issue.server:
        asked = parse(issue.server)
        issue.engine, issue.release = asked.engine, asked.release
    counts = {engine: len(re.findall(engine, text, re.IGNORECASE)) for _, engine in _RELEASES}
    most = max(counts, key=lambda engine: counts[engine])
    issue.engine = issue.engine or (most if counts[most] else "")
    if issue.release:
        return
    for pattern, engine in _RELEASES:
        if engine != issue.engine:
            continue
        if found := re.search(pattern + _NUMBER, text, re.IGNORECASE):
            issue.release = found[1]
            return
    if found := _LOGGED.search(text):
        issue.release = found[1]

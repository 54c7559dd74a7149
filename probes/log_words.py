"""What of a log may leave the machine: an engine's own words, and of what they quote
its length.

``log_forms.quoted`` separates a client's words from the engine's so that no rule
believes them. Here they are left out, and with them what a rule would not mind: any
quoted text of several words, and what stands in a printed dictionary. Numbers, digests
and ids of requests stay, and so does what an operator set where a server prints its own
settings."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from typing import Final

from mmrepro.probes.data import LogLine
from mmrepro.probes.log_forms import EXCEPTION, STRING, has_form, quoted, read_line

Span = tuple[int, int]

_UNQUOTED: Final = re.compile(r"(?:[^:='\"`{\[(<]|(?<=[A-Za-z])'(?=[a-z]{1,2}\b))*")
_ALLOWED: Final = re.compile(
    r"""(?:[\W_]*(?:
      (?:(?:chatcmpl|cmpl|embd|resp|req|request|rid|score|pool)-)?[0-9a-f]{6,64}(?:-[0-9a-f]{4,12}){0,5}
    | -?\d[\d_.,:e+-]*|true|false|null|none|nan|inf|auto|stop|length|abort|error
    | \[redacted:[a-z]+-\d+\]|\[\d+\ characters\]
    ))*[\W_]*""",
    re.IGNORECASE | re.VERBOSE,
)
"""Of what is quoted: numbers, digests, ids, the words of a switch, and what is left out
already."""
_SETTINGS: Final = re.compile(
    r"\bwith config: |\bserver_args=|\b(?:non-default|[Ee]ngine|[Ss]erver|[Ss]erve"
    r"|[Aa]pi) args: "
)
_SETTING: Final = re.compile(r"[^\s'\"{}<>]{1,200}")
_SOURCE: Final = re.compile(
    r'\s|File "|Traceback \(most|During handling of|The above exception was'
    r"|[Ee]xtension modules:"
    r"|mmrepro[ -]"
)
"""Lines of a traceback, where what is quoted stands in the program's source; and
stand-ins'."""
_KEPT: Final = re.compile(
    r"""
    \b(?:chatcmpl|cmpl|embd|resp|req|request|rid)-[0-9a-f]{8,40}(?:-[0-9a-f]{1,12}){0,5}\b
  | :\ (?:params:\ SamplingParams\(|details:\ )
  | \b[a-z_]{2,40}=(?:None|True|False|\[\]|-?\d[\d.e-]{0,24})(?=[,)\[])
  | \bprompt(?:_\w{1,20})?:\ None\b
    """,
    re.VERBOSE,
)
"""Of what is quoted, and outside of any text: ids of requests, and settings that are
numbers."""
_SENTENCE: Final = re.compile(
    r"(?:returned non-zero exit status \d+\.?|died with <Signals\.\w{3,12}: \d+>\.?"
    r"|(?:Decode|Prefill) (?:transfer|bootstrap|handshake) failed for request(?: rank=\d+)?"
    r"|Replica\(id='[\w-]{1,60}', deployment='[\w:./-]{1,80}', app='[\w:./-]{0,80}'\)"
    r"|\W{0,3}EngineCore encountered an issue\. See stack trace \(above\) for the root cause\."
    r"|(?:'max_tokens' or 'max_completion_tokens' is too large: \d+\. )?"
    r"This model's maximum context length is \d+ tokens"
    r"(?: and your request has \d+ input tokens \(\d+ > \d+ - \d+\)"
    r"|\. However, you requested \d+ (?:output )?tokens"
    r"(?: \(\d+ in the messages, \d+ in the completion\)"
    r"| and your prompt contains (?:at least )?\d+ input tokens,"
    r" for a total of (?:at least )?\d+ tokens)?"
    r"|\. However, your (?:messages|request) (?:resulted in"
    r"|has) \d+ (?:input )?tokens)?\."
    r"(?: Please reduce the length of the (?:messages(?: or completion)?"
    r"|input prompt(?: or the number of requested output tokens)?)\.?)?"
    r"|The (?:decoder|encoder|engine) prompt \(length \d+\)"
    r" is longer than the maximum model length of \d+\."
    r"|At most \d+ \w{1,20}\(s\) may be provided in one (?:prompt|request)\."
    r"|The input \(\d+ tokens\) is longer than the model's context length \(\d+ tokens\)\."
    r"|Requested token count exceeds the model's maximum context length of \d+ tokens\. You"
    r" requested a total of \d+ tokens: \d+ tokens from the input messages and \d+ tokens for"
    r" the completion\.)"
)
"""What engines say of a request's length: vllm/entrypoints, sglang's
tokenizer_manager.py. Nothing in it but numbers is of the request."""
_ACCESS: Final = re.compile(r'"(?P<method>[A-Z]{3,10}) (?P<path>/[^\s"?]*)')
_SERVED: Final = re.compile(
    r"(?:v[12]|health(?:z|_generate)?|ping|metrics|generate(?:_stream)?|(?:de)?tokenize"
    r"|version|load"
    r"|(?:get_)?(?:server|model)_info|get_load|abort_request|flush_cache|encode"
    r"|classify|rerank"
    r"|score|pooling|embeddings|chat|completions|responses|models|invocations|docs"
    r"|openapi\.json"
    r"|ready|live|st(?:art|op)_profile|audio|transcriptions|translations|messages"
    r"|count_tokens"
    r"|is_sleeping|sleep|wake_up|pause|resume|render|reset_(?:mm|prefix|encoder)_cache"
    r"|(?:un)?load_lora_adapter|collective_rpc|server_metrics|terminate|nodes"
    r"|favicon\.ico)"
)
"""Parts of the routes that engines have."""
_OPENS: Final = re.compile(
    r"<\|?(?:im_start|start_header_id|start_of_turn|begin_of_text|user|assistant|system"
    r"|python_tag"
    r"|tool_calls?|function|think|s)\|?>|\[(?:INST|TOOL_CALLS|AVAILABLE_TOOLS)\]"
    r"|<<SYS>>"
)
"""What a chat template or a model writes around words: all behind it is theirs."""
_BY_PROGRAMS: Final = ("Assertion ", "Search for ", "with error '")
CARRIES: Final = re.compile(
    r"Received request \S+: |Request \S+ details: |Generated response "
    r"|GenerateReqInput\("
    r"|input_value=['\"]|<\|im_start\|>|\[INST\]|<tool_call>|jinja2\.exceptions\.\w+: "
    r"|TemplateError: |session(?:_id)?=\d+, [^\n]{0,400}prompt="
)
"""Beginnings of a line that quotes a request, wherever they stand in a text."""
_PAIR: Final = re.compile(
    r"""(?<=['"])\s?:\s?(?=['"\[{])|[{[(]\s?(?=['"]\w+['"]\s?:)"""
)
_JSON: Final = re.compile(r"""[{\[]\s?\\*["']""")


def hidden(
    text: str, source: str = "", level: str = "", known: Iterable[Span] = ()
) -> Iterator[Span]:
    """What of a message does not leave, in order.

    Args:
        known: what its log's reader found to be a client's, by the lines before it.
    """
    spans, _ = quoted(text, source, level)
    spans = [*known, *spans]
    if has_form(text):  # a whole line of another logger's, or of the same again
        inner = read_line(text)
        spans += [
            (inner.head + begin, inner.head + stop) for begin, stop in inner.spans
        ]
    if not _SOURCE.match(text):
        spans += _printed(text)
    yield from _of_clients(text, spans)


def _of_clients(text: str, spans: Iterable[Span]) -> Iterator[Span]:
    """The spans, in order, without what is the engine's own wherever it is quoted: its
    settings, its sentences, numbers and ids."""
    settings = _SETTINGS.search(text)
    own = [match.span() for match in _SENTENCE.finditer(text)]
    end = 0
    for begin, stop in sorted(spans):
        begin = max(begin, end)
        if begin >= stop:
            continue
        if text[stop : stop + 1] in ("'", '"') and text[stop + 1 : stop + 2].isalnum():
            # Printed without escapes: where it ends is known at the line's last mark
            # alone.
            last = text.rfind(text[stop])
            stop = last if last > stop else len(text)
        end = stop
        said = text[begin:stop]
        set_so = settings and begin > settings.start() and _SETTING.fullmatch(said)
        if not (
            set_so or _ALLOWED.fullmatch(said) or text.endswith(_BY_PROGRAMS, 0, begin)
        ):
            yield from _without(begin, stop, [*own, *_kept(text, begin, stop)])


def refused(message: str) -> Iterator[Span]:
    """What of an error that came over HTTP is not the engine's own: all from the first
    sign on that something is quoted."""
    found = _UNQUOTED.match(message)
    own = [match.span() for match in _SENTENCE.finditer(message)]
    begin = found.end() if found else 0
    if begin < len(message) and not _ALLOWED.fullmatch(message, begin):
        yield from _without(begin, len(message), own)


def _kept(text: str, begin: int, end: int) -> Iterator[Span]:
    """What of a span stays, outside of the texts in it."""
    strings = (match.span() for match in STRING.finditer(text, begin, end))
    at = next(strings, None)
    for match in _KEPT.finditer(text, begin, end):
        # Both come in order: a line of many texts is read once.
        while at and at[1] <= match.start():
            at = next(strings, None)
        if not at or at[0] >= match.end():
            yield match.span()


def _without(begin: int, end: int, kept: Iterable[Span]) -> Iterator[Span]:
    for a, b in sorted(kept):
        if a >= end or b <= begin:
            continue
        if begin < a:
            yield begin, a
        begin = max(begin, b)
    if begin < end:
        yield begin, end


def _printed(text: str) -> Iterator[Span]:
    """Quoted texts of several words, what dictionaries hold, and what a template
    opens."""
    if match := _OPENS.search(text):
        yield match.start(), len(text)
        text = text[: match.start()]
    for match in _ACCESS.finditer(text):
        if not all(map(_SERVED.fullmatch, match["path"].strip("/").split("/"))):
            yield match.span("path")
    if "'" not in text and '"' not in text:
        return
    begin = EXCEPTION.match(text)
    pairs = _PAIR.search(text) or _JSON.search(text)
    for match in STRING.finditer(text):
        inside = (
            match.start() + 1,
            match.end() - (len(match[0]) > 1 and match[0][-1] == match[0][0]),
        )
        said = text[slice(*inside)]
        key = text[match.end() : match.end() + 3].lstrip(" \\'\"")[:1] == ":"
        several = (" " in said.strip() or "\\n" in said) and not _ACCESS.match(match[0])
        if several or (
            pairs and match.start() >= pairs.start() and not key and not begin
        ):
            yield inside


def public_line(
    line: LogLine, most: int = 2000, *, begin: int = 0, end: int | None = None
) -> str:
    """The message from ``begin`` to ``end``, as reports quote it: at most so many
    characters."""
    end = len(line.text) if end is None else end
    spans = hidden(line.text, line.source, line.level, line.quoted)
    inside = ((max(a, begin) - begin, min(b, end) - begin) for a, b in spans)
    return left_out(line.text[begin:end], ((a, b) for a, b in inside if a < b))[:most]


def own_line(
    line: LogLine, most: int = 2000, *, begin: int = 0, end: int | None = None
) -> str:
    """The message as the user's own screen shows it: lengths in the place of what its
    log's reader found to be a client's, from ``begin`` to ``end``."""
    end = len(line.text) if end is None else end
    inside = []
    for a, b in _of_clients(line.text, line.quoted):
        a, b = max(a, begin) - begin, min(b, end) - begin
        if a < b:
            inside.append((a, b))
    return left_out(line.text[begin:end], inside)[:most]


def left_out(text: str, spans: Iterable[Span]) -> str:
    """``text`` with the length of each span in its place."""
    out, at = [], 0
    for begin, end in spans:
        out += [text[at:begin], f"[{end - begin} characters]"]
        at = end
    return "".join([*out, text[at:]]) if out else text


def hidden_in(text: str) -> Iterator[Span]:
    """The same of a log's text: whose a line is may be known from those before it
    alone."""
    from mmrepro.probes.log_lines import Block

    at = 0
    block = Block(("\n" + text).encode("utf-8", "replace"), 0)
    for start, line in zip(block.starts, text.split("\n"), strict=False):
        read = block.reading(start)
        # The reader takes colours and bars off: what it read is looked for in what is
        # there.
        head = line.find(read.text) if read.text else -1
        if read.text and head < 0:
            read = read_line(line)
            head = read.head
        for begin, end in hidden(read.text, read.source, read.level, read.spans):
            yield at + head + begin, at + head + end
        at += len(line) + 1

"""What of a document may leave: all that is printed, drawn or packed is made of this.

A document on disk keeps what it is judged by. Kinds of records are known by their
names, so that nothing is loaded for those that a document has not."""

from __future__ import annotations

import re
from collections.abc import Callable, Container, Iterable, Iterator, Mapping
from dataclasses import replace
from typing import TYPE_CHECKING, Any, Final, Self, TypeVar

from mmrepro.base.records import Record
from mmrepro.base.text import (
    REDACTED,
    Redactor,
    Span,
    clip,
    conversation_spans,
    named_words_of,
    names_a_digest,
    names_a_secret,
)
from mmrepro.probes import LogLine
from mmrepro.probes.log_words import CARRIES, hidden, hidden_in, own_line, refused
from pydantic import BaseModel

if TYPE_CHECKING:
    from mmrepro.failure.documents.cause import Cause, FirstFailure, LogFacts
    from mmrepro.failure.documents.model import Incident, KeyFrame, LogExcerpt
    from mmrepro.failure.documents.replay import Finding, ReportFacts, Sighting
    from mmrepro.probes import EndpointAnswer, Frame, MetricSample
    from mmrepro.traffic.evidence import Event

M = TypeVar("M", bound=BaseModel)
_PRINTED_LINES: Final = 30
_PRINTED_WIDTH: Final = 240
"""Of what a client of a report printed."""
LEFT_OUT: Final = "[left out]"
_SPOKEN: Final = ("cross-talk", "wrong-answer", "canary")
"""Classes of findings whose sentences quote answers."""
_QUOTED: Final = re.compile(r"""(['"])((?:\\.|(?!\1)[^\\]){3,4000})\1""")
_HARMLESS: Final = re.compile(
    r"-?\d[\d_.eE+-]*|None|True|False|<[\w.]+(?: at 0x[0-9a-f]+| object at 0x[0-9a-f]+"
    r"|: -?\d+"
    r"|(?:,? \w+=-?\d[\d.e+-]*)+)>|(['\"]?[0-9a-f]{6,64}['\"]?)"
)
"""Numbers, objects by their class, address and numbers, and what may be a digest."""


def redact_log(text: str, redactor: Redactor) -> str:
    """``text`` of a log: besides secrets, what an engine quotes of users and their
    requests."""
    # What is registered first: a quotation may end within it.
    text = redactor.redact(text)
    text = redactor.hide("quoted", text, uncovered(text, hidden_in(text)))
    return redacted_words(text, redactor)


def redacted_words(text: str, redactor: Redactor) -> str:
    text = redactor.redact(text)
    return redactor.hide("prompt", text, uncovered(text, conversation_spans(text)))


def uncovered(text: str, spans: Iterable[Span]) -> Iterator[Span]:
    """The spans, less what is a placeholder in them."""
    for begin, end in spans:
        for match in REDACTED.finditer(text, begin, end):
            if begin < match.start():
                yield begin, match.start()
            begin = match.end()
        if begin < end:
            yield begin, end


# ------------------------------------------------------------------------- any document

_Loaded = TypeVar("_Loaded")


def published(loaded: _Loaded, redactor: Redactor | None = None) -> _Loaded:
    """What of a document, or of a finding with its folder, may leave: all that is
    printed, drawn or packed is made of this. The document on disk keeps what it is
    judged by."""
    if type(loaded).__name__ == "LoadedFinding":
        whole: Any = loaded
        finding, replay = published(whole.finding), published(whole.replay)
        made: _Loaded = replace(whole, finding=finding, replay=replay)
        return made
    if not isinstance(loaded, Record):
        return loaded
    if redactor is None:
        redactor = Public()
        redactor.reserve(loaded.model_dump_json())
    return redactor.redact_model(loaded)


class Public(Redactor):
    """As a :class:`Redactor`, and what users wrote goes wherever a kind of record may
    hold it: by its place, whatever it says. Of a log line the engine's own words
    stay."""

    @classmethod
    def after(cls, redactor: Redactor) -> Self:
        """One that goes on with the mapping of ``redactor``."""
        made = cls()
        made.__dict__.update(redactor.__dict__)
        return made

    def redact_model(self, model: M) -> M:
        """Names of files are known first: they stand in sentences, too."""
        for path in _files(model):
            self.name_file(path)
        kind = type(model).__name__
        if kind == "Incident":
            self.names = _known(model)
        if kind == "Bisection":
            points = getattr(model, "points", ())
            self.know(point.commit for point in points if point.commit)
        return super().redact_model(model)

    def view_of(self, kind: str) -> Callable[[Public, Any], Any] | None:
        """What of a record of that kind may leave; None: all, as redacted."""
        return _VIEWS.get(kind)

    names: frozenset[str] = frozenset()
    """Names that the report shows anyway, of the model and of a run's own requests:
    they stay where an engine quotes them."""

    def redact(self, text: str) -> str:
        """Redact a text as a redactor does; a log line within another's sentence is
        read as such as well."""
        carried = CARRIES.search(text)
        if carried is not None:
            begin = carried.start()
            spans = _moved(hidden(text[begin:]), begin)
            text = self.hide("quoted", text, uncovered(text, spans))
        return super().redact(text)

    def _model(self, model: M) -> M:
        view = self.view_of(_name(type(model)))
        made = super()._model(view(self, model) if view is not None else model)
        text = made.text if isinstance(made, LogLine) else None
        if text is None:
            return made
        # Placeholders are of other lengths than what they replace.
        places = [match.span() for match in _QUOTED_MARK.finditer(text)]
        return made.model_copy(update={"quoted": places})

    def name_file(self, path: str) -> None:
        """Register the name of a file, but for one that says nothing of anybody."""
        name = path.rpartition("/")[2]
        if name in self.names:
            return
        words = _NAME_PARTS.findall(name)
        if not all(_is_plain(word) for word in words):
            self.add(name, "file")

    def quoted(self, text: str, spans: Iterable[Span]) -> str:
        """``text`` with a placeholder for each span that is no known name."""
        unknown: list[Span] = []
        for begin, end in uncovered(text, spans):
            if text[begin:end] not in self.names:
                unknown.append((begin, end))
        return self.hide("quoted", text, unknown)


class OwnScreen(Public):
    """What the screen of the user's own machine shows: addresses, hosts, files and ids
    are the diagnosis there. Secrets and what clients wrote are hidden as elsewhere."""

    def __init__(self) -> None:
        super().__init__()
        # What is clean for this screen may be private elsewhere: no cache is shared.
        self._clean = set()

    def view_of(self, kind: str) -> Callable[[Public, Any], Any] | None:
        """As elsewhere, but for lines and causes, which are an engine's own words."""
        if kind == "data.LogLine":
            return _own_line
        return None if kind.startswith("cause.") else super().view_of(kind)

    def name_file(self, path: str) -> None:
        """Keep the names of files as they are."""

    def _steps(self) -> Iterator[Callable[[str], str]]:
        yield from self._rules()

    def _rules(self) -> Iterator[Callable[[str], str]]:
        yield from self.secrets()


def shown_here(loaded: _Loaded) -> _Loaded:
    """A document as the screen of the user's own machine shows it."""
    return published(loaded, OwnScreen())


_QUOTED_MARK: Final = re.compile(r"\[redacted:(?:quoted|prompt|answer)-\d{1,9}\]")
_NAME_PARTS: Final = re.compile(r"[^\W\d_]+")
_PLAIN_NAMES: Final = named_words_of("""
    log logs out err stdout stderr std output error errors engine core server serve vllm sglang
    lmdeploy minivllm api worker workers rank node gpu cpu process processes pid main app service
    docker container pod kubectl journal syslog kern kernel dmesg messages system run runner control
    gate check trigger after start stop metrics http stacks stack syscalls connections inference
    requests request dump dumps crash core trace traceback json jsonl txt gz zst bz xz zip yaml yml
    csv prom pkl py md html lock packages resolved environ environment evidence incident report
    structured twice broken series events reproducer flight recorder nccl ras nvidia smi tp pp dp ep
    date old new prev current rotated frontend front backend decode prefill router proxy gateway
    utc mon tue wed thu fri sat sun jan feb mar apr may jun jul aug sep oct nov dec t z a b
""")


def _name(kind: type) -> str:
    """Module and class: several modules have an ``Event``."""
    return f"{kind.__module__.rpartition('.')[2]}.{kind.__name__}"


def _is_plain(word: str) -> bool:
    return word.lower() in _PLAIN_NAMES or len(word) < 2


def _files(model: Any) -> Iterator[str]:
    """Names of files that somebody else gave."""
    kind = type(model).__name__
    if kind == "Incident":
        for result in model.evidence.probes:
            if type(result.data).__name__ in ("LogsData", "RequestDumpData"):
                yield from _files_of(result.data)
        if model.diagnosis is not None:
            yield from _files(model.diagnosis)
    elif kind == "Diagnosis":
        yield from model.target.logs
        yield from _dump_files(model.dumps)
    elif kind == "LogReading":
        yield from _files_of(model.log)
        yield from _dump_files(model.dumps)


def _dump_files(dumps: Any) -> Iterator[str]:
    """Names of the files of dumps; of None: none."""
    if dumps:
        for dump in dumps.files:
            yield dump.file


def _files_of(data: Any) -> Iterator[str]:
    """Names of all files that a log was read from, or could not be."""
    yield data.file
    yield from getattr(data, "files", ())
    yield from getattr(data, "unread", ())


def _known(incident: Any) -> frozenset[str]:
    """Words of its command, what a run called its own requests (their ids, too) and its
    files."""
    names = {*incident.engine.command}
    for exhibit in incident.exhibits:
        names |= {shown.file for shown in exhibit.shown}
    for result in incident.evidence.probes:
        names |= set(result.raw)
    for reproducer in incident.evidence.reproducers:
        names.add(f"{reproducer.name}.json")
    names.add(incident.engine.packages_file.rpartition("/")[2])

    # Labels of a run are the scenario's own words; of an observed server they are not.
    if incident.diagnosis is not None:
        names |= {incident.diagnosis.target.model, *incident.diagnosis.target.command}
    else:
        for request in incident.evidence.requests:
            names.update(re.findall(r"[\w.-]+", request.label))
    if incident.verdict:
        for condition in incident.verdict.conditions:
            names |= {file.rpartition("/")[2] for file in condition.evidence}
    return frozenset(names)


# Each: what of a record of that type may leave, before its texts are redacted.


def _line(public: Public, line: LogLine) -> LogLine:
    spans = list(hidden(line.text, line.source, line.level, line.quoted))
    spans += hidden_in(line.text)
    return line.model_copy(update={"text": public.quoted(line.text, _apart(spans))})


def _own_line(public: Public, line: LogLine) -> LogLine:
    """The line with lengths in the place of what its reader found to be a client's."""
    return line.model_copy(update={"text": own_line(line)})


_EXCERPT: Final = re.compile(
    r"(?P<level>[A-Z]{4,8})?(?: ?\[(?P<source>[^\]\n]{1,200})\])? ?"
)


def _excerpt(public: Public, line: LogExcerpt) -> LogExcerpt:
    """The line as of a log; its beginning is what mmrepro put there."""
    head = _EXCERPT.match(line.text)
    spans = list(hidden_in(line.text))
    if head and head["source"]:
        begin = head.end()
        spans += _moved(hidden(line.text[begin:], head["source"]), begin)
    return line.model_copy(update={"text": public.quoted(line.text, _apart(spans))})


def _moved(spans: Iterable[Span], by: int) -> Iterator[Span]:
    """The spans of a part of a text, as spans of the whole."""
    for begin, end in spans:
        yield begin + by, end + by


def _apart(spans: Iterable[Span]) -> Iterator[Span]:
    """The same in order, without what two of them share."""
    end = 0
    for begin, stop in sorted(spans):
        if stop > end:
            yield max(begin, end), stop
            end = stop


def _event(public: Public, event: Event) -> Event:
    if event.source != "engine":
        return event
    return event.model_copy(update={"text": redact_log(event.text, public)})


def _incident(public: Public, incident: Incident) -> Incident:
    detail = [redact_log(text, public) for text in incident.failure_detail]
    return incident.model_copy(update={"failure_detail": detail})


def _frame(public: Public, frame: Frame | KeyFrame) -> BaseModel:
    variables = {name: harmless(value, name) for name, value in frame.locals.items()}
    return frame.model_copy(update={"locals": variables})


_LABELS: Final = named_words_of("""
    le quantile engine engine_type engine_index finished_reason finish_reason reason mode method
    handler status code generation implementation major minor patchlevel version tp_rank pp_rank
    dp_rank moe_ep_rank rank stage device gpu cache kind type source position is_mm dtype
""")
_VALUE: Final = re.compile(
    r"-?[\d.e+-]*|(?i:true|false|none|auto|inf|nan|cpu|cuda|xxhash|sha256|builtin"
    r"|xxhash_cbor"
    r"|sha256_cbor|fp8\w*|bf?loat16|float(?:16|32)|int8|all|align|lru)"
)


def label(name: str, value: str, served: Container[str] = ()) -> bool:
    """Whether a label of a metric may leave: neither tenants nor adapters have a place
    in it."""
    return name in _LABELS or value in served or bool(_VALUE.fullmatch(value))


def _sample(public: Public, sample: MetricSample) -> MetricSample:
    labels: dict[str, str] = {}
    for name, value in sample.labels.items():
        labels[name] = value
        if not label(name, value, public.names):
            labels[name] = public.placeholder("label", value)
    return sample.model_copy(update={"labels": labels})


def _answer(public: Public, answer: EndpointAnswer) -> EndpointAnswer:
    """An error quotes what it refuses; a list of models has adapters of tenants in
    it."""
    if answer.status is not None and answer.status >= 400:
        return answer.model_copy(update={"body": redact_log(answer.body, public)})

    def shown(match: re.Match[str]) -> str:
        if match[2] in public.names:
            return match[0]
        return match[1] + public.placeholder("label", match[2])

    return answer.model_copy(update={"body": _MODELS.sub(shown, answer.body)})


_MODELS: Final = re.compile(
    r'("(?:id|root|parent)": ?")(?!modelperm-|/|\[redacted:)([^"\\]+)(?=")'
)


def _cause(public: Public, cause: Cause) -> Cause:
    """A cause of a document that was written before causes were made of an engine's own
    words."""
    changes = {"exception": redact_log(cause.exception, public)}
    return cause.model_copy(update=changes)


def _failure(public: Public, failure: FirstFailure) -> FirstFailure:
    """What a failure says, as of a log's lines."""
    lines = [redact_log(text, public) for text in failure.lines]
    code = redact_log(failure.code, public)
    return failure.model_copy(update={"lines": lines, "code": code})


def _log_facts(public: Public, facts: LogFacts) -> LogFacts:
    """What a log carries, as of its lines."""
    changes: dict[str, object] = {
        "sentence": redact_log(facts.sentence, public),
        "command": redact_log(facts.command, public),
        "after": [redact_log(text, public) for text in facts.after],
    }
    return facts.model_copy(update=changes)


def _sighting(public: Public, seen: Sighting) -> Sighting:
    if seen.finding_class not in _SPOKEN:
        return seen
    return seen.model_copy(update={"said": _hide_quotes(seen.said, public)})


def _finding(public: Public, finding: Finding) -> Finding:
    """The finding without answers to words that do not go out, nor what a server quotes
    of a request."""
    changes: dict[str, object] = {
        "observed": {
            op: public_reply(text, public) for op, text in finding.observed.items()
        },
        "log_lines": [redact_log(text, public) for text in finding.log_lines],
    }
    if finding.finding_class in _SPOKEN:
        changes["said"] = _hide_quotes(finding.said, public)
        changes["known_why"] = _hide_quotes(finding.known_why, public)
        changes["also"] = [_hide_quotes(text, public) for text in finding.also]
    return finding.model_copy(update=changes)


_COUNTED: Final = re.compile(r"\d+ tokens?")
_STATUS: Final = re.compile(r"([1-5]\d\d|no answer)\b ?")


def public_reply(text: str, redactor: Redactor) -> str:
    """What came of a request: its status, and of an error's message what the engine
    says by itself.

    A request's words may stand in it without any quotation marks, so that only what
    comes before the first sign that something is quoted stays."""
    status = _STATUS.match(text)
    if status is None or status[1] == "no answer":
        return text
    end = status.end()
    if status[1].startswith("2"):
        # The answer itself stays here; how many tokens it has may go.
        return text if _COUNTED.fullmatch(text, end) else status[1]
    message = text[end:]
    spans = uncovered(message, refused(message))
    return text[:end] + redactor.hide("quoted", message, spans)


def _report(public: Public, report: ReportFacts) -> ReportFacts:
    """The last lines that a client printed, without what it quotes of requests."""
    printed = report.output.strip().splitlines()[-_PRINTED_LINES:]
    redacted = redact_log("\n".join(printed), public)
    shown = [clip(line, _PRINTED_WIDTH) for line in redacted.splitlines()]
    return report.model_copy(update={"output": "\n".join(shown)})


def _hide_quotes(text: str, redactor: Redactor) -> str:
    return _QUOTED.sub(lambda m: redactor.placeholder("answer", m[2]), text)


_VIEWS: Final[Mapping[str, Callable[[Public, Any], Any]]] = {
    "data.LogLine": _line,
    "model.LogExcerpt": _excerpt,
    "model.Event": _event,
    "model.Incident": _incident,
    "data.Frame": _frame,
    "model.KeyFrame": _frame,
    "data.MetricSample": _sample,
    "data.EndpointAnswer": _answer,
    "cause.Cause": _cause,
    "cause.FirstFailure": _failure,
    "cause.LogFacts": _log_facts,
    "replay.Sighting": _sighting,
    "replay.Finding": _finding,
    "replay.ReportFacts": _report,
}


def harmless(value: str, name: str) -> str:
    """A number, or a digest where one is expected; nothing of what is called a
    secret."""
    if names_a_secret(name):
        return LEFT_OUT
    match = _HARMLESS.fullmatch(value.strip())
    if match is None:
        return LEFT_OUT
    # A word of hexadecimal digits may be anybody's key, where no digest is expected.
    digits = match[1]
    if digits and not names_a_digest(name) and not digits.strip("'\"").isdigit():
        return LEFT_OUT
    return value

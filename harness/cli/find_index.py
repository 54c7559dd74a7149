"""The index that ``mmrepro find`` reads, from the scenarios, the classes and what
fuzzing found.

``python -m mmrepro.cli.find_index`` writes it; a test holds it against what it is made
of."""

from __future__ import annotations

import contextlib
import json
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, replace
from pathlib import Path

from mmrepro.base.errors import BrokenScenario
from mmrepro.base.records import Reference
from mmrepro.engines.folders import facts, folders
from mmrepro.failure.documents import CAUSE_WORDS, CLASS_WORDS, CauseClass, LiveClass
from mmrepro.live.diagnose import (
    CLASS_FACTS,
    MISMATCHES,
    advice_of_class,
    cause_rules,
)
from mmrepro.probes.log_lines import texts_of
from mmrepro.scenario.definition import Scenario
from mmrepro.scenario.parts import PROJECTS, UpstreamState
from mmrepro.scenario.registry import load_scenario, scenario_names
from mmrepro.tools.catalogue import ECHO, FIND_INDEX, IndexEntry, Pattern, card_of

FOUND = Path(__file__).parents[2] / "docs" / "found"
"""Where fuzzing's findings lie in the repository; they are not in the wheel, the index
is."""
_MIN_TEXT = 8
_MAX_WORDS = 6000

ORDINARY = (
    (
        "EngineDeadError: EngineCore encountered an issue. See stack trace (above) "
        "for the root cause."
    ),
    (
        "[2026-01-01 00:00:00] Scheduler hit an exception: Traceback (most recent "
        "call last):"
    ),
    "ValueError: something",
    "AssertionError",
    "SyntaxError: invalid syntax",
    "RuntimeError: x",
    "minivllm cannot start: x",
    "the image runner is made as the engine starts",
    "INFO non-default args: {'model': 'm'}",
    "max_num_batched_tokens=2048",
    "Chunked prefill is enabled with max_num_batched_tokens=2048",
    "Encoder cache will be initialized with a budget of 2048 tokens",
    "Initializing a V1 LLM engine (v0.11.0) with config: model='m'",
    "Initializing a V1 LLM engine (v0.11.0 with config: model='m'",
    "Running batch with cudagraph_mode: FULL",
    "Running batch with cudagraph_mode: NONE",
    "Avg generation throughput: 1.0 tokens/s",
    "Prefill batch, #new-token: 1, #pending-token: 10",
    "mm_position=PlaceholderRange(offset=1, length=20",
    "free gpu memory: 100 mb",
    "block num: 10",
    "estimated max runtime memory: 10 mb",
    "prompt_embeds shape: torch.Size([5, 64])",
    "Initialize cache engine with 10 gpu blocks and 10 cpu blocks",
    "Received request r: SamplingParams(seed=150, stop_token_ids=[1151935])",
    "Received request r: SamplingParams(seed=150, regex='(?i)abc')",
    "details: prompt: 'what is <|vision_start|><|image_pad|>",
    "Added request r: 10 tokens",
    "Abort running request. req.rid='a'",
    "Cache flushed successfully",
    "Unexpected error pre-processing request r",
    "Request r failed with an internal error during generation",
    'scheduler.py", line 10, in _decode',
    "- lmdeploy - WARNING - too long",
    "CUDA: block: [0,0,0], thread: [0,0,0] Assertion x failed.",
    "TimeoutError",
    "SystemExit: 1",
    "Shutting down",
    "BaseExceptionGroup: unhandled errors in a TaskGroup (1 sub-exception)",
    "line 10, in chat_completions_v1",
    "WorkerProc hit an exception.",
    "Worker proc VllmWorker-2 died unexpectedly, shutting down executor.",
    "Request chatcmpl-1 aborted.",
    "Received request r: params: SamplingParams(n=8, max_tokens=7, min_tokens=0)",
)
"""Lines that servers print whatever fails, or where nothing does: a pattern that
matches one of them names no failure."""
_COMMON = (
    "TypeError: object of type 'NoneType' has no len()",
    "TypeError: 'NoneType' object is not subscriptable",
    "TypeError: unsupported operand type(s) for +: 'NoneType' and 'int'",
    "AttributeError: 'NoneType' object has no attribute 'x'",
    "AttributeError: 'list' object has no attribute 'shape'",
    "KeyError: 'x'",
    "RuntimeError: CUDA error: device-side assert triggered",
    "RuntimeError: CUDA error: an illegal memory access was encountered",
    "RuntimeError: The size of tensor a (5) must match the size of tensor b (7) at "
    "non-singleton dimension 0",
    "ValueError: To serve at least one request with the models's max seq len (2048), "
    "0.2 GiB KV cache is needed. the estimated maximum model length is 1024",
    "IndexError: list index out of range",
    # Whatever a thread raises ends it; a value that is refused is checked as well.
    "Exception in thread Thread-1 (process_input_sockets):",
    "req: EngineCoreRequest = add_request_decoder.decode(data_frames)",
    'File "sampling_params.py", line 5, in _verify_args',
    "RuntimeError: selected index k out of range",
    "IndexError: index 5 is out of bounds for dimension 0 with size 3",
    "IndexError: index 5 is out of bounds for dimension 1 with size 3",
    "RuntimeError: index 5 is out of bounds for dimension 1 with size 3",
    "RuntimeError: Worker failed with error 'index 5 is out of bounds for dimension 1 "
    "with size 3', please check the stack trace above for the root cause",
    "RuntimeError: [11:25:05] /project/cpp/grammar_parser.cc:564: EBNF parser error at "
    "line 1, column 12: Expect element, but got |",
    "RuntimeError: [11:25:05] /project/cpp/regex_converter.cc:564: x",
    "Update max_new_tokens",
    "RuntimeError: Prefill out of memory",
    "RuntimeError: Out of memory",
    "ValueError: overflow",
    "OverflowError: Overflow",
    "FileNotFoundError: [Errno 2] No such file or directory: 'assets/x'",
    "TypeError: forward() got an unexpected keyword argument 'inputs_embeds'",
    "RuntimeError: cannot pin x: only dense CPU tensors can be pinned",
    "RuntimeError: Number of elements of source < number of ones in mask",
    "masked_scatter_size_check",
    "inputs_embeds.masked_scatter_(x)",
    "Attempted to assign 10 + 10 = 20 multimodal tokens to 30 placeholders",
    "pydantic_core._pydantic_core.ValidationError: 1 validation error for "
    "ChatCompletionResponseChoice",
    "Input should be 'stop' [input_value='error'",
    'fake_vision.py", line 5',
    'runner.py", line 5, in __init__',
)
"""Messages that several failures have: one of them alone names none."""

_THREADS = {
    "mm-cache-desync": ("vllm#33865", "tenstorrent/tt-inference-server#2405"),
    "vllm-0.23.0-overtaken": ("vllm#31404",),
}
"""Public threads whose own logs show a failure that is known here, besides its
references."""

_EXCEPTION = re.compile(
    r"(?:[A-Za-z_]\w*\.)*(?P<kind>[A-Z]\w*(?:Error|Exception))(?:: (?P<message>.+))?"
)
_ISSUE = re.compile(r"(?:(?P<project>[a-z][\w-]*))?#(?P<number>\d+)")
_ROW = re.compile(
    r"\| \[(?P<name>[\w.-]+)\]\([^)]*\) \| (?P<kind>[^|]+)\| (?P<what>[^|]+)"
    r"\| (?P<label>[^|]+)\|"
)
_BUCKET = re.compile(r"^\| bucket \| `(?P<bucket>[^`]*)` \|$", re.MULTILINE)
_NEWEST = "no release with a fix is known"


def build(found: Path | None = FOUND) -> list[IndexEntry]:
    """Every entry: scenarios, classes and findings, in the order of their names."""
    scenarios = [*_scenarios(scenario_names())]
    entries = [*scenarios, *_classes()]
    if found is not None:
        entries += _findings(found, {entry.name: entry for entry in scenarios})
    return [_with_threads(entry) for entry in entries]


def _with_threads(entry: IndexEntry) -> IndexEntry:
    threads = [_thread(name) for name in _THREADS.get(entry.name, ())]
    return replace(entry, references=(*entry.references, *threads))


def _thread(name: str) -> tuple[str, str, str]:
    """``vllm#1``, or with the owner of a project that is not an engine's."""
    project, _, number = name.partition("#")
    where = PROJECTS.get(project, project)
    if "/" in project:
        project = where.partition("/")[2]
    url = f"https://github.com/{where}/issues/{number}"
    return f"{project}#{number}", "", url


def text_of(entries: Iterable[IndexEntry]) -> str:
    """The index as it is stored: one entry a line."""
    lines: list[str] = []
    for entry in entries:
        lines.append(json.dumps(asdict(entry), ensure_ascii=False, sort_keys=True))
    return "[\n" + ",\n".join(lines) + "\n]\n"


# ------------------------------------------------------------------ scenarios


def _scenarios(names: Iterable[str]) -> Iterator[IndexEntry]:
    for name in names:
        yield _scenario_entry(load_scenario(name))


def others_of(names: Iterable[str]) -> Iterator[IndexEntry]:
    """Scenarios of other distributions; broken ones are left out."""
    for name in names:
        with contextlib.suppress(BrokenScenario):
            yield _scenario_entry(load_scenario(name))


def _scenario_entry(scenario: Scenario) -> IndexEntry:
    """One known failure, all its variants in one."""
    # Dictionaries keep the order, and what variants have in common once.
    references: dict[str, tuple[str, str, str]] = {}
    workarounds: dict[str, None] = {}
    patterns: dict[str, Pattern] = {}
    ranges: dict[str, None] = {}
    texts: list[str] = []
    variants = scenario.variants or (scenario,)
    for variant in variants:
        ranges[variant.affected_range] = None
        for reference in _references(variant):
            references[reference.id] = (reference.id, reference.title, reference.url)
        for mitigation in variant.mitigations:
            if mitigation.name != "release":
                workarounds[f"{mitigation.name}: {mitigation.description}"] = None
        for known in _patterns(variant.log_patterns):
            patterns[known.regex] = known
        texts += _texts(variant)
    return IndexEntry(
        kind="scenario",
        name=scenario.name,
        title=scenario.title,
        engine=scenario.engine,
        affected=" or ".join(ranges),
        fixed=_fixed(variants[0]),
        workarounds=tuple(workarounds),
        references=tuple(references.values()),
        patterns=tuple(patterns.values()),
        see=(f"mmrepro show {scenario.name}",),
        words=_words(texts),
        row=scenario.row,
        planted=_teaches(scenario.engine),
        card=card_of(scenario.with_variant("")),
    )


def _references(scenario: Scenario) -> list[Reference]:
    """What it refers to, and where its state upstream was looked up."""
    references = [*scenario.references]
    if scenario.upstream.source:
        references.append(scenario.upstream.source)
    return references


def _teaches(engine: str) -> bool:
    """Whether faults of an engine are planted, to be found."""
    return engine in folders() and facts(engine).teaching


def _fixed(scenario: Scenario) -> str:
    upstream = scenario.upstream
    releases = [m.release for m in scenario.mitigations if m.release]
    repeated = any(release in upstream.note for release in releases)
    note = f" ({upstream.note})" if upstream.note and not repeated else ""
    if upstream.release:
        return f"fixed in {upstream.release}{note}"
    if releases:
        return f"gone by {releases[0]}{note}"
    for bound in scenario.affected_releases:
        if bound.operator in ("<", "<="):
            return f"not affected from {bound.version} on{note}"
    if upstream.state is UpstreamState.PLANTED:
        return "a fault of minivllm, which is there to have it"
    if upstream.state is UpstreamState.NOT_LOOKED_UP or not upstream.words:
        return _NEWEST
    return f"{_NEWEST}; upstream: {upstream.words}"


def _texts(scenario: Scenario) -> Iterator[str]:
    yield from (scenario.title, scenario.summary, scenario.explanation)
    for declared in scenario.declared():
        yield declared.statement
    for mitigation in scenario.mitigations:
        yield f"{mitigation.name} {mitigation.description}"
    for reference in scenario.references:
        yield f"{reference.title} {reference.note}"
    for source in scenario.sources:
        yield source.qualname
    if scenario.failure_class is not None:
        yield scenario.failure_class.value


def _patterns(named: Mapping[str, str]) -> Iterator[Pattern]:
    for name, expression in named.items():
        made = pattern(name, expression)
        if made is not None:
            yield made


def pattern(name: str, expression: str) -> Pattern | None:
    """A pattern that names a failure; None: what it matches is printed whatever
    fails."""
    if "mmrepro" in expression or any(re.search(expression, line) for line in ORDINARY):
        return None
    texts = tuple(text.decode() for text in texts_of(expression).texts or ())
    if max(map(len, texts or (expression,))) < _MIN_TEXT:
        return None
    sure = not any(re.search(expression, line) for line in _COMMON)
    return Pattern(name, str(expression), texts, sure)


def _words(texts: Iterable[str]) -> str:
    """The distinct words of texts, in their order."""
    words = " ".join(texts).split()
    return " ".join(dict.fromkeys(words))[:_MAX_WORDS]


# ------------------------------------------------------------------ classes


def _classes() -> Iterator[IndexEntry]:
    patterns = _class_patterns()
    no_failure = (CauseClass.ALIVE, CauseClass.NOT_A_LOG, CauseClass.UNKNOWN)
    live_classes = {live.value: live for live in LiveClass}
    causes = {cause.value: cause for cause in CauseClass}
    names = [*live_classes]
    names += [cause.value for cause in CauseClass if cause not in no_failure]
    for name in dict.fromkeys(names):
        live, cause = live_classes.get(name), causes.get(name)
        yield _class_entry(name, live, cause, patterns.get(name, []))


def _class_patterns() -> dict[str, list[Pattern]]:
    """The patterns of the rules of each class."""
    patterns: dict[str, list[Pattern]] = {}
    for number, rule in enumerate(cause_rules.RULES):
        expression = rule.expression.pattern
        sure = rule.sure is not cause_rules.POSSIBLE
        made = Pattern("message", expression, _plain_texts(expression), sure, number)
        patterns.setdefault(rule.name.value, []).append(made)
    of_placeholders = patterns.setdefault(LiveClass.PLACEHOLDER_COUNTS.value, [])
    for expression in MISMATCHES:
        texts = _plain_texts(expression)
        of_placeholders.append(Pattern("message", expression, texts, sure=True))
    return patterns


def _plain_texts(expression: str) -> tuple[str, ...]:
    """Texts of which each line that matches has one."""
    return tuple(text.decode() for text in texts_of(expression).texts or ())


def _class_entry(
    name: str,
    live: LiveClass | None,
    cause: CauseClass | None,
    patterns: Sequence[Pattern],
) -> IndexEntry:
    """A class of what a live server shows, of what ended one by its log, or of both."""
    advice: list[str] = []
    title = CLASS_WORDS[live] if live else ""
    words = [title]
    see: list[str] = []
    references: list[tuple[str, str, str]] = []
    class_facts = CLASS_FACTS.get(live) if live else None
    if cause:
        title = CAUSE_WORDS[cause]
        see.append("mmrepro help logs")
    if class_facts:
        advice += class_facts.advice
        for text in class_facts.references:
            # An address follows the id of a thread; what has none is a file.
            id_, has_address, url = text.partition(" ")
            if has_address:
                references.append((id_, "", url))
            else:
                see.append(id_)
    if cause:
        advice += advice_of_class(cause)
    return IndexEntry(
        kind="class",
        name=name,
        title=title,
        workarounds=tuple(dict.fromkeys(advice)),
        references=tuple(references),
        patterns=tuple(patterns),
        see=tuple(dict.fromkeys(see)),
        words=_words([*words, *advice]),
    )


# ------------------------------------------------------------------ what fuzzing found


def _findings(
    folder: Path, scenarios: Mapping[str, IndexEntry]
) -> Iterator[IndexEntry]:
    for row in _ROW.finditer((folder / "README.md").read_text(encoding="utf-8")):
        name, label = row["name"], row["label"]
        report = (folder / name / "report.md").read_text(encoding="utf-8")
        names = re.findall(r"`([a-z-]+)`", label)
        known = [scenarios[each] for each in names if each in scenarios]
        engine, release = name.split("-")[:2]
        bucket = _BUCKET.search(report)
        fixed = known[0].fixed if known else ""
        see = [f"docs/found/{name}/report.md"]
        see += [f"mmrepro show {entry.name}" for entry in known]
        yield IndexEntry(
            kind="finding",
            name=name,
            title=re.sub(r"[`*]", "", row["what"]).strip(),
            engine=engine,
            affected=f"found on {engine} {release}",
            fixed=fixed or f"upstream: {re.sub('[`*]', '', label).strip()}",
            workarounds=known[0].workarounds if known else (),
            references=tuple(_issues(label)),
            patterns=tuple(_logged(report)),
            frames=_frames(bucket["bucket"] if bucket else ""),
            see=tuple(see),
            words=_words([row["kind"], row["what"], label]),
            planted=_teaches(engine),
        )


def _issues(label: str) -> Iterator[tuple[str, str, str]]:
    """Issues of a label: ``vllm#1, #2`` are both vLLM's."""
    project = ""
    for match in _ISSUE.finditer(label):
        project = match["project"] or project
        if project in PROJECTS:
            number = match["number"]
            url = f"https://github.com/{PROJECTS[project]}/issues/{number}"
            yield f"{project}#{number}", "", url


def _logged(report: str) -> Iterator[Pattern]:
    """The exceptions of a report, with any number and any digest. An echo follows other
    failures too: it is left out."""
    section = report.partition("\n## The log\n")[2].partition("\n## ")[0]
    seen: set[str] = set()
    for line in section.splitlines():
        match = _EXCEPTION.match(line.partition("[redacted:")[0].strip())
        if match is None or ECHO.search(line):
            continue
        if len(match["message"] or "") < _MIN_TEXT:
            continue
        made = pattern("exception", _any_numbers(match["kind"], match["message"]))
        if made is not None and made.regex not in seen:
            seen.add(made.regex)
            yield made


def _any_numbers(kind: str, message: str) -> str:
    """An expression of an exception, whatever numbers, digests and ids it has."""
    expression = re.escape(f"{kind}: {message}").replace(r"\ ", " ")
    expression = re.sub(r"'(?:[0-9a-f]{16,}|id\\-\w+)'", "'[^']+'", expression)
    return re.sub(r"\d+", r"\\d+", expression)


def _frames(bucket: str) -> tuple[str, ...]:
    """``compile_grammar < _create_grammar``, innermost first; a hang's has them
    outermost first."""
    for sign, step in ((" < ", 1), (" > ", -1)):
        if sign in bucket:
            first, *rest = bucket.split(sign)
            frames = [first.rpartition("/")[2], *rest]
            return tuple(frames[::step])
    return ()


def main() -> None:
    """Write the index."""
    FIND_INDEX.write_text(text_of(build()), encoding="utf-8")


if __name__ == "__main__":
    main()

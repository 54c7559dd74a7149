"""The index that ``mmrepro find`` reads, from the scenarios, the classes and what
fuzzing found.

``python -m mmrepro.cli.find_index`` writes it; a test holds it against what it is made
of."""

from __future__ import annotations

import contextlib
import json
import re
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import asdict, replace
from pathlib import Path

from mmrepro.base.errors import BrokenScenario
from mmrepro.engines.folders import facts, folders
from mmrepro.failure.documents.cause import CAUSE_WORDS, CauseClass
from mmrepro.failure.documents.diagnosis import CLASS_WORDS, LiveClass
from mmrepro.live.diagnose import cause_rules
from mmrepro.live.diagnose.cause_advice import ADVICE
from mmrepro.live.diagnose.cause_input import MISMATCHES
from mmrepro.live.diagnose.classes_logged import CLASS_FACTS
from mmrepro.probes.log_lines import texts_of
from mmrepro.scenario.definition import Scenario
from mmrepro.scenario.parts import PROJECTS, UpstreamState
from mmrepro.scenario.registry import load_scenario, scenario_names
from mmrepro.tools.catalogue.find import ECHO, INDEX, IndexEntry, Pattern

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
    return [
        replace(
            entry,
            references=(*entry.references, *map(_thread, _THREADS.get(entry.name, ()))),
        )
        for entry in entries
    ]


def _thread(name: str) -> tuple[str, str, str]:
    """``vllm#1``, or with the owner of a project that is not an engine's."""
    project, _, number = name.partition("#")
    where = PROJECTS.get(project, project)
    return (
        f"{where.partition('/')[2] if '/' in project else project}#{number}",
        "",
        (f"https://github.com/{where}/issues/{number}"),
    )


def text_of(entries: Iterable[IndexEntry]) -> str:
    """The index as it is stored: one entry a line."""
    lines = [
        json.dumps(asdict(entry), ensure_ascii=False, sort_keys=True)
        for entry in entries
    ]
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
    variants = scenario.variants or (scenario,)
    references = {
        r.id: (r.id, r.title, r.url)
        for one in variants
        for r in (
            *one.references,
            *([one.upstream.source] if one.upstream.source else []),
        )
    }
    workarounds = {
        f"{m.name}: {m.description}": None
        for one in variants
        for m in one.mitigations
        if m.name != "release"
    }
    patterns = {p.regex: p for one in variants for p in _patterns(one.log_patterns)}
    return IndexEntry(
        kind="scenario",
        name=scenario.name,
        title=scenario.title,
        engine=scenario.engine,
        affected=" or ".join(dict.fromkeys(one.affected_range for one in variants)),
        fixed=_fixed(variants[0]),
        workarounds=tuple(workarounds),
        references=tuple(references.values()),
        patterns=tuple(patterns.values()),
        see=(f"mmrepro show {scenario.name}",),
        words=_words(text for one in variants for text in _texts(one)),
        row=scenario.row,
        planted=_teaches(scenario.engine),
    )


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
    ends = [s.version for s in scenario.affected_releases if s.operator in ("<", "<=")]
    if releases:
        return f"gone by {releases[0]}{note}"
    if ends:
        return f"not affected from {ends[0]} on{note}"
    if upstream.state is UpstreamState.PLANTED:
        return "a fault of minivllm, which is there to have it"
    state = upstream.words if upstream.state is not UpstreamState.NOT_LOOKED_UP else ""
    return f"{_NEWEST}" + (f"; upstream: {state}" if state else "")


def _texts(scenario: Scenario) -> Iterator[str]:
    yield from (scenario.title, scenario.summary, scenario.explanation)
    yield from (declared.statement for declared in scenario.declared())
    yield from (f"{m.name} {m.description}" for m in scenario.mitigations)
    yield from (f"{r.title} {r.note}" for r in scenario.references)
    yield from (source.qualname for source in scenario.sources)
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
    return " ".join(dict.fromkeys(" ".join(texts).split()))[:_MAX_WORDS]


# ------------------------------------------------------------------ classes


def _classes() -> Iterator[IndexEntry]:
    patterns: dict[str, list[Pattern]] = {}
    for number, rule in enumerate(cause_rules.RULES):
        expression = rule.expression.pattern
        texts = tuple(text.decode() for text in texts_of(expression).texts or ())
        sure = rule.sure is not cause_rules.POSSIBLE
        made = Pattern("message", expression, texts, sure, number)
        patterns.setdefault(rule.name.value, []).append(made)
    for expression in MISMATCHES:
        name = LiveClass.PLACEHOLDER_COUNTS.value
        texts = tuple(text.decode() for text in texts_of(expression).texts or ())
        patterns.setdefault(name, []).append(
            Pattern("message", expression, texts, sure=True)
        )
    no_failure = (CauseClass.ALIVE, CauseClass.NOT_A_LOG, CauseClass.UNKNOWN)
    names = [
        *(c.value for c in LiveClass),
        *(c.value for c in CauseClass if c not in no_failure),
    ]
    for name in dict.fromkeys(names):
        live = LiveClass(name) if name in {c.value for c in LiveClass} else None
        cause = CauseClass(name) if name in {c.value for c in CauseClass} else None
        facts = CLASS_FACTS.get(live) if live else None
        advice = [
            *(facts.advice if facts else ()),
            *(ADVICE.get(cause, ()) if cause else ()),
        ]
        title = CAUSE_WORDS[cause] if cause else CLASS_WORDS[live] if live else ""
        references = [
            text.split(" ", 1) for text in (facts.references if facts else ())
        ]
        see = ["docs/logs.md#classes"] if cause else []
        yield IndexEntry(
            kind="class",
            name=name,
            title=title,
            workarounds=tuple(dict.fromkeys(advice)),
            references=tuple((r[0], "", r[1]) for r in references if len(r) == 2),
            patterns=tuple(patterns.get(name, ())),
            see=tuple(
                dict.fromkeys([*see, *(r[0] for r in references if len(r) == 1)])
            ),
            words=_words([CLASS_WORDS[live] if live else "", *advice]),
        )


# ------------------------------------------------------------------ what fuzzing found


def _findings(
    folder: Path, scenarios: Mapping[str, IndexEntry]
) -> Iterator[IndexEntry]:
    for row in _ROW.finditer((folder / "README.md").read_text(encoding="utf-8")):
        name, label = row["name"], row["label"]
        report = (folder / name / "report.md").read_text(encoding="utf-8")
        known = [
            scenarios[n] for n in re.findall(r"`([a-z-]+)`", label) if n in scenarios
        ]
        engine = name.partition("-")[0]
        bucket = _BUCKET.search(report)
        fixed = known[0].fixed if known else ""
        yield IndexEntry(
            kind="finding",
            name=name,
            title=re.sub(r"[`*]", "", row["what"]).strip(),
            engine=engine,
            affected=f"found on {engine} {name.split('-')[1]}",
            fixed=fixed or f"upstream: {re.sub('[`*]', '', label).strip()}",
            workarounds=known[0].workarounds if known else (),
            references=tuple(_issues(label)),
            patterns=tuple(_logged(report)),
            frames=_frames(bucket["bucket"] if bucket else ""),
            see=(
                f"docs/found/{name}/report.md",
                *(f"mmrepro show {one.name}" for one in known),
            ),
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
    """Its exceptions, with any number and any digest. An echo follows other failures
    too: it is left out."""
    section = report.partition("\n## The log\n")[2].partition("\n## ")[0]
    seen = set()
    for line in section.splitlines():
        match = _EXCEPTION.match(line.partition("[redacted:")[0].strip())
        if (
            match is None
            or ECHO.search(line)
            or len(match["message"] or "") < _MIN_TEXT
        ):
            continue
        expression = re.escape(f"{match['kind']}: {match['message']}").replace(
            r"\ ", " "
        )
        expression = re.sub(r"'(?:[0-9a-f]{16,}|id\\-\w+)'", "'[^']+'", expression)
        expression = re.sub(r"\d+", r"\\d+", expression)
        made = pattern("exception", expression)
        if made is not None and made.regex not in seen:
            seen.add(made.regex)
            yield made


def _frames(bucket: str) -> tuple[str, ...]:
    """``compile_grammar < _create_grammar``, innermost first; a hang's has them
    outermost first."""
    for sign, step in ((" < ", 1), (" > ", -1)):
        if sign in bucket:
            first, *rest = bucket.split(sign)
            return tuple([first.rpartition("/")[2], *rest][::step])
    return ()


def main() -> None:
    INDEX.write_text(text_of(build()), encoding="utf-8")


if __name__ == "__main__":
    main()

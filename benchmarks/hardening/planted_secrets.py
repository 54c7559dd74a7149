"""Do planted secrets leave with a bundle or a report, and does what was found still
read?

    python benchmarks/hardening/planted_secrets.py [--share 0.1] [--seed N] [--detectors]

Plants random secrets of more than a hundred kinds (``_plants.py``; ``_contexts.py``
draws names, what joins them to a value, commands and encodings), in every quoting and
every place of a recorded incident, of its raw evidence and of a replay's case; writes
them as mmrepro does, makes the bundle and each report, and searches. A clear-cut one is
named, shaped as a vendor's, or 20 characters and more of high entropy: none of these
may be found. Of others each survivor is listed.

Then the ghost key's report is made before and after, and every frame, line number,
version and digest of it is looked for; and the share of a real engine log's words that
is replaced is measured.

``--detectors``: also what detect-secrets finds of the same plants, line by line; it
must be there (``uv run --with detect-secrets …``)."""

from __future__ import annotations

import argparse
import html
import io
import json
import random
import re
import sys
import tempfile
import time
import zipfile
from collections import Counter, defaultdict
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final

from _contexts import ENCODED
from _plants import KINDS, Plant, drawn
from mmrepro.base.records import EVIDENCE_DIR, Setting
from mmrepro.base.text.redact import PLACEHOLDER, Redactor
from mmrepro.failure.documents import Incident
from mmrepro.failure.documents.finding import LoadedFinding
from mmrepro.failure.documents.folder import write_incident
from mmrepro.failure.documents.model import LogExcerpt, SymptomRow
from mmrepro.failure.documents.public import public
from mmrepro.failure.documents.published import published
from mmrepro.live.diagnose.log_reading import read_logs
from mmrepro.probes.data import (
    HttpData,
    LogLine,
    LogsData,
    MetricsData,
    ProcessesData,
    StacksData,
)
from mmrepro.probes.log_words import hidden
from mmrepro.reports import finding as one, load, replay as replays
from mmrepro.reports.bundle import write_bundle
from mmrepro.reports.documents import render
from mmrepro.reports.incident import KIND
from mmrepro.reports.issue_form import incident_issue
from mmrepro.reports.logs import compose_logs
from mmrepro.reports.markdown import render_markdown
from mmrepro.reports.terminal import print_page
from mmrepro.traffic.case.files import write_case
from mmrepro.traffic.case.model import Case, Message, Operation, ServerWanted
from mmrepro.traffic.evidence.model import Event, ReproducerResult
from rich.console import Console

RECORDED: Final = Path(__file__).resolve().parents[2] / "tests" / "evidence"
sys.path.insert(0, str(RECORDED.parent / "unit" / "replay"))
GHOST: Final = "ghost-key-eviction-0.23.0.zip"
PLANTS: Final = 2400
AT_ONCE: Final = 200
"""Plants in one incident."""
SLOWEST: Final = 60
"""CPU time, in those of a pass over the same words in Python, whose machine it is as
well: 20 to 23 were seen (0.5 MB/s). What is not linear takes hundreds."""
MOST_REPLACED: Final = 0.02


# ---------------------------------------------------------------------- planting


def planted(incident: Incident, plants: dict[str, list[Plant]]) -> Incident:
    """``incident`` with the plants of its own places in it."""
    made = incident.model_copy(deep=True)
    text = {place: [plant.text for plant in found] for place, found in plants.items()}
    made.failure_detail += text.get("failure", [])
    made.engine.command += text.get("argv", [])
    made.engine.settings += [
        Setting(name="--option", value=line, why="planted")
        for line in text.get("setting", [])
    ]
    made.evidence.facts |= {
        f"fact-{n}": line for n, line in enumerate(text.get("fact", []))
    }
    at, phase = made.created, made.evidence.requests[0].phase
    made.evidence.events += [
        Event(at=at, phase=phase, source="engine", text=line)
        for line in text.get("event", [])
    ]
    excerpt = made.log_lines[0]
    made.log_lines += [
        LogExcerpt.model_validate(excerpt.model_dump() | {"text": line})
        for line in text.get("log excerpt", [])
    ]
    made.failure += " ".join(text.get("failed", []))
    made.symptoms += [
        SymptomRow(check="x", healthy="y", observed=line, abnormal=True)
        for line in text.get("symptom", [])
    ]
    assert made.verdict is not None
    one = made.verdict.conditions[0]
    made.verdict.conditions += [
        one.model_copy(update={"observed": line}) for line in text.get("condition", [])
    ]
    made.claims += [
        made.claims[0].model_copy(update={"observed": line})
        for line in text.get("claim", [])
    ]
    made.evidence.reproducers += [
        ReproducerResult(name="r", exit_code=1, seconds=1.0, error=line)
        for line in text.get("reproducer", [])
    ]
    made.engine.environment |= {
        f"E{n}": x for n, x in enumerate(text.get("environment", []))
    }
    made.evidence.probes += [
        made.evidence.probes[0].model_copy(update={"reason": line})
        for line in text.get("reason", [])
    ]
    for result in made.evidence.probes:
        if isinstance(result.data, HttpData) and result.data.answers:
            answer = result.data.answers[0]
            result.data.answers += [
                answer.model_copy(
                    update={"body": json.dumps({"id": words, "object": "model"})}
                )
                for words in text.get("models", [])
            ]
        if isinstance(result.data, LogsData):
            result.data.files += [
                f"/var/log/{name}-vllm.log" for name in text.get("log's name", [])
            ]
        if isinstance(result.data, StacksData) and result.data.samples:
            frame = result.data.samples[0].threads[0].frames[0]
            frame.locals |= {
                f"v{n}": repr(line) for n, line in enumerate(text.get("local", []))
            }
        elif isinstance(result.data, LogsData) and result.data.errors:
            line = result.data.errors[0]
            result.data.errors += [
                line.model_copy(update={"text": words})
                for words in text.get("log record", [])
            ]
        elif isinstance(result.data, MetricsData) and result.data.samples:
            sample = result.data.samples[0]
            result.data.samples += [
                sample.model_copy(update={"labels": {"lora_name": words}})
                for words in text.get("label", [])
            ]
        elif isinstance(result.data, ProcessesData) and result.data.processes:
            process = result.data.processes[0]
            result.data.processes += [
                process.model_copy(update={"cmdline": words})
                for words in text.get("process", [])
            ]
    return made


def raw(plants: dict[str, list[Plant]]) -> dict[str, str]:
    """The raw evidence, by file."""
    head = "(EngineCore pid=812) INFO 11-21 02:44:01 [core.py:195] "

    def lines(place: str) -> list[str]:
        return [plant.text for plant in plants.get(place, [])]

    frame = {"name": "step", "filename": "core.py", "line": 9}
    locals_ = [
        {"name": f"v{n}", "repr": repr(line)}
        for n, line in enumerate(lines("raw local"))
    ]
    labels = (
        line.replace("\\", "\\\\").replace('"', '\\"').replace("\n", "\\n")
        for line in lines("raw label")
    )
    return {
        "engine.log": "".join(
            f"{head}{line}\n{head}next\n" for line in lines("log line")
        ),
        "environ.txt": "A=b\n"
        + "".join(f"{line}\n" for line in lines("environment"))
        + "Z=y\n",
        "check-metrics-1-metrics.txt": "".join(
            f'vllm:info{{x="{x}"}} 1.0\n' for x in labels
        ),
        "check-stacks-7-00.json": json.dumps(
            [{"frames": [frame | {"locals": locals_}]}]
        ),
        "check-processes.json": json.dumps(
            {"cmdline": ["vllm", "serve", *lines("raw argv")]}
        ),
        "check-http.json": json.dumps(
            [{"status": 401, "body": line} for line in lines("answer")]
        ),
        "evidence.json": json.dumps({"a": [{"b": [line]} for line in lines("JSON")]}),
        "twice.json": json.dumps({"a": json.dumps({"b": lines("JSON in JSON")})}),
        "structured.json": json.dumps(
            [plant.data for plant in plants.get("structure", [])]
        ),
        "broken.json": "{not JSON\n" + "\n".join(lines("broken JSON")),
    }


def case_of(lines: list[str]) -> Case:
    asked = Operation(id="r1", messages=[Message(role="user", content="hello")])
    return Case(
        title=" ".join(lines[:1]),
        server=ServerWanted(
            engine="vllm",
            release="0.23.0",
            args=lines,
            env={f"V{n}": x for n, x in enumerate(lines)},
        ),
        operations=[asked.model_copy(update={"parameters": {"extra": lines}})],
    )


PLACES: Final = (
    "failure",
    "argv",
    "setting",
    "fact",
    "event",
    "log excerpt",
    "local",
    "log record",
    "label",
    "process",
    "log line",
    "environment",
    "raw local",
    "raw label",
    "raw argv",
    "answer",
    "JSON",
    "JSON in JSON",
    "structure",
    "broken JSON",
    "case",
    "failed",
    "symptom",
    "condition",
    "claim",
    "reproducer",
    "reason",
    "printed log",
)


# ---------------------------------------------------------------------- what leaves


def leaving(plants: dict[str, list[Plant]], folder: Path) -> Iterator[tuple[str, str]]:
    """Each text that leaves, and what it is."""
    incident = planted(load(RECORDED / GHOST), plants)
    (folder / EVIDENCE_DIR).mkdir(parents=True)
    for plant in plants.get("file", []):
        (folder / EVIDENCE_DIR / f"{plant.text}-notes.txt").write_text("nothing\n")
    for name, text in raw(plants).items():
        (folder / EVIDENCE_DIR / name).write_text(text)
    write_incident(incident, folder, Redactor())
    yield from _reports(folder)
    bundle = folder.parent / f"{folder.name}.zip"
    write_bundle(folder, load(folder), bundle)
    with zipfile.ZipFile(bundle) as archive:
        for member in archive.namelist():
            yield f"bundle:{member}", archive.read(member).decode()
    yield from ((f"bundle's {name}", text) for name, text in _reports(bundle))
    if lines := [plant.text for plant in plants.get("printed log", [])]:
        yield from _printed(lines, folder.parent / f"{folder.name}.log")
    if lines := [plant.text for plant in plants.get("observed", [])]:
        yield from _observed(lines, folder.parent / f"{folder.name}-observed")
    if lines := [plant.text for plant in plants.get("case", [])]:
        yield (
            "case",
            _public_case(case_of(lines), folder.parent / f"{folder.name}-case"),
        )


def _reports(place: Path) -> Iterator[tuple[str, str]]:
    for format in ("md", "html", "json", "junit"):
        yield format, render(KIND, load(place), format)
    yield "issue", incident_issue(load(place))


def _printed(lines: list[str], log: Path) -> Iterator[tuple[str, str]]:
    """What ``mmrepro logs`` prints, each of the lines as an error of its own."""
    for line in lines:
        start = "INFO 11-21 02:40:00 [core.py:1] Initializing a V1 LLM engine (v0.23.0)"
        log.write_text(f"{start}\n{line}\nERROR 11-21 02:45:00 [core.py:9] x\n")
        reading = published(read_logs([log], "auto", alone=True, deadline_s=20))
        yield "mmrepro logs --json", reading.model_dump_json()
        out = io.StringIO()
        print_page(compose_logs(reading), Console(file=out), full=True)
        yield "mmrepro logs --full", out.getvalue()


def _observed(lines: list[str], folder: Path) -> Iterator[tuple[str, str]]:
    from made_up_replay import finding, replay

    case = case_of([])
    write_case(case, folder / "f1")
    found = finding(case).model_copy(
        update={"observed": {f"r{n}": x for n, x in enumerate(lines)}}
    )
    whole = replay(found)
    with public(LoadedFinding(whole, found, case, folder / "f1")) as shown:
        yield "finding", shown.finding.model_dump_json()
    for format in ("md", "html", "json"):
        yield f"replay as {format}", render(replays.KIND, whole, format)
        yield (
            f"finding as {format}",
            render(one.KIND, LoadedFinding(whole, found, None), format),
        )


def _public_case(case: Case, folder: Path) -> str:
    from made_up_replay import finding, replay

    write_case(case, folder / "f1")
    found = finding(case)
    with public(LoadedFinding(replay(found), found, case, folder / "f1")) as shown:
        assert shown.case is not None
        return str(shown.case.model_dump_json()) + str(shown.finding.model_dump_json())


def seen_as(text: str) -> Iterator[str]:
    """A text as a reader of it may take it: escapes, wraps and colours undone."""
    yield text
    plain = html.unescape(text)
    for _ in range(3):
        plain = plain.replace('\\"', '"').replace("\\\\", "\\")
    yield plain
    yield re.sub(r"(?:\x1b|\\u001b|\\x1b)\[[\d;]*m", "", plain)
    yield re.sub(r"(?:\\n|\\?\r?\n)[ \t]*", "", plain)


# ---------------------------------------------------------------------- figures


def survivors(
    chance: random.Random, number: int, work: Path
) -> tuple[list[str], list[str]]:
    """Clear-cut ones and others that were found in something that leaves; a sentence
    each."""
    everything = [
        drawn(chance, kind, PLACES[n % len(PLACES)])
        for n, kind in _spread(chance, number)
    ]
    clear, other = [], []
    for group, start in enumerate(range(0, number, AT_ONCE)):
        here = everything[start : start + AT_ONCE]
        by_place = defaultdict(list)
        for plant in here:
            by_place[plant.place].append(plant)
        left: dict[int, str] = {}
        for name, text in leaving(by_place, work / str(group)):
            views = list(seen_as(text))
            for plant in here:
                if id(plant) not in left and any(
                    survives(plant, view) for view in views
                ):
                    left[id(plant)] = name
        for plant in here:
            if id(plant) in left:
                told = (
                    f"{plant.kind} in {plant.place} → {left[id(plant)]}: "
                    f"{plant.text[:140]!r}"
                )
                (clear if plant.clear else other).append(told)
    return clear, other


def survives(plant: Plant, view: str) -> bool:
    """Whether a secret is in a text; of an encoded one two thirds of it are enough."""
    if plant.secret in view:
        return True
    if plant.kind not in ENCODED or len(plant.secret) < 12:
        return False
    third = len(plant.secret) // 3
    return plant.secret[: 2 * third] in view or plant.secret[third:] in view


def _spread(chance: random.Random, number: int) -> Iterator[tuple[int, str]]:
    """Every kind equally often, in places that change with each round."""
    names = [name for name in sorted(KINDS) for _ in range(KINDS[name].times)]
    for n in range(number):
        if n % len(names) == 0:
            chance.shuffle(names)
        yield n + n // len(PLACES), names[n % len(names)]


_FACT: Final = re.compile(
    r"[\w/]+\.py:\d+|\b[\w.]+\.[a-z_]\w+(?= \()|\b\d+\.\d+\.\d+\b|\b[0-9a-f]{16,64}\b"
    r"|\b[A-Z]\w+Error\b"
)


def facts_lost() -> tuple[int, list[str]]:
    """How many facts the ghost key's report has, and those that redaction took."""
    before = load(RECORDED / GHOST)
    found = Counter(
        _FACT.findall(render_markdown(KIND.compose(before), KIND.markdown_bytes))
    )
    kept = Counter(_FACT.findall(render(KIND, before, "md")))
    return len(found), sorted(found.keys() - kept.keys())


def replaced_words() -> tuple[int, int, int, float]:
    """Words of the recorded engines' logs, those that are replaced since they are
    quoted, and since they look private, and the time that this takes, in passes over
    the words."""
    lines: list[LogLine] = []
    for path in sorted(RECORDED.glob("*.zip")):
        with zipfile.ZipFile(path) as archive:
            lines += _texts(
                json.loads(archive.read("incident.json"))["evidence"]["probes"]
            )
    quoted = sum(
        len(line.text[slice(*span)].split())
        for line in lines
        for span in hidden(line.text, line.source, line.level, line.quoted)
    )
    text = "\n".join(line.text for line in lines)
    redactor = Redactor()
    started = time.process_time()
    re.sub(r"[A-Za-z]\w+", lambda word: word[0].upper(), text)
    passed = time.process_time()
    out = redactor.redact(text)
    passes = (time.process_time() - passed) / (passed - started)
    new = len(PLACEHOLDER.findall(out)) - len(PLACEHOLDER.findall(text))
    return len(text.split()), quoted, new, passes


def _texts(value: Any) -> list[LogLine]:
    if isinstance(value, list):
        return [text for item in value for text in _texts(item)]
    if isinstance(value, dict):
        is_line = isinstance(value.get("text"), str) and "number" in value
        own = [LogLine.model_validate(value)] if is_line else []
        return own + [text for item in value.values() for text in _texts(item)]
    return []


def detectors(chance: random.Random) -> None:
    """What detect-secrets' plugins find of one plant of each kind, and of what is left
    by ours."""
    from detect_secrets.core.scan import scan_line
    from detect_secrets.settings import default_settings

    found, ours, added = Counter[str](), Counter[str](), []
    for kind in sorted(KINDS):
        for _ in range(5):
            plant = drawn(chance, kind, "log line")
            if not plant.clear:
                continue
            kept = Redactor().redact(plant.text)
            with default_settings():
                theirs = any(s.secret_value for s in scan_line(plant.text))
                if plant.secret in kept and any(
                    s.secret_value for s in scan_line(kept)
                ):
                    added.append(kind)
            found[kind] += theirs
            ours[kind] += plant.secret not in kept
    total = sum(5 for kind in KINDS if KINDS[kind].clear)
    print(
        f"detect-secrets flags {found.total()} of {total} lines; ours replaces "
        f"{ours.total()}"
    )
    print(f"of what ours leaves it flags {len(added)}: {added[:5]}")


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--share", type=float, default=1.0)
    parser.add_argument("--seed", type=int, default=20)
    parser.add_argument("--detectors", action="store_true")
    asked = parser.parse_args()
    chance = random.Random(asked.seed)
    number = max(
        sum(kind.times for kind in KINDS.values()), round(PLANTS * asked.share)
    )
    with tempfile.TemporaryDirectory(prefix="mmrepro-secrets-") as work:
        clear, other = survivors(chance, number, Path(work))
    facts, lost = facts_lost()
    words, quoted, looks, passes = replaced_words()
    share = (quoted + looks) / words
    print(
        f"seed {asked.seed}: {number} plants of {len(KINDS)} kinds in {len(PLACES)} "
        "places"
    )
    print(f"clear-cut survivors   {len(clear)}   (0 allowed)")
    print(f"other survivors       {len(other)}   (each listed)")
    print(f"facts of the report   {facts - len(lost)} of {facts} kept")
    how = f"{quoted} since they are quoted, {looks} by their looks"
    print(f"words of engine logs  {share:.3%} of {words} replaced, {how}")
    print(
        f"CPU time              of {passes:.0f} passes over the words   ({SLOWEST} "
        "allowed)"
    )
    for told in [*clear, *other, *lost]:
        print(" ", told)
    if asked.detectors:
        detectors(chance)
    return int(bool(clear or lost) or share > MOST_REPLACED or passes > SLOWEST)


if __name__ == "__main__":
    sys.exit(main())

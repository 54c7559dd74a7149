"""What an incident holds: of the set-up, and, besides the verdict, of the judged evidence."""

from __future__ import annotations

import ast
import hashlib
import uuid
from collections.abc import Callable, Collection, Iterable
from pathlib import Path
from typing import TypeVar

from mmrepro import __version__
from mmrepro.engines import get_engine
from mmrepro.environments.spec import Environment
from mmrepro.errors import UsageError
from mmrepro.evidence import Evidence
from mmrepro.incident import (
    EngineFacts,
    Exhibit,
    Incident,
    LogExcerpt,
    MitigationFacts,
    ModelFacts,
    SourceExcerpt,
)
from mmrepro.machine.cache import cache_root
from mmrepro.machine.facts import host_facts
from mmrepro.models import TinyModel
from mmrepro.probes.data import LogLine, LogsData
from mmrepro.records import EVIDENCE_DIR, Moment
from mmrepro.run.judge import Effect, effect
from mmrepro.run.options import RunCommand
from mmrepro.scenario import RunFacts, Scenario
from mmrepro.scenario.parts import SourceRef
from mmrepro.signature.views import log_count

T = TypeVar("T")
LINES_EACH = 3
MAX_LINES = 45
MAX_FILE_BYTES = 4 << 20
MAX_PICTURE_BYTES = 1 << 20
"""As ``Shown.png`` has it."""


def blank(
    scenario: Scenario, options: RunCommand, release: str, device: str, folder: Path
) -> Incident:
    """The incident of a run that has just begun, valid as it is.

    ``device``: ``cpu`` or ``cuda``, as decided; ``folder``: the run's own.
    """
    return Incident(
        mmrepro_version=__version__,
        id=uuid.uuid4().hex[:12],
        created=Moment.now(),
        state="interrupted",
        failure="the run has not ended",
        incident_dir=str(folder),
        command=options.command_line(scenario=options.scenario or scenario.name),
        scenario=scenario.facts,
        engine=EngineFacts(name=scenario.engine, release=release),
        host=host_facts(),
        fidelity=get_engine(scenario.engine).fidelity_on(device),
        references=list(scenario.references),
    )


def model_of(tiny: TinyModel, given: Path | None) -> tuple[Path, ModelFacts]:
    """Folder and facts of the model: the user's own if ``given``, else ``tiny``.

    Raises:
        UsageError: ``given`` holds no model.
    """
    if given is not None:
        path = given.resolve()
        if not (path / "config.json").is_file():
            raise UsageError(f"{path} holds no model: it has no config.json.")
        return path, ModelFacts(kind="given with --model", path=str(path))
    path = tiny.write(cache_root() / "models")
    with (path / "model.safetensors").open("rb") as file:
        digest = hashlib.file_digest(file, "sha256").hexdigest()
    return path, ModelFacts(
        kind=tiny.kind,
        path=str(path),
        parameters=tiny.parameters,
        seed=tiny.seed,
        image_tokens=tiny.image_tokens,
        sha256=digest,
    )


def mitigation_table(scenario: Scenario, applied: Collection[str]) -> list[MitigationFacts]:
    """Every mitigation; of none it is known yet whether it helps. ``applied``: names."""
    variant = f" --variant {scenario.variant}" if scenario.variant else ""
    return [
        MitigationFacts(
            name=mitigation.name,
            description=mitigation.description,
            applied=mitigation.name in applied,
            command=f"mmrepro run {scenario.name}{variant} --mitigation {mitigation.name}",
        )
        for mitigation in scenario.mitigations
    ]


def note_judged(
    incident: Incident, scenario: Scenario, facts: RunFacts, environment: Environment
) -> None:
    """Symptoms, stack, log lines, sources, claims and mitigations of an incident with a verdict.

    A scenario's table that fails leaves its part empty and a warning: the verdict stands.
    """
    evidence = incident.evidence

    def guarded(build: Callable[[], T], otherwise: T, name: str) -> T:
        try:
            return build()
        except Exception as error:
            why = f"the scenario's {name} failed: {type(error).__name__}: {error}"
            incident.failure_detail.append(why)
            return otherwise

    incident.symptoms = guarded(lambda: scenario.symptom_rows(evidence, facts), [], "symptom_rows")
    exhibits: list[Exhibit] = guarded(lambda: scenario.exhibits(evidence, facts), [], "exhibits")
    incident.exhibits = with_pictures(exhibits, Path(incident.incident_dir) / EVIDENCE_DIR)
    incident.key_stack = guarded(lambda: scenario.key_stack(evidence), None, "key_stack")
    incident.claims = guarded(lambda: scenario.claim_results(evidence, facts), [], "claims")
    incident.log_lines = log_excerpts(evidence, scenario)
    count_stand_ins(incident)
    if incident.verdict is not None:
        note_effects(incident.mitigations, effect(scenario, evidence, facts, incident.verdict))
    excerpts = (read_definition(environment.site_packages, ref) for ref in scenario.sources)
    incident.sources = [excerpt for excerpt in excerpts if excerpt is not None]


def with_pictures(exhibits: list[Exhibit], folder: Path) -> list[Exhibit]:
    """The exhibits with the pictures that they name, read from ``folder``; without those that are
    not there, or are too large for an incident."""
    for shown in (shown for exhibit in exhibits for shown in exhibit.shown):
        file = folder / shown.file
        if not shown.png and file.is_file() and file.stat().st_size <= MAX_PICTURE_BYTES:
            shown.png = file.read_bytes()
    return exhibits


def note_effects(mitigations: Iterable[MitigationFacts], told: Effect) -> None:
    """Of those that were not applied, a run tells nothing; the others it tells of together."""
    for mitigation in mitigations:
        if mitigation.applied:
            mitigation.effective, mitigation.hides = told.prevented, told.hides
            mitigation.observed = told.observed


def count_stand_ins(incident: Incident) -> None:
    """How often each stand-in reported itself, and calls of what it only pretends to have.

    Counted are the lines of the engine's log that match the patterns ``NAME-loaded`` and
    ``NAME-called``, where the engine or the scenario has such; without a log: None.
    """
    for stand_in in incident.stand_ins:
        stand_in.loaded = log_count(incident.evidence, f"{stand_in.name}-loaded")
        stand_in.calls = log_count(incident.evidence, f"{stand_in.name}-called")


def log_excerpts(evidence: Evidence, scenario: Scenario) -> list[LogExcerpt]:
    """The quoted lines: the scenario's patterns, and each process's last word."""
    data = next((d for _, d in reversed(list(evidence.results(LogsData, partial=True)))), None)
    if data is None:
        return []
    lines: list[LogExcerpt] = []
    for pattern in dict.fromkeys((*scenario.key_log_patterns, "contract-violated")):
        count = data.match_counts.get(pattern, 0)
        for line in data.matches.get(pattern, [])[:LINES_EACH]:
            note = f"{count} lines like this" if count > LINES_EACH else ""
            lines.append(excerpt(data.file, line, note))
    for process, line in data.last_by_process.items():
        if process:
            lines.append(excerpt(data.file, line, f"last line of {process}"))
    if data.last_work is not None:
        lines.append(excerpt(data.file, data.last_work, "last progress of the engine"))
    return sorted(lines, key=lambda entry: entry.number)


def excerpt(file: str, line: LogLine, note: str) -> LogExcerpt:
    where = f" [{line.source}]" if line.source else ""
    return LogExcerpt(
        file=Path(file).name,
        number=line.number,
        process=line.process,
        time=line.time,
        text=f"{line.level}{where} {line.text}".strip(),
        note=note,
    )


def read_definition(site_packages: Path, ref: SourceRef) -> SourceExcerpt | None:
    """The lines of ``ref`` as installed; None if the file or the definition is not there.

    Docstrings stay; a definition longer than 45 lines is cut around its highlighted lines.
    """
    path = site_packages / ref.file
    try:
        if path.stat().st_size > MAX_FILE_BYTES:
            return None
        text = path.read_text(encoding="utf-8", errors="replace")
        node = _find(ast.parse(text), ref.qualname.split("."))
    except (OSError, SyntaxError, ValueError, RecursionError, MemoryError):
        return None  # the parser's own limits end in the last two
    if node is None or node.end_lineno is None:
        return None
    first = min([node.lineno, *(d.lineno for d in node.decorator_list)])
    # As the parser counts: splitlines() would also split at form feeds and other separators.
    numbered = list(enumerate(text.split("\n")[first - 1 : node.end_lineno], first))
    marked = [n for n, line in numbered if any(h in line for h in ref.highlight)]
    if len(numbered) > MAX_LINES:
        start = max(0, (marked[0] if marked else first) - first - MAX_LINES // 2)
        numbered = numbered[start : start + MAX_LINES]
    return SourceExcerpt(
        file=ref.file,
        qualname=ref.qualname,
        first_line=numbered[0][0],
        lines=[line for _, line in numbered],
        highlight=[n for n in marked if numbered[0][0] <= n <= numbered[-1][0]],
        note=ref.note,
    )


Definition = ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef


def _find(tree: ast.AST, names: list[str]) -> Definition | None:
    """The last definition of that qualified name: overloads come before the real one."""
    last: Definition | None = None
    for node in ast.iter_child_nodes(tree):
        if isinstance(node, Definition) and node.name == names[0]:
            last = node if len(names) == 1 else _find(node, names[1:]) or last
        elif isinstance(node, ast.If | ast.Try):
            last = _find(node, names) or last
    return last

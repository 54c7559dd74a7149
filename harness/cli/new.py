"""``mmrepro new``: a scenario that runs, for somebody to fill in, or one that sends the case of a
finding of ``mmrepro replay``."""

from __future__ import annotations

import re
import shlex
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar

import typer
from mmrepro.base import common_options as common
from mmrepro.base.options import Command, option
from mmrepro.cli.console import emit
from mmrepro.cli.options import command
from mmrepro.errors import UnwritableOutput, UsageError

if TYPE_CHECKING:
    from mmrepro.case.model import Case
    from mmrepro.incident.replay import Finding
    from mmrepro.scenario import Scenario

INWARD = " > "
"""Between the functions of a hang's bucket, outermost first."""


@dataclass(frozen=True)
class NewCommand(Command):
    COMMAND: ClassVar[str] = "new"
    scenario: str = option(
        "", "Its name: small letters, digits, dashes.", "SCENARIO", argument=True, required=True
    )
    engine: str = common.ENGINE_NAME("", configurable=False)
    release: str = common.RELEASE("", shown="the known scenarios' last", configurable=False)
    source: Path | None = option(
        None,
        "Write the scenario of this finding of mmrepro replay: its folder, or the replay's folder, "
        "number, id, or last.",
        "FINDING",
        name="--from",
        names="finding",
    )
    out: Path = common.OUT(Path(), help="Folder for what is written.")
    force: bool = common.FORCE(False)
    json: bool = common.JSON(False)

    @property
    def module(self) -> str:
        return self.scenario.replace("-", "_")

    @property
    def cls(self) -> str:
        return "".join(word.capitalize() for word in self.scenario.split("-"))


@command(NewCommand)
def new(asked: NewCommand) -> None:
    """Write a scenario file that runs, and a test that fails until it is filled in.

    With --from the scenario sends a finding's own requests.

    Example:  mmrepro new odd-image --engine minivllm
    """
    engine, release, files, lines = _blank(asked) if asked.source is None else _from(asked)
    # A path where it would be read as a name.
    file = str(files[0]) if files[0].is_absolute() else f"./{files[0]}"
    following = f"mmrepro run {shlex.quote(file)}"
    if asked.json:
        emit(
            {
                "scenario": asked.scenario,
                "engine": engine,
                "release": release,
                "files": [str(file) for file in files],
                "next": following,
            }
        )
        return
    for line in (*lines, f"Next: {following}"):
        typer.echo(line)


Written = tuple[str, str, tuple[Path, ...], tuple[str, str]]
"""Engine, release, what was written, and a line on each."""


def _blank(asked: NewCommand) -> Written:
    """Raises UsageError: a bad name, no such engine, no such release, or a file is there."""
    from mmrepro.engines import get_engine
    from mmrepro.machine.files import write_file

    name, engine = asked.scenario, asked.engine
    if not engine:
        raise UsageError(
            "--engine says of which engine the scenario is; --from FINDING knows it.",
            hint=f"mmrepro new {name} --engine minivllm",
        )
    _check_name(name)
    adapter = get_engine(engine)
    if asked.release:
        adapter.environment_spec(asked.release, "cpu")
    last = last_known(engine)
    facts = {
        "name": name,
        "engine": engine,
        "release": asked.release or last.release,
        "model": type(last.model).__name__,
        "images": bool(last.model.image_tokens),
        "module": asked.module,
        "cls": asked.cls,
        "test": f"test_{asked.module}.py",
    }
    templates = ("scenario.py.j2", "test_scenario.py.j2")
    texts = [_filled(template, facts) for template in templates]
    files = asked.out / f"{asked.module}.py", asked.out / f"test_{asked.module}.py"

    def write() -> None:
        for file, text in zip(files, texts, strict=True):
            write_file(file, text)

    _write(asked, files, write, f"--engine {engine}")
    release = str(facts["release"])
    return (
        engine,
        release,
        files,
        (
            f"{files[0]}: a scenario of {engine} {release} that runs and finds nothing.",
            f"{files[1]}: red until its TODOs are filled in and runs of it are recorded.",
        ),
    )


def _from(asked: NewCommand) -> Written:
    """Write the scenario of a finding, and the folder with its case beside it.

    Raises:
        BadIncident: ``asked.source`` is no finding.
        UsageError: --engine or --release are given, it has no traffic that a scenario could send,
            or a file is there.
        UnwritableOutput: they cannot be written.
    """
    from mmrepro.case.files import read_contents, write_case
    from mmrepro.machine.files import write_file
    from mmrepro.reports.replay import load_finding

    assert asked.source is not None
    source, name = asked.source, asked.scenario
    if asked.engine or asked.release:
        raise UsageError(
            "--from says which engine and release it is of: --engine and --release are not given.",
            hint=f"mmrepro new {name} --from {source}",
        )
    _check_name(name)
    found = load_finding(source)
    finding, case = found.finding, found.case
    if case is None or not case.operations:
        raise UsageError(
            f"{source} has no requests that a scenario could send: {finding.finding_class}.",
            hint=f"mmrepro report {source}",
        )
    files = file, folder = asked.out / f"{asked.module}.py", asked.out / f"{asked.module}_case"
    text = rendered(finding, case, name)
    contents = read_contents(case, found.folder)

    def write() -> None:
        folder.mkdir(exist_ok=True)
        write_case(case, folder, contents)
        write_file(file, text)

    _write(asked, files, write, f"--from {source}")
    server = finding.server
    return (
        server.engine,
        server.release,
        files,
        (
            f"{file}: a scenario of {server.engine} {server.release} that sends the case.",
            f"{folder}: the case, {finding.requests} requests.",
        ),
    )


def _write(
    asked: NewCommand, files: tuple[Path, Path], write: Callable[[], None], again: str
) -> None:
    """Both or neither. Raises UsageError: one is there. Raises UnwritableOutput."""
    from mmrepro.machine.files import refuse_other_kinds

    there = [str(path) for path in files if path.exists()]
    if there and not asked.force:
        raise UsageError(
            f"{' and '.join(there)} {'exist' if len(there) > 1 else 'exists'} already.",
            hint=f"mmrepro new {asked.scenario} {again} --force, or --out DIR",
        )
    try:
        asked.out.mkdir(parents=True, exist_ok=True)
        for file in files:
            if file.suffix:
                refuse_other_kinds(file)
        write()
    except OSError as error:
        raise UnwritableOutput(
            f"{asked.out} cannot be written: {error.strerror or error}.",
            hint="mmrepro new … --out DIR",
        ) from error


def _check_name(name: str) -> None:
    """Raises UsageError: it names no module, hides one of Python's, or is taken."""
    import keyword
    import sys

    from mmrepro.scenario.registry import scenario_names

    if not re.fullmatch(r"[a-z][a-z0-9]*(-[a-z0-9]+)*", name):
        raise UsageError(
            f"{name!r} is no name of a scenario: small letters, digits and dashes make one.",
            hint="mmrepro new odd-image --engine minivllm",
        )
    module = name.replace("-", "_")
    if keyword.iskeyword(module) or module in sys.stdlib_module_names:
        raise UsageError(
            f"{module}.py would hide what Python calls {module}.",
            hint=f"mmrepro new {name}-failure --engine vllm",
        )
    if name in scenario_names():
        raise UsageError(f"There is a scenario {name} already.", hint=f"mmrepro show {name}")


def last_known(engine: str) -> Scenario:
    """The known scenario of ``engine`` with the newest release: release and model go together."""
    from mmrepro.diagnose.match import all_scenarios
    from mmrepro.models.tiny import TINY
    from packaging.version import Version

    tiny = {type(model) for model in TINY.values()}
    found = [s for s in all_scenarios() if s.engine == engine and type(s.model) in tiny]
    return max(found, key=lambda scenario: Version(scenario.release))


def _filled(template: str, facts: dict[str, Any]) -> str:
    from jinja2 import Environment, PackageLoader, StrictUndefined

    environment = Environment(  # noqa: S701 - Python is written, not HTML
        loader=PackageLoader("mmrepro.cli", "templates"),
        undefined=StrictUndefined,
        trim_blocks=True,
        keep_trailing_newline=True,
    )
    return environment.get_template(template).render(facts)


# ---------------------------------------------------------------- the scenario of a finding


@dataclass(frozen=True)
class Signature:
    """What of a class of findings a scenario looks for, as Python.

    Attributes:
        pattern: of the engine's log; "": none.
        observed: what one answer shows, where that is the symptom.
    """

    symptoms: tuple[str, ...] = ()
    causes: tuple[str, ...] = ()
    pattern: str = ""
    observed: dict[str, str] | None = None
    healthy: str = ""


def rendered(finding: Finding, case: Case, name: str) -> str:
    """The text of the scenario file."""
    from mmrepro import scenario
    from mmrepro.models.tiny import TINY
    from mmrepro.reports import replay_view as view

    signature = signature_of(finding, case)
    refused = [op.id for op in case.operations if finding.observed.get(op.id, "")[:1] == "4"]
    until = next(
        (op.id for op in case.operations if op.id in finding.operations), case.operations[-1].id
    )
    module = name.replace("-", "_")
    calls = {_called(one) for one in (*signature.symptoms, *signature.causes)}
    own = case.server.model in TINY
    model = type(TINY[case.server.model if own else "qwen2-vl"]).__name__
    names = {"Drive", "Scenario", "answered", "case_arrived", "play_case", "trigger_ended"}
    names |= {*calls, model}
    if signature.observed:
        names |= {"Finding", "Requests", "symptom"}
    if not signature.causes:
        names |= {"Finding", "Logs", "cause"}
    ordered = sorted(names, key=lambda name: (not name[0].isupper(), name))
    facts = {
        "title": _docstring(f"{view.finding_title(finding)}."),
        "said": _docstring(f"{view.said(finding)}. Expected: {view.expected(finding)}"),
        "why": _docstring(_why(finding)),
        "module": module,
        "folder": f"{module}_case",
        "cls": "".join(word.capitalize() for word in name.split("-")),
        "name": name,
        "engine": case.server.engine,
        "release": case.server.release,
        "model": model,
        "foreign": "" if own else "FOLDER",
        "max_model_len": case.server.max_model_len,
        "server": repr(shlex.join(case.server.args)),
        "env": repr(case.server.env) if case.server.env else "",
        "patterns": repr({"exception": signature.pattern}) if signature.pattern else "",
        "precondition": f"case_arrived({tuple(refused)!r}, {until!r})",
        "symptoms": signature.symptoms,
        "causes": signature.causes,
        "observed": signature.observed,
        "healthy": signature.healthy,
        "imports": [name for name in ordered if name in vars(scenario)],
        "more": [name for name in ordered if name not in vars(scenario)],
    }
    return _filled("scenario_from.py.j2", facts)


def signature_of(finding: Finding, case: Case) -> Signature:
    """What a run of the case must show to be this finding again."""
    from mmrepro.incident.replay import FindingClass

    pattern = exception_pattern(finding.log_lines)
    logged = ('in_log("the log holds the exception that the replay saw", "exception")',)
    failing = [op for op in finding.operations if op in {one.id for one in case.operations}]
    if finding.finding_class is FindingClass.HANG:
        path = hang_path(finding.bucket)
        stands = (f"stands_in({', '.join(map(repr, path))})",) if path else ()
        seen = ("some_request_unanswered()", "new_request_unanswered()")
        return Signature(seen, stands or (logged if pattern else ()), "" if stands else pattern)
    if finding.finding_class is FindingClass.DEATH:
        return Signature(("server_gone()",), logged if pattern else (), pattern)
    if finding.finding_class is FindingClass.FAILING:
        return Signature(("every_request_fails()",), logged if pattern else (), pattern)
    if finding.finding_class is FindingClass.SERVER_ERROR:
        labels = ", ".join(map(repr, failing[:3]))
        fails = (f"fails_in_server({labels})",) if labels else ()
        healthy = f", answered({labels})" if labels else ""
        return Signature(fails, logged if pattern else (), pattern, healthy=healthy)
    return Signature(observed=_observed(finding, failing or [case.operations[-1].id]))


def _observed(finding: Finding, failing: list[str]) -> dict[str, str]:
    """What is seen of the first answer that shows it."""
    for one in finding.expectations:
        if one.cached_at_most is not None:
            return {
                "statement": f"{one.operation} takes more than {one.cached_at_most} tokens from "
                "the cache",
                "label": one.operation,
                "test": f"(sent.cached_tokens or 0) > {one.cached_at_most}",
                "told": "{sent.cached_tokens} tokens from the cache",
            }
        if one.text is not None:
            return {
                "statement": f"{one.operation} is answered otherwise than it should be",
                "label": one.operation,
                "test": f"sent.answered and sent.text != {one.text!r}",
                "told": "{sent.reply} {sent.text[:80]!r}",
            }
    return {
        "statement": "TODO: what of the answer shows it",
        "label": failing[0],
        "test": "False",
        "told": "{sent.reply} {sent.text[:80]!r}",
    }


def hang_path(bucket: str) -> list[str]:
    """The functions in which a hang of this bucket stands, outermost first; []: none are known."""
    where = bucket.rpartition("/")[2]
    return where.split(INWARD) if where else []


def exception_pattern(lines: list[str]) -> str:
    """A pattern of the log's line: the exception and its words, up to the first thing that differs
    from run to run (a number, a hash, something quoted)."""
    named = re.compile(r"(?:[A-Za-z_]\w*\.)*([A-Za-z_]\w*(?:Error|Exception|Exit|Interrupt))\b(.*)")
    for line in lines:
        if found := named.search(line):
            words = re.split(r"[\d'\"`/]|0x", found[2], maxsplit=1)[0][:60].rstrip()
            return re.escape(found[1] + words).replace("\\ ", " ")
    return ""


def _called(expression: str) -> str:
    return expression.partition("(")[0]


def _why(finding: Finding) -> str:
    if finding.known:
        return f"as the known scenario {finding.known}: mmrepro show {finding.known}"
    return f"unknown. In the replay it was told apart by {finding.bucket}"


def _docstring(text: str) -> str:
    """On one line that no docstring ends at."""
    from mmrepro.text.sanitize import one_line

    return one_line(text, 300).replace("\\", "/").replace('"', "'")

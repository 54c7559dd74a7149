"""``mmrepro new``: a scenario that runs, for somebody to fill in, or one that sends the
case of a finding of ``mmrepro replay``."""

import re
import shlex
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar

from mmrepro.base import common_options as common
from mmrepro.base.errors import UnwritableOutput, UsageError
from mmrepro.base.options import Command, option
from mmrepro.base.units import count
from mmrepro.cli.console import done_head, emit, say
from mmrepro.cli.options import command


@dataclass(frozen=True)
class _NewCommand(Command):
    COMMAND: ClassVar[str] = "new"
    DOCUMENTS: ClassVar[tuple[str, ...]] = ("mmrepro.cli.documents:NewDocument",)
    scenario: str = option(
        "",
        "Its name: small letters, digits, dashes.",
        "SCENARIO",
        argument=True,
        required=True,
    )
    engine: str = common.ENGINE_NAME("", configurable=False)
    release: str = common.RELEASE(
        "", shown="the known scenarios' last", configurable=False
    )
    source: Path | None = option(
        None,
        "Write the scenario of this finding of mmrepro replay: its folder, or the "
        "replay's folder, number, id, or last.",
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


@command(_NewCommand)
def new(asked: _NewCommand) -> None:
    """Write a scenario file that runs, and a test that fails until it is filled in.

    With --from the scenario sends a finding's own requests.

    Example:  mmrepro new odd-image --engine minivllm
    """
    engine, release, files, lines = (
        _blank(asked) if asked.source is None else _from(asked)
    )
    # A path where it would be read as a name.
    file = str(files[0]) if files[0].is_absolute() else f"./{files[0]}"
    following = f"mmrepro run {shlex.quote(file)}"
    if asked.json:
        names = [str(file) for file in files]
        facts = {
            "scenario": asked.scenario,
            "engine": engine,
            "release": release,
            "files": names,
        }
        written = f"The scenario {asked.scenario} is written to {', '.join(names)}."
        emit(facts, done_head("written", written, [following]), "new")
        return
    for line in (*lines, f"Next: {following}"):
        say(line)


_Written = tuple[str, str, tuple[Path, ...], tuple[str, ...]]
"""Engine, release, what was written, and and lines on it."""


def _blank(asked: _NewCommand) -> _Written:
    """Raises UsageError: a bad name, no such engine, no such release, or a file is
    there."""
    from mmrepro.base.machine import write_file
    from mmrepro.engines import get_engine
    from mmrepro.engines.environments import doubt_of_release
    from mmrepro.search.replay.known import last_known

    name, engine = asked.scenario, asked.engine
    if not engine:
        raise UsageError(
            "--engine says of which engine the scenario is; --from FINDING knows it.",
            hint=f"mmrepro new {name} --engine minivllm",
        )
    _check_name(name)
    adapter = get_engine(engine)
    unsure = (
        doubt_of_release(adapter.environment_spec(asked.release, "cpu"))
        if asked.release
        else ""
    )
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
            (
                f"{files[0]}: a scenario of {engine} {release} that runs and finds "
                "nothing."
            ),
            (f"{files[1]}: red until its TODOs are filled in and runs are recorded."),
            *(
                [f"Whether there is a release {release} is not known: {unsure}"]
                if unsure
                else []
            ),
        ),
    )


def _from(asked: _NewCommand) -> _Written:
    """Write the scenario of a finding, and the folder with its case beside it.

    Raises:
        BadIncident: ``asked.source`` is no finding.
        UsageError: --engine or --release are given, it has no traffic that a scenario
            could send, its server has what a file may not set, or a file is there.
        UnwritableOutput: they cannot be written.
    """
    from mmrepro.base.machine import write_file
    from mmrepro.failure.documents import load_finding
    from mmrepro.search.replay.scenario_file import scenario_facts
    from mmrepro.search.replay.unlisted import refuse_unlisted
    from mmrepro.traffic.case import read_contents, write_case

    assert asked.source is not None
    source, name = asked.source, asked.scenario
    if asked.engine or asked.release:
        raise UsageError(
            (
                "--from says which engine and release it is of: --engine and "
                "--release are not given."
            ),
            hint=f"mmrepro new {name} --from {source}",
        )
    _check_name(name)
    loaded = load_finding(source)
    finding, case = loaded.finding, loaded.case
    if case is None or not case.operations:
        raise UsageError(
            (
                f"{source} has no requests that a scenario could send: "
                f"{finding.finding_class}."
            ),
            hint=f"mmrepro report {source}",
        )
    # A model that is none of the tiny ones is not named in what is written.
    refuse_unlisted(case.server, source, ("model",), command=f"mmrepro replay {source}")
    files = file, folder = (
        asked.out / f"{asked.module}.py",
        asked.out / f"{asked.module}_case",
    )
    text = _filled("scenario_from.py.j2", scenario_facts(finding, case, name))
    contents = read_contents(case, loaded.folder)

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
            (
                f"{file}: a scenario of {server.engine} {server.release} that sends "
                "the case."
            ),
            f"{folder}: the case, {count(finding.requests, 'request')}.",
        ),
    )


def _write(
    asked: _NewCommand, files: tuple[Path, Path], write: Callable[[], None], again: str
) -> None:
    """Both or neither. Raises UsageError: one is there. Raises UnwritableOutput."""
    from mmrepro.base.machine import refuse_other_kinds

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
            (
                f"{name!r} is no name of a scenario: small letters, digits and dashes "
                "make one."
            ),
            hint="mmrepro new odd-image --engine minivllm",
        )
    module = name.replace("-", "_")
    if keyword.iskeyword(module) or module in sys.stdlib_module_names:
        raise UsageError(
            f"{module}.py would hide what Python calls {module}.",
            hint=f"mmrepro new {name}-failure --engine vllm",
        )
    if name in scenario_names():
        raise UsageError(
            f"There is a scenario {name} already.", hint=f"mmrepro show {name}"
        )


def _filled(template: str, facts: dict[str, Any]) -> str:
    import json
    from functools import partial

    from jinja2 import Environment, PackageLoader, StrictUndefined

    environment = Environment(  # noqa: S701 - Python is written, not HTML
        loader=PackageLoader("mmrepro.cli", "templates"),
        undefined=StrictUndefined,
        trim_blocks=True,
        keep_trailing_newline=True,
    )
    # What a finding's file says is data, whoever wrote it: in the scenario it is a
    # literal.
    environment.filters["literal"] = partial(json.dumps, ensure_ascii=False)
    return environment.get_template(template).render(facts)

"""``mmrepro new``: a scenario that runs, and its test, for somebody to fill in."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, ClassVar

import typer
from mmrepro.base import common_options as common
from mmrepro.base.options import Command, option
from mmrepro.cli.options import command

if TYPE_CHECKING:
    from jinja2 import Environment
    from mmrepro.scenario import Scenario


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
        "Write the scenario of this finding of mmrepro replay: its folder.",
        "FINDING",
        name="--from",
    )
    out: Path = common.OUT(Path(), help="Folder for what is written.")
    force: bool = common.FORCE(False)
    json: bool = common.JSON(False)


@command(NewCommand)
def new(asked: NewCommand) -> None:
    """Write a scenario file that runs, and a test that fails until it is filled in.

    With --from it is of a finding of mmrepro replay, and sends the finding's own requests.

    Example:  mmrepro new odd-image --engine minivllm
    """
    if asked.source is not None:
        _of_finding(asked, asked.source)
        return
    plan = _plan(asked.scenario, asked.engine, asked.release)
    files = _write(plan, asked.out, force=asked.force)
    following = f"mmrepro run {_typed(files[0])}"
    if asked.json:
        import json as jsonlib

        document = {
            "scenario": plan.name,
            "engine": plan.engine,
            "release": plan.release,
            "files": [str(file) for file in files],
            "next": following,
        }
        typer.echo(jsonlib.dumps(document, indent=1))
        return
    typer.echo(
        f"{files[0]}: a scenario of {plan.engine} {plan.release} that runs and finds nothing."
    )
    typer.echo(f"{files[1]}: red until its TODOs are filled in and runs of it are recorded.")
    typer.echo(f"Next: {following}")


@dataclass(frozen=True)
class Blank:
    """What the templates are filled with.

    Attributes:
        model: name of a class of :mod:`mmrepro.models`.
        images: whether that model takes images.
    """

    name: str
    engine: str
    release: str
    model: str
    images: bool

    @property
    def module(self) -> str:
        return self.name.replace("-", "_")

    @property
    def cls(self) -> str:
        return "".join(word.capitalize() for word in self.name.split("-"))

    @property
    def test(self) -> str:
        return f"test_{self.module}.py"


def _plan(name: str, engine: str, release: str) -> Blank:
    """Raises UsageError: a bad name, no such engine, no such release."""
    from mmrepro.engines import get_engine
    from mmrepro.errors import UsageError

    if not engine:
        raise UsageError(
            "--engine says of which engine the scenario is; --from FINDING knows it.",
            hint=f"mmrepro new {name} --engine minivllm",
        )
    _check_name(name)
    adapter = get_engine(engine)
    if release:
        adapter.environment_spec(release, "cpu")
    last = last_known(engine)
    model = type(last.model).__name__
    return Blank(name, engine, release or last.release, model, bool(last.model.image_tokens))


def _check_name(name: str) -> None:
    """Raises UsageError: it names no module, hides one of Python's, or is taken."""
    import keyword
    import re
    import sys

    from mmrepro.errors import UsageError
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


def _write(plan: Blank, out: Path, *, force: bool) -> tuple[Path, Path]:
    """Raises UsageError: a file is there. Raises UnwritableOutput."""
    from mmrepro.errors import UnwritableOutput, UsageError
    from mmrepro.machine.files import refuse_other_kinds, write_file

    files = out / f"{plan.module}.py", out / plan.test
    there = [str(file) for file in files if file.exists()]
    if there and not force:
        raise UsageError(
            f"{' and '.join(there)} {'exist' if len(there) > 1 else 'exists'} already.",
            hint=f"mmrepro new {plan.name} --engine {plan.engine} --force, or --out DIR",
        )
    texts = _rendered(plan)
    try:
        out.mkdir(parents=True, exist_ok=True)
        for file in files:  # both or neither
            refuse_other_kinds(file)
        for file, text in zip(files, texts, strict=True):
            write_file(file, text)
    except OSError as error:
        raise UnwritableOutput(
            f"{out} cannot be written: {error.strerror or error}.", hint="mmrepro new … --out DIR"
        ) from error
    return files


def _of_finding(asked: NewCommand, place: Path) -> None:
    """Raises UsageError: --engine or --release are given; else as below."""
    from mmrepro.cli.new_from import scenario_from
    from mmrepro.errors import UsageError

    name = asked.scenario
    if asked.engine or asked.release:
        raise UsageError(
            "--from says which engine and release it is of: --engine and --release are not given.",
            hint=f"mmrepro new {name} --from {place}",
        )
    _check_name(name)
    file, folder, told = scenario_from(place, name, asked.out, force=asked.force)
    server, following = told.finding.server, f"mmrepro run {_typed(file)}"
    if asked.json:
        import json as jsonlib

        document = {
            "scenario": name,
            "engine": server.engine,
            "release": server.release,
            "files": [str(file), str(folder)],
            "next": following,
        }
        typer.echo(jsonlib.dumps(document, indent=1))
        return
    typer.echo(f"{file}: a scenario of {server.engine} {server.release} that sends the case.")
    typer.echo(f"{folder}: the case, {told.finding.requests} requests.")
    typer.echo(f"Next: {following}")


def _rendered(plan: Blank) -> tuple[str, ...]:
    facts = {**asdict(plan), "module": plan.module, "cls": plan.cls, "test": plan.test}
    names = ("scenario.py.j2", "test_scenario.py.j2")
    return tuple(templates().get_template(name).render(facts) for name in names)


def templates() -> Environment:
    """Those of this folder, of Python."""
    from jinja2 import Environment, PackageLoader, StrictUndefined

    return Environment(  # noqa: S701 - Python is written, not HTML
        loader=PackageLoader("mmrepro.cli", "templates"),
        undefined=StrictUndefined,
        trim_blocks=True,
        keep_trailing_newline=True,
    )


def _typed(file: Path) -> str:
    """As a shell takes it, and as a path where it would be read as a name."""
    import shlex

    return shlex.quote(f"./{file}" if not file.is_absolute() else str(file))

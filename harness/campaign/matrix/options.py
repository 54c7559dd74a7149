"""Options of ``matrix run``, and ``FILE.toml``, which has them by the same names."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field, fields, replace
from pathlib import Path
from typing import Annotated, Any, ClassVar, Literal, Self

from mmrepro.base import common_options as common
from mmrepro.base.errors import MmreproError, UsageError
from mmrepro.base.machine import read_toml
from mmrepro.base.options import LIMITS, OUTPUT, Command, OptionOrigin, declared, option
from mmrepro.base.records import Misfit, misfits
from mmrepro.base.units import exact_duration, exact_size, parse_duration, parse_size
from mmrepro.campaign.matrix import selectors
from mmrepro.runs import StartMode
from mmrepro.scenario.registry import is_file_name
from pydantic import (
    BaseModel,
    BeforeValidator,
    ConfigDict,
    Field,
    ValidationError,
    create_model,
)


def _several(value: Any) -> Any:
    return [value] if isinstance(value, str) else value


def _releases(value: Any) -> Any:
    texts = [str(v) for v in value] if isinstance(value, list) else [value]
    if not all(isinstance(text, str) for text in texts):
        raise ValueError("a text, or a list of texts")
    return list(selectors.parse(",".join(texts)))


def _by(read: Callable[[Any], Any]) -> BeforeValidator:
    """``read``, which says what is wrong in the words of an option, for pydantic."""

    def validated(value: Any) -> Any:
        try:
            return read(value)
        except MmreproError as error:
            raise ValueError(f"{error.message.rstrip('.')} ({error.hint})") from None

    return BeforeValidator(validated)


Texts = Annotated[list[str], BeforeValidator(_several)]
Releases = Annotated[list[str], _by(_releases)]
Seconds = Annotated[float, _by(lambda value: parse_duration(str(value)))]
Bytes = Annotated[int, _by(lambda value: parse_size(str(value)))]
Device = Literal["auto", "cpu", "cuda"]


class _Table(BaseModel):
    model_config = ConfigDict(
        extra="forbid",
        populate_by_name=True,
        alias_generator=lambda name: name.replace("_", "-"),
    )


class Rows(_Table):
    """Rows of the matrix that share their releases, device, mitigations and options.

    What is None is taken from ``[matrix]``, and if that has none either, the default.
    ``feature``: one row more for each, with what the server needs for it
    (engines/features.py); ``none`` is the row without."""

    scenario: Texts = []
    engine: str | None = None
    releases: Releases | None = None
    mitigation: Texts | None = None
    device: Device | None = None
    server_arg: Texts = []
    feature: Texts = []
    option: Texts = []


class Cluster(_Table):
    """``[cluster]``: what Ray is asked for, for each order; ``gpus``: for orders on a
    GPU only."""

    cpus: Annotated[float, Field(ge=0)] = 1.0
    gpus: Annotated[float, Field(gt=0)] = 1.0
    memory: Bytes = 0


DEFAULT_OUT = "nights"


@dataclass(frozen=True)
class MatrixRunCommand(Command):
    """Options of ``mmrepro matrix run``. None and what is empty: not said."""

    COMMAND: ClassVar[str] = "matrix run"
    DOCUMENTS: ClassVar[tuple[str, ...]] = (
        "mmrepro.history.nightly:NightDocument",
        "nightly-plan=mmrepro.campaign.matrix.plan:DryRun",
    )
    file: Path | None = option(
        None, "FILE.toml with the rows; see mmrepro help matrix.", "FILE", argument=True
    )
    scenarios: tuple[str, ...] = option(
        (),
        "NAME, NAME:VARIANT, NAME:all, a FILE.py, or all. May be repeated.",
        "SCENARIO",
        name="--scenario",
        configurable=False,
        names="scenario",
    )
    engine: str = common.ENGINE_NAME("", help="Only scenarios of this engine.")
    releases: tuple[str, ...] = option(
        (),
        (
            "affected, boundary, after, newest, own, A..B or versions, separated by "
            "commas."
        ),
        "RELEASE,…",
        shown="own,newest",
        read=selectors.parse,
        write=",".join,
    )
    tree: str = common.SOURCE("", help="A column more: the Python of a source tree.")
    kernels: str = common.KERNELS("")
    device: str | None = common.DEVICE(None, shown="auto")
    mitigation: tuple[str, ...] = common.MITIGATION(
        (),
        help="none, each (one more cell for each), or a name. May be repeated.",
        shown="none",
    )
    repeat: int | None = common.REPEAT(
        None, help="Number of runs of each cell.", shown="1"
    )
    max_time: float | None = option(
        None,
        "The same as --budget.",
        "TIME",
        LIMITS,
        read=parse_duration,
        write=exact_duration,
    )
    disk: int | None = option(
        None,
        "Maximum growth of the disk's use, e.g. 40G.",
        "SIZE",
        LIMITS,
        shown="no bound",
        read=parse_size,
        write=exact_size,
    )
    json: bool = common.JSON(False)
    server_args: tuple[str, ...] = common.SERVER_ARG(())
    options: tuple[str, ...] = common.OPTION(())
    confirm: int | None = option(
        None,
        "Number of further runs of a cell with an unexpected result.",
        "N",
        shown="3",
        least=0,
        most=100,
    )
    jobs: int | None = common.JOBS(
        None, help="Number of environments at a time.", shown="1"
    )
    timeout: float | None = common.TIMEOUT(None, shown="600")
    quarantine: Path | None = common.QUARANTINE(None)
    every: float | None = option(
        None,
        "When the next nightly run is due, e.g. 24h; a missing one is reported.",
        "TIME",
        LIMITS,
        read=parse_duration,
        write=exact_duration,
    )
    start_mode: StartMode | None = common.START_MODE(
        None,
        shown="warm, so that all nightly runs are alike",
        configurable=False,
        variable="",
    )
    shard: str = option(
        "",
        "I/N: the Ith of N machines' part; join with matrix merge.",
        "I/N",
        configurable=False,
    )
    machine: str = option("", "Label of this machine in the ledger.", "NAME", OUTPUT)
    ray: str = common.RAY("")
    budget_s: float | None = common.BUDGET(None)
    events: str = common.EVENTS("")
    out: Path | None = common.OUT(
        None, help="Folder of the ledger.", shown=DEFAULT_OUT, once=False
    )
    night: str = common.NIGHT("", help="Name of the nightly run.", shown="the UTC date")
    full: bool = common.FULL(False)
    resume: bool = common.RESUME(
        False, help="Continue the newest run that is unfinished."
    )
    trust: bool = common.TRUST(
        False,
        help="Run the FILE.pys that FILE.toml or the ledger names. Read them first.",
    )
    quiet: bool = common.QUIET(False)
    verbose: bool = common.VERBOSE(False)
    dry_run: bool = common.DRY_RUN(False)

    def over(self, other: MatrixRunCommand) -> Self:
        """These options, and where they do not say what FILE.toml may, ``other``'s."""
        unsaid = [name for name in _IN_FILE if not said(self, name)]
        return replace(self, **_values(other, unsaid))

    def under(self, file: MatrixFile) -> tuple[Self, MatrixFile]:
        """Return both so that FILE.toml goes before what ``mmrepro.toml`` says of the
        same keys."""
        tables = (file.matrix, *file.cell)
        lower = []
        for name in _IN_FILE:
            configured = self.origins.get(name) is OptionOrigin.FILE
            if configured and any(said(table, name) for table in tables):
                lower.append(name)

        origins = dict(self.origins)
        for name in lower:
            del origins[name]

        plain = MatrixRunCommand()
        below = replace(plain, **_values(self, lower))
        above = replace(self, origins=origins, **_values(plain, lower))
        return above, replace(file, matrix=file.matrix.over(below))

    def runs_file(self, name: str) -> bool:
        """Whether a scenario's file of that name may be run: it was typed, or is
        trusted."""
        return self.trust or name in self.scenarios

    def resumed(self, folder: Path) -> str:
        """Return the command that goes on with the plan that is written down in
        ``folder``."""
        kept = {"origins", "file", *_HOW}
        plan: dict[str, Any] = {}
        for declaration in fields(self):
            if declaration.name not in kept:
                plan[declaration.name] = declaration.default

        plan["out"] = folder
        plan["resume"] = True
        # The ledger names the file from now on, and a file is not run untrusted.
        if self.trust or any(is_file_name(name) for name in self.scenarios):
            plan["trust"] = True
        return self.command_line(**plan)


def _values(options: MatrixRunCommand, names: Iterable[str]) -> dict[str, Any]:
    return {name: getattr(options, name) for name in names}


_HOW = (
    "jobs",
    "max_time",
    "budget_s",
    "timeout",
    "disk",
    "quarantine",
    "start_mode",
    "ray",
)
"""Fields that no plan holds: how its cells are run."""
_PER_ROW = ("engine", "releases", "mitigation", "device")
_IN_FILE = {*_PER_ROW, *_HOW, "repeat", "confirm", "every", "machine", "out"}
_IN_FILE.remove("budget_s")
"""Fields that FILE.toml has as well, in ``[matrix]``."""


def said(table: object, name: str) -> bool:
    return getattr(table, name, None) not in (None, "", ())


# ---------------------------------------------------------------- FILE.toml


@dataclass(frozen=True)
class MatrixFile:
    """``FILE.toml``; ``matrix``: defaults of the rows, and how the nightly run is
    made."""

    matrix: MatrixRunCommand = MatrixRunCommand()
    cluster: Cluster = field(default_factory=Cluster)
    cell: tuple[Rows, ...] = ()


def _matrix() -> type[_Table]:
    """``[matrix]`` as TOML has it, by the declarations of the options."""
    read: dict[str, Any] = {
        "releases": Releases,
        "mitigation": Texts,
        "disk": Bytes,
        "quarantine": str,
        "out": str,
        "max_time": Seconds,
        "every": Seconds,
        "timeout": Seconds,
    }
    kinds: dict[str, Any] = {}
    for declaration in declared(MatrixRunCommand):
        if declaration.field not in _IN_FILE:
            continue
        kind = read.get(declaration.field, declaration.type)
        if kind is int:
            bounds = declaration.option
            kind = Annotated[int, Field(ge=bounds.least, le=bounds.most)]
        kinds[declaration.field] = (kind | None, None)

    return create_model("Matrix", __base__=_Table, **kinds)


def load(path: Path) -> MatrixFile:
    """The file; paths in it are relative to its folder, and come back relative to the
    current one.

    Raises:
        UsageError: it cannot be read; the table and the key are named.
    """
    table = _matrix()
    parts: dict[str, Any] = {
        "matrix": (table, table()),
        "cluster": (Cluster, Cluster()),
        "cell": (list[Rows], []),
    }
    tables = read_toml(path)
    try:
        read: Any = create_model("MatrixFile", __base__=_Table, **parts)(**tables)
    except ValidationError as error:
        raise UsageError(
            f"{path}: {_first(misfits(error, tables)[0])}.",
            hint="mmrepro help matrix lists the tables and their keys",
        ) from error

    for number, rows in enumerate(read.cell, 1):
        if not rows.scenario:
            raise UsageError(
                f"{path}: [[cell]] number {number} names no scenario.",
                hint='scenario = "ghost-key-eviction"',
            )
        rows.scenario = [_placed(s, path) if ".py" in s else s for s in rows.scenario]

    values = read.matrix.model_dump(exclude_none=True)
    # TOML has lists where an option has a tuple, and texts where it has a path.
    for name in ("releases", "mitigation"):
        if name in values:
            values[name] = tuple(values[name])

    for name in ("quarantine", "out"):
        if values.get(name):
            values[name] = Path(_placed(values[name], path))

    return MatrixFile(MatrixRunCommand(**values), read.cluster, tuple(read.cell))


def _placed(value: str, path: Path) -> str:
    return os.path.relpath(path.parent / value)


def _first(misfit: Misfit) -> str:
    """``[[cell]] number 2, key 'releases': …``."""
    place, kind, words = misfit
    if kind == "extra_forbidden":
        words = "there is no such key" if len(place) > 1 else "there is no such table"

    table = f"[{place[0]}]"
    key = place[1:]
    if place[0] == "cell" and len(place) > 1:
        table = f"[[cell]] number {int(place[1]) + 1}"
        key = place[2:]

    name = f"{table}, key {str(key[0])!r}" if key else table
    return misfit._replace(words=words).sentence_of(name)

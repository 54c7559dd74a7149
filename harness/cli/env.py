"""``mmrepro env``: the cached environments of engines, and those for machines without a
network."""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, ClassVar

import typer
from mmrepro.base import common_options as common, units
from mmrepro.base.options import Command, option
from mmrepro.cli import warm
from mmrepro.cli.options import CommandGroup, DeclaredCommand, command

# What is heavy (pydantic, rich, the environments) is imported by the command that needs
# it, so that the help stays fast.
if TYPE_CHECKING:
    from mmrepro.engines.environments import Made, PlannedPackage, Stored

_MAX_LIST_BYTES = 4 << 20
_MAX_PROBLEMS = 20
_LARGEST = 12  # packages in the table of a wheelhouse; --json has all

app = typer.Typer(
    name="env",
    cls=CommandGroup,
    help=(
        "List, build and remove the cached environments (one engine at one "
        "release each), and keep their engines imported."
    ),
    no_args_is_help=True,
)
app.add_typer(warm.app)


@dataclass(frozen=True)
class _EnvListCommand(Command):
    COMMAND: ClassVar[str] = "env list"
    DOCUMENTS: ClassVar[tuple[str, ...]] = (
        "mmrepro.cli.documents:EnvironmentsDocument",
    )
    json: bool = common.JSON(False)


@app.command("list", cls=DeclaredCommand)
@command(_EnvListCommand)
def _list_(asked: _EnvListCommand) -> None:
    """Show what is cached, how large it is and when it was last used.

    Example: mmrepro env list
    """
    from mmrepro.base.machine import environments_root
    from mmrepro.cli.console import done_head, emit, print_rows
    from mmrepro.engines.environments import list_environments, starts_seen

    stored = list_environments()
    if asked.json:
        documents = [
            {
                "name": environment.path.name,
                "path": str(environment.path),
                **environment.manifest.model_dump(mode="json"),
                "last_used": environment.last_used,
                "size_bytes": environment.size.apparent,
                "own_bytes": environment.size.own,
                "starts": starts_seen(environment.path / "state").model_dump()["modes"],
            }
            for environment in stored
        ]
        words = (
            f"{units.count(len(documents), 'environment')} in {environments_root()}."
        )
        head = done_head("listed", words)
        emit({"environments": documents}, head, "environments")
        return
    if not stored:
        print("No environments yet. Build one with: mmrepro env create vllm 0.23.0")
        return
    rows: list[tuple[str, ...]] = []
    for environment in stored:
        facts = environment.manifest
        unused = time.time() - environment.last_used
        name = f"{facts.engine} {facts.release} {facts.commit[:12]}".rstrip()
        used = f"{units.duration(unused)} ago" if unused >= 60 else "now"
        row = (
            name,
            facts.device,
            facts.python,
            facts.resolved_until[:10],
            used,
            _starts(environment),
        )
        rows.append(
            (
                *row,
                units.size(environment.size.apparent),
                units.size(environment.size.own),
            )
        )
    heads = ("engine", "device", "python", "as of", "used", "starts", "size", "own")
    print_rows([heads, *rows])
    print(f"in {environments_root()}; own: not shared with uv's cache")


def _starts(environment: Stored) -> str:
    """The fastest start mode that works there, and those that were refused."""
    from mmrepro.engines.environments import starts_seen

    works: set[str] = set()
    refused: list[str] = []
    for name, seen in starts_seen(environment.path / "state").modes.items():
        if seen.works:
            works.add(name.partition(" ")[0])
        else:
            refused.append(f"not {name}")
    words: list[str] = []
    for mode in ("warm", "fork", "cold"):
        if mode in works:
            words.append(mode)
            break
    return ", ".join([*words, *sorted(refused)])


@dataclass(frozen=True)
class _EnvCreateCommand(Command):
    COMMAND: ClassVar[str] = "env create"
    engine: str = common.ENGINE_NAME("", argument=True, required=True)
    release: str = common.RELEASE(
        "", help="Its release, e.g. 0.23.0.", shown="", argument=True
    )
    tree: str = common.SOURCE("")
    kernels: str = common.KERNELS("")
    commit: str = common.COMMIT("")
    commit_date: str = common.COMMIT_DATE("")
    index: str = common.INDEX("")
    device: str = common.DEVICE("auto", choices=())
    wheelhouse: Path | None = option(
        None,
        (
            "Build it from this folder, made by `mmrepro env wheelhouse`, without a "
            "network."
        ),
        "DIR",
        runs_code=True,
    )
    python: str = option(
        "",
        "With --wheelhouse: the interpreter, e.g. an environment with torch.",
        "PYTHON",
        runs_code=True,
    )
    system_site_packages: bool = option(
        False,
        "With --wheelhouse: use that interpreter's packages after its own. Done in any "
        "case where the wheelhouse was made with --have.",
    )


@app.command(cls=DeclaredCommand)
@command(_EnvCreateCommand)
def create(asked: _EnvCreateCommand) -> None:
    """Build the environment of one release now, so that a run need not.

    Example: mmrepro env create vllm 0.23.0 --device cpu
    """
    from mmrepro.base.errors import UsageError
    from mmrepro.base.machine import is_folder
    from mmrepro.cli.building import building
    from mmrepro.cli.commits import use_index
    from mmrepro.cli.sources import released
    from mmrepro.engines import spec_for
    from mmrepro.engines.environments import ensure
    from rich.console import Console

    asked = released(asked, asked.engine)
    if asked.commit or asked.index:
        use_index(asked.index, asked.commit, asked.commit_date)
    if not asked.release and not asked.commit:
        raise UsageError(
            "Which release?", hint=f"mmrepro env create {asked.engine} RELEASE"
        )
    if asked.wheelhouse is not None and not is_folder(asked.wheelhouse):
        raise UsageError(
            f"There is no folder {asked.wheelhouse}.", hint="mmrepro env wheelhouse"
        )
    if asked.wheelhouse is None and (asked.python or asked.system_site_packages):
        raise UsageError(
            "--python and --system-site-packages are for --wheelhouse.",
            hint="an environment from the index gets a Python that its wheel fits",
        )
    spec = spec_for(
        asked.engine,
        asked.release,
        asked.device,
        commit=asked.commit,
        date=asked.commit_date,
    )
    title = f"{spec.engine} {spec.release} ({spec.device})"
    console = Console(stderr=True)
    with building(console, title) as progress:
        made = ensure(
            spec,
            progress=progress,
            wheelhouse=asked.wheelhouse,
            python=asked.python,
            system_site_packages=asked.system_site_packages,
        )
    words = "was there already" if made.reused else "built"
    console.print(
        f"{title}: {words}, {len(made.packages)} packages as of "
        f"{made.resolved_until[:10]}"
    )
    print(made.path)


@dataclass(frozen=True)
class _EnvParsersCommand(Command):
    COMMAND: ClassVar[str] = "env parsers"
    DOCUMENTS: ClassVar[tuple[str, ...]] = ("mmrepro.cli.documents:ParsersDocument",)
    engine: str = common.ENGINE_NAME("", argument=True, required=True)
    release: str = common.RELEASE("", shown="", argument=True)
    json: bool = common.JSON(False)


@app.command(cls=DeclaredCommand)
@command(_EnvParsersCommand)
def parsers(asked: _EnvParsersCommand) -> None:
    """List the tool and reasoning parsers of a release: which of them start with a
    scripted model, and read the plainest call or thought of their family.

    The engine's own code is asked in its environment, without a server.

    Example: mmrepro env parsers vllm 0.23.0
    """
    from dataclasses import asdict

    from mmrepro.base.errors import UsageError
    from mmrepro.base.machine import cache_root
    from mmrepro.cli.building import building
    from mmrepro.cli.console import done_head, emit, print_rows
    from mmrepro.engines import spec_for
    from mmrepro.engines.environments import ensure
    from mmrepro.engines.parsers import tried_parsers
    from rich.console import Console

    if not asked.release:
        raise UsageError(
            "Which release?", hint=f"mmrepro env parsers {asked.engine} RELEASE"
        )
    spec = spec_for(asked.engine, asked.release)
    with building(Console(stderr=True), f"{spec.engine} {spec.release}") as progress:
        environment = ensure(spec, progress=progress)
    tried = tried_parsers(environment, cache_root() / "models")
    if asked.json:
        facts = [asdict(parser) for parser in tried]
        summary = f"{len(facts)} parsers of {spec.engine} {spec.release}."
        emit({"parsers": facts}, done_head("tried", summary), "parsers")
        return
    words = {True: "yes", False: "no", None: "a server's"}
    rows: list[tuple[str, ...]] = [
        ("kind", "parser", "family", "starts", "reads", "why not")
    ]
    for parser in tried:
        starts, reads = words[parser.starts], words[parser.reads]
        shown = reads if parser.starts else ""
        family = parser.family or "-"
        rows.append((parser.kind, parser.name, family, starts, shown, parser.why))
    print_rows(rows)


@dataclass(frozen=True)
class _EnvVerifyCommand(Command):
    COMMAND: ClassVar[str] = "env verify"
    engine: str = common.ENGINE_NAME("", help="Only of this engine.", argument=True)
    release: str = common.RELEASE(
        "", help="Only this release.", shown="", argument=True
    )


@app.command(cls=DeclaredCommand)
@command(_EnvVerifyCommand)
def verify(asked: _EnvVerifyCommand) -> None:
    """Compare installed files with the hashes that their wheels brought, packages with
    the lock.

    No program of the environment is run.

    Example: mmrepro env verify vllm 0.23.0
    """
    from mmrepro.base.errors import UsageError
    from mmrepro.engines.environments import list_environments, verify_environment

    folders = [
        environment.path
        for environment in list_environments(sizes=False)
        if asked.engine in ("", environment.manifest.engine)
        and asked.release in ("", environment.manifest.release)
    ]
    if not folders:
        raise UsageError("There is no such environment.", hint="mmrepro env list")
    sound = True
    for folder in folders:
        checked = verify_environment(folder)
        sound = sound and checked.sound
        words = (
            "as their wheels have them"
            if checked.sound
            else f"{len(checked.problems)} problems"
        )
        print(
            f"{checked.name}: {checked.files:,} files {words}, {checked.unverified:,} "
            "without a hash"
        )
        for problem in checked.problems[:_MAX_PROBLEMS]:
            print(f"  {problem}")
        if len(checked.problems) > _MAX_PROBLEMS:
            print(f"  and {len(checked.problems) - _MAX_PROBLEMS} more")
    if not sound:
        print(
            "Build them again: mmrepro env prune ENGINE RELEASE, then mmrepro env "
            "create"
        )
        raise typer.Exit(1)


@dataclass(frozen=True)
class _EnvPruneCommand(Command):
    COMMAND: ClassVar[str] = "env prune"
    engine: str = common.ENGINE_NAME("", help="Only of this engine.", argument=True)
    release: str = common.RELEASE(
        "", help="Only this release.", shown="", argument=True
    )
    everything: bool = option(False, "All environments.", name="--all")
    older_than: float | None = option(
        None, "Unused for so many days.", "DAYS", least=0, most=36500
    )
    dry_run: bool = common.DRY_RUN(False, help="Only say what would go.")
    uv_cache: bool = option(
        False,
        "Also take their packages out of uv's cache, where most of the space is. Other "
        "projects download them again when they need them.",
    )


@app.command(cls=DeclaredCommand)
@command(_EnvPruneCommand)
def prune(asked: _EnvPruneCommand) -> None:
    """Remove environments; without arguments only what broken-off builds left behind.

    One that is being built or used is never removed.

    Example: mmrepro env prune --older-than 30 --dry-run
    """
    from mmrepro.base.errors import UsageError
    from mmrepro.engines.environments import prune_environments, run_uv

    if asked.everything and asked.engine:
        raise UsageError(
            "--all and ENGINE exclude each other.", hint="mmrepro env prune --all"
        )
    done = prune_environments(
        everything=asked.everything,
        engine=asked.engine,
        release=asked.release,
        older_than_days=asked.older_than,
        dry_run=asked.dry_run,
    )
    verb = "would remove" if asked.dry_run else "removed"
    for name in done.removed:
        print(f"{verb} {name}")
    for name, why in done.kept:
        print(f"kept {name}: {why}")
    if done.removed:
        print(
            f"{verb} {len(done.removed)}, {units.size(done.freed_bytes)} of their own"
        )
    else:
        print("nothing to remove")
    if asked.uv_cache and not asked.dry_run and done.packages:
        run_uv(["cache", "clean", *sorted(done.packages)], doing="cleaning uv's cache")
        print(f"took {len(done.packages)} packages out of uv's cache")


# ------------------------------------------------------ for a machine without a network


@dataclass(frozen=True)
class _WheelhouseCommand(Command):
    COMMAND: ClassVar[str] = "env wheelhouse"
    DOCUMENTS: ClassVar[tuple[str, ...]] = ("mmrepro.cli.documents:WheelhouseDocument",)
    engine: str = common.ENGINE_NAME("", argument=True, shown="mmrepro alone")
    release: str = common.RELEASE(
        "", help="Its release, e.g. 0.23.0.", shown="", argument=True
    )
    into: Path = common.OUT(
        Path(),
        help="Folder for it; a wheelhouse that is there gets the engine added.",
        required=True,
    )
    python: str = option(
        "", "Python of the target, e.g. 3.12.", "VERSION", required=True
    )
    device: str = common.DEVICE(
        "cuda", help="Device of the target: cuda or cpu.", choices=()
    )
    platform: str = option(
        "",
        "Platform of the target, as uv names it.",
        "NAME",
        shown="this machine's kind with glibc 2.35, which every newer glibc can run",
    )
    have: Path | None = option(
        None,
        "What the target's Python has, by `python -m pip list --format=freeze` there. "
        "Its torch is then used as it is, and what it has in the right version is not "
        "carried.",
        "FILE",
    )
    leave_out: tuple[str, ...] = option(
        (), "Package to leave out, and what only it needs. May be repeated.", "PACKAGE"
    )
    lean: bool = option(
        False,
        (
            "Without what this release does not import "
            "(environments/wheelhouse/unneeded.toml)."
        ),
    )
    max_part: int = option(
        60 << 20,
        "Largest size of a part.",
        "SIZE",
        shown="60MiB",
        read=units.parse_size,
    )
    dry_run: bool = common.DRY_RUN(
        False, help="Resolve and say the sizes; download nothing."
    )
    json: bool = common.JSON(False)


@app.command(cls=DeclaredCommand)
@command(_WheelhouseCommand)
def wheelhouse(asked: _WheelhouseCommand) -> None:
    """Carry mmrepro, and an engine, to a machine without a network, in parts of a
    bounded size.

    There: `python3 DIR/part-01/install.py`, then `mmrepro env create ENGINE RELEASE
    --wheelhouse DIR`.

    Example: mmrepro env wheelhouse vllm 0.23.0 --python 3.12 --have freeze.txt --into
    house"""
    from mmrepro.base.errors import UsageError
    from mmrepro.base.machine import read_file
    from mmrepro.cli.building import building
    from mmrepro.cli.console import done_head, emit
    from mmrepro.engines import spec_for
    from mmrepro.engines.environments import make_target, make_wheelhouse
    from rich.console import Console

    if asked.engine and not asked.release:
        raise UsageError(
            "Which release?", hint=f"mmrepro env wheelhouse {asked.engine} RELEASE"
        )
    spec = spec_for(asked.engine, asked.release, asked.device) if asked.engine else None
    freeze = ""
    if asked.have:
        try:
            freeze = read_file(asked.have, _MAX_LIST_BYTES).decode("utf-8", "replace")
        except OSError as error:
            raise UsageError(
                f"{asked.have} cannot be read: {error.strerror}."
            ) from error
    target = make_target(asked.python, asked.platform, freeze)
    title = f"{spec.engine} {spec.release} ({spec.device})" if spec else "mmrepro"
    with building(Console(stderr=True), title) as progress:
        made = make_wheelhouse(
            spec,
            target,
            asked.into,
            leave_out=list(asked.leave_out),
            lean=asked.lean,
            max_part=asked.max_part,
            dry_run=asked.dry_run,
            progress=progress,
        )
    if asked.json:
        status = "planned" if asked.dry_run else "written"
        head = done_head(status, f"Wheelhouse of {title}: {asked.into}")
        emit(made.facts(), head, "wheelhouse")
    else:
        _print(made, asked.into)


def _print(made: Made, into: Path) -> None:
    from mmrepro.cli.console import say, table_console
    from rich.table import Table

    packages = made.plan.packages if made.plan else made.harness
    carried = [package for package in packages if package.file is not None]
    carried.sort(key=lambda package: -(package.size or 0))
    table = Table(box=None, pad_edge=False)
    title = made.plan.title if made.plan else "mmrepro"
    table.add_column(f"{len(carried)} packages of {title}", no_wrap=True)
    table.add_column("MB", justify="right", no_wrap=True)

    def row(text: str, packages: list[PlannedPackage]) -> None:
        sizes = [package.size for package in packages]
        total = sum(size or 0 for size in sizes)
        missing = sizes.count(None)
        unknown = f" and {missing} of unknown size" if missing else ""
        table.add_row(text, f"{total / 1e6:.1f}{unknown}")

    for package in carried[:_LARGEST]:
        source = " (from source)" if package.origin == "built" else ""
        row(f"{package.name} {package.version}{source}", [package])
    if len(carried) > _LARGEST:
        row(f"{len(carried) - _LARGEST} smaller ones", carried[_LARGEST:])
    if made.plan:
        row(f"mmrepro's own {len(made.harness)} requirements", made.harness)
    row("in all", [*carried, *(made.harness if made.plan else ())])
    console = table_console()
    console.print(table)
    lines = _not_carried(packages)
    if made.plan:
        lines.append(f"as of {made.plan.cutoff[:10]}")
    lines += _of_the_house(made, into)
    for line in lines:
        say(line)


def _not_carried(packages: Sequence[PlannedPackage]) -> list[str]:
    """A line for each reason why packages are left out."""
    by_reason: dict[str, list[str]] = {}
    for package in packages:
        if package.file is None:
            names = by_reason.setdefault(package.why, [])
            names.append(f"{package.name} {package.version}")
    lines = []
    for reason, names in by_reason.items():
        lines.append(f"not carried, {reason}: {', '.join(names)}")
    return lines


def _of_the_house(made: Made, into: Path) -> list[str]:
    """What was written, in how many parts, and what is typed there; [] after a dry
    run."""
    house = made.house
    if house is None:
        return []
    total = 0
    for file in house.files:
        total += sum(piece.bytes for piece in file.pieces)
    parts = "1 part" if len(house.parts) == 1 else f"{len(house.parts)} parts"
    first_and_last = dict.fromkeys([*made.new_parts[:1], *made.new_parts[-1:]])
    new = " to ".join(first_and_last) or "none"
    return [
        f"{into}: {len(house.files)} wheels, {total / 1e6:.1f} MB in {parts} "
        f"(new: {new}); joined again and whole",
        f"there: python3 {into.name}/part-01/install.py",
    ]

"""``mmrepro env``: the cached environments of engines."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, ClassVar

import typer
from mmrepro.base import common_options as common, units
from mmrepro.base.options import Command, option
from mmrepro.cli.options import DeclaredCommand, command
from mmrepro.cli.wheelhouse import wheelhouse as wheelhouse_command

# What is heavy (pydantic, rich, the environments) is imported by the command that needs it, so
# that `mmrepro --help` stays fast.
if TYPE_CHECKING:
    from mmrepro.environments.store import Pruned, Stored
    from mmrepro.environments.uv import Progress
    from rich.console import Console

app = typer.Typer(
    name="env",
    help="List, build and remove the cached environments (one engine at one release each).",
    no_args_is_help=True,
)


@dataclass(frozen=True)
class EnvListCommand(Command):
    COMMAND: ClassVar[str] = "env list"
    json: bool = common.JSON(False)


@app.command("list", cls=DeclaredCommand)
@command(EnvListCommand)
def list_(asked: EnvListCommand) -> None:
    """Show what is cached, how large it is and when it was last used.

    Example: mmrepro env list
    """
    from mmrepro.environments.store import list_environments
    from mmrepro.machine.files import environments_root

    stored = list_environments()
    if asked.json:
        import json as json_module

        print(json_module.dumps([_facts(one) for one in stored], indent=1))
        return
    from rich.console import Console
    from rich.table import Table

    console = Console()
    if not stored:
        console.print("No environments yet. Build one with: mmrepro env create vllm 0.23.0")
        return
    table = Table(box=None, pad_edge=False)
    for heading in ("engine", "device", "python", "as of", "used", "starts"):
        table.add_column(heading, no_wrap=True)
    for heading in ("size", "own"):
        table.add_column(heading, justify="right", no_wrap=True)
    for one in stored:
        facts = one.manifest
        table.add_row(
            f"{facts.engine} {facts.release} {facts.commit[:12]}".rstrip(),
            facts.device,
            facts.python,
            facts.resolved_until[:10],
            _ago(one.last_used),
            _starts(one),
            units.size(one.size.apparent),
            units.size(one.size.own),
        )
    console.print(table)
    console.print(f"in {environments_root()}; own: not shared with uv's cache", soft_wrap=True)


@dataclass(frozen=True)
class EnvCreateCommand(Command):
    COMMAND: ClassVar[str] = "env create"
    engine: str = common.ENGINE_NAME("", argument=True, required=True)
    release: str = common.RELEASE("", help="Its release, e.g. 0.23.0.", shown="", argument=True)
    commit: str = common.COMMIT("")
    commit_date: str = common.COMMIT_DATE("")
    index: str = common.INDEX("")
    device: str = common.DEVICE("auto", choices=())
    wheelhouse: Path | None = option(
        None,
        "Build it from this folder, made by `mmrepro env wheelhouse`, without a network.",
        "DIR",
    )
    python: str = option(
        "", "With --wheelhouse: the interpreter, e.g. the one that has torch.", "PYTHON"
    )
    system_site_packages: bool = option(
        False,
        "With --wheelhouse: use that interpreter's packages after its own. Done in any case where "
        "the wheelhouse was made with --have.",
    )


@app.command(cls=DeclaredCommand)
@command(EnvCreateCommand)
def create(asked: EnvCreateCommand) -> None:
    """Build the environment of one release now, so that a run need not.

    Example: mmrepro env create vllm 0.23.0 --device cpu
    """
    from mmrepro.cli.commits import use_index
    from mmrepro.engines import spec_for
    from mmrepro.environments.build import ensure
    from mmrepro.errors import UsageError
    from mmrepro.machine.files import is_folder

    if asked.commit or asked.index:
        use_index(asked.index, asked.commit, asked.commit_date)
    if not asked.release and not asked.commit:
        raise UsageError("Which release?", hint=f"mmrepro env create {asked.engine} RELEASE")
    if asked.wheelhouse is not None and not is_folder(asked.wheelhouse):
        raise UsageError(f"There is no folder {asked.wheelhouse}.", hint="mmrepro env wheelhouse")
    if asked.wheelhouse is None and (asked.python or asked.system_site_packages):
        raise UsageError(
            "--python and --system-site-packages are for --wheelhouse.",
            hint="an environment from the index gets a Python that its wheel fits",
        )
    spec = spec_for(
        asked.engine, asked.release, asked.device, commit=asked.commit, date=asked.commit_date
    )
    title = f"{spec.engine} {spec.release} ({spec.device})"
    with reporting(title) as (console, progress):
        made = ensure(
            spec,
            progress=progress,
            wheelhouse=asked.wheelhouse,
            python=asked.python,
            system_site_packages=asked.system_site_packages,
        )
    words = "was there already" if made.reused else "built"
    console.print(
        f"{title}: {words}, {len(made.packages)} packages as of {made.resolved_until[:10]}"
    )
    print(made.path)


@contextmanager
def reporting(title: str) -> Iterator[tuple[Console, Progress]]:
    """A console on stderr, and what tells it the phases of ``title``."""
    from mmrepro.cli.building import building
    from rich.console import Console

    console = Console(stderr=True)
    with building(console, title) as progress:
        yield console, progress


app.command("wheelhouse", cls=DeclaredCommand)(wheelhouse_command)


@dataclass(frozen=True)
class EnvPruneCommand(Command):
    COMMAND: ClassVar[str] = "env prune"
    engine: str = common.ENGINE_NAME("", help="Only of this engine.", argument=True)
    release: str = common.RELEASE("", help="Only this release of it.", shown="", argument=True)
    everything: bool = option(False, "All environments.", name="--all")
    older_than: float | None = option(None, "Unused for so many days.", "DAYS", least=0, most=36500)
    dry_run: bool = common.DRY_RUN(False, help="Only say what would go.")
    uv_cache: bool = option(
        False,
        "Also take their packages out of uv's cache, where most of the space is. Other projects "
        "download them again when they need them.",
    )


@app.command(cls=DeclaredCommand)
@command(EnvPruneCommand)
def prune(asked: EnvPruneCommand) -> None:
    """Remove environments; without arguments only what broken-off builds left behind.

    One that is being built or used is never removed.

    Example: mmrepro env prune --older-than 30 --dry-run
    """
    from mmrepro.environments import store
    from mmrepro.errors import UsageError

    engine, dry_run = asked.engine, asked.dry_run
    if asked.everything and engine:
        raise UsageError("--all and ENGINE exclude each other.", hint="mmrepro env prune --all")
    done = store.prune(
        everything=asked.everything,
        engine=engine,
        release=asked.release,
        older_than_days=asked.older_than,
        dry_run=dry_run,
    )
    _print_pruned(done, dry_run=dry_run)
    if asked.uv_cache and not dry_run and done.packages:
        _clean_uv_cache(sorted(done.packages))


def _print_pruned(done: Pruned, *, dry_run: bool) -> None:
    verb = "would remove" if dry_run else "removed"
    for name in done.removed:
        print(f"{verb} {name}")
    for name, why in done.kept:
        print(f"kept {name}: {why}")
    if done.removed:
        print(f"{verb} {len(done.removed)}, {units.size(done.freed_bytes)} of their own")
    else:
        print("nothing to remove")


def _clean_uv_cache(packages: list[str]) -> None:
    from mmrepro.environments.uv import UvFailed, explain, run_uv

    try:
        run_uv(["cache", "clean", *packages])
    except UvFailed as failure:
        raise explain(failure, "cleaning uv's cache") from failure
    print(f"took {len(packages)} packages out of uv's cache")


def _facts(one: Stored) -> dict[str, object]:
    from mmrepro.environments.starts import starts_seen

    return {
        "name": one.path.name,
        "path": str(one.path),
        **one.manifest.model_dump(mode="json"),
        "last_used": one.last_used,
        "size_bytes": one.size.apparent,
        "own_bytes": one.size.own,
        "starts": starts_seen(one.path / "state").model_dump()["modes"],
    }


def _starts(one: Stored) -> str:
    """The fastest start mode that was seen to work there, and what was refused."""
    from mmrepro.environments.starts import starts_seen

    modes = starts_seen(one.path / "state").modes
    works = {name.partition(" ")[0] for name, seen in modes.items() if seen.works}
    fastest = next((mode for mode in ("warm", "fork", "cold") if mode in works), "")
    refused = sorted({name for name, seen in modes.items() if not seen.works})
    return ", ".join([*([fastest] if fastest else []), *(f"not {name}" for name in refused)])


def _ago(moment: float) -> str:
    import time

    seconds = time.time() - moment
    return f"{units.duration(seconds)} ago" if seconds >= 60 else "now"

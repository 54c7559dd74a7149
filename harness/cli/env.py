"""``mmrepro env``: the cached environments of engines."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer
from mmrepro.base import units
from mmrepro.cli.commits import CommitDateOption, CommitOption, IndexOption
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


@app.command("list")
def list_(
    json: Annotated[bool, typer.Option("--json", help="One JSON document on stdout.")] = False,
) -> None:
    """Show what is cached, how large it is and when it was last used.

    Example: mmrepro env list
    """
    from mmrepro.environments.store import list_environments
    from mmrepro.machine.cache import environments_root

    stored = list_environments()
    if json:
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


@app.command()
def create(
    engine: Annotated[str, typer.Argument(help="Engine, e.g. vllm.")],
    release: Annotated[str, typer.Argument(help="Its release, e.g. 0.23.0.")] = "",
    commit: CommitOption = "",
    commit_date: CommitDateOption = "",
    index: IndexOption = "",
    device: Annotated[
        str, typer.Option(help="auto (cuda where there is an NVIDIA driver), cpu or cuda.")
    ] = "auto",
    wheelhouse: Annotated[
        Path | None,
        typer.Option(
            help="Build it from this folder, made by `mmrepro env wheelhouse`, without a network.",
            exists=True,
            file_okay=False,
        ),
    ] = None,
    python: Annotated[
        str, typer.Option(help="With --wheelhouse: the interpreter, e.g. the one that has torch.")
    ] = "",
    system_site_packages: Annotated[
        bool,
        typer.Option(
            "--system-site-packages",
            help="With --wheelhouse: see that interpreter's packages after its own. Done in any "
            "case where the wheelhouse was made with --have.",
        ),
    ] = False,
) -> None:
    """Build the environment of one release now, so that a run need not.

    Example: mmrepro env create vllm 0.23.0 --device cpu
    """
    from mmrepro.cli.commits import use_index
    from mmrepro.engines import spec_for
    from mmrepro.environments.build import ensure
    from mmrepro.errors import UsageError

    if commit or index:
        use_index(index, commit, commit_date)
    if not release and not commit:
        raise UsageError("Which release?", hint=f"mmrepro env create {engine} RELEASE")
    if wheelhouse is None and (python or system_site_packages):
        raise UsageError(
            "--python and --system-site-packages are for --wheelhouse.",
            hint="an environment from the index gets a Python that its wheel fits",
        )
    spec = spec_for(engine, release, device, commit=commit, date=commit_date)
    title = f"{spec.engine} {spec.release} ({spec.device})"
    with reporting(title) as (console, progress):
        made = ensure(
            spec,
            progress=progress,
            wheelhouse=wheelhouse,
            python=python,
            system_site_packages=system_site_packages,
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


app.command("wheelhouse")(wheelhouse_command)


@app.command()
def prune(
    engine: Annotated[str, typer.Argument(help="Only of this engine.")] = "",
    release: Annotated[str, typer.Argument(help="Only this release of it.")] = "",
    everything: Annotated[bool, typer.Option("--all", help="All environments.")] = False,
    older_than: Annotated[
        float | None,
        typer.Option("--older-than", min=0, max=36500, help="Unused for so many DAYS."),
    ] = None,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Only say what would go.")] = False,
    uv_cache: Annotated[
        bool,
        typer.Option(
            "--uv-cache",
            help="Also take their packages out of uv's cache, where most of the space is. "
            "Other projects download them again when they need them.",
        ),
    ] = False,
) -> None:
    """Remove environments; without arguments only what broken-off builds left behind.

    One that is being built or used is never removed.

    Example: mmrepro env prune --older-than 30 --dry-run
    """
    from mmrepro.environments import store
    from mmrepro.errors import UsageError

    if everything and engine:
        raise UsageError("--all and ENGINE exclude each other.", hint="mmrepro env prune --all")
    done = store.prune(
        everything=everything,
        engine=engine,
        release=release,
        older_than_days=older_than,
        dry_run=dry_run,
    )
    _print_pruned(done, dry_run=dry_run)
    if uv_cache and not dry_run and done.packages:
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

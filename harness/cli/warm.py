"""``mmrepro env warm``: parents that have imported an engine and are kept between
commands."""

from __future__ import annotations

import time
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any, ClassVar

import typer
from mmrepro.base import common_options as common, units
from mmrepro.base.options import LIMITS, Command, option
from mmrepro.cli.console import done_head, emit
from mmrepro.cli.options import CommandGroup, DeclaredCommand, command

if TYPE_CHECKING:
    from mmrepro.engines.supervise.warm import ForkServer

app = typer.Typer(
    name="warm",
    cls=CommandGroup,
    help="Keep processes that have imported an engine: `mmrepro run` forks its server "
    "from one instead of importing the engine again.",
    no_args_is_help=True,
    rich_markup_mode=None,
)


@dataclass(frozen=True)
class _WarmStartCommand(Command):
    COMMAND: ClassVar[str] = "env warm start"
    DOCUMENTS: ClassVar[tuple[str, ...]] = ("mmrepro.cli.documents:WarmDocument",)
    scenario: str = common.SCENARIO("")
    variant: str = common.VARIANT("")
    release: str = common.RELEASE("")
    mitigations: tuple[str, ...] = common.MITIGATION(
        (), help="As for mmrepro run: one with a patch needs its own."
    )
    flips: tuple[str, ...] = common.FLIP(())
    contract_probe: bool = common.CONTRACT_PROBE(False)
    device: str = common.DEVICE("auto")
    idle: float = option(
        900.0,
        "Time without a start after which it ends by itself.",
        "SECONDS",
        LIMITS,
        least=1,
        most=common.WEEK_S,
    )
    json: bool = common.JSON(False)


@app.command(cls=DeclaredCommand)
@command(_WarmStartCommand)
def start(asked: _WarmStartCommand) -> None:
    """Import the engine of a scenario once, for the `mmrepro run`s that follow.

    Example:  mmrepro env warm start ghost-key-eviction
    """
    from mmrepro.base.errors import InfrastructureError
    from mmrepro.base.machine import cache_root
    from mmrepro.engines.environments import ensure
    from mmrepro.engines.supervise import free_port
    from mmrepro.engines.supervise.warm import ForkServers, Refused
    from mmrepro.runs import RunCommand, ServerSpec, fork_server_spec, target, warm_root
    from mmrepro.scenario.registry import load_scenario
    from rich.console import Console

    loaded = load_scenario(asked.scenario).with_variant(asked.variant)
    options = RunCommand(
        release=asked.release,
        device=asked.device,
        mitigations=asked.mitigations,
        flips=asked.flips,
        contract_probe=asked.contract_probe,
    )
    with Console(stderr=True).status(f"{loaded.full_name}: the engine is imported"):
        environment = ensure(target(loaded, options))
        model = loaded.model.write(cache_root() / "models")
        plan = ServerSpec(loaded, options, environment, model).plan(free_port())
        spec = fork_server_spec(plan, environment)
        parents = ForkServers(warm_root(), idle_s=asked.idle)
        there = parents.find(spec)
        try:
            parent = there or parents.get(spec)
        except Refused as refusal:
            raise InfrastructureError(
                f"{spec.label} cannot be kept warm: {refusal}.",
                hint=f"mmrepro run {asked.scenario} --start-mode fork",
            ) from refusal
    if asked.json:
        words = f"{parent.label} is kept warm."
        emit(_facts(parent), done_head("warm", words), "warm")
    else:
        words = "was warm already" if there else "is warm"
        print(f"{parent.label} {words}: {_described(parent)}")


@dataclass(frozen=True)
class _WarmStatusCommand(Command):
    COMMAND: ClassVar[str] = "env warm status"
    DOCUMENTS: ClassVar[tuple[str, ...]] = ("mmrepro.cli.documents:KeptWarmDocument",)
    json: bool = common.JSON(False)


@app.command(cls=DeclaredCommand)
@command(_WarmStatusCommand)
def status(asked: _WarmStatusCommand) -> None:
    """Show what is kept warm, what it takes, and when it ends.

    Example:  mmrepro env warm status
    """
    from mmrepro.engines.supervise.warm import kept_fork_servers
    from mmrepro.runs import warm_root

    living = kept_fork_servers(warm_root())
    if asked.json:
        head = done_head("listed", f"{units.count(len(living), 'engine')} kept warm.")
        emit({"kept": [_facts(parent) for parent in living]}, head, "kept-warm")
        return
    if not living:
        print("Nothing is kept warm. Try: mmrepro env warm start ghost-key-eviction")
    for parent in living:
        print(f"{parent.key}  {parent.label}: {_described(parent)}")


@dataclass(frozen=True)
class _WarmStopCommand(Command):
    COMMAND: ClassVar[str] = "env warm stop"
    key: str = option(
        "",
        "Key, as mmrepro env warm status shows it.",
        "KEY",
        argument=True,
        shown="all",
    )


@app.command(cls=DeclaredCommand)
@command(_WarmStopCommand)
def stop(asked: _WarmStopCommand) -> None:
    """End what is kept warm. Servers that were forked from it go on.

    Example:  mmrepro env warm stop
    """
    from mmrepro.base.errors import UsageError
    from mmrepro.engines.supervise.warm import kept_fork_servers
    from mmrepro.runs import warm_root

    key = asked.key
    chosen = [
        parent
        for parent in kept_fork_servers(warm_root())
        if parent.key.startswith(key)
    ]
    if key and not chosen:
        raise UsageError(
            f"Nothing with key {key!r} is kept warm.", hint="mmrepro env warm status"
        )
    for parent in chosen:
        parent.end()
        print(f"ended {parent.label}")
    if not chosen:
        print("Nothing is kept warm.")


def _facts(parent: ForkServer) -> dict[str, Any]:
    return {
        "key": parent.key,
        "label": parent.label,
        "idle_s": parent.kept_s,
        "last_used": parent.last_used,
        **asdict(parent.facts),
    }


def _described(parent: ForkServer) -> str:
    facts = parent.facts
    left = max(0.0, parent.last_used + parent.kept_s - time.time())
    return (
        f"process {facts.pid}, {units.duration(facts.imports_s)} of imports, "
        f"{units.size(facts.memory_bytes)}, {facts.served} servers; "
        f"ends in {units.duration(left)} unless it is used"
    )

"""From what was asked for to what is started: the release, and the server's command."""

from __future__ import annotations

from pathlib import Path

from mmrepro.engines import LaunchPlan, LaunchRequest, get_engine
from mmrepro.environments import Environment, EnvironmentSpec, detect_device
from mmrepro.errors import UnknownRelease, UsageError
from mmrepro.run.options import RunOptions
from mmrepro.scenario import Control, Scenario
from packaging.version import InvalidVersion, Version


def chosen_release(scenario: Scenario, options: RunOptions) -> str:
    """The release that is run: a mitigation's, the one asked for, or the scenario's own.

    Raises:
        UsageError: a mitigation that is a release contradicts ``--release``.
        UnknownRelease: it is no version at all.
    """
    mitigations = [scenario.mitigation(name) for name in options.mitigations]
    replaced = [m.release for m in mitigations if m.release]
    if replaced and options.release and options.release != replaced[0]:
        raise UsageError(
            f"--mitigation release means {replaced[0]}, but --release says {options.release}."
        )
    release = (replaced or [options.release or scenario.release])[0]
    try:
        Version(release)
    except InvalidVersion as error:
        raise UnknownRelease(
            f"{release!r} is not a release of {scenario.engine}.",
            hint=f"mmrepro show {scenario.name}",
        ) from error
    return release


def target(scenario: Scenario, options: RunOptions) -> EnvironmentSpec:
    """The environment that is run: release and device as asked for. Raises as chosen_release."""
    device = detect_device() if options.device == "auto" else options.device
    return get_engine(scenario.engine).environment_spec(chosen_release(scenario, options), device)


def launch_plan(
    scenario: Scenario,
    options: RunOptions,
    environment: Environment,
    model: Path,
    port: int,
    control: Control | None = None,
) -> LaunchPlan:
    """The server's command and variables; nothing is started. Raises UsageError.

    ``control``: the control server's, which has its own options and no mitigation.
    """
    mitigations = [scenario.mitigation(name) for name in options.mitigations]
    flips = [scenario.factor(name).flip for name in options.flips]
    last = control.server_args if control else ()
    engine = get_engine(scenario.engine)
    watches = [engine.contract_watch()] if options.contract_probe else []
    if None in watches:
        raise UsageError(
            f"There is no contract probe for {engine.name}.", hint="leave --contract-probe out"
        )
    return engine.plan(
        LaunchRequest(
            environment=environment,
            model=model,
            port=port,
            max_model_len=scenario.max_model_len,
            server_args=(*scenario.server_args, *options.server_args, *last),
            mitigations=(
                *(() if control else (*mitigations, *flips)),
                *(watch for watch in watches if watch is not None),
            ),
            patches=scenario.patches_for(chosen_release(scenario, options)),
            server_env=scenario.server_env,
        )
    )

"""``--source`` and ``--release newest``: which release that is, for the commands that
take one."""

from __future__ import annotations

from dataclasses import replace
from typing import Any, TypeVar

from mmrepro.base.errors import UsageError
from mmrepro.base.options import Command, OptionOrigin
from mmrepro.cli.console import say

C = TypeVar("C", bound=Command)
_NEWEST = "newest"


def released(asked: C, engine: str = "") -> C:
    """Return the options with a release in place of ``--source`` or of the word
    ``newest``.

    The release says the tree's content, so what repeats the command runs that content
    again, whatever has become of the folder since.

    Args:
        asked: of a command with ``tree``, ``kernels`` and ``release`` or ``releases``.
        engine: the one that it is about; "": the tree itself decides.

    Raises:
        UsageError: a release is given as well, or there is no such tree.
    """
    given: Any = asked
    text, device = given.tree, getattr(given, "device", None) or "auto"
    if not text:
        if given.kernels:
            raise UsageError(
                "--kernels needs --source.", hint="--source DIR --kernels 0.32.0"
            )
        if getattr(given, "release", "") != _NEWEST:
            return asked
        return replace(given, release=newest(engine, device))  # type: ignore[no-any-return]
    several = hasattr(given, "releases")
    if not several and (given.release or getattr(given, "commit", "")):
        raise UsageError(
            "--source is a release of its own: --release and --commit exclude it.",
            hint=f"--source {text}",
        )
    from mmrepro.engines.environments import ensure, resolve_source

    source = resolve_source(
        text, kernels=given.kernels, device=device, engine=engine, lender=ensure
    )
    say(f"{source.tree.engine} {source.tree.version}: {source.words}", stderr=True)
    if source.tree.version_from:
        say(f"  {source.tree.version_from}", stderr=True)
    name = "releases" if several else "release"
    value = (*given.releases, source.release) if several else source.release
    origins = {**given.origins, name: OptionOrigin.WORD}
    changes = {name: value, "tree": "", "kernels": "", "origins": origins}
    return replace(given, **changes)  # type: ignore[no-any-return]


def newest(engine: str, device: str) -> str:
    """The engine's own newest release, whoever repackages it.

    Raises:
        UsageError: it is not said of which engine.
        EnvironmentBuildError: the index cannot be asked.
    """
    from mmrepro.base.machine import device_of
    from mmrepro.engines.environments import SPECS, releases_of

    if engine not in SPECS:
        raise UsageError(
            "The newest release of which engine?", hint=f"one of {', '.join(SPECS)}"
        )
    last = releases_of(SPECS[engine]("0.0", device_of(device)))[-1]
    over = f", over the kernels of {last.kernels}" if last.kernels else ""
    say(f"the newest release of {engine} is {last.version}{over}", stderr=True)
    return last.version

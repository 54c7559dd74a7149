"""What is put in front of an engine, or added to its command: stand-ins, flags, patches."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Literal

from mmrepro.records import Fidelity, StandIn
from packaging.specifiers import SpecifierSet


@dataclass(frozen=True)
class Patch:
    """Code put in front of an unmodified engine: a stand-in.

    Attributes:
        folder: below ``reproducers/standins``; it comes first on the module path, and its
            ``standin.py``, if it has one, runs in every Python process of the engine.
        stand_in: what it replaces and why, for the report.
        env: variables that it reads.
        fidelity: of a run with it; None: as without it.
        device: where it is put in front of the engine; "" means everywhere.
    """

    folder: str
    stand_in: StandIn
    env: Mapping[str, str] = field(default_factory=dict)
    fidelity: Fidelity | None = None
    device: Literal["", "cpu", "cuda"] = ""


@dataclass(frozen=True)
class Mitigation:
    """A flag, a release or a patch that is said to help.

    What is sent along with a request (a cache salt, say) is the scenario's to do: it finds the
    names of the mitigations in ``Drive.mitigations``.

    Attributes:
        server_args: options added to the server's command line.
        env: variables added to the server's environment.
        patch: code put in front of the engine's modules.
        release: run this release instead.
        effective_on: releases on which it prevents the failure; the expectation follows it.
    """

    name: str
    description: str
    server_args: tuple[str, ...] = ()
    env: Mapping[str, str] = field(default_factory=dict)
    patch: Patch | None = None
    release: str = ""
    effective_on: SpecifierSet = SpecifierSet("")  # noqa: RUF009 - immutable

"""The parts that a scenario is declared with, and the facts that its checks may ask for."""

from __future__ import annotations

import shlex
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

from mmrepro.case.model import Case
from mmrepro.engines.changes import Mitigation, Patch
from mmrepro.incident.replay import FindingClass
from mmrepro.records import Fidelity
from mmrepro.signature.decide import Finding
from mmrepro.traffic.pictures import Picture
from packaging.version import Version

SILENT = frozenset({FindingClass.CROSS_TALK, FindingClass.CACHE_BOUND, FindingClass.WRONG_ANSWER})
"""Of whom no log tells, and nothing that a look at the server could see."""


def _untold() -> Finding:
    return Finding.unknown("the scenario does not say what shows that the flip took effect")


@dataclass(frozen=True)
class Factor:
    """One thing that may or may not matter: ``mmrepro ablate`` flips it and looks.

    The failing baseline is the scenario as it is; a flip adds what is given here, after the
    scenario's own options (in argparse the last one wins). Where two flipped factors set the same
    option, the one declared later wins. What the traffic does differently is the scenario's to do:
    it finds the names of the flipped factors in ``Drive.flips`` and ``RunFacts.flips``.

    Attributes:
        description: what it is, in a sentence.
        failing: its setting in the failing baseline, as the tables print it.
        cure: its other setting, as the tables print it; "" means ``server_args`` and ``env``.
        server_args: options that the flip adds to the server's command line.
        env: variables that the flip adds to the server's environment.
        patch: code that the flip puts in front of the engine's modules.
        claim: what is said of it, and by whom; for the report.
        took_effect: a check, met where the evidence of a flipped run shows that the flip took
            effect: what the engine says of its configuration, say, and not the options that it was
            given. Without that an ablation says nothing of the factor.
    """

    name: str
    description: str
    failing: str
    cure: str = ""
    server_args: tuple[str, ...] = ()
    env: Mapping[str, str] = field(default_factory=dict)
    patch: Patch | None = None
    claim: str = ""
    took_effect: Callable[..., Finding] = _untold

    @property
    def setting(self) -> str:
        """The other setting, as the tables print it."""
        variables = (f"{name}={value}" for name, value in self.env.items())
        return self.cure or shlex.join([*variables, *self.server_args])

    @property
    def flip(self) -> Mitigation:
        """The flip, in the form in which engines take changes of their command."""
        return Mitigation(
            name=self.name,
            description=f"{self.failing} → {self.setting}",
            server_args=self.server_args,
            env=self.env,
            patch=self.patch,
        )


@dataclass(frozen=True)
class Control:
    """A second server, the same but for its options, that shows what the run's own one should do.

    It is started first, gets its requests (``Scenario.control``), and has ended before the run's
    own server starts. Mitigations and flips are not applied to it.

    Attributes:
        description: in what it differs, in a sentence.
        server_args: options that come after all others (in argparse the last one wins).
    """

    description: str
    server_args: tuple[str, ...]


@dataclass(frozen=True)
class SourceRef:
    """A definition in the installed engine that the report quotes.

    ``highlight`` is text that marks the lines that matter.
    """

    file: str
    qualname: str
    note: str
    highlight: tuple[str, ...] = ()


@dataclass(frozen=True)
class RunFacts:
    """What of the run's set-up claims and conditions may depend on."""

    release: str
    fidelity: Fidelity
    mitigations: frozenset[str]
    deadline_s: float
    flips: frozenset[str] = frozenset()
    """Names of the factors that are flipped."""
    gpus: frozenset[int] = frozenset()
    """Numbers of the GPUs that the run took, by PCI bus."""

    @property
    def version(self) -> Version:
        return Version(self.release)


@dataclass(frozen=True)
class LiveFacts:
    """What is known of a live server that nobody drives: it is only looked at.

    Attributes:
        engine, release: "" where they could not be found out.
        command: the server's command line, as far as it can be seen.
        deadline_s: of the one request that is sent.
    """

    engine: str = ""
    release: str = ""
    command: tuple[str, ...] = ()
    deadline_s: float = 0.0

    def has(self, arguments: tuple[str, ...]) -> bool:
        """Whether the command line holds ``arguments``, one after the other."""
        width = len(arguments)
        starts = range(len(self.command) - width + 1) if width else ()
        return any(self.command[i : i + width] == arguments for i in starts)

    def option(self, name: str) -> str | None:
        """Value of ``--name VALUE`` or ``--name=VALUE``, the last one; None: not given."""
        found = None
        for index, word in enumerate(self.command):
            if word == name and index + 1 < len(self.command):
                found = self.command[index + 1]
            elif word.startswith(name + "="):
                found = word.partition("=")[2]
        return found


@dataclass(frozen=True)
class Failure:
    """A failure that a play showed, and what was sent: all that a silent one is recognised by.

    Attributes:
        finding_class, bucket, operations: of the sighting.
        case: that was played.
        pictures: of the case, by name.
    """

    finding_class: FindingClass
    bucket: str
    operations: tuple[str, ...]
    case: Case
    pictures: Mapping[str, Picture]

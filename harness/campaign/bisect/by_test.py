"""A test of an engine's own tree as what a bisection runs at each commit, by ``mmrepro
test-tree``."""

from __future__ import annotations

import hashlib
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from mmrepro.base.errors import BadIncident, ExitCode, UsageError
from mmrepro.campaign.bisect.options import TreeTestCommand
from mmrepro.campaign.trial import TrialOptions
from mmrepro.engines.environments import TreeLabel, engine_of_clone
from mmrepro.failure.documents import Cell, Lost, load_document
from mmrepro.failure.signature import Outcome, Truth
from mmrepro.runs import RunCommand, UpstreamRun, UpstreamState
from mmrepro.runs.play import replayed
from mmrepro.scenario import Scenario
from mmrepro.traffic.case import ServerWanted

TESTS_FILE = "tests.json"
_OUTCOMES = {
    UpstreamState.RED: Outcome.REPRODUCED,
    UpstreamState.GREEN: Outcome.NOT_REPRODUCED,
    UpstreamState.UNTESTABLE: Outcome.INCONCLUSIVE,
}


@dataclass(frozen=True)
class UpstreamSubject:
    """A test that is to be bisected.

    Attributes:
        newer: revision of which its file is taken; "": each commit's own.
    """

    tests: tuple[str, ...]
    clone: Path
    newer: str = ""

    @property
    def name(self) -> str:
        digest = hashlib.sha256("\n".join(self.tests).encode()).hexdigest()
        return f"test-{digest[:8]}"

    @property
    def scenario(self) -> Scenario:
        """What stands for it where a scenario is wanted: its engine.

        Raises:
            UsageError: the clone is of no engine.
        """
        engine = engine_of_clone(self.clone)
        plain, _ = replayed(ServerWanted(engine=engine, release=""), RunCommand())
        title = f"{', '.join(self.tests)} of {engine}'s own tests"
        members: dict[str, Any] = {
            "__doc__": f"{title}.\n\nWhat: the test is run in the tree's environment.",
            "name": self.name,
            "affects": lambda *_: False,  # nobody has declared anything
        }
        made: Scenario = type("BisectedTest", (type(plain),), members)()
        return made

    def making(self) -> ByTest:
        return ByTest(self.tests, self.clone.absolute(), self.newer)


@dataclass(frozen=True)
class ByTest:
    """Runs of a test, by ``mmrepro test-tree``."""

    tests: tuple[str, ...]
    clone: Path
    newer: str = ""
    file: str = TESTS_FILE
    starts: int = 1

    def command(self, cell: Cell, options: TrialOptions) -> TreeTestCommand:
        label = TreeLabel.of(cell.release)
        if label is None:
            raise UsageError(
                f"A test needs a tree, and {cell.release} is a release.",
                hint="--source DIR",
            )
        place = f"{self.clone}@{label.rev}" if label.rev else str(self.clone)
        return TreeTestCommand(
            tests=self.tests,
            tree=place,
            release=cell.release,
            newer=self.newer,
            device=cell.device,
            timeout_s=options.timeout_s,
        )

    def outcome(self, folder: Path, code: int | None, words: str) -> dict[str, object]:
        """What the tests' document in ``folder`` says of the tree."""
        try:
            made = load_document(folder, TESTS_FILE, UpstreamRun)
        except BadIncident:
            kind = Lost.USAGE if code == ExitCode.USAGE else Lost.INFRASTRUCTURE
            said = words or f"mmrepro test-tree ended with {code}"
            return {"lost": kind, "error": said}
        why = made.why
        if made.cause is not None:
            why = f"untestable ({made.cause.value}): {why}"
        return {
            "outcome": _OUTCOMES[made.state],
            "explanation": why,
            "conditions": dict.fromkeys(sorted(made.red)[:50], Truth.MET),
        }


def newest_end(asked: Any) -> str:
    """The revision of which a bisection takes the test's file: its newer end's."""
    if asked.newer:
        return str(asked.newer)
    newer = {"introduced": asked.bad, "fixed": asked.good, "both": ""}
    return newer[asked.find] or "HEAD"

"""Options of ``mmrepro repro``: a replay's, and where its server and its client come
from."""

from __future__ import annotations

from dataclasses import dataclass, replace
from pathlib import Path
from typing import ClassVar, Literal, Self

from mmrepro.base import common_options as common
from mmrepro.base.errors import UsageError
from mmrepro.base.options import LIMITS, option
from mmrepro.search.replay.options import ReplayCommand

_REPEATS, _CLIENT_S = 2, 120.0


@dataclass(frozen=True)
class ReproCommand(ReplayCommand):
    """A bug report to a verdict; a replay otherwise."""

    COMMAND: ClassVar[str] = "repro"
    DOCUMENTS: ClassVar[tuple[str, ...]] = ("mmrepro.failure.documents.replay:Replay",)
    file: Path | None = option(  # type: ignore[assignment]
        None,
        "The report, as Markdown: its server, client and release are taken from it.",
        "ISSUE.md",
        argument=True,
    )
    server_command: str = option(
        "",
        'The server, e.g. "vllm serve MODEL --flags".',
        "COMMAND",
        name="--server",
        runs_code=True,
    )
    client: str = option(
        "",
        (
            'Client: "python client.py", a script with curl, a request\'s body, a HAR '
            "or a case."
        ),
        "COMMAND|FILE",
        runs_code=True,
    )
    reported: str = option(
        "",
        "What the report observed: a status, death, hang and so on.",
        "WORD",
        shown="as it says",
    )
    fixed: str = option(
        "",
        "Also replay what is found on this release; newest: of those here.",
        "RELEASE|newest",
    )
    test_patch: Path | None = option(
        None,
        "With --source: also replay what is found on that tree with this patch.",
        "FILE.diff",
        name="--test-patch",
    )
    bisect: bool = option(
        False,
        "With --source, a git clone: name the first commit with what is found, and the "
        "first without it. Without @REV it begins at the report's release.",
        name="--bisect/--no-bisect",
    )
    since: str = option(
        "",
        "With --bisect: the oldest commit to try.",
        "REV",
        name="--bisect-since",
        shown="500 commits before",
    )
    boundaries: Literal["introduced", "fixed", "both"] = option(
        "both",
        "With --bisect: which of the two commits to look for.",
        name="--bisect-find",
    )
    container: str = option(
        "",
        "Run the client in a container of this image, with podman or docker.",
        "IMAGE",
        runs_code=True,
    )
    release: str = common.RELEASE(
        "", shown="the report's, or the nearest one that is installed"
    )
    repeat: int = common.REPEAT(
        _REPEATS,
        help="Number of replays on fresh servers that confirm a finding.",
        most=100,
    )
    client_timeout: float = option(
        _CLIENT_S, "Time limit of the client.", "SECONDS", LIMITS, least=1, most=3600
    )

    box: bool = common.BOX(
        True,
        help="Run the report's server and client in a box: no network, none of your "
        "files. --trust-report: run them as you, once you have read the report.",
        name="--box/--trust-report",
    )

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.test_patch is not None and self.fixed:
            raise UsageError("--test-patch and --fixed both say what is compared.")
        # What repeats the command has the tree as a release.
        if (self.test_patch or self.bisect) and not (self.tree or self.release):
            option_ = "--bisect" if self.bisect else "--test-patch"
            raise UsageError(
                f"{option_} needs a git clone of the engine.", hint="--source DIR"
            )

    def written(self) -> Self:
        """As it was asked for: the server follows from the report."""
        return replace(self, ray=self.ray and "auto")

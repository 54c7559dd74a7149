"""A session of cases in its folder: its document, and the journal from which it goes
on."""

from __future__ import annotations

import uuid
from collections.abc import Callable
from pathlib import Path
from typing import Annotated, Any, ClassVar, Generic, Literal, Self, TypeVar

import mmrepro
from mmrepro.base.errors import UnwritableOutput, UsageError
from mmrepro.base.machine import JournalHead, JournalKind, JournalLine, SessionJournal
from mmrepro.base.records import Moment
from mmrepro.base.text import Redactor
from mmrepro.campaign import CampaignState
from mmrepro.failure.documents import new_folder, refuse_taken
from mmrepro.failure.documents.searches import CampaignDocument
from mmrepro.search.replay.options import ServerCommand
from pydantic import Field

_ENDINGS: dict[CampaignState, Literal["complete", "interrupted", "failed"]] = {
    CampaignState.COMPLETE: "complete",
    CampaignState.OUT_OF_TIME: "complete",
    CampaignState.INTERRUPTED: "interrupted",
    CampaignState.FAILED: "failed",
}
"""The state of a campaign, as its document has it."""
DocumentT = TypeVar("DocumentT", bound=CampaignDocument)
HeadT = TypeVar("HeadT", bound=JournalHead)
LineT = TypeVar("LineT", bound=JournalLine)


class CaseHead(JournalHead):
    """The first line of a session that plays one case."""

    case: Annotated[
        str, Field(description="digest of the case, before anything was left out")
    ]
    other: ClassVar[str] = "another case"
    """What a journal with another digest is of."""

    def other_than(self, asked: Self) -> str:
        same_maker = self.mmrepro_version == asked.mmrepro_version
        if same_maker and self.case != asked.case:
            return f"is of {self.other}"
        return super().other_than(asked)


def new_head(kind: type[HeadT], decides: dict[str, str], **facts: Any) -> HeadT:
    """The head of a new session of this mmrepro.

    Args:
        decides: options on which the way of the session depends.
        facts: what a kind of head has besides.
    """
    return kind(
        mmrepro_version=mmrepro.__version__,
        id=uuid.uuid4().hex[:12],
        decides=decides,
        **facts,
    )


class SessionFolder(Generic[DocumentT]):
    """A session in progress; also a context manager.

    Attributes:
        document: valid, if partial, at every moment.
        journal: what has happened; nothing in it is done again.

    Raises:
        UsageError, BadIncident: as :class:`SessionJournal`.
    """

    def __init__(
        self,
        kind: JournalKind,
        folder: Path,
        head: JournalHead,
        document: DocumentT,
        write: Callable[[DocumentT, Path], object],
    ) -> None:
        """``write`` writes the documents below the folder, each time that they have
        grown."""
        self.folder, self.document, self._write_documents = folder, document, write
        self.journal = SessionJournal(kind, folder, head)
        document.id = self.journal.head.id
        self.write()

    def kept(self, kind: type[LineT]) -> list[LineT]:
        """The lines of one kind that earlier calls wrote."""
        return [line for line in self.journal.kept if isinstance(line, kind)]

    def write(self) -> None:
        self._write_documents(Redactor().redact_model(self.document), self.folder)

    def end(self, state: CampaignState, failure: str) -> DocumentT:
        """Write down how the session ended."""
        document = self.document
        document.state, document.failure = _ENDINGS[state], failure
        document.finished = Moment.now()
        self.write()
        return document

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.journal.close()


def campaign_folder(options: ServerCommand, journal: JournalKind, root: str) -> Path:
    """The folder of --resume, that of --out, or a new one below ``root``.

    Raises:
        UsageError: there is nothing to go on with.
        UnwritableOutput: --out already holds such a campaign.
    """
    server = options.server
    if options.resume is not None:
        if not journal.is_in(options.resume):
            raise UsageError(
                f"{options.resume} holds no {journal.what} to go on with.",
                hint=f"without --resume: {options.command_line()}",
            )
        return options.resume.resolve()

    if options.out is None:
        return new_folder(root, server.engine, server.release)
    if journal.is_in(options.out):
        raise UnwritableOutput(
            f"{options.out} already holds a {journal.what}.",
            hint=f"--resume {options.out} goes on with it; or choose another --out",
        )

    refuse_taken(options.out)
    return options.out

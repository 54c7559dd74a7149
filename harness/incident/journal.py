"""The incident of a run while it grows, in its folder."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Literal

from mmrepro.errors import MmreproError
from mmrepro.evidence.recorder import Listener, Recorder
from mmrepro.incident import Incident
from mmrepro.incident.folder import write_incident
from mmrepro.records import Moment
from mmrepro.text.redact import Redactor

State = Literal["complete", "interrupted", "failed"]


class Journal:
    """What a run has told so far; nothing is decided by it.

    Attributes:
        incident: valid, if partial, at every moment; its evidence is the recorder's.
        folder: of the incident; another one once the disk is full.
    """

    def __init__(self, incident: Incident, folder: Path, listener: Listener | None = None) -> None:
        self.incident, self.folder = incident, folder
        self.recorder = Recorder(folder, listener)
        self._redactor = Redactor()
        incident.evidence = self.recorder.evidence

    @contextlib.contextmanager
    def stage(self, name: str) -> Iterator[None]:
        """An event as it begins; its seconds once it has ended, however it did."""
        began = time.monotonic()
        self.recorder.event(name, source="stage")
        try:
            yield
        finally:
            self.incident.stages[name] = round(time.monotonic() - began, 2)

    def save(self) -> None:
        """Write the incident as it is; a full disk moves it. Raises as ``write_incident``."""
        folder = write_incident(self.incident, self.folder, self._redactor)
        if folder != self.folder:
            self.folder, self.incident.incident_dir = folder, str(folder)
            self.save()  # it tells where it is

    @contextlib.contextmanager
    def whole_run(self) -> Iterator[None]:
        """Around all of a run: how it ended is told and saved, and raised again."""
        try:
            yield
        except KeyboardInterrupt:
            self._end("interrupted", "interrupted by the user")
            raise
        except MmreproError as error:
            self.incident.failure_class = type(error).__name__
            self._end("failed", error.message, error.detail)
            raise
        except BaseException as error:
            self.incident.failure_class = type(error).__name__
            self._end("failed", f"mmrepro itself failed: {type(error).__name__}: {error}")
            raise
        self._end("complete")

    def _end(self, state: State, failure: str = "", detail: Sequence[str] = ()) -> None:
        self.recorder.phase = "stop"
        self.incident.state, self.incident.failure = state, failure
        self.incident.failure_detail += detail
        self.incident.finished = Moment.now()
        self.save()

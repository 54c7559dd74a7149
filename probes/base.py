"""What a probe is, and the one place where a probe's failures are caught.

A probe collects one kind of evidence under a deadline and never raises: its result is
``ok``, ``unavailable`` (with the reason) or ``timed-out``. Probes know nothing of
engines: they are told an address, a process id or a file."""

from __future__ import annotations

import re
import threading
import time
from abc import ABC, abstractmethod
from dataclasses import dataclass
from pathlib import Path
from typing import ClassVar, Generic, Literal, Self, TypeVar

from mmrepro.base.machine import write_file
from mmrepro.base.records import Moment
from mmrepro.base.text import Mask, unmasked
from mmrepro.probes.data import (
    ProbeData as ProbeData,
    ProbeResult as ProbeResult,
    ProbeStatus as ProbeStatus,
)

D_co = TypeVar("D_co", bound=ProbeData, covariant=True)
P = TypeVar("P", bound=ProbeData)


class Unavailable(Exception):
    """Raised inside ``collect`` when this evidence cannot be had here; the text says
    why."""


class TimedOut(Exception):
    """Raised inside ``collect`` when the deadline passed; the text says on what."""


class RawSink:
    """Where a probe keeps its raw output: bounded files below ``evidence/``.

    Safe to use from several threads. A write that fails (a full disk) is remembered in
    ``failures`` and never stops the probe: the typed data is still returned. ``mask``
    takes out of it what no file may hold."""

    def __init__(
        self,
        root: Path,
        prefix: str = "",
        max_bytes: int = 64 << 20,
        *,
        mask: Mask = unmasked,
    ) -> None:
        self.root = root
        self.prefix = prefix
        self.max_bytes = max_bytes
        self.mask = mask
        self.written: list[str] = []
        self.failures: list[str] = []
        self._lock = threading.Lock()

    def write(self, name: str, content: bytes | str) -> str:
        """Write one raw file, cut at ``max_bytes``; returns its path relative to
        ``evidence/``."""
        data = (
            content.encode("utf-8", "replace") if isinstance(content, str) else content
        )
        safe = re.sub(r"[^A-Za-z0-9._-]+", "_", name)
        relative = f"{self.prefix}{safe}"
        path = self.root / relative
        with self._lock:
            try:
                path.parent.mkdir(parents=True, exist_ok=True)
                write_file(path, self.mask(data[: self.max_bytes]))
            except OSError as error:
                self.failures.append(f"{relative}: {error}")
                return relative
            if relative not in self.written:
                self.written.append(relative)
        return relative


@dataclass(frozen=True)
class Subject:
    """What a probe that works alone is told (``mmrepro diagnose --only``).
    ``deadline_s``: in seconds."""

    url: str = ""
    pid: int = 0
    log: Path | None = None
    model: str = ""
    deadline_s: float = 15.0


class Probe(ABC, Generic[D_co]):
    """One kind of evidence. Subclasses are plain objects: constructing one does no
    I/O."""

    name: ClassVar[str]
    needs: ClassVar[Literal["", "url", "pid", "log"]] = ""
    """What of a :class:`Subject` has to be given."""

    @classmethod
    def on(cls, subject: Subject) -> Self:
        """The probe of ``subject``, in which what it ``needs`` is given."""
        return cls()

    @abstractmethod
    def collect(self, sink: RawSink, deadline: float) -> D_co:
        """Collect until ``deadline`` (a ``time.monotonic()`` instant) at the latest.

        Raises:
            Unavailable: this evidence cannot be had here.
            TimedOut: the deadline passed first.
        """

    def partial(self) -> D_co | None:
        """What was collected so far, asked for when ``collect`` overran its
        deadline."""
        return None


def run_probe(
    probe: Probe[P],
    sink_root: Path,
    seconds: float,
    *,
    phase: str = "",
    label: str = "",
    mask: Mask = unmasked,
) -> ProbeResult[P]:
    """Run ``probe`` for at most ``seconds`` (plus one second of grace) and never raise.

    Raw files get the prefix ``<phase>-<label or probe name>-``.
    """
    prefix = "-".join(part for part in (phase, label or probe.name) if part) + "-"
    sink = RawSink(sink_root, prefix, mask=mask)
    started = Moment.now()
    deadline = started.mono + seconds
    box: list[P | BaseException] = []

    def target() -> None:
        try:
            box.append(probe.collect(sink, deadline))
        except BaseException as error:
            # Every failure of a probe is data, never a crash.
            box.append(error)

    thread = threading.Thread(target=target, name=f"probe-{probe.name}", daemon=True)
    thread.start()
    thread.join(seconds + 1.0)
    status, reason, data = _outcome(probe, box, seconds)
    return ProbeResult(
        probe=probe.name,
        phase=phase,
        status=status,
        reason=reason,
        started=started,
        seconds=round(time.monotonic() - started.mono, 4),
        raw=list(sink.written),
        data=data,
    )


def _outcome(
    probe: Probe[P], box: list[P | BaseException], seconds: float
) -> tuple[ProbeStatus, str, P | None]:
    if not box:
        return ProbeStatus.TIMED_OUT, f"no result in {seconds:.1f} s", _partial(probe)
    result = box[0]
    if not isinstance(result, BaseException):
        return ProbeStatus.OK, "", result
    if isinstance(result, TimedOut):
        return ProbeStatus.TIMED_OUT, str(result), _partial(probe)
    if isinstance(result, Unavailable):
        return ProbeStatus.UNAVAILABLE, str(result), _partial(probe)
    reason = f"the probe itself failed: {type(result).__name__}: {result}"
    return ProbeStatus.UNAVAILABLE, reason[:500], None


def _partial(probe: Probe[P]) -> P | None:
    try:
        return probe.partial()
    except Exception:
        return None

"""The watch: check at an interval, tell what changed, diagnose once when liveness is
lost."""

from __future__ import annotations

import base64
import contextlib
import io
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

from mmrepro.base.errors import MmreproError, UsageError
from mmrepro.base.units import duration
from mmrepro.failure.documents import CLASS_WORDS, Certainty, LiveClass, NamedClass
from mmrepro.live.diagnose.discover import parse_url
from mmrepro.live.watch.canary import EVERY_S, Canary, CanaryVerdict
from mmrepro.live.watch.checker import Checker
from mmrepro.live.watch.falls import FallKeeper
from mmrepro.live.watch.health import Check, CheckOutcome, Health
from mmrepro.live.watch.options import WatchCommand
from mmrepro.live.watch.state_files import StateFiles

if TYPE_CHECKING:
    from mmrepro.live.fleet.session import Looked

_SUREST = list(Certainty)
_FALLS = (CheckOutcome.FAILED, CheckOutcome.SILENT, CheckOutcome.ABSENT)
"""Checks that may be the last ones before a restart."""
CONFIRM_PAUSE_S = 0.01
"""Between a first failure and the check that confirms it."""
_RETURN_S = 1.0
"""From one check's start to the next one's, at most, of a server that is gone: when it
starts again, it must not be called dead for long."""


@dataclass(frozen=True)
class WatchDiagnosis:
    sentence: str
    folder: Path | None
    classes: tuple[NamedClass, ...] = ()


Diagnose = Callable[[], WatchDiagnosis]
Listener = Callable[[str, str], None]
"""Gets an event's kind (check, dead, live, class, capture, canary, diagnosis, error) and
a sentence."""


class ServerWatch:
    """Runs until ``stop`` or as the options say. What it knows may be read from other
    threads."""

    def __init__(
        self,
        checker: Checker,
        health: Health,
        options: WatchCommand,
        *,
        diagnose: Diagnose | None = None,
        listener: Listener | None = None,
        falls: FallKeeper | None = None,
        canary: Canary | None = None,
        state_files: StateFiles | None = None,
    ) -> None:
        self.checker = checker
        self.health = health
        self.options = options
        self.diagnose = diagnose
        self.falls = falls
        self.canary = canary
        self.state_files = state_files
        self._canary_at = 0.0
        self._canary_round: threading.Thread | None = None
        self.listener = listener or (lambda kind, text: None)
        self.counts: dict[CheckOutcome, int] = dict.fromkeys(CheckOutcome, 0)
        self.incidents = 0
        self.finding: WatchDiagnosis | None = None
        self.classes: dict[LiveClass, Certainty] = {}
        self.lock = threading.Lock()
        self._stop = threading.Event()
        self._diagnosis: threading.Thread | None = None

    def stop(self) -> None:
        self._stop.set()

    def run(self) -> bool:
        """Check until the end; returns whether the server was live then."""
        while not self._stop.is_set():
            began = time.monotonic()
            changed = self._step()
            if self.options.until_dead and changed and not self.health.live:
                break
            if self.options.once and not self.health.undecided:
                break
            self._stop.wait(self._pause(began))
        if self.falls is not None:
            self.falls.wait()
        if self._diagnosis is not None:
            self._diagnosis.join()
        return self.health.live

    def capture_now(self, why: str) -> str:
        """Take the evidence of a fall before somebody ends the server, unless it
        answers; where it went, "": nowhere."""
        last = self.health.last
        answers = last is None or last.verdict is CheckOutcome.OK
        if self.falls is None or answers:
            return ""
        self.falls.fall(why)
        self.falls.wait()
        return self.falls.last

    def _step(self) -> bool:
        check = self.checker.check()
        was_starting = self.health.starting
        with self.lock:
            self.counts[check.verdict] += 1
            changed = self.health.observe(check)
            live = self.health.live
        if self.state_files is not None:
            with contextlib.suppress(OSError):  # a full disk ends no watch
                self.state_files.write(self.health)
        what = check.verdict.value + (f": {check.why}" if check.why else "")
        self.listener("check", f"{what} ({duration(check.seconds)})")
        self._keep(check, was_starting=was_starting, died=changed and not live)
        if changed and not live:
            self.listener("dead", f"not live: {check.why}")
            self._look()
        elif changed:
            self.listener("live", "live again")
            with self.lock:
                self.finding = None
        self._tell_classes()
        self._sing(check)
        return changed

    def _sing(self, check: Check) -> None:
        """Begin a round of the canary beside the checks, where one is due and the server
        answers."""
        due = time.monotonic() >= self._canary_at
        running = self._canary_round is not None and self._canary_round.is_alive()
        if self.canary is None or check.verdict is not CheckOutcome.OK:
            return
        if not due or running:
            return
        self._canary_at = time.monotonic() + EVERY_S
        self._canary_round = threading.Thread(
            target=self._round, args=(self.canary,), name="canary", daemon=True
        )
        self._canary_round.start()

    def _round(self, canary: Canary) -> None:
        made = canary.round(self.checker.model)
        if made.verdict is not CanaryVerdict.CLEAN:
            self.listener("canary", f"{made.verdict}: {made.sentence}")

    def _keep(self, check: Check, *, was_starting: bool, died: bool) -> None:
        """Take the evidence when a check first fails: after the next one somebody may
        have restarted the server."""
        if self.falls is None:
            return
        if check.verdict is CheckOutcome.OK:
            self.falls.rise()
        begun = check.begun or not was_starting
        if died or (check.verdict in _FALLS and begun):
            self.falls.fall(check.why)

    def _tell_classes(self) -> None:
        """What the last check and the last diagnosis name, until it is live again; in
        our own words, for what a class rests on may be the server's."""
        with self.lock:
            last, finding = self.health.last, self.finding
            named = [
                *(finding.classes if finding else ()),
                *(last.classes if last else ()),
            ]
            before = self.classes
            now: dict[LiveClass, Certainty] = {}
            for one in sorted(named, key=lambda one: _SUREST.index(one.certainty)):
                now.setdefault(one.name, one.certainty)
            self.classes = now
        for name, certainty in now.items():
            if before.get(name) is not certainty:
                self.listener("class", f"{name}, {certainty}: {CLASS_WORDS[name]}")
        for name in before.keys() - now.keys():
            self.listener("class", f"{name}: seen no more")

    def _pause(self, began: float) -> float:
        if self.health.confirming:
            return CONFIRM_PAUSE_S
        interval_s = self.options.interval_s
        last = self.health.last
        if not self.health.live and last is not None and last.seconds < _RETURN_S:
            interval_s = min(interval_s, _RETURN_S)
        return max(0.0, began + interval_s - time.monotonic())

    def _look(self) -> None:
        """Diagnose beside the checks: a recovery must not wait for it."""
        if self.diagnose is None:
            return
        if self.incidents >= self.options.max_incidents:
            self.listener(
                "diagnosis", f"not diagnosed: {self.incidents} incidents are the limit"
            )
            return
        if self._diagnosis is not None and self._diagnosis.is_alive():
            return
        with self.lock:
            self.incidents += 1
        self._diagnosis = threading.Thread(target=self._diagnose, name="diagnosis")
        self._diagnosis.start()

    def _diagnose(self) -> None:
        assert self.diagnose is not None
        # One look at a time: two would wait for each other's samples.
        if self.falls is not None:
            self.falls.wait()
        try:
            finding = self.diagnose()
        except Exception as error:  # the watch goes on, whatever becomes of a diagnosis
            # Its text may be the server's: only of our own errors it is not.
            told = (
                error.message
                if isinstance(error, MmreproError)
                else type(error).__name__
            )
            self.listener("error", f"the diagnosis failed: {told}")
            return
        with self.lock:
            self.finding = finding
        self.listener("diagnosis", finding.sentence)
        self._tell_classes()


_MAX_DEADLINE_S = 15.0


def default_deadline(interval_s: float, failures: int) -> float:
    """Seconds for one check, so that ``failures`` of them, one after the other, end
    within one interval; at most 15."""
    return min(_MAX_DEADLINE_S, 0.9 * interval_s / failures - CONFIRM_PAUSE_S)


def watch_of(
    asked: WatchCommand,
    health: Health,
    *,
    diagnose: Callable[[float], WatchDiagnosis] | None = None,
    listener: Listener,
    name: str = "",
) -> ServerWatch:
    """The watch of a server. Raises UsageError for what cannot be an address.

    Args:
        diagnose: looks for the cause when a check fails, with a deadline in seconds;
            None: that it failed is only reported.
        name: of the server, where several are watched.
    """
    parse_url(asked.url)
    deadline = asked.deadline_s or default_deadline(asked.interval_s, health.failures)
    picture = small_picture() if asked.image else None
    checker = Checker(
        asked.url,
        deadline,
        model=asked.model,
        image=picture,
        headers=dict(asked.headers),
    )
    look = None if diagnose is None else partial(diagnose, max(1.0, deadline))
    falls = FallKeeper(asked, listener, name=name) if asked.captures else None
    canary = Canary(checker.url, deadline, asked.headers) if asked.canary else None
    return ServerWatch(
        checker,
        health,
        asked,
        diagnose=look,
        listener=listener,
        falls=falls,
        canary=canary,
        state_files=_state_files(asked, deadline, name),
    )


def _state_files(
    asked: WatchCommand, deadline_s: float, name: str
) -> StateFiles | None:
    """Raises UsageError: the folder cannot be written."""
    if asked.state is None:
        return None
    folder = asked.state / name.replace(":", "-") if name else asked.state
    try:
        return StateFiles(folder, 3 * (asked.interval_s + deadline_s))
    except OSError as error:
        raise UsageError(
            f"The folder {folder} cannot be written: {error.strerror}.",
            hint="mmrepro watch URL --state DIR, with a DIR that you may write",
        ) from error


def small_picture() -> str:
    """A 56 x 56 picture as a data URL: 4 tokens of a Qwen2-VL."""
    from PIL import Image

    buffer = io.BytesIO()
    Image.new("RGB", (56, 56), (90, 140, 200)).save(buffer, "PNG")
    return "data:image/png;base64," + base64.b64encode(buffer.getvalue()).decode()


def diagnosed(
    asked: WatchCommand, write: Callable[[Path], object], deadline_s: float
) -> WatchDiagnosis:
    """Diagnose the server; the incident is kept below ``out``, ``write`` writes its
    reports."""
    from mmrepro.live.diagnose.options import DiagnoseCommand
    from mmrepro.live.diagnose.session import diagnose

    folder = (
        None if asked.out is None else asked.out / time.strftime("watch-%Y%m%d-%H%M%S")
    )
    found = diagnose(
        DiagnoseCommand(
            url=asked.url,
            model=asked.model,
            logs=asked.logs,
            headers=asked.headers,
            out=folder,
            deadline_s=deadline_s,
        )
    )
    if found.folder is not None:
        write(found.folder)
    known = [m.scenario for m in found.diagnosis.found]
    sentence = found.diagnosis.assessment.sentence
    if known:
        sentence = f"{known[0]}: {sentence}"
    if not sentence.endswith("."):
        sentence += "."
    where = f" Incident: {found.folder}" if found.folder else ""
    return WatchDiagnosis(
        sentence + where, found.folder, tuple(found.diagnosis.classes)
    )


@dataclass
class Together:
    """One look at several servers, for each of their watches that asks: who is unlike
    the others, and which side of a transfer stands, no server shows by itself."""

    asked: WatchCommand
    write: Callable[[Path], object]
    deadline_s: float
    _lock: threading.Lock = field(default_factory=threading.Lock)
    _last: tuple[float, Looked] | None = None

    def diagnosed(self, url: str, _: float = 0.0) -> WatchDiagnosis:
        """Of one of them. A look that began after the question is taken by all who wait
        for one."""
        asked_at = time.monotonic()
        with self._lock:
            if self._last is None or self._last[0] < asked_at:
                self._last = time.monotonic(), self._look()
            looked = self._last[1]
        own = next((m for m in looked.fleet.members if m.url == url), None)
        found = own.diagnosis if own is not None else None
        where = f"; report: {looked.folder}" if looked.folder else ""
        classes = tuple(found.classes) if found is not None else ()
        return WatchDiagnosis(looked.fleet.sentence + where, looked.folder, classes)

    def _look(self) -> Looked:
        from mmrepro.live.diagnose.options import DiagnoseCommand
        from mmrepro.live.fleet.session import look

        asked = self.asked
        folder = (
            None
            if asked.out is None
            else asked.out / time.strftime("watch-%Y%m%d-%H%M%S")
        )
        looked = look(
            DiagnoseCommand(
                url=asked.url,
                more=asked.more,
                prometheus=asked.prometheus,
                model=asked.model,
                headers=asked.headers,
                out=folder,
                deadline_s=self.deadline_s,
            )
        )
        for one in looked.diagnosed if looked.folder is not None else ():
            if one.folder is not None:
                self.write(one.folder)
        if looked.folder is not None:
            self.write(looked.folder)
        return looked

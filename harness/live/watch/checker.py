"""One check: a small inference, and, if it is not answered, whether the server worked
meanwhile.

The readings of the last few checks together show classes of failure.
"""

from __future__ import annotations

import tempfile
import threading
import time
from collections import deque
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from mmrepro.base.machine import SHORT_SHARE, Lateness
from mmrepro.engines import ENGINES
from mmrepro.engines.held import (
    HeldSign,
    held_by_metrics,
    held_signs,
    request_fields,
)
from mmrepro.failure.documents import Certainty, NamedClass, TargetFacts
from mmrepro.failure.signature import BEGUN_AT
from mmrepro.failure.signature.live_server import LATENESS
from mmrepro.live.diagnose.classes import classes
from mmrepro.live.diagnose.listeners import ask_all
from mmrepro.live.diagnose.ranks import look
from mmrepro.live.diagnose.readings import DiagnosisView, first_total
from mmrepro.live.watch.health import Check, CheckOutcome
from mmrepro.live.watch.processes import (
    CheckAnswer,
    Growth,
    WatchedProcesses,
    caches_bytes,
)
from mmrepro.probes import (
    ConnectionsProbe,
    InferenceData,
    MetricsData,
    MetricsProbe,
    Probe,
    ProbeData,
    ProbeResult,
    ProbeStatus,
    run_probe,
)
from mmrepro.probes.http import (
    Fetched,
    InferenceProbe,
    api_root,
    connection_refused,
    fetch,
    first_model,
    flag_of,
)
from mmrepro.traffic.evidence import Evidence

CHECKS = 3


class Window:
    """Takes the results of each check's probes. What was read before an answer tells
    nothing of a silence after it."""

    def __init__(self) -> None:
        self._checks: deque[list[ProbeResult[Any]]] = deque(maxlen=CHECKS)
        self._now: list[ProbeResult[Any]] = []

    def begin(self) -> None:
        self._now = []
        self._checks.append(self._now)

    def add(self, result: ProbeResult[Any]) -> None:
        if result.data is not None:
            self._now.append(result)

    def classes(
        self, facts: TargetFacts, silence: Evidence, *, late: float = 0.0
    ) -> list[NamedClass]:
        """Those that are more than possible.

        Args:
            silence: stacks that were taken while a request waited.
            late: the part of the time for which this process waited for a processor,
                where that was much.
        """
        if not _answered(self._now):
            # What was read before an answer tells nothing of the silence after it.
            for check in self._checks:
                if _answered(check):
                    check.clear()
        readings: list[ProbeResult[Any]] = []
        for check in self._checks:
            readings += [r for r in check if not isinstance(r.data, InferenceData)]
        # Of the requests only the last one counts: earlier ones had their own silence.
        requests = [r for r in self._now if isinstance(r.data, InferenceData)]
        evidence = Evidence(
            probes=[*readings, *requests, *silence.probes],
            facts={LATENESS: late} if late else {},
        )
        shown = classes(evidence, facts)
        return [c for c in shown if c.certainty is not Certainty.POSSIBLE]


def _answered(check: list[ProbeResult[Any]]) -> bool:
    return any(isinstance(r.data, InferenceData) and r.data.answered for r in check)


LATE = 0.3
"""Part of the deadline after which a request that is not answered yet has its server
looked at."""
_MODELS_S = 5.0


# Not the count of finished requests: a frozen vLLM counts those that clients give up
# on. How full the KV cache is moves with each chunk of a long prompt, which counts no
# token until its end.
def _metrics(*shorts: str) -> tuple[str, ...]:
    names: list[str] = []
    for engine in ENGINES.values():
        for short in shorts:
            names += engine.metrics.get(short, ())
    return tuple(names)


PROGRESS = _metrics("prompt_tokens", "generation_tokens", "computed_tokens")
GAUGES = _metrics("kv_usage", "kv_tokens")
_SIGNS = (*PROGRESS, *GAUGES, BEGUN_AT)
_GENERATED = frozenset(_metrics("generation_tokens"))
_FINISHED = frozenset(_metrics("finished"))
_SIGN_S = 2.0
_HINTS = {401: "--header 'Authorization: Bearer KEY'", 404: "--model NAME"}
_HINTS[403] = _HINTS[401]
_ROUND = 36
"""Checks of which the first ``CHECKS`` read everything, while the server answers: 6
minutes at the usual interval."""
_MOST_ANSWERS = 256
"""Earlier answers that a new one is compared with."""
_SAME_S = 2.0
"""So much later an answer has another second of ``created``, if it is a new one."""
_TIED = 3
"""So many answers in a row that move the counters: these are of the server that
answers."""


class Checker:
    """Sends the checks to ``url``.

    What it says of one is in its own words: a server may answer with whatever it was
    sent, a key among it, and what a watch says is served to others.

    ``model``: the served name; empty: the first that ``/v1/models`` lists, asked once.
    ``now``: seconds on a clock that never goes back.
    ``image``: a data URL that goes with the text, so that the vision path is checked as
    well."""

    def __init__(
        self,
        url: str,
        deadline_s: float,
        *,
        model: str = "",
        image: str | None = None,
        headers: Mapping[str, str] | None = None,
        now: Callable[[], float] = time.monotonic,
    ) -> None:
        self.url = api_root(url)
        self._now = now
        self.deadline_s = deadline_s
        self.model = model
        self.image = image
        self.headers = dict(headers or {})
        self._worked = False
        self._tied = 0
        self._begun: float | None = None
        self._window = Window()
        self._growth = Growth()
        self._answers = 0
        self._checks = 0
        self._is_thorough = True
        self._last_was_ok = False
        self._shown: tuple[NamedClass, ...] = ()
        self._worked_before = False
        self._known_answers: dict[tuple[str, int], float] = {}
        self._counted: MetricsData | None = None
        self._before: dict[str, float] | None = None
        """Counters before this check's request was late; None: not read yet."""
        self._lateness = Lateness()
        self._scratch = tempfile.TemporaryDirectory(prefix="mmrepro-watch-")
        self._processes = WatchedProcesses(self.url, Path(self._scratch.name))

    def close(self) -> None:
        self._scratch.cleanup()

    def check(self) -> Check:
        """One check; never raises for what a server does."""
        started = self._now()
        self._window.begin()
        # Who is connected is the dearest reading, and no class of a healthy server
        # changes within minutes.
        self._is_thorough = self._checks % _ROUND < CHECKS or not self._last_was_ok
        self._checks += 1
        self._worked_before = self._processes.by_states = False
        with self._measured() as self._lateness:
            verdict, why = self._find_model() or self._ask()
        self._answers += verdict is CheckOutcome.OK
        self._last_was_ok = verdict is CheckOutcome.OK
        at = self._now()
        return Check(
            verdict=verdict,
            at=at,
            seconds=at - started,
            why=why,
            begun=self._begun_to_serve(verdict),
            classes=self._classes(),
            ranks=self._ranks(),
        )

    @staticmethod
    def _measured() -> Lateness:
        """Measures how late this process is while a check goes on."""
        return Lateness()

    def _begun_to_serve(self, verdict: CheckOutcome) -> bool:
        """Whether it is past its start, by this check's counters or its stacks."""
        if verdict is CheckOutcome.ABSENT:
            return False
        return self._worked_before or self._processes.in_service

    def _ranks(self) -> dict[str, str]:
        facts, silence = self._processes.facts, self._processes.silence
        if facts is None or not silence.probes:
            return {}
        seen = look(DiagnosisView(facts, silence))
        return {rank.role: rank.stand.value for rank in seen.ranks} if seen else {}

    def _classes(self) -> tuple[NamedClass, ...]:
        """Of failure, by what the last checks read and by the memory of its
        processes."""
        processes, share = self._processes, self._lateness.share
        facts = processes.facts
        if facts is None:
            return ()
        late = share if share > SHORT_SHARE else 0.0
        thorough = self._is_thorough or not self._last_was_ok
        if thorough:
            self._shown = tuple(
                self._window.classes(facts, processes.silence, late=late)
            )
        shown = list(self._shown)
        self._growth.observe(self._now(), self._finished(facts), processes.memory())
        pictures = bool(self._total(facts, "mm_cache_queries"))
        grows = self._growth.named(caches_bytes(facts.command) if pictures else 0)
        if grows is not None:
            shown.append(grows)
        return tuple(shown)

    def _finished(self, facts: TargetFacts) -> float:
        """Requests that the server counts as finished, else those of ours that were
        answered."""
        total = self._total(facts, "finished")
        return self._answers if total is None else total

    def _total(self, facts: TargetFacts, short: str) -> float | None:
        engine, data = ENGINES.get(facts.engine), self._counted
        if engine is None or data is None:
            return None
        return first_total(data, engine.metrics.get(short, ()))

    def _find_model(self) -> CheckAnswer | None:
        """Ask for the served model, if it is not known; why that failed."""
        if self.model:
            return None
        got = fetch(
            "GET",
            f"{self.url}/v1/models",
            timeout_s=min(_MODELS_S, self.deadline_s),
            max_bytes=1 << 20,
            headers=self.headers,
        )
        if got.status == 200:
            self.model = first_model(got.body)
            if self.model:
                return None
            return CheckOutcome.ERROR, "/v1/models lists no model"
        if got.timed_out:
            return self._silence("/v1/models", {}, (CheckOutcome.SILENT, ""))
        return self._no_completion("/v1/models", got.status, got.error, {})

    def _ask(self) -> CheckAnswer:
        # Metrics are a quarter of a check. Of a server that answers they tell nothing
        # anew; where it does not, they are read before its processes are.
        reads_first = self._is_thorough or not self._processes.seen
        self._before = self._signs() or {} if reads_first else None
        self._look_who_is_connected()
        data, seen = self._request()
        if data is None:
            return CheckOutcome.UNKNOWN, "the check could not be run"
        return self._read(data, seen, self._before or {})

    def _read_late(self) -> None:
        """Read the counters of a server that keeps its request waiting, unless they
        were read before it."""
        if self._before is None:
            self._before = self._signs() or {}

    def _request(self) -> tuple[InferenceData | None, CheckAnswer]:
        """Send the small request; what came of it, and what its processes were seen at
        while it waited. None: it could not be sent."""
        facts = self._processes.facts
        probe = InferenceProbe(
            self.url,
            self.model,
            self.deadline_s,
            image_data_url=self.image,
            headers=self.headers,
            fields=request_fields(facts.engine, facts.command) if facts else None,
        )
        box: list[ProbeData | None] = []
        asking = threading.Thread(
            target=lambda: box.append(self._run(probe, self.deadline_s + 1).data),
            daemon=True,
        )
        asking.start()
        asking.join(LATE * self.deadline_s)
        seen: CheckAnswer = CheckOutcome.SILENT, ""
        if asking.is_alive():
            # Beside the look: a front that is late with its metrics has stacks as well.
            reading = threading.Thread(target=self._read_late, daemon=True)
            reading.start()
            seen = self._processes.look((1 - LATE) * self.deadline_s)
            reading.join()
        asking.join()
        data = box[0]
        return (data if isinstance(data, InferenceData) else None), seen

    def _read(
        self, data: InferenceData, seen: CheckAnswer, before: Mapping[str, float]
    ) -> CheckAnswer:
        if data.answered and not self._is_repeated(data):
            self._processes.answered()
            self._worked = True
            self._tie(before)
            return self._silent_listener() or (CheckOutcome.OK, "")
        if data.status == 200 and (data.cached or data.answered):
            sign = data.cached or "the same id and time as an earlier answer"
            return (
                CheckOutcome.ERROR,
                f"a small request: a cache answered, not the server ({sign})",
            )
        if data.status is None and data.seconds >= 0.9 * data.deadline_s:
            return self._silence("a small request", before, seen)
        return self._no_completion("a small request", data.status, data.error, before)

    def _is_repeated(self, data: InferenceData) -> bool:
        """Whether an earlier answer had the same id and was made in the same second: a
        cache gave it again. An engine may count its ids anew, and two answers of one
        second are alike where it has none."""
        if not data.completion_id or data.created is None:
            return False
        key, now = (data.completion_id, data.created), self._now()
        first = self._known_answers.setdefault(key, now)
        while len(self._known_answers) > _MOST_ANSWERS:
            del self._known_answers[next(iter(self._known_answers))]
        return now - first >= _SAME_S

    def _silent_listener(self) -> CheckAnswer | None:
        """Whether one of several sockets of this port takes connections and answers
        none; None: all that were met answer, or there is one, or this machine is short
        of processors."""
        sockets = self._processes.listening_sockets
        if sockets < 2:
            return None
        answers = ask_all(self.url, sockets, self.headers)
        is_short = self._lateness.share > SHORT_SHARE
        if not answers.one_is_silent or is_short:
            return None
        return CheckOutcome.SILENT, answers.sentence

    def _held(self) -> str:
        """What its operator does with it, by its metrics and endpoints; "": nothing."""
        if self._counted is not None and (what := held_by_metrics(self._counted)):
            return what
        facts = self._processes.facts
        for sign in held_signs(facts.engine) if facts is not None else ():
            if sign.path and self._shows(sign):
                return sign.what
        return ""

    def _shows(self, sign: HeldSign) -> bool:
        answer = self._small(sign.path)
        if sign.field:
            return answer.status == 200 and flag_of(answer.body, sign.field)
        return answer.status == sign.status and self._small(sign.answers).status == 200

    def _small(self, path: str) -> Fetched:
        """One of its cheap endpoints."""
        return fetch(
            "GET",
            f"{self.url}{path}",
            timeout_s=_SIGN_S,
            max_bytes=1 << 20,
            headers=self.headers,
        )

    def _no_completion(
        self, asked: str, status: int | None, error: str, before: Mapping[str, float]
    ) -> CheckAnswer:
        """It was answered at once, or not taken at all."""
        if connection_refused(error):
            return self._processes.absent()
        if status == 429:
            return CheckOutcome.BUSY, f"{asked}: 429, too many requests"
        if status == 200:
            return CheckOutcome.ERROR, f"{asked}: 200, and no whole completion"
        if status is not None and status < 500:
            hint = f" ({_HINTS[status]}?)" if status in _HINTS else ""
            return CheckOutcome.UNKNOWN, f"{asked}: {status}{hint}"
        if dead := self._processes.part_dead():
            return CheckOutcome.FAILED, dead
        # A gateway says 502 to 504, and of one that never worked the request may be to
        # blame.
        fails = status == 500 and self._worked and before
        if fails and (what := self._held()):
            return CheckOutcome.HELD, f"{asked}: 500; it is {what}"
        if fails and before == self._signs() and self._own(before, before):
            return CheckOutcome.SILENT, f"{asked}: 500, and no counter of work moves"
        # What follows may be the server's own words.
        told = status or error.partition(":")[0]
        return CheckOutcome.ERROR, f"{asked}: {told}"

    def _silence(
        self, asked: str, before: Mapping[str, float], seen: CheckAnswer
    ) -> CheckAnswer:
        """No answer in time. ``seen``: of its processes, while it was waited for."""
        silence = f"{asked}: no answer in time"
        if seen[0] is CheckOutcome.FAILED and self._processes.by_states:
            # A front that is stopped would keep each further question waiting.
            return CheckOutcome.FAILED, f"{silence}; {seen[1]}"
        after = self._signs()
        if moved := moved_signs(before, after or {}):
            return CheckOutcome.BUSY, f"{silence}; meanwhile {moved[0]} moved: it works"
        if what := self._held():
            return CheckOutcome.HELD, f"{silence}; it is {what}"
        verdict, why = seen
        is_short = self._lateness.share > SHORT_SHARE
        if is_short and not self._processes.by_states:
            return (
                CheckOutcome.ERROR,
                f"{silence}; this machine is short of processors",
            )
        if self._processes.computes and self._worked and not before and not after:
            # It has no counters: a long queue is all that can be told of it.
            return CheckOutcome.BUSY, f"{silence}; {why}"
        if verdict is CheckOutcome.SILENT and not self._tells_of_itself(before, after):
            return (
                CheckOutcome.ERROR,
                f"{silence}; no counter of its own tells whether it works",
            )
        return verdict, f"{silence}; {why}" if why else silence

    def _tells_of_itself(
        self, before: Mapping[str, float], after: Mapping[str, float] | None
    ) -> bool:
        """Whether what did not move is its own: a counter that was read twice, or the
        front of a server that is near and says nothing at all."""
        if after is None:
            return self._processes.near
        return not before.keys().isdisjoint(after) and self._own(before, after)

    def _own(self, before: Mapping[str, float], after: Mapping[str, float]) -> bool:
        """Whether the counters are of the server that is asked, and not of another
        replica behind a balancer: its processes are here, a request is counted that
        waits, or the counters have moved with each of the last ``_TIED`` answers and are
        still of the same process."""
        if self._processes.seen:
            return True
        for name, value in before.items():
            if name not in GAUGES and after.get(name, value) < value:
                return False
        begun = after.get(BEGUN_AT)
        if before.get(BEGUN_AT) != begun:
            return False
        facts = self._processes.facts
        for gauge in ("running", "waiting"):
            if facts is not None and self._total(facts, gauge):
                return True
        return self._tied >= _TIED and begun == self._begun

    def _tie(self, before: Mapping[str, float]) -> None:
        """Count the answers in a row that moved the counters: others were another
        replica's."""
        if not self._processes.seen:
            after = self._signs() or {}
            self._tied = self._tied + 1 if moved_signs(before, after) else 0
            self._begun = after.get(BEGUN_AT)

    def _signs(self) -> dict[str, float] | None:
        """Counters of work done; empty where there are no metrics, None where they are
        late."""
        result = self._run(MetricsProbe(self.url, 2.0, headers=self.headers), 3.0)
        data = result.data
        if not isinstance(data, MetricsData):
            return None if result.status is ProbeStatus.TIMED_OUT else {}
        self._counted = data
        self._worked_before = has_worked(data)
        self._processes.name_engine(frozenset(s.name for s in data.samples))
        totals = data.totals(_SIGNS)
        return {name: totals[name] for name in _SIGNS if name in totals}

    def _look_who_is_connected(self) -> None:
        facts = self._processes.facts
        if not self._is_thorough or facts is None:
            return
        if facts.port and facts.place != "remote":
            self._run(ConnectionsProbe(facts.port, facts.root_pid or "self"), 1.0)

    def _run(self, probe: Probe[ProbeData], seconds: float) -> ProbeResult[ProbeData]:
        folder = Path(self._scratch.name)
        result = run_probe(probe, folder, seconds, phase="check")
        for raw in result.raw:
            (folder / raw).unlink(missing_ok=True)
        self._window.add(result)
        return result


def has_worked(data: MetricsData) -> bool:
    """Whether its counters have a request that got an answer. What clients gave up
    counts as finished too, and shows nothing."""
    for sample in data.samples:
        counts = sample.name in _GENERATED or sample.name in _FINISHED
        given_up = sample.labels.get("finished_reason") == "abort"
        if counts and sample.value and not given_up:
            return True
    return False


def moved_signs(before: Mapping[str, float], after: Mapping[str, float]) -> list[str]:
    """Names of those that changed. A counter that fell is no progress: a restart, or
    another replica's, as is one of a process that began at another time."""
    if before.get(BEGUN_AT) != after.get(BEGUN_AT):
        return []
    moved = []
    for name, value in after.items():
        change = value - before.get(name, value)
        if change > 0 or (change < 0 and name in GAUGES):
            moved.append(name)
    return moved

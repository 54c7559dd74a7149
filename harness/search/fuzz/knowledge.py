"""What a session knows: the lines of its journal, taken in one by one."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Collection, Iterable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated, Literal, TypeAlias, TypeVar

from mmrepro.base.machine.journal import Head, JournalKind, Line
from mmrepro.base.records import FindingClass
from mmrepro.failure.documents.replay import (
    EPISODES_DIR,
    EPISODES_FILE,
    FUZZ_FILE,
    REPLAY_FILE,
    Episode,
    Finding,
    Found,
    Fuzz,
    Replay,
    SeenOnce,
)
from mmrepro.runs.judge import Deadlines
from mmrepro.search.fuzz.episodes import Episodes, features_left
from mmrepro.search.fuzz.limits import Limits
from mmrepro.search.fuzz.steering import (
    ENOUGH,
    LESS,
    SERVERS,
    Switch,
    kinds,
    needed_by,
    worth,
)
from mmrepro.search.oracle.judged import alike
from mmrepro.search.replay.known import mitigation
from mmrepro.search.replay.pursue import FATAL
from mmrepro.search.replay.store import Named, Observation
from mmrepro.traffic.case.files import read_case
from mmrepro.traffic.case.sending import PlayState
from pydantic import Field, TypeAdapter


class Began(Line):
    kind: Literal["began"] = "began"
    episode: Episode


class Ended(Line):
    """An episode, judged.

    Attributes:
        elapsed_s: of the session when it had ended.
        features: those that no episode before it showed.
        limits: as they are known from here on.
        silent: by itself it showed nothing: it was wrong beside a reference.
    """

    kind: Literal["ended"] = "ended"
    episode: Episode
    elapsed_s: float
    seen: Observation
    features: list[str] = []
    limits: Limits
    silent: bool = False
    blocks: int = 0
    answer_s: float
    suspect_s: float
    rule: str = ""

    @property
    def once(self) -> str:
        return f"Episode {self.episode.number} ended"

    @property
    def deadlines(self) -> Deadlines:
        return Deadlines(self.answer_s, self.suspect_s, self.rule)


class Led(Line):
    """What the pursuit of an episode begins with.

    Attributes:
        straight: its requests one after another, in the order in which they were sent,
            show it as well: then it does not hang on chance.
        seen: the attempt at what is pursued.
    """

    kind: Literal["led"] = "led"
    number: int
    straight: bool
    seen: Observation
    starts: int = 0

    @property
    def once(self) -> str:
        return f"Episode {self.number} led"


class Pursued(Line):
    """What an episode showed has been pursued, in the folder ``replay``."""

    kind: Literal["pursued"] = "pursued"
    number: int
    replay: str
    elapsed_s: float
    seconds: float

    @property
    def once(self) -> str:
        return f"Episode {self.number} was pursued"


class Finished(Line):
    """A finding that was not shrunk to its end was taken up again, in the folder
    ``replay``.
    ``of``: the finding's folder."""

    kind: Literal["finished"] = "finished"
    of: str
    replay: str
    elapsed_s: float
    seconds: float

    @property
    def once(self) -> str:
        return f"{self.of} was finished"


KeptLine: TypeAlias = Ended | Led | Pursued | Finished
LineT = TypeVar("LineT", Ended, Led, Pursued, Finished)
AnyLine: TypeAlias = Annotated[Head | Began | KeptLine, Field(discriminator="kind")]
EPISODES = JournalKind(
    "session", EPISODES_FILE, ".fuzz.lock", FUZZ_FILE, TypeAdapter(AnyLine)
)


# --------------------------------------------------------------- what follows from them

TRIES = 3
"""Episodes that showed a failure which nothing showed again, until it is left alone."""
UNFIT = "the server does not start with that, so it was left out from then on"
AGAIN, AGAINS = "-", 2
"""In the name of a folder in which a finding was taken up again; and how often that is
done."""


@dataclass
class Knowledge:
    """Grows by one line at a time; ``fuzz`` and ``episodes`` grow with it.

    Attributes:
        folder: the session's.
        features: all that were seen.
        also: buckets that the requests of a finding show besides it.
        lasted: seconds of each episode.
        started: switches that some server started with.
        stuck: the server does not start, whatever switches it is without.
    """

    fuzz: Fuzz
    episodes: Episodes
    folder: Path
    features: set[str] = field(default_factory=set)
    ended: dict[int, Ended] = field(default_factory=dict)
    led: dict[int, Led] = field(default_factory=dict)
    also: list[str] = field(default_factory=list)
    lasted: list[float] = field(default_factory=list)
    started: set[Switch] = field(default_factory=set)
    stuck: bool = False
    _unfit: list[frozenset[Switch]] = field(default_factory=list)
    _unfit_for_certain: list[frozenset[Switch]] = field(default_factory=list)
    _finished: set[str] = field(default_factory=set)
    _number: int = 0
    _tries: Counter[str] = field(default_factory=Counter)

    def new(self, buckets: Iterable[str]) -> list[str]:
        """Those of which nothing is known yet, each once."""
        return [bucket for bucket in dict.fromkeys(buckets) if not self.handled(bucket)]

    def unfinished(self, busy: Collection[str] = ()) -> Found | None:
        """The worst finding that was not shrunk to its end, and may be: its requests
        show it without a comparison, in one block. ``busy``: buckets that are pursued
        now."""
        left = [
            found
            for found in self.fuzz.found
            if found.finding.confirmed
            and not found.finding.shrunk
            and found.finding.requests > 1
            and found.folder not in self._finished
            and found.finding.bucket not in busy
            and found.replay.count(AGAIN) < AGAINS
            and not self.ended[found.episode].silent
            and not self.ended[found.episode].blocks
        ]
        return min(left, key=lambda f: f.finding.finding_class.place, default=None)

    def handled(self, bucket: str) -> bool:
        """It was found, comes with what was found, or was tried often enough."""
        known = [*self._confirmed(), *self.also]
        tried = sum(n for one, n in self._tries.items() if alike(one, bucket))
        return any(alike(bucket, one) for one in known) or tried >= TRIES

    def _confirmed(self) -> list[str]:
        return [f.finding.bucket for f in self.fuzz.found if f.finding.confirmed]

    def take(self, line: KeptLine) -> list[Found]:
        """What a line changes, whether it was written now or by an earlier call; what
        it found."""
        match line:
            case Ended():
                self._take_ended(line)
            case Led():
                self.led[line.number] = line
                self.fuzz.starts += line.starts
            case Pursued():
                return self._take_pursued(line)
            case _:
                return self._take_finished(line)
        return []

    def _take_ended(self, line: Ended) -> None:
        fuzz, episode = self.fuzz, line.episode
        fuzz.episodes.append(episode)
        fuzz.episodes.sort(key=lambda one: one.number)
        self.ended[episode.number] = line
        fuzz.elapsed_s = line.elapsed_s
        fuzz.starts += episode.starts
        fuzz.deadline_s = line.answer_s
        self.lasted.append(episode.seconds)
        self.features |= set(line.features)
        fuzz.features = kinds(self.features)
        self.episodes.limits = line.limits
        fuzz.learnt = line.limits.learnt
        known = {_without_numbers(text) for text in fuzz.unseen}
        fuzz.unseen += [t for t in line.seen.unseen if _without_numbers(t) not in known]
        for what, number in line.seen.counted.items():
            fuzz.counted[what] = fuzz.counted.get(what, 0) + number
        its = {Switch(name) for name in episode.switches} & {*SERVERS}
        if episode.state != PlayState.START_FAILED:
            self.started |= its
        elif any(
            alike(one, bucket)
            for one in episode.buckets
            for bucket in self._confirmed()
        ):
            self._unfit.append(frozenset(its))
        self._keep_apart()
        if episode.kind == "mixed" and worth(line.features) >= ENOUGH:
            case, _ = read_case(self.folder / EPISODES_DIR / f"{episode.number:04d}")
            self.episodes.interesting[episode.number] = case

    def _take_pursued(self, line: Pursued) -> list[Found]:
        news: list[Found] = []
        fuzz, ended = self.fuzz, self.ended[line.number]
        shown = self.led[line.number].seen.play.buckets
        ended.episode.pursued = line.replay
        replay = self._replayed(line)
        told = [finding.bucket for finding in replay.findings]
        for finding in replay.findings:
            fuzz.found = [
                f for f in fuzz.found if not alike(f.finding.bucket, finding.bucket)
            ]
            self._tries[finding.bucket] += not finding.confirmed
            self._number += 1
            found = Found(
                id=f"F{self._number}",
                episode=line.number,
                after_s=ended.elapsed_s,
                replay=line.replay,
                folder=f"{line.replay}/{finding.id}",
                finding=finding,
            )
            fuzz.found.append(found)
            self._learn_from(finding, line.replay)
            news.append(found)
            if (
                finding.confirmed
                and finding.finding_class is FindingClass.START_FAILURE
            ):
                self._learn_from_start(line, finding)
        unproven = [sighting.bucket for sighting in replay.unconfirmed]
        together = bool(replay.findings)
        for sighting in ended.seen.sightings:
            bucket = sighting.bucket
            if any(alike(bucket, one) for one in [*told, *self.also]) or self.handled(
                bucket
            ):
                continue
            pursued = any(alike(bucket, one) for one in shown)
            if together and pursued and bucket not in unproven and not ended.silent:
                self.also.append(bucket)  # what the same requests show as well
                continue
            self._tries[bucket] += pursued
            if not any(alike(once.sighting.bucket, bucket) for once in fuzz.once):
                fuzz.once.append(SeenOnce(episode=line.number, sighting=sighting))
        fuzz.once = [
            one
            for one in fuzz.once
            if not any(alike(one.sighting.bucket, b) for b in told)
        ]
        return news

    def _take_finished(self, line: Finished) -> list[Found]:
        """The finding, if less is left of it now."""
        better: list[Found] = []
        self._finished.add(line.of)
        replay = self._replayed(line)
        found = next((one for one in self.fuzz.found if one.folder == line.of), None)
        if found is None:  # meanwhile another episode's pursuit found the same
            return better
        old = found.finding
        for new in replay.findings:
            less = new.shrunk or new.requests < old.requests
            if not (new.confirmed and less and alike(new.bucket, old.bucket)):
                continue
            update: dict[str, object] = {"requests_before": old.requests_before}
            if new.known is None and old.known is not None:
                update |= {
                    n: getattr(old, n) for n in ("known", "known_variant", "known_why")
                }
            found.finding = new.model_copy(update=update)
            found.replay, found.folder = line.replay, f"{line.replay}/{new.id}"
            self._learn_from(found.finding, line.replay)
            better = [found]
        return better

    def _replayed(self, line: Pursued | Finished) -> Replay:
        """What came of it, and what it took."""
        fuzz = self.fuzz
        fuzz.elapsed_s = line.elapsed_s
        fuzz.pursuing_s = round(fuzz.pursuing_s + line.seconds, 2)
        replay = Replay.model_validate_json(
            (self.folder / line.replay / REPLAY_FILE).read_bytes()
        )
        fuzz.starts += len(replay.plays)
        return replay

    def _learn_from(self, finding: Finding, place: str) -> None:
        """Requests that end the server hide what comes after them: fewer of them from
        now on."""
        if finding.finding_class not in FATAL or not finding.confirmed:
            return
        left, _ = read_case(self.folder / place / finding.id)
        if finding.shrunk:
            for switch in needed_by(left):
                self.episodes.less[switch] = self.episodes.less.get(switch, 1.0) * LESS
        if finding.known is None or self.episodes.server.mitigation:
            return
        named = Named(known=finding.known, variant=finding.known_variant)
        release = self.fuzz.server.release
        if keep_away := mitigation(named, release):
            server = self.episodes.server.model_copy(update={"mitigation": keep_away})
            self.episodes.server = server
            self.fuzz.limits.append(
                f"from {place} on with the mitigation {keep_away}, which keeps a known "
                "failure away"
            )

    def _learn_from_start(self, line: Pursued, finding: Finding) -> None:
        """What the server does not start with is left out from now on."""
        left, _ = read_case(self.folder / line.replay / finding.id)
        plain = self.fuzz.server
        its = features_left(
            left.server, plain, self.ended[line.number].episode.switches
        )
        self.stuck = self.stuck or not (its or {*left.server.args} - {*plain.args})
        self._unfit_for_certain.append(frozenset(its))
        self._keep_apart()

    def _keep_apart(self) -> None:
        """What is left out from now on. Where a known failure to start comes again,
        only switches that never started are to blame, if there is one."""
        groups = {
            *self._unfit_for_certain,
            *(its - self.started or its for its in self._unfit),
        }
        groups -= {frozenset()}
        apart = [one for one in groups if not any(other < one for other in groups)]
        episodes = self.episodes
        episodes.apart = sorted(apart, key=sorted)
        episodes.untried = tuple(
            one for one in SERVERS if apart and one not in self.started
        )
        self.fuzz.limits = [one for one in self.fuzz.limits if not one.endswith(UNFIT)]
        self.fuzz.limits += [
            f"{' and '.join(sorted(one))}: {UNFIT}" for one in episodes.apart
        ]


def _without_numbers(text: str) -> str:
    return re.sub(r"\d+", "N", text)

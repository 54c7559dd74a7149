"""What a session knows: the lines of its journal, taken in one by one."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Collection, Iterable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated, Literal, TypeAlias, TypeVar

from mmrepro.base.machine import JournalHead, JournalKind, JournalLine
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
from mmrepro.runs import Deadlines
from mmrepro.search.fuzz.episodes import Episodes, features_left
from mmrepro.search.fuzz.limits import ServerLimits
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
from mmrepro.traffic.case import PlayState, read_case
from pydantic import Field, TypeAdapter


class EpisodeBegan(JournalLine):
    kind: Literal["began"] = "began"
    episode: Episode


class EpisodeEnded(JournalLine):
    """An episode, judged.

    Attributes:
        elapsed_s: of the session when it had ended.
        features: those that no episode before it showed.
        limits: as they are known from here on.
        silent: by itself it showed nothing: it was wrong beside a reference.
    """

    once_as = "Episode {0.episode.number} ended"
    kind: Literal["ended"] = "ended"
    episode: Episode
    elapsed_s: float
    seen: Observation
    features: list[str] = []
    limits: ServerLimits
    silent: bool = False
    blocks: int = 0
    answer_s: float
    suspect_s: float
    rule: str = ""

    @property
    def deadlines(self) -> Deadlines:
        return Deadlines(self.answer_s, self.suspect_s, self.rule)


class PursuitLed(JournalLine):
    """What the pursuit of an episode begins with.

    Attributes:
        straight: its requests one after another, in the order in which they were sent,
            show it as well: then it does not hang on chance.
        seen: the attempt at what is pursued.
    """

    once_as = "Episode {0.number} led"
    kind: Literal["led"] = "led"
    number: int
    straight: bool
    seen: Observation
    starts: int = 0


class Pursued(JournalLine):
    """What an episode showed has been pursued, in the folder ``replay``."""

    once_as = "Episode {0.number} was pursued"
    kind: Literal["pursued"] = "pursued"
    number: int
    replay: str
    elapsed_s: float
    seconds: float


class Finished(JournalLine):
    """A finding that was not shrunk to its end was taken up again, in the folder
    ``replay``.
    ``of``: the finding's folder."""

    once_as = "{0.of} was finished"
    kind: Literal["finished"] = "finished"
    of: str
    replay: str
    elapsed_s: float
    seconds: float


KeptLine: TypeAlias = EpisodeEnded | PursuitLed | Pursued | Finished
LineT = TypeVar("LineT", EpisodeEnded, PursuitLed, Pursued, Finished)
_AnyLine: TypeAlias = Annotated[
    JournalHead | EpisodeBegan | KeptLine, Field(discriminator="kind")
]
EPISODES = JournalKind(
    "session", EPISODES_FILE, ".fuzz.lock", FUZZ_FILE, TypeAdapter(_AnyLine)
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
    ended: dict[int, EpisodeEnded] = field(default_factory=dict)
    led: dict[int, PursuitLed] = field(default_factory=dict)
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
        """Choose the worst finding that was not shrunk to its end, and may be: its requests
        show it without a comparison, in one block.

        ``busy``: buckets that are pursued now.
        """
        left: list[Found] = []
        for found in self.fuzz.found:
            if found.finding.bucket not in busy and self._may_shrink(found):
                left.append(found)
        return min(left, key=lambda f: f.finding.finding_class.place, default=None)

    def _may_shrink(self, found: Found) -> bool:
        """Whether less may be left of a finding when it is taken up again."""
        finding = found.finding
        if not finding.confirmed or finding.shrunk or finding.requests <= 1:
            return False
        if found.folder in self._finished or found.replay.count(AGAIN) >= AGAINS:
            return False
        episode = self.ended[found.episode]
        return not episode.silent and not episode.blocks

    def handled(self, bucket: str) -> bool:
        """It was found, comes with what was found, or was tried often enough."""
        if _is_among(bucket, self._confirmed()) or _is_among(bucket, self.also):
            return True
        tries = 0
        for tried, number in self._tries.items():
            if alike(tried, bucket):
                tries += number
        return tries >= TRIES

    def _confirmed(self) -> list[str]:
        return [f.finding.bucket for f in self.fuzz.found if f.finding.confirmed]

    def take(self, line: KeptLine) -> list[Found]:
        """Take in what a line changes, whether it was written now or by an earlier call.
        Returns what it found."""
        match line:
            case EpisodeEnded():
                self._take_ended(line)
            case PursuitLed():
                self.led[line.number] = line
                self.fuzz.starts += line.starts
            case Pursued():
                return self._take_pursued(line)
            case _:
                return self._take_finished(line)

        return []

    def _take_ended(self, line: EpisodeEnded) -> None:
        fuzz, episode = self.fuzz, line.episode
        fuzz.episodes.append(episode)
        fuzz.episodes.sort(key=lambda other: other.number)
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
        for text in line.seen.unseen:
            if _without_numbers(text) not in known:
                fuzz.unseen.append(text)
        for what, number in line.seen.counted.items():
            fuzz.counted[what] = fuzz.counted.get(what, 0) + number
        self._take_start(episode)
        if episode.kind == "mixed" and worth(line.features) >= ENOUGH:
            case, _ = read_case(self.folder / EPISODES_DIR / f"{episode.number:04d}")
            self.episodes.interesting[episode.number] = case

    def _take_start(self, episode: Episode) -> None:
        """Whether a server with the episode's switches starts."""
        switches = {Switch(name) for name in episode.switches}.intersection(SERVERS)
        if episode.state != PlayState.START_FAILED:
            self.started |= switches
        else:
            confirmed = self._confirmed()
            if any(_is_among(bucket, confirmed) for bucket in episode.buckets):
                self._unfit.append(frozenset(switches))
        self._keep_apart()

    def _take_pursued(self, line: Pursued) -> list[Found]:
        ended = self.ended[line.number]
        ended.episode.pursued = line.replay
        replay = self._replayed(line)
        news = [self._take_finding(line, finding) for finding in replay.findings]
        self._take_others(line, replay)
        return news

    def _take_finding(self, line: Pursued, finding: Finding) -> Found:
        """Add a finding in place of an earlier one that is alike."""
        fuzz = self.fuzz
        bucket = finding.bucket
        fuzz.found = [f for f in fuzz.found if not alike(f.finding.bucket, bucket)]
        # What was not confirmed a few times is left alone.
        self._tries[bucket] += not finding.confirmed
        self._number += 1
        found = Found(
            id=f"F{self._number}",
            episode=line.number,
            after_s=self.ended[line.number].elapsed_s,
            replay=line.replay,
            folder=f"{line.replay}/{finding.id}",
            finding=finding,
        )
        fuzz.found.append(found)
        self._learn_from(finding, line.replay)
        is_start = finding.finding_class is FindingClass.START_FAILURE
        if finding.confirmed and is_start:
            self._learn_from_start(line, finding)
        return found

    def _take_others(self, line: Pursued, replay: Replay) -> None:
        """What the episode showed besides: the same requests show it as well, or it was
        seen once."""
        fuzz, ended = self.fuzz, self.ended[line.number]
        found = [finding.bucket for finding in replay.findings]
        shown = self.led[line.number].seen.play.buckets
        unproven = [sighting.bucket for sighting in replay.unconfirmed]
        for sighting in ended.seen.sightings:
            bucket = sighting.bucket
            if _is_among(bucket, found) or self.handled(bucket):
                continue
            pursued = _is_among(bucket, shown)
            together = pursued and bool(replay.findings) and not ended.silent
            if together and bucket not in unproven:
                self.also.append(bucket)
                continue
            self._tries[bucket] += pursued
            once = [earlier.sighting.bucket for earlier in fuzz.once]
            if not _is_among(bucket, once):
                fuzz.once.append(SeenOnce(episode=line.number, sighting=sighting))

        fuzz.once = [o for o in fuzz.once if not _is_among(o.sighting.bucket, found)]

    def _take_finished(self, line: Finished) -> list[Found]:
        """The finding, if less is left of it now."""
        better: list[Found] = []
        self._finished.add(line.of)
        replay = self._replayed(line)
        found = next((f for f in self.fuzz.found if f.folder == line.of), None)
        if found is None:  # meanwhile another episode's pursuit found the same
            return better
        old = found.finding
        for new in replay.findings:
            less = new.shrunk or new.requests < old.requests
            if not new.confirmed or not less or not alike(new.bucket, old.bucket):
                continue
            update: dict[str, object] = {"requests_before": old.requests_before}
            if new.known is None and old.known is not None:
                update["known"] = old.known
                update["known_variant"] = old.known_variant
                update["known_why"] = old.known_why
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
        # One mitigation at a time: a second might change what the first keeps away.
        if finding.known is None or self.episodes.server.mitigation:
            return
        named = Named(known=finding.known, variant=finding.known_variant)
        keep_away = mitigation(named, self.fuzz.server.release)
        if keep_away:
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
        episode = self.ended[line.number].episode
        switches = features_left(left.server, plain, episode.switches)
        if not switches and set(left.server.args) <= set(plain.args):
            self.stuck = True
        self._unfit_for_certain.append(frozenset(switches))
        self._keep_apart()

    def _keep_apart(self) -> None:
        """What is left out from now on. Where a known failure to start comes again,
        only switches that never started are to blame, if there is one."""
        groups = set(self._unfit_for_certain)
        for switches in self._unfit:
            groups.add(switches - self.started or switches)
        # A server that starts with none of its switches is another matter: see stuck.
        groups.discard(frozenset())

        apart: list[frozenset[Switch]] = []
        for group in groups:
            has_smaller = any(other < group for other in groups)
            if not has_smaller:
                apart.append(group)

        episodes = self.episodes
        episodes.apart = sorted(apart, key=sorted)
        episodes.untried = ()
        if apart:
            untried = [switch for switch in SERVERS if switch not in self.started]
            episodes.untried = tuple(untried)

        limits = [text for text in self.fuzz.limits if not text.endswith(UNFIT)]
        for group in episodes.apart:
            limits.append(f"{' and '.join(sorted(group))}: {UNFIT}")
        self.fuzz.limits = limits


def _is_among(bucket: str, others: Iterable[str]) -> bool:
    return any(alike(bucket, other) for other in others)


def _without_numbers(text: str) -> str:
    return re.sub(r"\d+", "N", text)

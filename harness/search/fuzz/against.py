"""The policy of ``fuzz --against``: the same requests go to two servers, and each
difference between their answers is a finding.

Requests go one after another, so that what a server answers follows from the request.
Findings are shrunk all at once: a round plays every smaller request of every finding on
one fresh pair of servers, which costs two starts however many there are."""

from __future__ import annotations

import functools
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from random import Random
from typing import Literal, TypeAlias, cast

from mmrepro.base.errors import InfrastructureError
from mmrepro.base.machine import JournalHead, device_of
from mmrepro.campaign import Campaign, CampaignState, Established, RunEnded, Spent
from mmrepro.engines import spec_for
from mmrepro.engines.environments import ensure
from mmrepro.engines.models import TINY
from mmrepro.failure.documents import SideRun, UpgradeSide, prepared_folder
from mmrepro.failure.documents.replay import (
    AimedChange,
    Episode,
    Fuzz,
    SideDifference,
)
from mmrepro.runs import Deadlines
from mmrepro.runs.play import PlayOptions
from mmrepro.search.fuzz.aim import (
    ReachedChange,
    aim_at,
    asked_flags,
    reached_lines,
)
from mmrepro.search.fuzz.differences import (
    LOST,
    SERVER,
    SeenDifference,
    asked_of_both,
    differences,
)
from mmrepro.search.fuzz.episodes import Episodes
from mmrepro.search.fuzz.fields import (
    crossed_requests,
    features_of,
    field_requests,
    plain_request,
    smaller,
)
from mmrepro.search.fuzz.options import FuzzCommand, FuzzProfile
from mmrepro.search.fuzz.pairs import (
    PAIRS,
    MeasuredDeadlines,
    PairEnded,
    TriedFlags,
)
from mmrepro.search.fuzz.server import new_document
from mmrepro.search.oracle.reference import comparable
from mmrepro.search.oracle.sides import side_run
from mmrepro.search.replay.attempts import CaseRun, CaseSearch
from mmrepro.search.replay.folder import SessionFolder, campaign_folder, new_head
from mmrepro.traffic.case import (
    CHAT,
    Case,
    Image,
    Operation,
    PlayState,
    ServerWanted,
    case_digest,
    write_case,
)
from pydantic import JsonValue

_DEFAULT_ROOT = "fuzz"
_PAIRS_DIR = "pairs"
_EpisodeKind: TypeAlias = Literal["fields", "crossed", "mixed"]
_SIDES: tuple[UpgradeSide, UpgradeSide] = ("old", "new")
_MIXED_EVERY = 3
"""Each third episode is one of plain fuzzing; the others have one field a request."""
_CROSSED = 2
"""Of three episodes the one that mutates requests which reached a change."""
_LAST = 24
"""Of the requests that are kept: what was reached last was the hardest to reach."""
_EPISODES_SHARE = 0.45
"""Share of the budget for episodes once a difference is known; the rest is for
shrinking and confirming."""
_SEARCH_SHARE = 0.8
"""The same while none is known: a difference that comes last is still confirmed."""
_ROUNDS = 6
_LEAST_ROUNDS = 2
"""For which time is kept, where pairs take long: a session of few requests that are
small and confirmed tells more than one of many that are neither."""
_EACH = 3
"""Requests of one kind of difference that are shrunk, those with other features
first."""
_SMALLER = 100
"""Requests of a round, at most."""


@dataclass
class _Suspect:
    """A difference that is shrunk: the request that shows it, as small as is known."""

    seen: SeenDifference
    operation: Operation
    episode: int
    shrunk: bool = False

    @property
    def ends_a_server(self) -> bool:
        return self.seen.field == SERVER

    def shown_by(self, seen: Sequence[SeenDifference], id: str) -> bool:
        """Whether the request of that identifier shows the same."""
        own = [other for other in seen if other.operation == id]
        return any(other.kind == self.seen.kind for other in own)


class Comparing(CaseSearch[Fuzz]):
    """A session in progress; ``fuzz`` is valid, if partial, at every moment."""

    kind = "comparison of two sides"
    options: FuzzCommand
    episodes_at_most = 1000

    def __init__(
        self, options: FuzzCommand, *, write: Callable[[Fuzz, Path], object]
    ) -> None:
        """``write`` writes the documents below the folder, each time that they have
        grown."""
        super().__init__(options, blind=True)
        assert options.other is not None
        self._write = write
        self.sides: dict[UpgradeSide, ServerWanted] = {
            "old": options.server,
            "new": options.other,
        }
        self.folder = campaign_folder(options, PAIRS, _DEFAULT_ROOT)
        if options.resume is None:
            self.folder = prepared_folder(self.folder)
        self.fuzz = self._blank()
        self._began = time.monotonic()
        self._spent_before = 0.0
        self._longest_s = 0.0
        self._reached: ReachedChange | None = None
        self._reaching: list[Operation] = []
        self.works = [self.run]

    def standing(self) -> str:
        count = len(self.fuzz.differences)
        return f"{len(self.fuzz.episodes)} episodes, {count} differences"

    @property
    def elapsed_s(self) -> float:
        """Of the budget, with what earlier calls spent."""
        return self._spent_before + time.monotonic() - self._began

    # ----------------------------------------------------------------- the line of work

    def run(self) -> None:
        """Episodes, then what is left of each difference, then fresh pairs."""
        try:
            self._deadlines = self._measured()
            self._reached = self._take_aim()
            suspects = self._shrunk(self._played_episodes())
            self._state(suspects)
            self._confirm()
        except Spent:
            self._limit(
                "the time budget (--budget) ended before every difference was decided"
            )

    def _measured(self) -> Deadlines:
        for line in self.files.kept(MeasuredDeadlines):
            return Deadlines(line.answer_s, line.suspect_s, line.rule)
        result = self.attempt(CaseRun("deadlines", "deadlines", self.servers))
        deadlines = result.deadlines
        assert deadlines is not None
        line = MeasuredDeadlines(
            answer_s=deadlines.answer_s,
            suspect_s=deadlines.suspect_s,
            rule=deadlines.rule,
        )
        self.files.journal.append(line)
        self._began = time.monotonic()
        return deadlines

    def _take_aim(self) -> ReachedChange | None:
        """Aim at what both sides have otherwise, where their code is not the same."""
        old, new = self.sides["old"], self.sides["new"]
        if old.release == new.release or self.options.ray:
            return None
        folders = []
        for server in (old, new):
            device = device_of(self.options.device)
            spec = spec_for(server.engine, server.release, device)
            folders.append(ensure(spec).site_packages)
        aim = aim_at(folders[0], folders[1], old.engine)
        if aim is None:
            return None
        reached = ReachedChange(aim)
        self.fuzz.aim = AimedChange(
            files=aim.files, functions=reached.functions(), unread=aim.unread
        )
        self._switch_on(asked_flags(old.engine, aim.names))
        return reached

    def _switch_on(self, flags: list[str]) -> None:
        """Give both sides the options that the changed code asks for, if they start
        with them."""
        given = {*self.sides["old"].args, *self.sides["new"].args}
        flags = [flag for flag in flags if flag not in given]
        if not flags or self.fuzz.aim is None:
            return
        before = dict(self.sides)
        for side, server in before.items():
            update = {"args": [*server.args, *flags]}
            self.sides[side] = server.model_copy(update=update)
        tried = self._tried_flags(flags)
        if tried.refusal:
            self.sides = before
            words = f"{' '.join(flags)}, with which a side does not start"
            self.fuzz.aim.unread.append(f"{words}: {tried.refusal}")
            return
        self.fuzz.aim.flags = flags

    def _tried_flags(self, flags: list[str]) -> TriedFlags:
        """Whether both sides start with the options that they have now."""
        for line in self.files.kept(TriedFlags):
            if line.flags == flags:
                self.fuzz.starts += len(_SIDES)
                return line
        plays = []
        for side in _SIDES:
            own = Case(server=self.sides[side], operations=_plain_ones())
            plays.append(functools.partial(self._play, side, "options", "options", own))
        refusals = []
        for run in self.beside(plays):
            if run.state is PlayState.START_FAILED:
                refusals.append(f"{run.side}: {run.error}")
        line = TriedFlags(flags=flags, refusal="; ".join(refusals))
        return self.files.journal.append(line)

    def _played_episodes(self) -> list[_Suspect]:
        """Play episodes for a part of the budget; what is the same for several requests
        is kept a few times."""
        suspects: list[_Suspect] = []
        kinds: dict[str, list[list[str]]] = {}
        number = 0
        while number == 0 or self._time_for_an_episode(suspects):
            if number == self.episodes_at_most:
                break
            number += 1
            kind = self._episode_kind(number)
            case = self._episode(number, kind)
            pair = self._pair(f"episode {number}", case, aimed=True)
            self._note_reached(case, pair)
            self._note_episode(number, kind, case, pair)
            # The plainest requests come first.
            for seen in pair.seen:
                operation = case.operation(seen.operation)
                # By itself a request has no answer of another to take a value from.
                if operation.sources:
                    continue
                features = features_of(operation)
                known = kinds.setdefault(seen.kind, [])
                plain = [] in known
                if plain or features in known or len(known) >= _EACH:
                    continue
                known.append(features)
                suspects.append(_Suspect(seen, operation, number))
        return suspects

    def _time_for_an_episode(self, suspects: Sequence[_Suspect]) -> bool:
        if not suspects:
            return self.elapsed_s < _SEARCH_SHARE * self.options.budget_s
        if self.elapsed_s >= _EPISODES_SHARE * self.options.budget_s:
            return False
        pairs = 1 + _LEAST_ROUNDS + self.options.repeat
        return self._time_for_pairs(pairs)

    def _note_reached(self, case: Case, pair: PairEnded) -> None:
        """Keep the requests that were the first to run a line in which the sides
        differ."""
        reached, aim = self._reached, self.fuzz.aim
        if reached is None or aim is None:
            return
        for op in case.operations:
            words = "; ".join(features_of(op)) or "a plain request"
            changed = 0
            for side in _SIDES:
                places = pair.reached.get(side, {}).get(op.id, [])
                changed += reached.take(side, places, words)
            if changed:
                self._reaching.append(op)
        aim.kept, aim.functions = len(self._reaching), reached.functions()

    def _shrunk(self, suspects: list[_Suspect]) -> list[_Suspect]:
        """Rounds of smaller requests, until none is smaller or the time is over."""
        if not self.options.shrink:
            return suspects
        together: dict[int, list[Operation]] = {}
        for number in range(1, _ROUNDS + 1):
            proposals = self._proposals(suspects, together)
            if not proposals:
                break
            operations = [operation for _, operation in proposals]
            case = self._case_of([*operations, *_plain_ones()])
            purpose = f"round {number}"
            if self._kept(purpose, case) is None and not self._time_for_more():
                self._limit("requests were shrunk as far as the time went (--budget)")
                break
            pair = self._pair(purpose, case)
            together = self._take_round(suspects, proposals, pair)
        for suspect in suspects:
            if not features_of(suspect.operation):
                suspect.shrunk = True
        return suspects

    def _time_for_more(self) -> bool:
        """Whether another pair leaves time for those that confirm."""
        return self._time_for_pairs(1 + self.options.repeat)

    def _time_for_pairs(self, count: int) -> bool:
        left_s = self.options.budget_s - self.elapsed_s
        return left_s >= count * self._longest_s

    def _proposals(
        self, suspects: Sequence[_Suspect], together: Mapping[int, list[Operation]]
    ) -> list[tuple[int, Operation]]:
        """Requests of a round, with the place of the suspect that each is smaller
        than."""
        proposals: list[tuple[int, Operation]] = []
        for place, suspect in enumerate(suspects):
            if suspect.shrunk:
                continue
            for candidate in [*together.get(place, []), *smaller(suspect.operation)]:
                id = f"s{place + 1}-{len(proposals) + 1}"
                update = {"id": id, "after": [], "leave": ""}
                proposals.append((place, candidate.model_copy(update=update)))
        # After a request that ends a server nothing more is answered.
        proposals.sort(key=lambda proposal: suspects[proposal[0]].ends_a_server)
        return proposals[:_SMALLER]

    def _take_round(
        self,
        suspects: Sequence[_Suspect],
        proposals: Sequence[tuple[int, Operation]],
        pair: PairEnded,
    ) -> dict[int, list[Operation]]:
        """Take the smallest request that shows each difference. One that nothing smaller
        shows is shrunk. Of several that show it, all that they leave out is tried
        together in the next round."""
        together: dict[int, list[Operation]] = {}
        for place, suspect in enumerate(suspects):
            own = [operation for at, operation in proposals if at == place]
            if not own:
                continue
            good = [op for op in own if suspect.shown_by(pair.seen, op.id)]
            if not good:
                # What a dead server was not asked says nothing.
                asked = [op for op in own if op.id in pair.asked]
                suspect.shrunk = len(asked) == len(own)
                continue
            before = suspect.operation
            suspect.operation = min(good, key=lambda op: len(features_of(op)))
            if len(good) > 1:
                together[place] = [_without_all(before, good)]
        return together

    def _state(self, suspects: Sequence[_Suspect]) -> None:
        """One finding for each kind of difference and set of features."""
        known: set[tuple[str, str]] = set()
        for suspect in suspects:
            features = features_of(suspect.operation)
            bucket = suspect.seen.kind, "; ".join(features)
            if bucket in known:
                continue
            known.add(bucket)
            op = suspect.operation
            difference = SideDifference(
                id=f"d{len(self.fuzz.differences) + 1}",
                field=suspect.seen.field,
                what=suspect.seen.what,
                features=features,
                statement=suspect.seen.statement,
                request=_request_of(op),
                episode=suspect.episode,
                shrunk=suspect.shrunk,
            )
            self.fuzz.differences.append(difference)
            self._operations[difference.id] = op
            self.campaign.emit(
                Established(text=f"{difference.id}: {difference.statement}")
            )
        self.files.write()

    def _confirm(self) -> None:
        """Ask what is left of each finding once more, on fresh pairs."""
        if not self.fuzz.differences:
            return
        operations: dict[str, Operation] = {}
        last: list[str] = []
        for difference in self.fuzz.differences:
            op = self._operations[difference.id]
            update = {"id": difference.id, "after": [], "leave": ""}
            operations[difference.id] = op.model_copy(update=update)
            if difference.field == SERVER:
                last.append(difference.id)
        others = [op for id, op in operations.items() if id not in last]
        for index in range(1, self.options.repeat + 1):
            # Of those that end a server each pair can show the first one only.
            turn = index % len(last) if last else 0
            ending = [operations[id] for id in (*last[turn:], *last[:turn])]
            case = self._case_of([*others, *ending, *_plain_ones()])
            pair = self._pair(f"confirmation {index}", case)
            for difference in self.fuzz.differences:
                suspect = self._kinds_of(difference)
                shown = any(
                    seen.operation == difference.id and seen.kind == suspect
                    for seen in pair.seen
                )
                if shown or difference.id in pair.asked:
                    difference.pairs += 1
                    difference.shown += shown
            self.files.write()

    @staticmethod
    def _kinds_of(difference: SideDifference) -> str:
        return SeenDifference.kind_of(difference.field, difference.what)

    # ------------------------------------------------------------------ one pair

    def _pair(self, purpose: str, case: Case, *, aimed: bool = False) -> PairEnded:
        """What a fresh server of each side answers to a case, one request after
        another.

        Args:
            aimed: the servers write which lines the requests reach. What is shrunk and
                confirmed is asked of servers that do nothing else.

        Raises:
            Spent: there is no time for it.
        """
        kept = self._kept(purpose, case)
        if kept is not None:
            self.fuzz.starts += len(_SIDES)
            self._spent_before = max(self._spent_before, kept.elapsed_s)
            self._longest_s = max(self._longest_s, kept.seconds)
            return kept
        digest = case_digest(case)
        if self.elapsed_s >= self.options.budget_s:
            raise Spent
        began = time.monotonic()
        place = f"{purpose.replace(' ', '-')}-{digest[:8]}"
        plays = []
        for side in _SIDES:
            server = self.sides[side]
            if aimed and self._reached is not None:
                server = self._reached.watching(side, server)
            own = case.model_copy(update={"server": server})
            plays.append(functools.partial(self._play, side, purpose, place, own))
        old, new = self.beside(plays)
        for run in (old, new):
            if run.state is PlayState.START_FAILED:
                label = self.sides[run.side].label
                raise InfrastructureError(f"{label}, {run.side}: {run.error}")
        line = PairEnded(
            purpose=purpose,
            case=digest,
            seen=differences(case, old, new),
            asked=asked_of_both(case, old, new),
            reached=self._reached_by(case, (old, new)) if aimed else {},
            limits=[run.error for run in (old, new) if run.error],
            seconds=round(time.monotonic() - began, 2),
            elapsed_s=round(self.elapsed_s, 2),
        )
        self.campaign.emit(
            RunEnded(
                what=purpose,
                index=1,
                outcome=f"{len(line.seen)} differences",
                tone="bad" if line.seen else "soft",
                seconds=line.seconds,
            )
        )
        self._longest_s = max(self._longest_s, line.seconds)
        return self.files.journal.append(line)

    def _kept(self, purpose: str, case: Case) -> PairEnded | None:
        """What an earlier call has of that pair; None: nothing."""
        digest = case_digest(case)
        for line in self.files.kept(PairEnded):
            # With more time a session shrinks further, and confirms another case.
            if line.purpose == purpose and line.case in ("", digest):
                return line
        return None

    def _play(self, side: UpgradeSide, purpose: str, place: str, case: Case) -> SideRun:
        order = CaseRun(
            f"{side} {purpose}",
            f"{side}, {purpose}, {self.sides[side].label}",
            self.servers,
            f"{_PAIRS_DIR}/{place}/{side}",
            case=case,
            contents=self.folder,
            options=PlayOptions(
                self._deadlines, time="order", look="none", early=False, bodies=True
            ),
        )
        self.fuzz.starts += 1
        result = self.attempt(order)
        assert result.played is not None
        return side_run(
            side, 1, result.played, seconds=result.seconds, folder=result.place
        )

    def _reached_by(
        self, case: Case, runs: Sequence[SideRun]
    ) -> dict[UpgradeSide, dict[str, list[str]]]:
        """The lines that requests of a pair were the first to run, on each side."""
        first: dict[UpgradeSide, dict[str, list[str]]] = {}
        for run in runs:
            if self._reached is None or run.played is None:
                continue
            log = self.folder / run.folder / run.played.log_file
            reached = reached_lines(log, case, run.played)
            first[run.side] = self._reached.without_known(run.side, reached)
        return first

    # ------------------------------------------------------------------ cases

    def _episode_kind(self, number: int) -> _EpisodeKind:
        if number % _MIXED_EVERY == 0:
            return "mixed"
        if number % _MIXED_EVERY == _CROSSED and self._reaching:
            return "crossed"
        return "fields"

    def _episode(self, number: int, kind: _EpisodeKind) -> Case:
        random = Random(f"{self.options.seed}/{kind}/{number}")  # noqa: S311
        if kind == "fields":
            return self._case_of([*field_requests(random), *_plain_ones()])
        if kind == "crossed":
            crossed = crossed_requests(self._reaching[-_LAST:], random)
            return self._case_of([*crossed, *_plain_ones()])
        planned = self._episodes.next(number)
        case = comparable(planned.case)
        write_case(case, self.folder, {})
        self._images.update(case.images)
        staying = case.keeping([op.id for op in case.operations if not op.leave])
        return self._case_of([*staying.operations, *_plain_ones()])

    def _case_of(self, operations: Sequence[Operation]) -> Case:
        """The case of these requests, with the pictures of all episodes so far."""
        case = Case(
            server=self.sides["old"], operations=list(operations), images=self._images
        )
        # Only the pictures that one of them has.
        return case.keeping([op.id for op in operations])

    @functools.cached_property
    def _episodes(self) -> Episodes:
        options = self.options
        tiny = TINY.get(options.server.model)
        sees = tiny is None or bool(tiny.image_tokens)
        return Episodes(
            options.seed,
            options.server,
            pictures=sees and options.profile is not FuzzProfile.TEXT,
        )

    @functools.cached_property
    def _images(self) -> dict[str, Image]:
        """Pictures of the episodes, by their names, which no two episodes share."""
        return {}

    @functools.cached_property
    def _operations(self) -> dict[str, Operation]:
        """What is asked for each finding."""
        return {}

    # ------------------------------------------------------------------ the document

    def _note_episode(
        self, number: int, kind: _EpisodeKind, case: Case, pair: PairEnded
    ) -> None:
        episode = Episode(
            number=number,
            kind=kind,
            requests=len(case.operations),
            state="ended" if not pair.limits else "died",
            seconds=pair.seconds,
        )
        self.fuzz.episodes.append(episode)
        self.fuzz.elapsed_s = round(self.elapsed_s, 2)
        for limit in pair.limits:
            self._limit(f"episode {number}: {limit}")
        self.files.write()

    def _limit(self, text: str) -> None:
        if text not in self.fuzz.limits:
            self.fuzz.limits.append(text)

    def _blank(self) -> Fuzz:
        fuzz = new_document(self.options, self.kind, self.resume_command)
        fuzz.blind = True
        return fuzz

    # ------------------------------------------------------------ asked by the campaign

    def begin(self, campaign: Campaign[Fuzz]) -> None:
        super().begin(campaign)
        head = new_head(JournalHead, self.options.decides)
        self.files = SessionFolder(PAIRS, self.folder, head, self.fuzz, self._write)

    def closing(self, state: CampaignState) -> None:
        self.fuzz.elapsed_s = round(self.elapsed_s, 2)


def _plain_ones() -> list[Operation]:
    """Requests that a sound server answers: behind one that ends a server they show
    that it did."""
    return [plain_request(f"plain-{number}", CHAT) for number in range(1, LOST + 1)]


def _without_all(before: Operation, good: Sequence[Operation]) -> Operation:
    """The request without all that each of ``good`` leaves out."""
    parameters = dict(before.parameters)
    update: dict[str, object] = {}
    for op in good:
        for name, value in before.parameters.items():
            if name not in op.parameters:
                parameters.pop(name, None)
            elif op.parameters[name] != value:
                parameters[name] = op.parameters[name]
        for part in ("stream", "messages", "prompt"):
            if getattr(op, part) != getattr(before, part):
                update[part] = getattr(op, part)
    return before.model_copy(update={**update, "parameters": parameters})


def _request_of(op: Operation) -> dict[str, JsonValue]:
    """Method, path and body, as people read them."""
    body: dict[str, JsonValue] = {}
    if op.messages is not None:
        body["messages"] = [
            message.model_dump(exclude_defaults=True) for message in op.messages
        ]
    if op.prompt is not None:
        body["prompt"] = cast(JsonValue, op.prompt)
    body |= op.parameters
    if op.stream:
        body["stream"] = True
    return {"method": op.method, "path": op.path, "body": body}

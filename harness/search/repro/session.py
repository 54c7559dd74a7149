"""From a bug report to a verdict: a replay of what the report's client sends to its
server."""

from __future__ import annotations

import contextlib
import json
import shutil
import tempfile
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any, Final, Literal

from mmrepro.base.errors import UsageError
from mmrepro.base.machine import is_file, read_file, write_file
from mmrepro.base.records import FindingClass
from mmrepro.base.text import one_line
from mmrepro.campaign import Campaign, CampaignState, Note, Spent
from mmrepro.engines.features import shown_by
from mmrepro.engines.models import ScriptedAnswer, Scripts
from mmrepro.failure.documents.replay import (
    REPLAY_FILE,
    ClientEnd,
    Finding,
    OnRelease,
    Replaced,
    Replay,
    ReportFacts,
    ReproVerdict,
)
from mmrepro.runs import Deadlines, derive_deadlines
from mmrepro.runs.play import RECORDED
from mmrepro.search.oracle.judged import alike
from mmrepro.search.oracle.scripted import chosen_by
from mmrepro.search.replay.attempts import CaseResult, CaseRun, StartingPoint
from mmrepro.search.replay.confirm import GIVE_UP
from mmrepro.search.replay.pursue import LOUD
from mmrepro.search.replay.rounds import Rounds
from mmrepro.search.replay.session import Replaying
from mmrepro.search.replay.store import AttemptWanted, Observation, WriteReplay
from mmrepro.search.repro.claim import ASSERTED, BY_EACH
from mmrepro.search.repro.client_end import client_end
from mmrepro.search.repro.options import ReproCommand
from mmrepro.search.repro.report import asked_for, is_judged, saying
from mmrepro.search.repro.server_command import parse
from mmrepro.search.repro.speech import SpokenVariant, likeliest_first
from mmrepro.search.repro.verdict import (
    concluded,
    longer_context,
    matches,
    refusal_reported,
    too_long,
)
from mmrepro.traffic import noise
from mmrepro.traffic.capture import (
    ClientRun,
    ClientWanted,
    client_files,
    pictures_in,
    read_capture,
    with_plain_addresses,
)
from mmrepro.traffic.capture.messages import UNSEEN_SIZE, Captured
from mmrepro.traffic.case import (
    Case,
    Expect,
    Operation,
    beside_whole,
    check_expectations,
    read_case,
    write_case,
)

_MOST_AT_ONCE = 64
"""Requests of a report's file that are sent beside each other."""
_MOST_PICTURES = 100
"""That replace those which a client names and a report does not bring."""
_MOST_BESIDE = 30
"""Streams beside which the whole answer is asked for."""
_SLOW_ANSWER_S = 1.0
_MOST_IN_A_ROW, _IN_A_ROW_S, _MANY = 10, 20.0, 30
"""Times that requests without a failure are sent again; seconds of that; requests at
most."""
_EARLIER, _MAX_REPLAY = 200, 16 << 20
"""Replays among which the same failure is looked for, the newest; bytes of one."""
_CLIENT_DIR: Final = "client"
_RUN_FILE: Final = "client.json"
_CALLS_FILE: Final = "calls.jsonl"
_ENGINE_STARTS_S = 240.0
"""For the start of an engine in a script's own process, besides its time limit."""
_NOT_SERVED: Final = frozenset({"401", "403", "404", "405"})
"""Statuses of a server that does not have what was asked for."""


class Reproducing(Replaying):
    """A bug report in progress."""

    kind = "replay"
    options: ReproCommand

    def __init__(self, options: ReproCommand, *, write: WriteReplay) -> None:
        """``write`` as of a replay. Raises UsageError: what the report lacks."""
        self.asked = asked_for(options)
        self._held = contextlib.ExitStack()
        self._client_ran = False
        self._wanted: ClientWanted | None = None
        self._spare: Path | None = None
        super().__init__(replace(options, server=self.asked.server), write=write)

    @property
    def facts(self) -> ReportFacts:
        assert self.replay.report is not None
        return self.replay.report

    # ------------------------------------------------------------ asked by the campaign

    def begin(self, campaign: Campaign[Replay]) -> None:
        recorded, is_scripted = self.case, bool(self.asked.client.words)
        if is_scripted:
            # What is journaled is the same before and after the client has run.
            self.case = recorded.keeping([])
        else:
            self.case = self._beside_whole(recorded)
        super().begin(campaign)

        self.replay.report = self.asked.facts
        replaced = [item.words for item in self.asked.facts.replaced]
        self.replay.limits += replaced
        if is_scripted and recorded.operations:
            self._take_in(recorded, _read_run(self.folder))
        for line in [*replaced, *self.facts.notes]:
            campaign.emit(Note(text=line))

    def run(self) -> None:
        """All of it, to the verdict."""
        needs = self._needs_hardware()
        if needs:
            self._conclude(ReproVerdict.NEEDS_HARDWARE, needs)
            return

        deadlines = self._deadlines()
        rounds = Rounds(self, self.files, self._start(deadlines))
        # A client that ran and sent nothing leaves nothing to play.
        if self.files.case.operations or not self._client_ran:
            rounds.run()
            self._with_room(rounds)
            self._answered_otherwise(rounds)
            self._checked_again()
            self._in_a_row(rounds)
            self._held_to_an_answer(rounds)
        self._on_fixed(rounds)
        for finding in self.replay.findings:
            finding.same_as = _earlier(finding, self.folder)
        self._conclude(*concluded(self.replay))

    def end(self, state: CampaignState, failure: str) -> Replay:
        self._held.close()
        return super().end(state, failure)

    # ------------------------------------------------------------------ how it begins

    def _needs_hardware(self) -> str:
        """Why nothing that is run on a CPU could confirm or refute the report; "":
        something could."""
        hardware, server = self.facts.claim.hardware, self.asked.server
        if not hardware or ASSERTED.search(hardware):
            return ""
        # Code of a feature that a CPU can have as well, such as another model runner.
        if shown_by(server.engine, server.release, hardware):
            return ""
        return f"not testable here: the report has {hardware!r}, which needs a GPU"

    def _deadlines(self) -> Deadlines:
        """Those that the client's own server showed; of a case a usual one's."""
        # One start less than measuring them: a hang is noticed some seconds later.
        usual = derive_deadlines([_SLOW_ANSWER_S])
        if self.asked.client.words and not self.files.case.operations:
            return self._record_client() or usual
        return usual

    def _start(self, deadlines: Deadlines) -> StartingPoint:
        """Where the rounds begin: what the report claims is looked for first."""
        classes = self.facts.claim.classes
        silent = [kind for kind in classes if kind not in BY_EACH]
        has_failed = _failed_before(self.replay, self.files.case)
        return StartingPoint(
            brief=True,
            loud=not silent,
            deadlines=deadlines,
            starts=FindingClass.START_FAILURE in classes,
            classes=tuple(classes),
            quiet=GIVE_UP if has_failed else 1,
        )

    def _conclude(self, verdict: ReproVerdict, why: str) -> None:
        self.facts.verdict, self.facts.said = verdict, why
        self.files.write()

    # ------------------------------------------------------------------ its client

    def _expecting(self, case: Case) -> Case:
        """What is expected of a client's requests is put to them when they are
        known."""
        if self.asked.client.words and not case.operations:
            check_expectations(self.options.expect)
            return case
        return super()._expecting(case)

    def _captured(self) -> Captured:
        client, options = self.asked.client, self.options
        if client.words or not client.shown:
            return Captured(Case(server=options.server), {})
        # As many as the engine itself takes of such a file; of others as they say.
        at_once = min(client.at_once, _MOST_AT_ONCE) if client.at_once > 1 else None
        file = client.file or self._held.enter_context(
            client_files(None, client.text, client.name)
        )
        return read_capture(
            file / client.name,
            options.server,
            host=options.host,
            concurrency=options.concurrency or at_once,
        )

    def _record_client(self) -> Deadlines | None:
        """Run the client on a server of its own, and make a case of what it sent.

        Returns what that server showed of deadlines."""
        folder, words, changed = self._client_folder()
        self._wanted = ClientWanted(
            self.asked.client.words,
            folder,
            script=words,
            image=self.options.container,
            ports=_ports(self.facts.server),
            limit_s=self.options.client_timeout,
            offline=self.asked.client.offline,
        )
        if self._wanted.offline:
            longer = self.options.client_timeout + _ENGINE_STARTS_S
            self._wanted = replace(self._wanted, limit_s=longer)
        self._spare = self._copied(folder)
        result = self._run_client(_CLIENT_DIR)

        run = result.client or ClientRun()
        case, contents = self._recording(run)
        write_case(case, self.folder, contents)
        (self.folder / _CLIENT_DIR).mkdir(exist_ok=True)
        write_file(self.folder / _CLIENT_DIR / _RUN_FILE, run.model_dump_json())
        self._take_in(case, run)
        for line in [*changed, *_client_lines(run, case)]:
            self.campaign.emit(Note(text=line))
        return result.deadlines

    def _run_client(self, name: str) -> CaseResult:
        """Run the client on a fresh server, with what is recorded in the folder
        ``name``."""
        assert self._wanted is not None
        what = f"the client ({self.asked.client.shown}; untrusted, sandboxed)"
        order = CaseRun(name, what, self.servers, name, client=self._wanted)
        return self.attempt(order)

    def _checked_again(self) -> None:
        """Run a client again whose own check failed, as often as confirms it; not where
        what its requests show is known by now."""
        end, replay = self.facts.end, self.replay
        if end is None or end.refused or replay.untestable:
            return
        if not (end.is_check or end.in_engine):
            return
        if any(matches(finding, self.facts.claim) for finding in replay.findings):
            return
        for number in range(end.runs, self.options.repeat):
            if self._wanted is None or self._spare is None:
                return  # an earlier call ran it
            self._wanted = replace(self._wanted, folder=self._spare)
            self._spare = self._copied(self._spare)
            run = self._run_client(f"{_CLIENT_DIR}-{number + 1}").client or ClientRun()
            if not run.ran:
                continue
            again = self._ended(run)
            end.runs += 1
            if _alike_ends(again, end):
                end.failed += 1
        what = f"The client's own check in line {end.line} failed"
        if end.in_engine:
            what = f"The script's engine ended it with {end.exception or 'a signal'}"
        line = f"{what} in {end.failed} of {end.runs} runs."
        self.facts.notes.append(line)
        self.campaign.emit(Note(text=line))

    def _copied(self, folder: Path) -> Path:
        """A copy of a client's folder, for one more run: each run's is removed."""
        place = tempfile.TemporaryDirectory(
            prefix="mmrepro-client-", ignore_cleanup_errors=True
        )
        copy = Path(self._held.enter_context(place)).resolve() / "work"
        shutil.copytree(folder, copy)
        return copy

    def _ended(self, run: ClientRun) -> ClientEnd:
        client = self.asked.client
        return client_end(run, client.name, client.text, offline=client.offline)

    def _client_folder(self) -> tuple[Path, str, list[str]]:
        """The folder in which the client is run, with its files and what replaces its
        pictures; all that the client says; and what was changed, in sentences."""
        client = self.asked.client
        text, changed = with_plain_addresses(client.text)
        self.facts.notes += changed
        files = {
            name: with_plain_addresses(content)[0]
            for name, content in client.files.items()
        }
        named = pictures_in(client.texts)
        missing = [path for path in named if _is_missing(path, client.script)]
        missing = missing[:_MOST_PICTURES]
        for path in missing:
            # A whole path lies outside the client's folder, where nothing can be written.
            if Path(path).is_absolute():
                text = text.replace(path, Path(path).name)
                for name in files:
                    files[name] = files[name].replace(path, Path(path).name)

        folder = self._held.enter_context(
            client_files(client.script, text, client.name)
        )
        for name, content in files.items():
            (folder / name).write_text(content, encoding="utf-8")
        replaced = [self._noise_for(path, folder) for path in missing]
        words = with_plain_addresses(client.texts)[0]
        return folder, words, [*changed, *replaced]

    def _noise_for(self, path: str, folder: Path) -> str:
        """Put noise where the client looks for a picture that is not here; in a
        sentence."""
        name = Path(path).name if Path(path).is_absolute() else path
        picture = folder / name
        picture.parent.mkdir(parents=True, exist_ok=True)
        write_file(picture, noise(picture.name, 1, UNSEEN_SIZE).png)
        width, height = UNSEEN_SIZE
        replaced = Replaced(
            what=path,
            by=f"noise of {width} x {height}",
            why="the picture is not here",
        )
        self.facts.replaced.append(replaced)
        self.replay.limits.append(replaced.words)
        return replaced.words

    def _recording(self, run: ClientRun) -> tuple[Case, Any]:
        """The case of what the client sent, and its pictures; without requests where there
        are none, or they cannot be read."""
        nothing = Case(server=self.options.server)
        if run.calls:
            (self.folder / _CLIENT_DIR).mkdir(exist_ok=True)
            calls = self.folder / _CLIENT_DIR / _CALLS_FILE
            calls.write_text(run.calls, encoding="utf-8")
            captured = read_capture(calls, self.options.server)
            case = captured.case.model_copy(update={"server": self.options.server})
            return self._expecting(case), captured.contents
        file = self.folder / _CLIENT_DIR / RECORDED
        if not is_file(file) or not json.loads(file.read_bytes())["log"]["entries"]:
            return nothing, {}
        try:
            captured = read_capture(file, self.options.server)
        except UsageError as error:
            run.notes.append(error.message)
            return nothing, {}

        case = captured.case.model_copy(update={"server": self.options.server})
        return self._expecting(case), captured.contents

    def _take_in(self, case: Case, run: ClientRun) -> None:
        """What the client sent is the case."""
        for way in self._ways[:1]:
            if way.scripts != self.options.server.scripts:
                self.facts.notes.append(f"When it is replayed, its model {way.what}.")
            server = saying(case.server, way.scripts)
            case = case.model_copy(update={"server": server})
        self.files.case = case
        replay, facts = self.replay, self.facts
        replay.origin = case.origin
        replay.requests, replay.images = len(case.operations), len(case.images)
        self._client_ran = run.ran
        facts.isolation, facts.output, facts.died = run.isolation, run.output, run.died
        facts.notes += run.notes
        facts.end = self._end_of(run, case) if run.ran else None
        self.files.case = self._beside_whole(case)
        if run.ended:
            line = f"mmrepro ended the client early: {run.ended}."
            facts.notes.append(line)
            self.campaign.emit(Note(text=line))

    def _beside_whole(self, case: Case) -> Case:
        """The case with the whole answer beside each stream, where the report is about a
        stream and the model says a script: it says the same twice."""
        ways = self._ways[:1]
        if not (self.asked.streams and ways) or self.asked.client.offline:
            return case
        # Where no rule knows what a parser makes of it, the two are all there is.
        beside = beside_whole(case, alike=not is_judged(ways[0]))
        added = len(beside.operations) - len(case.operations)
        if not 0 < added <= _MOST_BESIDE:
            return case
        note = "Each stream is asked for as a whole answer as well."
        self.asked.facts.notes.append(note)
        return beside

    def _end_of(self, run: ClientRun, case: Case) -> ClientEnd:
        """How the client's first run ended."""
        end = self._ended(run)
        statuses = [
            op.recorded.status if op.recorded else None for op in case.operations
        ]
        end.asked = len(statuses)
        end.refused = sum(1 for status in statuses if status and status >= 300)
        for op, status in zip(case.operations, statuses, strict=True):
            if status and status >= 500 and not end.saw:
                end.saw = f"{op.id} got {status}"
        if end.is_check or end.in_engine:
            end.runs = end.failed = 1
        return end

    # ------------------------------------------------------------- what else is said

    @property
    def _ways(self) -> list[SpokenVariant]:
        """How the model answers when the requests are replayed. The client gets the
        plainest answers: it may read them."""
        return likeliest_first(self.asked.variants, self.asked.facts.claim.about)

    def _with_room(self, rounds: Rounds) -> None:
        """A request was refused because the tiny model's context is too short for it:
        play the case in a longer one, which is the case from then on."""
        replay, case = self.replay, self.files.case
        if replay.findings or replay.unconfirmed or replay.untestable:
            return
        refused = too_long(replay)
        if refused is None or "max_model_len" in self.options.asked:
            return
        longer = longer_context(refused.words)
        if longer <= case.server.max_model_len:
            return
        server = case.server.model_copy(update={"max_model_len": longer})
        self.files.case = case.model_copy(update={"server": server})
        # What was refused is not what the requests test.
        replay.answers = []
        try:
            rounds.once_more(self.files.case, f"in a context of {longer} tokens")
        except Spent:
            return
        line = f"The context was too short for {refused.operation}: it has {longer} tokens."
        self.facts.notes.append(line)
        self.campaign.emit(Note(text=line))

    def _answered_otherwise(self, rounds: Rounds) -> None:
        """Nothing showed with what the model said first: let it answer otherwise."""
        replay, case = self.replay, self.files.case
        played = [_said_to(case, case.server.scripts)]
        for variant in self._ways:
            said = _said_to(case, variant.scripts)
            if variant.scripts == case.server.scripts or (said and said in played):
                continue  # no request gets another answer than before
            played.append(said)
            shown = [f for f in replay.findings if matches(f, self.facts.claim)]
            if shown or replay.unconfirmed or replay.untestable:
                return
            if replay.nothing_tested or not replay.answers:
                return
            server = saying(case.server, variant.scripts)
            what = f"its model {variant.what}"
            try:
                rounds.once_more(case.model_copy(update={"server": server}), what)
            except Spent:
                return
            if not (replay.findings or replay.unconfirmed):
                line = f"Where {what}: nothing as well."
                self.facts.notes.append(line)
                self.campaign.emit(Note(text=line))

    # -------------------------------------------------------------- what comes and goes

    def _in_a_row(self, rounds: Rounds) -> None:
        """Nothing of a loud failure showed, and requests were answered: send them again
        and again on one server. A race between two threads shows in a part of the
        tries."""
        times = self._times_in_a_row()
        if times < 2:
            return
        case = in_a_row(self.files.case, times)
        try:
            rounds.once_more(case, f"its requests {times} times in a row")
        except Spent:
            return

        if not (self.replay.findings or self.replay.unconfirmed):
            line = f"Sent {times} times in a row on one server: nothing as well."
            self.facts.notes.append(line)
            self.campaign.emit(Note(text=line))

    def _held_to_an_answer(self, rounds: Rounds) -> None:
        """A refusal that the report complains of is an answer, and no finding. Where
        commits or releases are to be told apart by it, its request is held to 2xx."""
        if not (self.options.bisect or self.facts.asked):
            return
        refused = refusal_reported(self.replay)
        if refused is None or any(
            finding.confirmed for finding in self.replay.findings
        ):
            return
        operations: list[Operation] = []
        for op in self.files.case.operations:
            if op.id == refused.operation:
                expect = (op.expect or Expect()).model_copy(update={"status": "2xx"})
                op = op.model_copy(update={"expect": expect})
            operations.append(op)
        self.files.case = self.files.case.model_copy(update={"operations": operations})
        with contextlib.suppress(Spent):
            rounds.once_more(
                self.files.case, f"an answer to {refused.operation} is wanted"
            )

    def _times_in_a_row(self) -> int:
        """How often the requests are sent again: as long as that takes some seconds."""
        replay, classes = self.replay, self.facts.claim.classes
        if replay.findings or replay.unconfirmed or replay.untestable:
            return 0
        end = self.facts.end
        if end is not None and (end.is_check or end.in_engine):
            return 0  # its client's end says more
        if classes and (LOUD - {FindingClass.START_FAILURE}).isdisjoint(classes):
            return 0
        took = [
            answer.seconds or 0.0 for answer in replay.answers if not answer.refused
        ]
        if not took or len(self.files.case.operations) > _MANY:
            return 0
        return int(min(_MOST_IN_A_ROW, _IN_A_ROW_S / max(0.1, sum(took))))

    # ------------------------------------------------------------------ another release

    def _on_fixed(self, rounds: Rounds) -> None:
        """Replay a confirmed finding on the release that is to have the fix: one that the
        report is about, if there is one."""
        release, replay = self.facts.asked, self.replay
        confirmed = [finding for finding in replay.findings if finding.confirmed]
        if not release or not confirmed:
            return
        if release == self.options.server.release:
            replay.limits.append(f"--fixed {release}: it is the release that was run")
            return
        claimed = [f for f in confirmed if matches(f, self.facts.claim)]
        finding = (claimed or confirmed)[0]
        try:
            seen = self._played_on(release, finding, rounds)
        except Spent:
            replay.limits.append(
                f"{finding.id} was not replayed on {release}: --budget"
            )
        else:
            state, words = _state_on_release(finding, seen)
            on_release = OnRelease(
                release=release, finding=finding.id, state=state, said=words
            )
            self.facts.fixed.append(on_release)

        rounds.plays.grew(finding)

    def _played_on(self, release: str, finding: Finding, rounds: Rounds) -> Observation:
        """The case that is left, played on another release. Raises Spent."""
        case, _ = read_case(self.folder / finding.case_file)
        server = case.server.model_copy(update={"release": release})
        other = case.model_copy(update={"server": server})
        what = f"{finding.id}: on {release}"
        return rounds.plays.play(AttemptWanted(other, "confirm", 1, what))


def _state_on_release(
    finding: Finding, seen: Observation
) -> tuple[Literal["still", "not-tested", "other", "fixed"], str]:
    """What a finding has become on another release, and the words for it."""
    if seen.has(finding.bucket):
        return "still", seen.sightings[0].said
    kinds = [sighting.finding_class for sighting in seen.sightings]
    if FindingClass.START_FAILURE in kinds and finding.finding_class not in kinds:
        return "not-tested", seen.sightings[0].said
    for sighting in seen.sightings:
        if sighting.finding_class in LOUD:
            return "other", sighting.said

    lines = [f"{op}: {words}" for op, words in seen.observed.items()]
    observed = "; ".join(lines[:3])
    if seen.answers and _NOT_SERVED.issuperset(seen.answers.values()):
        return "not-tested", observed
    return "fixed", observed


def _said_to(case: Case, scripts: Scripts | None) -> list[ScriptedAnswer]:
    """What a model with these scripts says to each request; []: that is not known."""
    answers: list[ScriptedAnswer] = []
    for op in case.operations:
        if scripts is None or (op.messages is None and op.prompt is None):
            continue
        answer = scripts.chosen(chosen_by(op))
        if answer is None:
            return []
        answers.append(answer)
    return answers


def _client_lines(run: ClientRun, case: Case) -> list[str]:
    """What is to be said of a client that ran."""
    lines = [f"The client ran {run.isolation}."] if run.isolation else []
    lines += filter(None, run.notes)
    printed = run.output.strip().rpartition("\n")[2]
    if printed and not case.operations:
        lines.append(f"The last line of the client: {one_line(printed, 160)}")
    return lines


def _alike_ends(one: ClientEnd, other: ClientEnd) -> bool:
    """Whether two runs of a client ended alike."""
    if one.in_engine and other.in_engine:
        return one.exception == other.exception
    return one.is_check and other.is_check and one.line == other.line


def _is_missing(path: str, script: Path | None) -> bool:
    """Whether a file that a client names is not beside it, and would be in its
    folder."""
    beside_it = script.parent if script is not None else Path("/nowhere")
    if is_file((beside_it / path).resolve()):
        return False
    return Path(path).is_absolute() or ".." not in Path(path).parts


def in_a_row(case: Case, times: int) -> Case:
    """Repeat a case ``times`` times, each when all requests before it have ended."""
    operations = list(case.operations)
    before = operations
    for number in range(2, times + 1):
        names = {op.id: f"{op.id[:50]}-{number}" for op in case.operations}
        ended = [f"{op.id}.end" for op in before]
        before = []
        for op in case.operations:
            renamed = _renamed_operation(op, names)
            if not op.after:
                renamed = renamed.model_copy(update={"after": ended})
            before.append(renamed)
        operations += before

    return case.model_copy(update={"operations": operations})


def _renamed_operation(op: Operation, names: Mapping[str, str]) -> Operation:
    """An operation under its new name, at no time of its own."""
    expect = op.expect
    if expect:
        others = [names[other] for other in expect.others]
        expect = expect.model_copy(update={"others": others})
    update = {
        "id": names[op.id],
        "after": [_renamed(text, names) for text in op.after],
        "values": {name: _renamed(of, names) for name, of in op.values.items()},
        "expect": expect,
        "at_s": None,
    }
    return op.model_copy(update=update)


def _renamed(text: str, names: Mapping[str, str]) -> str:
    """A barrier, or a place in an answer: it begins with an operation."""
    op, dot, rest = text.partition(".")
    return f"{names.get(op, op)}{dot}{rest}"


def _failed_before(replay: Replay, case: Case) -> bool:
    """Whether the client saw a failure when it was recorded: it may come and go."""
    if replay.report is not None and replay.report.died:
        return True
    for op in case.operations:
        status = op.recorded.status if op.recorded is not None else None
        if status is not None and status >= 500:
            return True
    return False


def _earlier(finding: Finding, folder: Path) -> str:
    """The folder of an earlier finding with the same bucket, among the replays beside
    ``folder``; "": there is none, or it has a name."""
    if finding.known is not None:
        return ""
    files = [f for f in folder.parent.glob(f"*/{REPLAY_FILE}") if f.parent != folder]
    files.sort(key=lambda file: file.stat().st_mtime, reverse=True)
    for file in files[:_EARLIER]:
        try:
            others = json.loads(read_file(file, _MAX_REPLAY))["findings"]
            for other in others:
                if alike(other["bucket"], finding.bucket):
                    return f"{file.parent.name}/{other['folder']}"
        except (OSError, ValueError, LookupError, TypeError):
            continue

    return ""


def _ports(command: str) -> tuple[int, ...]:
    """The port that a command says, if it says one."""
    port = parse(command).port if command else None
    return (port,) if port else ()


def _read_run(folder: Path) -> ClientRun:
    try:
        return ClientRun.model_validate_json(
            (folder / _CLIENT_DIR / _RUN_FILE).read_bytes()
        )
    except (OSError, ValueError):
        return ClientRun()

"""An episode, played and judged; what it showed is confirmed, shrunk and named in its
own folder.

The searching is a replay's, within the line of work of the episode.
"""

from __future__ import annotations

import shutil
import time
from collections import Counter
from collections.abc import Sequence
from pathlib import Path

from mmrepro.base.records import FindingClass
from mmrepro.campaign import CampaignState
from mmrepro.engines import get_engine
from mmrepro.failure.documents import prepared_folder
from mmrepro.failure.documents.replay import (
    EPISODES_DIR,
    Episode,
    Finding,
    Found,
    PlayFacts,
    Sighting,
    bucket_words,
)
from mmrepro.runs.play import PlayOptions
from mmrepro.search.fuzz.episodes import PlannedEpisode
from mmrepro.search.fuzz.knowledge import (
    AGAIN,
    EpisodeBegan,
    EpisodeEnded,
    Finished,
    Pursued,
    PursuitLed,
)
from mmrepro.search.fuzz.limits import ServerLimits, learn, narrowed
from mmrepro.search.fuzz.session import FuzzSession
from mmrepro.search.fuzz.spoken import checked_forms
from mmrepro.search.fuzz.steering import features
from mmrepro.search.oracle.comparison import agreeing, compare_with_reference, compared
from mmrepro.search.oracle.judged import OracleReport, alike
from mmrepro.search.oracle.reference import has_own_format, reference_case
from mmrepro.search.replay.attempts import CaseResult, StartingPoint, requests
from mmrepro.search.replay.options import ReplayCommand
from mmrepro.search.replay.pursue import FATAL
from mmrepro.search.replay.rounds import Rounds
from mmrepro.search.replay.simplify import as_sent, in_order
from mmrepro.search.replay.store import (
    PLAYS_DIR,
    VERDICTS,
    Observation,
    ReplayFolder,
    note_server,
    observation_of,
)
from mmrepro.traffic.case import (
    Case,
    Played,
    PlayState,
    read_case,
    read_contents,
    write_case,
)


def play_episode(session: FuzzSession, planned: PlannedEpisode) -> EpisodeEnded:
    """Play an episode: written down before it begins and after it has ended; the first
    also learns the server's limits."""
    case = planned.case
    episode = Episode(
        number=planned.number,
        kind=planned.kind,
        origin=planned.origin,
        switches=[str(switch) for switch in planned.switches],
        requests=len(case.operations),
    )
    name = f"episode {episode.number} ({episode.kind}, {requests(episode.requests)})"
    folder = session.episode_dir(episode.number)
    shutil.rmtree(folder, ignore_errors=True)  # of a call that was killed in the middle
    session.keep_case(case, folder)
    session.files.journal.append(EpisodeBegan(episode=episode))

    began, deadlines = time.monotonic(), session.deadlines
    # What one parser lacks hinders none of the others.
    needs_fit = planned.kind != "scripts"
    options = PlayOptions(deadlines, blocks=planned.blocks, needs_fit=needs_fit)
    learns = planned.number == 0 and planned.kind == "learning"
    result = session.tried(case, folder / "play", name, options, learning=learns)
    played = result.played
    assert played is not None
    note_server(session.fuzz, [folder / "play"])
    if planned.kind == "scripts":
        case, judged = _judged_scripts(session, planned, played)
    else:
        judged = session.judged(case, played)

    silent = False
    known = session.known
    # A reference takes two more starts: only where the answers are all that is left to
    # doubt.
    news = known.new(sighting.bucket for sighting in judged.sightings)
    if planned.compared and played.state is PlayState.ENDED and not news:
        beside = _beside(session, case, played, folder / "reference", name)
        silent = bool(beside.sightings)
        judged = OracleReport.of([judged, beside])
        episode.compared, episode.starts = True, 2

    log = folder / "play" / played.log_file
    seen = _observed(session, episode, case, played, judged)
    new = sorted(features(case, played, log) - known.features)
    episode.state, episode.buckets = seen.play.state, seen.play.buckets
    episode.answers = dict(Counter(seen.answers.values()))
    episode.new = len(new)
    episode.seconds = round(time.monotonic() - began, 2)
    limits = _learnt_limits(session, planned, result, log)
    shutil.rmtree(folder / "reference", ignore_errors=True)
    if not seen.sightings:
        shutil.rmtree(folder / "play", ignore_errors=True)
    ended = EpisodeEnded(
        episode=episode,
        elapsed_s=round(session.elapsed_s, 2),
        seen=seen,
        features=new,
        limits=limits,
        silent=silent,
        blocks=planned.blocks,
        answer_s=deadlines.answer_s,
        suspect_s=deadlines.suspect_s,
        rule=deadlines.rule,
    )
    line = session.take(ended)

    quiet = "clean" if episode.state == "ended" else episode.state
    outcome, bad = bucket_words(episode.buckets) or quiet, bool(episode.buckets)
    session.report_ended(name, outcome, episode.seconds, f"{episode.new} new", bad=bad)
    return line


def _judged_scripts(
    session: FuzzSession, planned: PlannedEpisode, played: Played
) -> tuple[Case, OracleReport]:
    """The case, without what is expected of a form that its parsers do not have, and
    what the oracles hold against its answers.

    A server that does not start with a parser is no finding: most parsers want a
    vocabulary or a model of their own."""
    if played.state is PlayState.START_FAILED:
        why = session.judged(planned.case, played)
        said = why.sightings[0].said if why.sightings else "no reason was seen"
        return planned.case, OracleReport(
            unseen=[f"{planned.origin}: the server does not start with it: {said}"]
        )
    checked = checked_forms(planned.case, played)
    if checked.unread:
        session.keep_case(checked.case, session.episode_dir(planned.number))
    unread = [f"{planned.origin}: {sentence}" for sentence in checked.unread]
    judged = session.judged(checked.case, played)
    return checked.case, OracleReport.of([judged, OracleReport(unseen=unread)])


def _learnt_limits(
    session: FuzzSession, planned: PlannedEpisode, result: CaseResult, log: Path
) -> ServerLimits:
    """The server's limits, as they are known after an episode."""
    played = result.played
    assert played is not None
    if planned.kind == "scripts":
        return session.known.episodes.limits
    if planned.number == 0:
        return learn(session.options.server, played, log, result.looked.learnt)
    return narrowed(session.known.episodes.limits, played.evidence.requests)


def _observed(
    session: FuzzSession,
    episode: Episode,
    case: Case,
    played: Played,
    judged: OracleReport,
) -> Observation:
    facts = PlayFacts(
        number=episode.number,
        what="an episode",
        requests=len(case.operations),
        state="",
    )
    seen = observation_of(case, played, judged, facts)
    folder = session.episode_dir(episode.number)
    seen.folder = f"../{EPISODES_DIR}/{folder.name}/play"
    return seen


def _beside(
    session: FuzzSession, case: Case, played: Played, folder: Path, name: str
) -> OracleReport:
    """What the same requests to a plain server hold against its answers."""
    engine = get_engine(session.options.server.engine)
    options = PlayOptions(session.deadlines, look="none", canary=False)

    def held(plain: Case) -> OracleReport:
        reference = session.tried(plain, folder, name, options).played
        assert reference is not None
        return compare_with_reference(case, played, reference)

    judged = held(reference_case(case, engine))
    if not compared(judged) or not has_own_format(case):
        return judged
    return agreeing(judged, held(reference_case(case, engine, own_format=True)))


# ----------------------------------------------------------------------- what it showed

_STRAIGHT = "straight"
PURSUIT = 40
"""Starts of servers for what one episode showed, at most."""
_PURSUIT_S, _PURSUIT_SHARE = 300.0, 0.2
"""Seconds for what ends or stops a server, or that share of the budget, if it is
more."""
LESSER_S, LESSER_SHARE = 100.0, 0.07
"""The same for all else."""
_FINISH_AFTER = 0.5
"""Share of the budget after which what was not shrunk to its end is taken up again."""
_FINISH_SHARE, _FINISH_LESSER = 0.5, 0.15
"""Of the time that is left then: for what ends or stops a server, and for all else."""
FINISH = 3 * PURSUIT
"""Starts of servers for that, at most."""
_LONG_S = 10.0
"""A deadline from which on it is measured again before a hang is played again and
again."""


def pursue(session: FuzzSession, line: EpisodeEnded) -> None:
    """Pursue what is new in an episode, if anything is, and nobody pursues it now."""
    known, episode = session.known, line.episode
    new: list[str] = []
    for bucket in known.new(line.seen.play.buckets):
        if not any(alike(bucket, other) for other in session.pursued):
            new.append(bucket)
    if not new or episode.pursued:
        return
    place = f"e{episode.number:04d}"
    began = time.monotonic()
    with session.pursuing(new):
        _measure_again(session, line.seen.sightings)
        led = known.led.get(episode.number) or _led(session, line, new)
        source = session.episode_dir(episode.number)
        if led.straight:
            source = source / _STRAIGHT
        least_s, share = LESSER_S, LESSER_SHARE
        if any(sighting.finding_class in FATAL for sighting in led.seen.sightings):
            least_s, share = _PURSUIT_S, _PURSUIT_SHARE
        time_s = max(least_s, share * session.options.budget_s)
        start = StartingPoint(
            led.seen,
            line.silent,
            line.blocks,
            handled=tuple(_handled(session, led, new)),
            deadlines=session.deadlines,
            until=min(session.until, began + time_s),
            end=session.until + session.grace_s,
        )
        _replay(session, source, place, PURSUIT, start)
        pursued = Pursued(
            number=episode.number,
            replay=place,
            elapsed_s=round(session.elapsed_s, 2),
            seconds=round(time.monotonic() - began, 2),
        )
        session.take(pursued)


def _handled(session: FuzzSession, led: PursuitLed, new: Sequence[str]) -> list[str]:
    """Buckets that the pursuit of ``new`` leaves alone."""
    known = session.known
    handled: list[str] = []
    for found in session.fuzz.found:
        if known.handled(found.finding.bucket):
            handled.append(found.finding.bucket)
    handled += known.also
    handled += [bucket for bucket in led.seen.play.buckets if bucket not in new]
    return handled


def unfinished(session: FuzzSession) -> Found | None:
    """A finding that is to be shrunk further now."""
    early = session.elapsed_s < _FINISH_AFTER * session.options.budget_s
    if early or not session.options.shrink:
        return None
    return session.known.unfinished(session.pursued)


def finish(session: FuzzSession, found: Found) -> None:
    """Go on with what is left of a finding."""
    finding = found.finding
    place = f"{found.replay}{AGAIN}{finding.id}"
    source = found.folder  # the finding's own: it moves when less is left of it
    began = time.monotonic()
    with session.pursuing([finding.bucket]):
        _measure_again(session, [finding])
        others = [f.finding.bucket for f in session.fuzz.found if f is not found]
        share = _FINISH_SHARE if finding.finding_class in FATAL else _FINISH_LESSER
        start = StartingPoint(
            again=True,
            handled=(*others, *session.known.also),
            deadlines=session.deadlines,
            until=began + share * (session.until - began),
            end=session.until + session.grace_s,
        )
        _replay(session, session.folder / source, place, FINISH, start)
        finished = Finished(
            of=source,
            replay=place,
            elapsed_s=round(session.elapsed_s, 2),
            seconds=round(time.monotonic() - began, 2),
        )
        session.take(finished)


def _replay(
    session: FuzzSession, source: Path, place: str, budget: int, start: StartingPoint
) -> None:
    """Of the case in ``source``, in the folder ``place``; one that was killed goes
    on."""
    folder, options = session.folder / place, session.options
    goes_on = VERDICTS.is_in(folder)
    case, _ = read_case(folder if goes_on else source)
    # A replay that was killed goes on with its own case: the source may be gone.
    if not goes_on:
        write_case(case, prepared_folder(folder), read_contents(case, source))
    wanted = ReplayCommand(
        file=source,
        server=case.server,
        shrink=options.shrink,
        budget=budget,
        repeat=options.repeat,
        seed=options.seed,
        start_mode=options.start_mode,
        timeout_s=options.timeout_s,
    )
    with ReplayFolder(folder, case, wanted, session.write_replay) as files:
        Rounds(session, files, start).run()
        files.end(CampaignState.COMPLETE, "")
    shutil.rmtree(folder / PLAYS_DIR, ignore_errors=True)


def _measure_again(session: FuzzSession, seen: Sequence[Sighting | Finding]) -> None:
    """Measure the deadline again, where a busy moment made it long: each attempt at a
    hang lasts as long."""
    hangs = any(shown.finding_class is FindingClass.HANG for shown in seen)
    if hangs and session.deadlines.answer_s > _LONG_S:
        # A busy moment made it long, and each attempt at a hang lasts as long.
        deadlines = session.measured()
        if deadlines.answer_s < session.deadlines.answer_s:
            session.deadlines = deadlines


def _led(session: FuzzSession, line: EpisodeEnded, new: Sequence[str]) -> PursuitLed:
    """The episode's requests one after another, if they show the worst of it as well;
    else the episode as it was."""
    number = line.episode.number
    led = PursuitLed(number=number, straight=False, seen=line.seen)
    folder = session.episode_dir(number)
    case, _ = read_case(folder)
    straight = in_order(as_sent(case, line.seen))
    late = time.monotonic() >= session.until
    # What a parser makes of a script hangs on no other request.
    spoken = line.episode.kind == "scripts"
    if straight == case or line.silent or line.blocks or late or spoken:
        return session.take(led)

    place, name = folder / _STRAIGHT, f"episode {number}, one after another"
    shutil.rmtree(place, ignore_errors=True)
    session.keep_case(straight, place)
    options = PlayOptions(session.deadlines)
    played = session.tried(straight, place / "play", name, options).played
    assert played is not None
    judged = session.judged(straight, played)
    facts = PlayFacts(
        number=0,
        what="one after another",
        requests=len(straight.operations),
        state="",
    )
    seen = observation_of(straight, played, judged, facts)
    led.starts = 1
    if seen.has(new[0]):
        led.straight, led.seen = True, seen
    shutil.rmtree(place / "play", ignore_errors=True)
    outcome = bucket_words(seen.play.buckets) or seen.play.state
    session.report_ended(name, outcome, seen.play.seconds, bad=led.straight)
    return session.take(led)

"""One episode: played, judged, and held against a plain server."""

from __future__ import annotations

import shutil
import time
from collections import Counter
from pathlib import Path
from typing import TYPE_CHECKING

from mmrepro.case.model import Case
from mmrepro.case.played import Played, PlayState
from mmrepro.engines import get_engine
from mmrepro.fuzz.episodes import Planned
from mmrepro.fuzz.features import features
from mmrepro.fuzz.limits import learn, narrowed
from mmrepro.fuzz.store import Began, Ended
from mmrepro.incident.replay import EPISODES_DIR, Episode, PlayFacts, bucket_words
from mmrepro.oracle.comparison import agreeing, compare_with_reference, compared
from mmrepro.oracle.judged import Judged
from mmrepro.oracle.reference import has_own_format, reference_case
from mmrepro.play.options import PlayOptions
from mmrepro.replay.plays import requests
from mmrepro.replay.seen import seen_of
from mmrepro.replay.store import note_server

if TYPE_CHECKING:
    from mmrepro.fuzz.session import Fuzzing


def play_episode(session: Fuzzing, planned: Planned) -> Ended:
    """Written down before it begins and after it has ended; the first also learns the server's
    limits."""
    learning, case, known = planned.number == 0, planned.case, session.known
    episode = _episode(planned)
    name = f"episode {episode.number} ({episode.kind}, {requests(episode.requests)})"
    folder = session.episode_dir(episode.number)
    shutil.rmtree(folder, ignore_errors=True)  # of a call that was killed in the middle
    session.keep_case(case, folder)
    session.journal.append(Began(episode=episode))
    began, deadlines = time.monotonic(), session.deadlines
    options = PlayOptions(deadlines, blocks=planned.blocks)
    result = session.tried(case, folder / "play", name, options, learning=learning)
    played = result.played
    assert played is not None
    note_server(session.fuzz, [folder / "play"] if not session.fuzz.start_mode else [])
    judged = session.judged(case, played)
    silent = False
    news = known.new(sighting.bucket for sighting in judged.sightings)
    if planned.compared and played.state is PlayState.ENDED and not news:
        beside = _beside(session, case, played, folder / "reference", name)
        silent = bool(beside.sightings)
        judged = Judged.of([judged, beside])
        episode.compared, episode.starts = True, 2
    log = folder / "play" / played.log_file
    limits = known.episodes.limits
    if learning:
        limits = learn(session.options.server, played, log, result.looked.learnt)
    else:
        limits = narrowed(limits, played.evidence.requests)
    facts = PlayFacts(
        number=episode.number, what="an episode", requests=len(case.operations), state=""
    )
    seen = seen_of(case, played, judged, facts)
    seen.folder = f"../{EPISODES_DIR}/{folder.name}/play"
    new = sorted(features(case, played, log) - known.features)
    episode.state, episode.buckets = seen.play.state, seen.play.buckets
    episode.answers = dict(Counter(seen.answers.values()))
    episode.new = len(new)
    episode.seconds = round(time.monotonic() - began, 2)
    shutil.rmtree(folder / "reference", ignore_errors=True)
    if not seen.sightings:
        shutil.rmtree(folder / "play", ignore_errors=True)
    line = session.take(
        Ended(
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
    )
    quiet = "nothing is wrong" if episode.state == "ended" else episode.state
    outcome, bad = bucket_words(episode.buckets) or quiet, bool(episode.buckets)
    session.report_ended(name, outcome, episode.seconds, f"{episode.new} new", bad=bad)
    return line


def _beside(session: Fuzzing, case: Case, played: Played, folder: Path, name: str) -> Judged:
    """What the same requests to a plain server hold against its answers."""
    engine = get_engine(session.options.server.engine)
    options = PlayOptions(session.deadlines, look="none", canary=False)

    def held(plain: Case) -> Judged:
        reference = session.tried(plain, folder, name, options).played
        assert reference is not None
        return compare_with_reference(case, played, reference)

    judged = held(reference_case(case, engine))
    if not compared(judged) or not has_own_format(case):
        return judged
    return agreeing(judged, held(reference_case(case, engine, own_format=True)))


def _episode(planned: Planned) -> Episode:
    return Episode(
        number=planned.number,
        kind=planned.kind,
        origin=planned.origin,
        switches=[str(switch) for switch in planned.switches],
        requests=len(planned.case.operations),
    )

"""One episode: played, judged, and held against a plain server."""

from __future__ import annotations

import shutil
import time
from collections import Counter
from pathlib import Path

from mmrepro.case.model import Case
from mmrepro.case.played import Played, PlayState
from mmrepro.engines import get_engine
from mmrepro.fuzz.course import Course
from mmrepro.fuzz.episodes import Planned
from mmrepro.fuzz.features import features
from mmrepro.fuzz.limits import Asked, learn, narrowed
from mmrepro.fuzz.store import Ended
from mmrepro.incident.fuzz import EPISODES_DIR, Episode
from mmrepro.incident.replay import PlayFacts
from mmrepro.oracle.comparison import agreeing, compare_with_reference, compared
from mmrepro.oracle.judged import Judged
from mmrepro.oracle.reference import has_own_format, reference_case
from mmrepro.play.options import PlayOptions
from mmrepro.replay.seen import seen_of
from mmrepro.replay.session import note_server


def play_episode(course: Course, planned: Planned) -> Ended:
    """Kept before it begins and after it has ended; the first also learns the server's limits."""
    learning, case, fuzz = planned.number == 0, planned.case, course.fuzz
    episode = _episode(planned)
    folder = course.episode_dir(episode.number)
    shutil.rmtree(folder, ignore_errors=True)  # of a call that was killed in the middle
    course.keep(case, folder)
    course.store.began(episode)
    if course.watcher is not None:
        course.watcher.began(fuzz, episode)
    began = time.monotonic()
    asked = Asked()
    options = PlayOptions(course.deadlines, blocks=planned.blocks)
    played = course.played(case, options, folder / "play", asked if learning else None)
    note_server(fuzz, [folder / "play"] if not fuzz.start_mode else [])
    judged = course.judged(case, played)
    silent = False
    news = course.known.new(sighting.bucket for sighting in judged.sightings)
    if planned.compared and played.state is PlayState.ENDED and not news:
        beside = _beside(course, case, played, folder / "reference")
        silent = bool(beside.sightings)
        judged = Judged.of([judged, beside])
        episode.compared, episode.starts = True, 2
    log = folder / "play" / played.log_file
    limits = course.known.episodes.limits
    if learning:
        limits = learn(course.options.server, played, log, asked.learnt)
    else:
        limits = narrowed(limits, played.evidence.requests)
    facts = PlayFacts(
        number=episode.number, what="an episode", requests=len(case.operations), state=""
    )
    seen = seen_of(case, played, judged, facts)
    seen.folder = f"../{EPISODES_DIR}/{folder.name}/play"
    new = sorted(features(case, played, log) - course.known.features)
    episode.state, episode.buckets = seen.play.state, seen.play.buckets
    episode.answers = dict(Counter(seen.answers.values()))
    episode.new = len(new)
    episode.seconds = round(time.monotonic() - began, 2)
    shutil.rmtree(folder / "reference", ignore_errors=True)
    if not seen.sightings:
        shutil.rmtree(folder / "play", ignore_errors=True)
    line = Ended(
        episode=episode,
        elapsed_s=round(course.elapsed_s, 2),
        seen=seen,
        features=new,
        limits=limits,
        silent=silent,
        blocks=planned.blocks,
        answer_s=course.deadlines.answer_s,
        suspect_s=course.deadlines.suspect_s,
        rule=course.deadlines.rule,
    )
    kept = course.store.once(line)
    course.known.take(kept)
    course.write()
    if course.watcher is not None:
        course.watcher.ended(fuzz, kept.episode)
    return kept


def _beside(course: Course, case: Case, played: Played, folder: Path) -> Judged:
    """What the same requests to a plain server hold against its answers."""
    engine = get_engine(course.options.server.engine)
    options = PlayOptions(course.deadlines, look="none", canary=False)

    def held(plain: Case) -> Judged:
        return compare_with_reference(case, played, course.played(plain, options, folder))

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

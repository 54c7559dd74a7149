"""A fuzzing session's report: ``fuzz.json`` as a page.

What it found has reports of its own, below: each is a finding of a replay.
"""

from collections.abc import Iterator
from itertools import accumulate
from typing import Final

from mmrepro.base.units import duration
from mmrepro.failure.documents.replay import FUZZ_FILE, Episode, Fuzz, bucket_words
from mmrepro.reports import blocks as b, findings, timeline, words
from mmrepro.reports.documents import kind
from mmrepro.reports.svg import StepLine, steps

_ABSENT: Final = (
    "Nothing is claimed absent: what these requests did not show may be there "
    "all the same."
)
_NEW: Final = (
    "new: log lines, answers, metrics and pairs of requests that no earlier "
    "episode showed"
)


def compose(fuzz: Fuzz, folder: str = "") -> b.Page:
    """The page. ``folder``: the session's, for its commands; empty: they are typed in
    it."""
    found = _listed(fuzz)
    all_found = [one.finding for one in fuzz.found]
    blind = "blind, " if fuzz.blind else ""
    where = f"{fuzz.server.label} ({blind}seed {fuzz.seed})"
    nothing = "no oracle objects to what was sent"
    once = [
        (str(one.episode), s.finding_class.value, s.said, s.expected)
        for one in fuzz.once[:200]
        for s in [one.sighting]
    ]
    learnt = [(one.name, str(one.tokens), one.source) for one in fuzz.learnt]
    return b.Page(
        title=f"Fuzzing of {where}",
        badge=findings.badge(fuzz, all_found, nothing),
        subject=f"fuzzing of {where}",
        warning=b.broken_off(fuzz.failure, began=bool(fuzz.episodes)),
        card=[*findings.card(found), b.p(_ABSENT)],
        counts=[
            *findings.counts(all_found, len(fuzz.once)),
            b.count(len(fuzz.episodes), "episode"),
            b.count(fuzz.requests, "request"),
            b.count(fuzz.starts, "server"),
            f"{duration(fuzz.elapsed_s)} of at most {duration(fuzz.budget_s)}",
        ],
        commands=[*findings.commands(fuzz, found, folder)],
        sections=[
            b.Section("Coverage", [*_coverage(fuzz)], 90),
            findings.findings_section(found),
            b.Section(
                "Observed once, not again",
                b.table(
                    "episode:number | class:name | observed | expected", once, "once"
                ),
                85,
            ),
            b.Section(
                "What was learnt about the server",
                b.table(
                    "limit | tokens:number | source", learnt, "limits of the server"
                ),
                65,
            ),
            b.Section("Shrinking", findings.shrinking(found), 60),
            b.Section("Episodes", _episodes(fuzz), 30),
            b.Section("Counted", b.bullets([*_counted(fuzz)]), 50),
            b.Section("What could not be judged", b.bullets(fuzz.unseen), 75),
            *findings.context(fuzz, _setup(fuzz), fuzz.limits),
        ],
        footer=words.footer(
            f"Fuzzing session {fuzz.id}",
            fuzz.created,
            FUZZ_FILE,
            "the replay that pursued a finding has a folder of its own",
        ),
    )


def _listed(fuzz: Fuzz) -> list[findings.ListedFinding]:
    return [
        findings.ListedFinding(
            one.id, one.finding, one.folder, one.after_s, one.episode
        )
        for one in fuzz.found
    ]


def _coverage(fuzz: Fuzz) -> Iterator[b.Block]:
    """New observations an episode, added up in the order in which the episodes
    ended."""
    sums = [*accumulate((episode.new for episode in fuzz.episodes), initial=0)]
    place = {episode.number: n for n, episode in enumerate(fuzz.episodes, 1)}
    marks = [(place[one.episode], one.id) for one in fuzz.found if one.episode in place]
    line = StepLine("different", [*enumerate(sums)])
    drawing = steps("Different observations", [line], "episodes", marks)
    if not drawing:
        return
    last = max(
        (n for n, episode in enumerate(fuzz.episodes, 1) if episode.new), default=0
    )
    idle = len(fuzz.episodes) - last
    text = (
        f"{sums[-1]:,} different observations in "
        f"{b.count(len(fuzz.episodes), 'episode')}; the"
    )
    news = f"last {b.count(idle, 'episode')} showed nothing new"
    yield b.p(f"{text} {news if idle else 'last episode still showed something new'}.")
    points = [(float(n), float(min(total, 10**9))) for n, total in enumerate(sums)]
    yield b.Picture(
        drawing,
        [b.Fence(timeline.sparkline(timeline.SampledTrack("", points)))],
        f"{_NEW}.",
    )


def _episodes(fuzz: Fuzz) -> list[b.Block]:
    rows = []
    for one in fuzz.episodes:
        what = (
            str(one.number),
            one.kind,
            one.origin,
            ", ".join(one.switches),
            str(one.requests),
        )
        came = (
            _answers(one),
            str(one.new),
            bucket_words(one.buckets),
            duration(one.seconds),
        )
        rows.append(b.row(*what, *came, status="objection" if one.buckets else "none"))

    heads = "episode:number | kind:name | origin | switches | requests:number | answers"
    heads += " | new:number | showed | took:number"
    return b.counted("episode", heads, rows)


def _answers(episode: Episode) -> str:
    """``18 × 200, 2 × 400``, and how the attempt ended where it did not end well."""
    ended = "" if episode.state == "ended" else episode.state
    return "; ".join(filter(None, (findings.times(episode.answers), ended)))


def _counted(fuzz: Fuzz) -> Iterator[str]:
    if fuzz.features:
        yield f"Different observations: {findings.times(fuzz.features)}."
    if fuzz.counted:
        yield f"Counted, not reported: {findings.times(fuzz.counted)}."


def _setup(fuzz: Fuzz) -> list[tuple[str, str]]:
    return [
        ("deadline", findings.deadline(fuzz)),
        ("requests by", f"profile {fuzz.profile}, seed {fuzz.seed}"),
        ("from", fuzz.source),
        ("named", "nothing: the session is blind" if fuzz.blind else ""),
        ("took", f"{duration(fuzz.elapsed_s)} of at most {duration(fuzz.budget_s)}"),
        ("spent on findings", duration(fuzz.pursuing_s) if fuzz.pursuing_s else ""),
        ("servers started", str(fuzz.starts)),
    ]


KIND: Final = kind(
    Fuzz, FUZZ_FILE, compose, compose_at=compose, name="a fuzzing session"
)

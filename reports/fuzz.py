"""A fuzzing session's report: ``fuzz.json`` as a page.

What it found has reports of its own, below: each is a finding of a replay.
"""

import json
from collections.abc import Iterator, Sequence
from typing import Final

from mmrepro.base.common_options import options_as_typed
from mmrepro.base.units import duration
from mmrepro.failure.documents.replay import FUZZ_FILE, Episode, Fuzz, bucket_words
from mmrepro.reports import blocks as b, findings, timeline, words
from mmrepro.reports.documents import kind
from mmrepro.reports.svg import StepLine, steps
from mmrepro.traffic.case import ServerWanted

_ABSENT: Final = (
    "A failure that these requests did not show may still exist: no finding does not "
    "prove that there is none."
)
_NEW: Final = (
    "new: log lines, answers, metrics and pairs of requests that no earlier "
    "episode showed"
)


def compose(fuzz: Fuzz, folder: str = "") -> b.Page:
    """The page. ``folder``: the session's, for its commands; empty: they are typed in
    it."""
    if fuzz.other is not None:
        return _two_sides(fuzz, fuzz.other)
    listed = _listed(fuzz)
    all_found = [known.finding for known in fuzz.found]
    blind = "blind, " if fuzz.blind else ""
    where = f"{fuzz.server.label} ({blind}seed {fuzz.seed})"
    nothing = "every check passed"
    return b.Page(
        title=f"Fuzzing of {where}",
        badge=findings.badge(fuzz, all_found, nothing),
        subject=f"fuzzing of {where}",
        warning=b.broken_off(fuzz.failure, began=bool(fuzz.episodes)),
        card=[*findings.card(listed), b.p(_ABSENT)],
        counts=[
            *findings.counts(all_found, len(fuzz.once)),
            b.count(len(fuzz.episodes), "episode"),
            b.count(fuzz.requests, "request"),
            b.count(fuzz.starts, "server"),
            f"{duration(fuzz.elapsed_s)} of at most {duration(fuzz.budget_s)}",
        ],
        commands=[*findings.commands(fuzz, listed, folder)],
        sections=[*_sections(fuzz, listed)],
        footer=words.footer(
            f"Fuzzing session {fuzz.id}",
            fuzz.created,
            FUZZ_FILE,
            "the replay that pursued a finding has a folder of its own",
        ),
    )


def _two_sides(fuzz: Fuzz, other: ServerWanted) -> b.Page:
    """The page of a session with ``--against``: OLD is the command's own server."""
    confirmed = [d for d in fuzz.differences if d.confirmed]
    old, new = sides(fuzz.server, other)
    badge = b.Badge("No difference", "good", "both sides answered alike")
    if fuzz.state == "failed":
        badge = b.Badge("Failed", "bad", note="this says nothing about the engine")
    elif confirmed:
        note = f"{len(confirmed)} confirmed on fresh servers"
        badge = b.Badge("Differences", "bad", note)
    elif fuzz.differences:
        badge = b.Badge("Unproven", "unsure", "observed, not on every fresh pair")
    fields = dict.fromkeys(difference.field for difference in fuzz.differences)
    return b.Page(
        title=f"Two sides of {fuzz.server.engine} (seed {fuzz.seed})",
        badge=badge,
        subject=f"two sides of {fuzz.server.engine}",
        warning=b.broken_off(fuzz.failure, began=bool(fuzz.episodes)),
        card=[b.p(f"OLD is {old}. NEW is {new}."), *_aimed(fuzz), b.p(_ABSENT)],
        counts=[
            b.count(len(fuzz.differences), "difference"),
            b.count(len(fields), "field"),
            b.count(len(fuzz.episodes), "episode"),
            b.count(fuzz.requests, "request"),
            b.count(fuzz.starts, "server"),
            f"{duration(fuzz.elapsed_s)} of at most {duration(fuzz.budget_s)}",
        ],
        commands=[("run again", fuzz.command)],
        sections=[
            b.Section("Differences", _differences(fuzz), keep=95),
            b.Section("What differs in the code", _reached(fuzz), keep=70),
            b.Section("Episodes", _episodes(fuzz), keep=30),
            *findings.context(fuzz, _setup(fuzz), fuzz.limits),
        ],
        footer=words.footer(
            f"Fuzzing session {fuzz.id}",
            fuzz.created,
            FUZZ_FILE,
            "what each pair of servers answered is below pairs/",
        ),
    )


def sides(server: ServerWanted, other: ServerWanted) -> tuple[str, str]:
    """What each side is called: the engine's release, and options that only one side
    has."""
    names = []
    for own, beside in ((server, other), (other, server)):
        only = options_as_typed(arg for arg in own.args if arg not in beside.args)
        for name, value in own.env.items():
            if beside.env.get(name) != value:
                only.append(f"{name}={value}")
        besides = f" with {' '.join(only)}" if only else ""
        names.append(f"{own.label}{besides}")
    return names[0], names[1]


def _differences(fuzz: Fuzz) -> list[b.Block]:
    rows = []
    for difference in fuzz.differences:
        request = difference.request
        body = json.dumps(request.get("body"), ensure_ascii=False)
        row = b.row(
            difference.id,
            difference.field,
            difference.statement.partition(": ")[2] or difference.statement,
            ", ".join(difference.features) or "a plain request",
            f"{request.get('method')} {request.get('path')} {body}",
            f"{difference.shown} of {difference.pairs}",
            status="objection" if difference.confirmed else "none",
        )
        rows.append(row)
    heads = "id:name | field:name | difference | the request has | request"
    heads += " | pairs that show it"
    return b.table(heads, rows, "differences")


def _aimed(fuzz: Fuzz) -> Iterator[b.Block]:
    """How much of the code that differs the requests ran."""
    aim = fuzz.aim
    if aim is None or not aim.functions:
        return
    entered = sum(function.entered for function in aim.functions)
    functions = b.count(len(aim.functions), "function")
    lines = b.count(aim.lines, "line")
    yield b.p(
        f"The two sides differ in {functions} and {lines}. The requests ran "
        f"{entered} of these functions and {aim.reached} of these lines."
    )
    if aim.flags:
        named = "which the changed code names"
        yield b.p(f"Both servers had {' '.join(aim.flags)}, {named}.")


def _reached(fuzz: Fuzz) -> list[b.Block]:
    if fuzz.aim is None:
        return []
    rows = []
    for function in fuzz.aim.functions:
        row = b.row(
            function.name,
            function.file,
            f"{function.reached} of {function.lines}",
            function.missed,
            "; or ".join(function.requests) or "no request",
            tone="" if function.entered else "soft",
        )
        rows.append(row)
    heads = "function:name | file:name | lines that ran | new lines that did not"
    heads += " | requests with"
    table = b.table(heads, rows, "what differs in the code")
    if fuzz.aim.unread:
        table += b.bullets([f"Not looked for: {text}." for text in fuzz.aim.unread])
    return table


def _sections(
    fuzz: Fuzz, listed: Sequence[findings.ListedFinding]
) -> Iterator[b.Section]:
    yield b.Section("Coverage", [*_coverage(fuzz)], keep=90)
    yield findings.findings_section(listed)
    yield b.Section("Observed once, not again", _once(fuzz), keep=85)
    yield b.Section("What was learnt about the server", _learnt(fuzz), keep=65)
    yield b.Section("Shrinking", findings.shrinking(listed), keep=60)
    yield b.Section("Episodes", _episodes(fuzz), keep=30)
    yield b.Section("Counted", b.bullets([*_counted(fuzz)]), keep=50)
    yield b.Section("What could not be judged", b.bullets(fuzz.unseen), keep=75)
    yield from findings.context(fuzz, _setup(fuzz), fuzz.limits)


def _once(fuzz: Fuzz) -> list[b.Block]:
    rows = []
    for seen in fuzz.once[:200]:
        sighting = seen.sighting
        row = (
            str(seen.episode),
            sighting.finding_class.value,
            sighting.said,
            sighting.expected,
        )
        rows.append(row)

    return b.table("episode:number | class:name | observed | expected", rows, "once")


def _learnt(fuzz: Fuzz) -> list[b.Block]:
    rows = []
    for limit in fuzz.learnt:
        rows.append((limit.name, str(limit.tokens), limit.source))

    return b.table("limit | tokens:number | source", rows, "limits of the server")


def _listed(fuzz: Fuzz) -> list[findings.ListedFinding]:
    listed = []
    for known in fuzz.found:
        finding = findings.ListedFinding(
            id=known.id,
            finding=known.finding,
            folder=known.folder,
            after=known.after_s,
            episode=known.episode,
        )
        listed.append(finding)

    return listed


def _coverage(fuzz: Fuzz) -> Iterator[b.Block]:
    """New observations an episode, added up in the order in which the episodes
    ended."""
    sums = [0]
    places = {}
    last = 0
    for place, episode in enumerate(fuzz.episodes, start=1):
        sums.append(sums[-1] + episode.new)
        places[episode.number] = place
        if episode.new:
            last = place

    marks = []
    for known in fuzz.found:
        if known.episode in places:
            marks.append((places[known.episode], known.id))

    line = StepLine("different", [*enumerate(sums)])
    drawing = steps("Different observations", [line], "episodes", marks)
    if not drawing:
        return

    count = len(fuzz.episodes)
    news = "last episode still showed something new"
    if count > last:
        news = f"last {b.count(count - last, 'episode')} showed nothing new"
    total = f"{sums[-1]:,} different observations in {b.count(count, 'episode')}"
    yield b.p(f"{total}; the {news}.")
    # A number of a file is bounded before a line is drawn of it.
    points = [(float(place), float(min(new, 10**9))) for place, new in enumerate(sums)]
    spark = timeline.sparkline(timeline.SampledTrack("", points))
    yield b.Picture(
        drawing=drawing,
        instead=[b.Fence(spark)],
        caption=f"{_NEW}.",
    )


def _episodes(fuzz: Fuzz) -> list[b.Block]:
    rows = []
    for episode in fuzz.episodes:
        row = b.row(
            str(episode.number),
            episode.kind,
            episode.origin,
            ", ".join(episode.switches),
            str(episode.requests),
            _answers(episode),
            str(episode.new),
            bucket_words(episode.buckets),
            duration(episode.seconds),
            status="objection" if episode.buckets else "none",
        )
        rows.append(row)

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

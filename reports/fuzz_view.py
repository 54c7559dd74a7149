"""What every format says alike of a fuzzing session."""

from __future__ import annotations

from typing import Final

from mmrepro.base.units import duration
from mmrepro.incident.replay import Episode, Found, Fuzz
from mmrepro.reports import replay_view as view

ABSENT: Final = (
    "Nothing is claimed absent: what these requests did not show may be there all the same."
)
EPISODE_COLUMNS: Final = (
    "", "kind", "origin", "switches", "requests", "answers", "new", "showed", "took",
)  # fmt: skip
EPISODES_NOTE: Final = (
    "new: log lines, answers, metrics and pairs of requests that no episode before it showed"
)


def headline(fuzz: Fuzz) -> view.Headline:
    nothing = "no oracle holds anything against what was sent"
    return view.headline_of(fuzz, [found.finding for found in fuzz.found], nothing)


def title(fuzz: Fuzz) -> str:
    blind = "blind, " if fuzz.blind else ""
    return f"Fuzzing of {view.server_name(fuzz.server)} ({blind}seed {fuzz.seed})"


def amount(fuzz: Fuzz) -> str:
    """``12 min 05 s of at most 20 min 00 s, 31 episodes, 803 requests, 44 servers``."""
    return ", ".join(
        (
            f"{duration(fuzz.elapsed_s)} of at most {duration(fuzz.budget_s)}",
            view.count(len(fuzz.episodes), "episode"),
            view.count(fuzz.requests, "request"),
            view.count(fuzz.starts, "server"),
        )
    )


def rows(fuzz: Fuzz) -> list[view.Row]:
    return [view.row(f.finding, f.id, f.folder, first_seen(f)) for f in fuzz.found]


def first_seen(found: Found) -> str:
    return f"after {duration(found.after_s)}, in episode {found.episode}"


def learnt(fuzz: Fuzz) -> list[tuple[str, str, str]]:
    """Name, tokens, and where they were told."""
    return [(one.name, str(one.tokens), one.source) for one in fuzz.learnt]


def answers(episode: Episode) -> str:
    """``18 × 200, 2 × 400``, and how the play ended where it did not end well."""
    ended = "" if episode.state == "ended" else episode.state
    return "; ".join(filter(None, (view.counts(episode.answers), ended)))


def cells(episode: Episode) -> list[str]:
    """An episode's, in the order of ``EPISODE_COLUMNS``; texts are not escaped."""
    return [
        str(episode.number),
        episode.kind,
        episode.origin,
        ", ".join(episode.switches),
        str(episode.requests),
        answers(episode),
        str(episode.new),
        view.shown(episode.buckets),
        duration(episode.seconds),
    ]


def besides(fuzz: Fuzz) -> list[str]:
    """What was counted; none ends with a full stop."""
    told = []
    if fuzz.features:
        told.append(f"different things seen: {view.counts(fuzz.features)}")
    if fuzz.counted:
        told.append(f"counted, not reported: {view.counts(fuzz.counted)}")
    return told


def setup(fuzz: Fuzz) -> list[tuple[str, str]]:
    """Label and value of what a second person needs to have the same."""
    own = [
        ("deadline", view.deadline(fuzz)),
        ("requests by", f"profile {fuzz.profile}, seed {fuzz.seed}"),
        ("from", fuzz.source),
        ("named", "nothing: the session is blind" if fuzz.blind else ""),
        ("took", f"{duration(fuzz.elapsed_s)} of at most {duration(fuzz.budget_s)}"),
        ("pursued findings for", duration(fuzz.pursuing_s) if fuzz.pursuing_s else ""),
        ("servers started", str(fuzz.starts)),
    ]
    return view.setup_of(fuzz, own)

"""A comparison's report: ``upgrade.json`` as a page, with the spread of what was
measured."""

from collections.abc import Iterator, Sequence
from typing import Final

from markupsafe import Markup
from mmrepro.base.units import duration, size
from mmrepro.failure.documents.upgrade import (
    UPGRADE_FILE,
    Area,
    Block,
    Difference,
    Outcome,
    Upgrade,
)
from mmrepro.reports import blocks as b, svg, words
from mmrepro.reports.documents import Case, Suite, kind
from mmrepro.reports.replay import origin

_TITLES: Final = {
    Area.START: "Start and options",
    Area.FAILURES: "Failures",
    Area.ANSWERS: "Answers",
    Area.PROTOCOL: "Protocol",
    Area.SPEED: "Speed",
    Area.MEMORY: "Memory and caches",
}
_CARD: Final = 9
"""Lines of the first screen."""
_MARKS: Final[dict[Outcome, b.Tone]] = {
    Outcome.DIFFERENCE: "unsure",
    Outcome.NONE: "good",
    Outcome.UNTOLD: "soft",
}
_SPREAD: Final = {
    "ttft": "TTFT",
    "itl": "Inter-token latency",
    "tpot": "TPOT",
    "latency": "Latency",
}
LEFT, WIDE, LINE = 120, 620, 26


def compose(upgrade: Upgrade) -> b.Page:
    between = _sides(upgrade)
    matter = upgrade.matter
    blocks = [one for one in upgrade.blocks if not one.error]
    untold = [d for d in upgrade.differences if d.outcome is Outcome.UNTOLD]
    how = {
        "requests": (
            "both servers live at once, parts of the traffic went to them in turn"
        ),
        "servers": "one server followed the other",
    }
    return b.Page(
        title=f"Upgrade: {between}",
        badge=_badge(upgrade),
        subject=f"{between}, {b.count(upgrade.requests, 'request')}",
        warning=b.broken_off(upgrade.failure, began=bool(upgrade.runs)),
        card=[*_card(upgrade)],
        counts=[
            (
                f"{b.count(len(matter), 'difference')} that "
                f"matter{'s' * (len(matter) == 1)}"
            ),
            f"{len(untold)} not settled",
            f"{b.count(len(upgrade.runs), 'run')} and {b.count(len(blocks), 'block')}",
            duration(_seconds(upgrade)),
        ],
        commands=[("to repeat it", upgrade.command)],
        sections=[
            b.Section("How much each metric changed", [*_intervals(upgrade)], 85),
            *(
                b.Section(title, [*_area(upgrade, area)], 95 - place)
                for place, (area, title) in enumerate(_TITLES.items())
            ),
            b.Section("Single requests", [*_spreads(blocks)], 60),
            b.Section("Blocks", _blocks(upgrade), 30),
            b.Section("The traffic", b.bullets(origin(upgrade.origin)), 40),
            b.Section("What this does not establish", b.bullets(upgrade.limits), 90),
            b.Section(
                "Set-up",
                [
                    b.Facts(
                        [
                            ("old", _server(upgrade.server)),
                            ("new", _server(upgrade.new)),
                            ("model", upgrade.server.model),
                            ("in turn", how[upgrade.interleaved]),
                            ("seed", str(upgrade.seed)),
                            (
                                "confidence",
                                f"{upgrade.confidence:.2%} of all intervals together",
                            ),
                            *words.made_on(upgrade.host, upgrade.mmrepro_version),
                        ]
                    )
                ],
                50,
            ),
        ],
        footer=words.footer(
            f"Comparison {upgrade.id}", upgrade.created, UPGRADE_FILE, words.RUNS
        ),
    )


def _sides(upgrade: Upgrade) -> str:
    """``vllm 0.32.0 → 0.33.0``; of one release with other settings, so."""
    old, new = upgrade.server, upgrade.new
    if old.release != new.release:
        return f"{old.label} → {new.release}"
    return (
        f"{old.label}, other settings" if old != new else f"{old.label}, twice the same"
    )


def _badge(upgrade: Upgrade) -> b.Badge:
    if upgrade.state != "complete":
        return b.Badge(
            upgrade.state.capitalize(), "bad" if upgrade.state == "failed" else "unsure"
        )
    if upgrade.matter:
        return b.Badge("A difference that matters", "bad")
    if upgrade.exit_code:
        return b.Badge("Could not be told", "unsure")
    return b.Badge("Nothing found", "good")


def _seconds(upgrade: Upgrade) -> float:
    runs = sum(run.seconds for run in upgrade.runs)
    return runs + sum(block.seconds for block in upgrade.blocks)


# ------------------------------------------------------------------------- first screen


def _card(upgrade: Upgrade) -> Iterator[b.Block]:
    """What matters; then what differs; then what is settled, and what is not."""
    shown = sorted(
        (
            d
            for d in upgrade.differences
            if d.matters or d.outcome is Outcome.DIFFERENCE
        ),
        key=lambda d: not d.matters,
    )
    for one in shown[:_CARD]:
        tone: b.Tone = "bad" if one.matters else "unsure"
        yield b.p(b.strong(f"{one.subject}: ", tone), words.sentence(one.statement))
    if len(shown) > _CARD:
        yield b.p(
            f"{len(shown) - _CARD} more differences are below (--full).", tone="soft"
        )
    untold = [
        d for d in upgrade.differences if d.outcome is Outcome.UNTOLD and d.decides
    ]
    if untold:
        names = ", ".join(d.subject for d in untold[:6])
        yield b.p(
            b.strong("Could not be told: ", "unsure"),
            f"{names}; {untold[0].statement}.",
        )
    same = [
        d
        for d in upgrade.differences
        if d.outcome is Outcome.NONE and d.metric and d.decides
    ]
    if same:
        told = "; ".join(f"{d.subject}: {d.statement}" for d in same)
        yield b.p(words.sentence(told), tone="good")
    for limit in upgrade.limits[:2]:
        yield b.p(words.sentence(words.capital(limit)), tone="soft")


# ----------------------------------------------------------------------------- sections


def _area(upgrade: Upgrade, area: Area) -> Iterator[b.Block]:
    found = [d for d in upgrade.differences if d.area is area]
    found.sort(key=lambda d: (not d.matters, list(Outcome).index(d.outcome)))
    rows = [
        b.row(
            one.subject,
            one.statement,
            _value(one.old, one.unit),
            _value(one.new, one.unit),
            ", ".join(one.evidence[:8]),
            status="matters" if one.matters else str(one.outcome),
        )
        for one in found
    ]
    heads = "subject:name | what is found | old | new | where"
    yield from b.table(heads, rows, _TITLES[area].lower())


def _value(told: object, unit: str) -> str:
    """As people read it: seconds, bytes, anything else as it is."""
    if told is None:
        return "–"
    if isinstance(told, int | float) and unit == "s":
        return duration(told) if told >= 1 else f"{told * 1000:.4g} ms"
    if isinstance(told, int | float) and unit == "bytes":
        return size(told)
    if isinstance(told, float):
        return f"{told:.4g} {unit}".strip()
    text = told if isinstance(told, str) else repr(told)
    return f"{text[:200]} {unit}".strip()


def _intervals(upgrade: Upgrade) -> Iterator[b.Block]:
    told = [d for d in upgrade.differences if d.interval is not None]
    if not told:
        return
    caption = (
        "Old over new, each metric with its interval; the shaded band is what does not "
        "matter. All "
        f"intervals hold together with {upgrade.confidence:.1%}, at whichever look it "
        f"ended. "
        '"No difference above a threshold" is a statement on one metric by itself.'
    )
    instead = [b.p(f"{d.subject}: {d.statement}") for d in told]
    yield b.Picture(_forest(told, upgrade.thresholds), instead, caption)


def _forest(told: Sequence[Difference], thresholds: dict[str, float]) -> Markup:
    """A line for each metric: its interval on one axis of relative change."""
    ends = [abs(end) for d in told for end in d.interval or ()]
    most = min(1.0, max([0.02, *ends]) * 1.1)
    left, width = LEFT + 180, svg.WIDTH - LEFT - 220

    def x(change: float) -> float:
        return left + width * (min(max(change, -most), most) + most) / (2 * most)

    bottom = 20 + LINE * len(told)
    body = []
    for number, one in enumerate(told):
        assert one.interval is not None
        y = 24.0 + LINE * number
        limit = thresholds.get(one.metric, 0.0)
        body.append(svg.rect("b1", x(-limit), y - 9, x(limit) - x(-limit), 18))
        low, high = one.interval
        shade = (
            "bad" if one.matters else "ok" if one.outcome is Outcome.NONE else "client"
        )
        body.append(svg.text(8, y + 4, one.subject, "tick"))
        tip = f"{one.subject}: {one.statement}"
        body.append(svg.path("axis", f"M{x(low):.1f} {y:.1f}H{x(high):.1f}", tip))
        body.append(svg.circle(shade, x((low + high) / 2), y, 5, tip))
    body.append(svg.path("grid", f"M{x(0):.1f} 12V{bottom}"))
    step = svg.nice_step(2 * most, 6)
    count = int(most / step)
    marks = [
        (x(k * step), f"{k * step:+.0%}" if k else "0")
        for k in range(-count, count + 1)
    ]
    body += svg.ticks(bottom, marks)
    return svg.svg(
        bottom + 26, f"the changes of {len(told)} metrics with their intervals", body
    )


def _spreads(blocks: Sequence[Block]) -> Iterator[b.Block]:
    """Of each time, the distribution over all requests, old above new."""
    for name, title in _SPREAD.items():
        pairs = [block.spread[name] for block in blocks if name in block.spread]
        if not pairs:
            continue
        both = tuple(sorted(v for pair in pairs for v in pair[side]) for side in (0, 1))
        middle = " and ".join(_value(one[len(one) // 2], "s") for one in both)
        instead = [b.p(f"{title}: the medians are {middle}.")]
        yield b.Picture(
            _histograms(title, both[0], both[1]), instead, f"{title}: old and new."
        )


def _histograms(title: str, old: Sequence[float], new: Sequence[float]) -> Markup:
    """Two histograms over one axis, which ends where one value of fifty lies beyond."""
    every = sorted([*old, *new])
    low, high = every[0], every[max(0, int(len(every) * 0.98) - 1)]
    span = max(high - low, 1e-9)
    bins = 60
    body = []
    for line, (name, values) in enumerate((("old", old), ("new", new))):
        counts = [0] * bins
        for one in values:
            counts[min(bins - 1, max(0, int((one - low) / span * bins)))] += 1
        base = 70.0 + 70 * line
        body.append(svg.text(8, base - 20, name, "name"))
        for place, count in enumerate(counts):
            tall = 55.0 * count / max(counts)
            width = WIDE / bins
            if count:
                shade = "server" if line else "client"
                body.append(
                    svg.rect(shade, LEFT + place * width, base - tall, width - 1, tall)
                )
        body.append(svg.path("axis", f"M{LEFT} {base}H{LEFT + WIDE}"))
    marks = [(LEFT + WIDE * k / 4, _value(low + span * k / 4, "s")) for k in range(5)]
    body += svg.ticks(140, marks)
    return svg.svg(170, f"{title} of single requests, old above new", body)


def _blocks(upgrade: Upgrade) -> list[b.Block]:
    names = [
        n
        for n in (*_SPREAD, "throughput")
        if any(n in one.changes for one in upgrade.blocks)
    ]
    rows = []
    for one in upgrade.blocks:
        cells = [f"{one.changes[n]:+.1%}" if n in one.changes else "–" for n in names]
        rows.append(
            b.row(
                str(one.index),
                one.first,
                *cells,
                f"{one.client_busy:.0%}",
                f"{one.noise:.1f}",
                duration(one.seconds),
                one.error,
                status="error" if one.error else "ok",
            )
        )
    heads = " | ".join(
        [
            "block:number",
            "first",
            *(f"{name}:number" for name in names),
            "client:number",
            "others, cores:number",
            "took:number",
            "error",
        ]
    )
    return b.counted("block", heads, rows)


def _server(server: object) -> str:
    return " ".join(
        [server.label, *server.args, *(f"{k}={v}" for k, v in server.env.items())]  # type: ignore[attr-defined]
    )


# -------------------------------------------------------------------------------- JUnit


def _junit(upgrade: Upgrade) -> list[Suite]:
    """A test case for each statement: what matters fails, what could not be told is an
    error."""
    cases = []
    for one in upgrade.differences:
        untold = one.outcome is Outcome.UNTOLD
        how = "failed" if one.matters else "passed"
        if untold and not one.matters:
            how = "error" if one.decides else "skipped"
        cases.append(
            Case(
                group=f"upgrade.{one.area}",
                name=one.subject,
                how=how,  # type: ignore[arg-type]
                message="" if how == "passed" else one.statement,
                text="\n".join(one.evidence[:20]),
                kind=str(one.outcome),
                output=one.statement if how == "passed" else "",
            )
        )
    if upgrade.state != "complete":
        failure = upgrade.failure or upgrade.state
        cases.append(Case("upgrade", "the comparison ended", "error", failure))
    return [Suite(f"upgrade {_sides(upgrade)}", upgrade.created.wall, cases)]


KIND: Final = kind(Upgrade, UPGRADE_FILE, compose, name="a comparison", junit=_junit)

"""A comparison's report: ``upgrade.json`` as a page, with the spread of what was
measured."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Final

from markupsafe import Markup
from mmrepro.base.units import duration, size
from mmrepro.failure.documents import (
    UPGRADE_FILE,
    Area,
    Block,
    Difference,
    Upgrade,
    UpgradeOutcome,
)
from mmrepro.reports import blocks as b, svg, words
from mmrepro.reports.documents import How, JunitCase, Suite, kind
from mmrepro.reports.replay import origin
from mmrepro.traffic.case import ServerWanted

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
_SPREAD: Final = {
    "ttft": "TTFT",
    "itl": "Inter-token latency",
    "tpot": "TPOT",
    "latency": "Latency",
}
LEFT: Final = 120
WIDE: Final = 620
LINE: Final = 26
_BINS: Final = 60
"""Columns of a histogram."""


def compose(upgrade: Upgrade) -> b.Page:
    """The page of a comparison."""
    between = _sides(upgrade)
    return b.Page(
        title=f"Upgrade: {between}",
        badge=_badge(upgrade),
        subject=f"{between}, {b.count(upgrade.requests, 'request')}",
        warning=b.broken_off(upgrade.failure, began=bool(upgrade.runs)),
        card=[*_card(upgrade)],
        counts=[*_counts(upgrade)],
        commands=[("run again", upgrade.command)],
        sections=[*_sections(upgrade)],
        footer=words.footer(
            f"Comparison {upgrade.id}", upgrade.created, UPGRADE_FILE, words.RUNS
        ),
    )


def _whole_blocks(upgrade: Upgrade) -> list[Block]:
    return [block for block in upgrade.blocks if not block.error]


def _counts(upgrade: Upgrade) -> Iterator[str]:
    matter = len(upgrade.matter)
    yield b.count(matter, "significant difference")
    outcomes = [difference.outcome for difference in upgrade.differences]
    yield f"{outcomes.count(UpgradeOutcome.UNTOLD)} undecided"
    blocks = b.count(len(_whole_blocks(upgrade)), "block")
    yield f"{b.count(len(upgrade.runs), 'run')} and {blocks}"
    yield duration(_seconds(upgrade))


def _sections(upgrade: Upgrade) -> Iterator[b.Section]:
    limits = b.bullets(upgrade.limits)
    yield b.Section("How much each metric changed", [*_intervals(upgrade)], keep=85)
    for place, (area, title) in enumerate(_TITLES.items()):
        yield b.Section(title, [*_area(upgrade, area)], keep=95 - place)

    spreads = [*_spreads(_whole_blocks(upgrade))]
    yield b.Section("Single requests", spreads, keep=60)
    yield b.Section("Blocks", _blocks(upgrade), keep=30)
    yield b.Section("The traffic", b.bullets(origin(upgrade.origin)), keep=40)
    yield b.Section("What this does not establish", limits, keep=90)
    yield b.Section("Set-up", [b.Facts(_setup(upgrade))], keep=50)


def _setup(upgrade: Upgrade) -> list[tuple[str, b.Inline]]:
    in_turn = {
        "requests": (
            "both servers live at once, parts of the traffic went to them in turn"
        ),
        "servers": "one server followed the other",
    }
    return [
        ("old", _server(upgrade.server)),
        ("new", _server(upgrade.new)),
        ("model", upgrade.server.model),
        ("in turn", in_turn[upgrade.interleaved]),
        ("seed", str(upgrade.seed)),
        ("confidence", f"{upgrade.confidence:.2%} of all intervals together"),
        *words.made_on(upgrade.host, upgrade.mmrepro_version),
    ]


def _sides(upgrade: Upgrade) -> str:
    """``vllm 0.32.0 → 0.33.0``; of one release with other settings, so."""
    old, new = upgrade.server, upgrade.new
    if old.release != new.release:
        return f"{old.label} → {new.release}"
    if old != new:
        return f"{old.label}, other settings"
    return f"{old.label}, twice the same"


def _badge(upgrade: Upgrade) -> b.Badge:
    if upgrade.state == "failed":
        return b.Badge("Failed", "bad")
    if upgrade.state != "complete":
        return b.Badge(upgrade.state.capitalize(), "unsure")
    if upgrade.matter:
        return b.Badge("Significant difference", "bad")
    if upgrade.exit_code:
        return b.Badge("Undecided", "unsure")
    return b.Badge("No significant difference", "good")


def _seconds(upgrade: Upgrade) -> float:
    runs = sum(run.seconds for run in upgrade.runs)
    return runs + sum(block.seconds for block in upgrade.blocks)


# ------------------------------------------------------------------------- first screen


def _card(upgrade: Upgrade) -> Iterator[b.Block]:
    """What matters; then what differs; then what is settled, and what is not."""
    yield from _differing(upgrade)

    undecided = []
    same = []
    for difference in upgrade.differences:
        if not difference.decides:
            continue
        if difference.outcome is UpgradeOutcome.UNTOLD:
            undecided.append(difference)
        if difference.outcome is UpgradeOutcome.NONE and difference.metric:
            same.append(f"{difference.subject}: {difference.statement}")

    if undecided:
        names = ", ".join(difference.subject for difference in undecided[:6])
        why = f"{names}; {undecided[0].statement}."
        yield b.p(b.strong("Undecided: ", "unsure"), why)

    if same:
        yield b.p(words.sentence("; ".join(same)), tone="good")

    for limit in upgrade.limits[:2]:
        yield b.p(words.sentence(words.capital(limit)), tone="soft")


def _differing(upgrade: Upgrade) -> Iterator[b.Block]:
    """The differences that matter, then the others, as many as there is room for."""
    matter = []
    differ = []
    for difference in upgrade.differences:
        if difference.matters:
            matter.append(difference)
        elif difference.outcome is UpgradeOutcome.DIFFERENCE:
            differ.append(difference)

    shown = matter + differ
    for difference in shown[:_CARD]:
        tone: b.Tone = "bad" if difference.matters else "unsure"
        subject = b.strong(f"{difference.subject}: ", tone)
        yield b.p(subject, words.sentence(difference.statement))

    more = len(shown) - _CARD
    if more > 0:
        yield b.p(f"{more} more differences are below (--full).", tone="soft")


# ----------------------------------------------------------------------------- sections


def _area(upgrade: Upgrade, area: Area) -> Iterator[b.Block]:
    outcomes = list(UpgradeOutcome)

    def order(difference: Difference) -> tuple[bool, int]:
        return not difference.matters, outcomes.index(difference.outcome)

    of_area = [known for known in upgrade.differences if known.area is area]
    rows = []
    for difference in sorted(of_area, key=order):
        row = b.row(
            difference.subject,
            difference.statement,
            _value(difference.old, difference.unit),
            _value(difference.new, difference.unit),
            ", ".join(difference.evidence[:8]),
            status="matters" if difference.matters else str(difference.outcome),
        )
        rows.append(row)

    heads = "subject:name | what is found | old | new | where"
    yield from b.table(heads, rows, _TITLES[area].lower())


def _value(measured: object, unit: str) -> str:
    """Write a value as people read it: seconds, bytes, anything else as it is."""
    if measured is None:
        return "–"
    if isinstance(measured, int | float):
        if unit == "s":
            # Of less than a second the digits matter.
            return duration(measured) if measured >= 1 else f"{measured * 1000:.4g} ms"
        if unit == "bytes":
            return size(measured)
    if isinstance(measured, float):
        return f"{measured:.4g} {unit}".strip()
    text = measured if isinstance(measured, str) else repr(measured)
    return f"{text[:200]} {unit}".strip()


def _intervals(upgrade: Upgrade) -> Iterator[b.Block]:
    measured = [known for known in upgrade.differences if known.interval is not None]
    if not measured:
        return
    caption = (
        "Old over new, each metric with its interval; the shaded band is what does not "
        "matter. All "
        f"intervals hold together with {upgrade.confidence:.1%}, at whichever look it "
        f"ended. "
        '"No difference above a threshold" is a statement on one metric by itself.'
    )
    instead = [b.p(f"{metric.subject}: {metric.statement}") for metric in measured]
    yield b.Picture(
        drawing=_forest(measured, upgrade.thresholds),
        instead=instead,
        caption=caption,
    )


@dataclass(frozen=True)
class _ChangeAxis:
    """Relative change to x, its middle no change; ``most``: at either end."""

    most: float
    left: float = LEFT + 180
    width: float = svg.WIDTH - LEFT - 220

    def x(self, change: float) -> float:
        bounded = min(max(change, -self.most), self.most)
        return self.left + self.width * (bounded + self.most) / (2 * self.most)

    def marks(self) -> list[tuple[float, str]]:
        step = svg.nice_step(2 * self.most, 6)
        count = int(self.most / step)
        marks = []
        for number in range(-count, count + 1):
            change = number * step
            marks.append((self.x(change), f"{change:+.0%}" if number else "0"))

        return marks


def _forest(measured: Sequence[Difference], thresholds: dict[str, float]) -> Markup:
    """A line for each metric: its interval on one axis of relative change."""
    widest = 0.02
    for metric in measured:
        for end in metric.interval or ():
            widest = max(widest, abs(end))

    axis = _ChangeAxis(min(1.0, widest * 1.1))
    bottom = 20 + LINE * len(measured)
    body: list[Markup] = []
    for number, metric in enumerate(measured):
        y = 24.0 + LINE * number
        limit = thresholds.get(metric.metric, 0.0)
        body += _interval(metric, axis, y, limit)

    body.append(svg.path("grid", f"M{axis.x(0):.1f} 12V{bottom}"))
    body += svg.ticks(bottom, axis.marks())
    label = f"the changes of {len(measured)} metrics with their intervals"
    return svg.svg(bottom + 26, label, body)


def _interval(
    metric: Difference, axis: _ChangeAxis, y: float, limit: float
) -> Iterator[Markup]:
    """One line, on the band of what does not matter. ``limit``: the band's half."""
    assert metric.interval is not None
    left = axis.x(-limit)
    right = axis.x(limit)
    yield svg.rect("b1", x=left, y=y - 9, width=right - left, height=18)
    yield svg.text(8, y + 4, metric.subject, "tick")

    low, high = metric.interval
    line = f"M{axis.x(low):.1f} {y:.1f}H{axis.x(high):.1f}"
    tip = f"{metric.subject}: {metric.statement}"
    yield svg.path("axis", line, tip)

    shade = "client"
    if metric.matters:
        shade = "bad"
    elif metric.outcome is UpgradeOutcome.NONE:
        shade = "ok"

    middle = axis.x((low + high) / 2)
    yield svg.circle(shade, middle, y, 5, tip)


def _spreads(blocks: Sequence[Block]) -> Iterator[b.Block]:
    """Draw the distribution of each time over all requests, old above new."""
    for name, title in _SPREAD.items():
        old: list[float] = []
        new: list[float] = []
        for block in blocks:
            of_old, of_new = block.spread.get(name, ([], []))
            old += of_old
            new += of_new

        if not old or not new:
            continue
        old.sort()
        new.sort()
        middles = [_value(side[len(side) // 2], "s") for side in (old, new)]
        medians = f"{title}: the medians are {' and '.join(middles)}."
        yield b.Picture(
            drawing=_histograms(title, old, new),
            instead=[b.p(medians)],
            caption=f"{title}: old and new.",
        )


def _histograms(title: str, old: Sequence[float], new: Sequence[float]) -> Markup:
    """Two histograms over one axis, which ends where one value of fifty lies beyond."""
    every = sorted([*old, *new])
    low = every[0]
    high = every[max(0, int(len(every) * 0.98) - 1)]
    span = max(high - low, 1e-9)
    body = _histogram("old", _binned(old, low, span), 70.0, "client")
    body += _histogram("new", _binned(new, low, span), 140.0, "server")

    marks = []
    for quarter in range(5):
        label = _value(low + span * quarter / 4, "s")
        marks.append((LEFT + WIDE * quarter / 4, label))

    body += svg.ticks(140, marks)
    return svg.svg(170, f"{title} of single requests, old above new", body)


def _histogram(
    name: str, counts: Sequence[int], base: float, shade: str
) -> list[Markup]:
    """The columns of one side, on a line at ``base``."""
    return [
        svg.text(8, base - 20, name, "name"),
        *_columns(counts, base, shade),
        svg.path("axis", f"M{LEFT} {base}H{LEFT + WIDE}"),
    ]


def _binned(values: Sequence[float], low: float, span: float) -> list[int]:
    """How many values fall into each bin; what lies outside is in the outermost."""
    counts = [0] * _BINS
    for value in values:
        place = int((value - low) / span * _BINS)
        counts[min(_BINS - 1, max(0, place))] += 1

    return counts


def _columns(counts: Sequence[int], base: float, shade: str) -> Iterator[Markup]:
    width = WIDE / _BINS
    most = max(counts)
    for place, count in enumerate(counts):
        if not count:
            continue
        tall = 55.0 * count / most
        # A pixel less: neighbours do not touch.
        yield svg.rect(
            shade,
            x=LEFT + place * width,
            y=base - tall,
            width=width - 1,
            height=tall,
        )


def _blocks(upgrade: Upgrade) -> list[b.Block]:
    names = []
    for name in (*_SPREAD, "throughput"):
        if any(name in block.changes for block in upgrade.blocks):
            names.append(name)

    rows = []
    for block in upgrade.blocks:
        changes = []
        for name in names:
            change = block.changes.get(name)
            changes.append("–" if change is None else f"{change:+.1%}")

        row = b.row(
            str(block.index),
            block.first,
            *changes,
            f"{block.client_busy:.0%}",
            f"{block.noise:.1f}",
            duration(block.seconds),
            block.error,
            status="error" if block.error else "ok",
        )
        rows.append(row)

    heads = [
        "block:number",
        "first",
        *(f"{name}:number" for name in names),
        "client:number",
        "others, cores:number",
        "took:number",
        "error",
    ]
    return b.counted("block", " | ".join(heads), rows)


def _server(server: ServerWanted) -> str:
    variables = [f"{name}={value}" for name, value in server.env.items()]
    return " ".join([server.label, *server.args, *variables])


# -------------------------------------------------------------------------------- JUnit


def _junit(upgrade: Upgrade) -> list[Suite]:
    """A test case for each statement: what matters fails, what could not be told is an
    error."""
    cases = [_case(difference) for difference in upgrade.differences]
    if upgrade.state != "complete":
        failure = upgrade.failure or upgrade.state
        cases.append(
            JunitCase(
                group="upgrade",
                name="the comparison ended",
                how="error",
                message=failure,
            )
        )

    return [
        Suite(
            name=f"upgrade {_sides(upgrade)}",
            when=upgrade.created.wall,
            cases=cases,
        )
    ]


def _case(difference: Difference) -> JunitCase:
    how: How = "passed"
    if difference.matters:
        how = "failed"
    elif difference.outcome is UpgradeOutcome.UNTOLD:
        how = "error" if difference.decides else "skipped"

    return JunitCase(
        group=f"upgrade.{difference.area}",
        name=difference.subject,
        how=how,
        message="" if how == "passed" else difference.statement,
        text="\n".join(difference.evidence[:20]),
        kind=str(difference.outcome),
        output=difference.statement if how == "passed" else "",
    )


KIND: Final = kind(Upgrade, UPGRADE_FILE, compose, name="a comparison", junit=_junit)

"""The answer for people: what a setting gives, which setting is needed, the curve, the
sources."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from decimal import Decimal
from html import escape

from mmrepro.base.units import size
from mmrepro.kv_budget.answer import BudgetAnswer, Computed, Need
from mmrepro.kv_budget.base import Budget, MemoryPlan, Smallest, steps
from packaging.version import Version
from rich.console import Console
from rich.table import Table


def show(
    answer: BudgetAnswer, curve: list[CurvePoint], console: Console, *, full: bool
) -> None:
    """Print the answer; with ``full`` what it stands among before it, as plain
    lines."""

    def line(text: str, style: str = "") -> None:
        console.print(text, style=style or None, markup=False, highlight=False)

    plan, engine, here = answer.plan, answer.plan.engine, answer.here
    newer = Version(plan.release) > Version(engine.newest)
    read = f", read in {engine.newest}" if newer else ""
    line(f"{engine.title} {plan.release}, computed as since {plan.era.since}{read}")
    tokens = f"{plan.tokens_per_block} token{'s' if plan.tokens_per_block > 1 else ''}"
    line(f"one block: {plan.bytes_per_block:,} bytes for {tokens}")
    for text in _groups(plan, answer.replicas):
        line(text)
    if full or here.budget is None:
        console.print()
        console.print(_table(plan, here.budget, answer.need))

    if full:
        console.print()
        for row in text_curve(curve, answer.need.tokens if answer.need else 0):
            line(row)
        line(" " * 11 + engine.setting)
        if answer.others:
            line("\nThe same numbers in other releases", "bold")
        for other in answer.others:
            line(f"  {other.release:<8} {_other(other)}")
        line("\nWhere the formulas are from", "bold")
        for source in plan.sources:
            line(f"  {source.says}")
            line(f"    {source}", "dim")
    else:
        line(
            "every setting, other releases and where the formulas are from: --full",
            "dim",
        )

    if here.budget is not None:
        line(f"\n{engine.setting} {here.budget.setting}", "bold")
        for text, style in _forward(here.budget):
            line("  " + text, style)

    if here.smallest is not None and answer.need is not None:
        need, least = answer.need, here.smallest
        what = f"A prompt of {need.words()} needs"
        if need.requests > 1:
            what = f"{need.requests:,} prompts of {need.words()} at once need"
        line(f"\n{what} {least.blocks:,} blocks.", "bold")
        line(f"  they are      {size(least.bytes, 2)}")
        for text, style in _backward(least, engine.setting):
            line("  " + text, style)


def _groups(plan: MemoryPlan, replicas: int) -> Iterator[str]:
    """Equal groups in one line; and what a number is of, where there are several
    caches."""
    lines = Counter(
        f"{g['kind']}, {g['layers']} layers, blocks of {g['block_size']} tokens"
        for g in plan.groups
    )
    for text, many in lines.items():
        yield f"  {many} group{'s' if many > 1 else ''}: {text}"
    if replicas > 1:
        yield f"all numbers are of one of {replicas} data-parallel replicas"


_Line = tuple[str, str]
"""A line and its style."""


def _forward(budget: Budget) -> list[_Line]:
    last = f"longest prompt  {_longest(budget)}", ""
    if not budget.starts:
        last = f"does not start  {budget.refusal}", "red"
    return [
        (f"set aside       {size(budget.reserve_bytes, 2)}", ""),
        (
            (
                f"for the cache   {size(budget.pool_bytes, 2)} ({budget.pool_bytes:,} "
                "bytes)"
            ),
            "",
        ),
        (f"blocks          {budget.blocks:,}", ""),
        last,
        *(
            []
            if budget.concurrency is None
            else [
                (
                    (
                        f"at once         {budget.concurrency:.2f} requests of the "
                        "whole context"
                    ),
                    "",
                )
            ]
        ),
        *([(f"in its log      {budget.log}", "")] if budget.log else []),
        *((f"note            {note}", "yellow") for note in budget.notes),
    ]


def _backward(least: Smallest, name: str) -> list[_Line]:
    got, below, lowest, best = least.setting, least.below, least.lowest, least.best
    if got is None:
        most = (
            f"{best.setting} holds {_longest(best)}"
            if best and best.starts
            else "none starts"
        )
        return [(f"no {name} holds it: {most}.", "red")]

    works = f"{got.setting} ({got.blocks:,} blocks, {_longest(got)})"
    lines = [(f"smallest {name} that works: {works}", "green")]
    if below is not None:
        why = _longest(below) if below.starts else f"does not start: {below.refusal}"
        lines.append(
            (f"one step less, {below.setting}: {below.blocks:,} blocks, {why}", "")
        )

    if lowest is not None and lowest.setting != got.setting:
        works = (
            f"{lowest.setting} works as well ({lowest.blocks:,} blocks, "
            f"{_longest(lowest)})"
        )
        lines.append(
            (f"{works}, but not every value up to {got.setting} does", "yellow")
        )
        lines += [(f"  there {note}", "yellow") for note in lowest.notes]

    return lines


def _table(plan: MemoryPlan, chosen: Budget | None, need: Need | None) -> Table:
    """Tenths (or powers of two) and the setting that was asked for."""
    table = Table(box=None, pad_edge=False)
    for heading in ("setting", "cache", "blocks", "longest prompt"):
        table.add_column(heading, justify="right", no_wrap=True)
    if need:
        table.add_column(f"holds {need.tokens:,}", no_wrap=True)
    if plan.engine.whole:
        settings = {Decimal(1 << power) for power in range(8)}
    else:
        settings = {Decimal(tenths) / 10 for tenths in range(1, 11)}

    if chosen:
        settings.add(chosen.setting)
    for setting in filter(plan.takes, sorted(settings)):
        budget = plan.forward(setting)
        prompt = _longest(budget, short=True) if budget.starts else "does not start"
        cells = [str(setting), size(budget.pool_bytes, 2), f"{budget.blocks:,}", prompt]
        if need:
            cells.append("yes" if budget.holds(need.tokens) else "no")
        is_chosen = chosen is not None and setting == chosen.setting
        table.add_row(*cells, style="bold" if is_chosen else None)

    return table


def _other(other: Computed) -> str:
    parts = []
    budget = other.budget
    if budget is not None and budget.starts:
        parts.append(f"{budget.blocks:,} blocks, {_longest(budget)}")
    elif budget is not None:
        parts.append(f"no start: {budget.refusal}")
    if other.smallest is not None:
        least = other.smallest.setting
        parts.append(f"needs {least.setting}" if least else "no setting holds it")
    return "; ".join(parts)


def _longest(budget: Budget, *, short: bool = False) -> str:
    """``1,344 tokens``, and what limits it."""
    if budget.unlimited:
        return "no limit" if short else "no limit (sliding window)"
    if short:
        limit = " (context)" if budget.limited_by == "context" else ""
        return f"{budget.max_tokens:,}{limit}"
    limits = {"context": " (the context's limit)", "window": " (sliding window)"}
    return f"{budget.max_tokens:,} tokens{limits.get(budget.limited_by, '')}"


# ------------------------------------------------------------------ the curve

_EIGHTHS = " ▁▂▃▄▅▆▇█"


@dataclass(frozen=True)
class CurvePoint:
    """A setting, and the tokens of the longest prompt that it holds."""

    setting: Decimal
    tokens: int


def points(
    plan: MemoryPlan, decimals: int = 2, most: int = 1 << 40
) -> list[CurvePoint]:
    """One point a step; unlimited prompts are cut at ``most`` tokens."""
    curve = []
    for step in steps(plan, decimals):
        budget = plan.forward(step)
        curve.append(CurvePoint(budget.setting, min(budget.max_tokens, most)))
    return curve


def _highest(curve: list[CurvePoint], need: int) -> int:
    return max([need, *(point.tokens for point in curve)])


def text_curve(
    curve: list[CurvePoint], need: int = 0, *, width: int = 60, height: int = 8
) -> list[str]:
    """Rows of block characters, highest first; a row of dashes where ``need`` tokens
    are."""
    top = _highest(curve, need)
    if not top:
        return []
    columns = []
    for column in range(width):
        columns.append(curve[column * len(curve) // width].tokens)
    need_row = -1
    if need:
        rows_below = min(int(need / top * height), height - 1)
        need_row = height - 1 - rows_below

    rows = []
    for row in range(height):
        base = (height - 1 - row) / height * top
        cells = _cells(columns, base, top / height)
        label = ""
        if row == need_row:
            cells = cells.replace(" ", "╌")
            label = f"{need:,}"
        if row == 0:
            label = f"{top:,}"
        rows.append(f"{label:>9} ┤{cells}")

    low, high = str(curve[0].setting), str(curve[-1].setting)
    rows.append(" " * 9 + " └" + "─" * width)
    rows.append(" " * 11 + low + high.rjust(width - len(low)))
    return rows


def _cells(columns: list[int], base: float, step: float) -> str:
    """One row of the curve, which stands for the tokens from ``base`` on."""
    cells = []
    for tokens in columns:
        eighths = round((tokens - base) / step * 8)
        cells.append(_EIGHTHS[max(0, min(8, eighths))])
    return "".join(cells)


@dataclass(frozen=True)
class _Plot:
    """The drawing's sizes in pixels, and its axes."""

    low: float
    high: float
    highest: int
    width: int = 720
    height: int = 360
    left: int = 90
    top: int = 50

    @property
    def floor(self) -> int:
        return self.height - 50

    @property
    def right(self) -> int:
        return self.width - 30

    def x(self, setting: Decimal) -> float:
        # One setting alone has no width.
        span = (self.high - self.low) or 1.0
        share = (float(setting) - self.low) / span
        return self.left + share * (self.right - self.left)

    def y(self, tokens: int) -> float:
        return self.floor - tokens / self.highest * (self.floor - self.top)


def svg_curve(answer: BudgetAnswer, curve: list[CurvePoint]) -> str:
    """A standalone SVG: steps, the needed tokens as a line. No script, no outside
    resource."""
    engine = answer.plan.engine
    need = answer.need.tokens if answer.need else 0
    plot = _Plot(
        low=float(curve[0].setting),
        high=float(curve[-1].setting),
        highest=max(1, _highest(curve, need)),
    )
    title = escape(f"{engine.title} {answer.plan.release}: longest prompt in tokens")
    frame = f"M{plot.left} {plot.top}V{plot.floor}H{plot.right}"
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {plot.width} '
        f'{plot.height}" font-family="sans-serif" font-size="13" role="img">',
        f"<title>{title}</title>",
        f'<rect width="{plot.width}" height="{plot.height}" fill="#fff"/>',
        _svg_text(plot.left, 24, "start", title, ' font-size="15"'),
        f'<path d="{frame}" fill="none" stroke="#666"/>',
        *_marks(plot, curve),
        _svg_text(plot.width / 2, plot.height - 10, "middle", escape(engine.setting)),
    ]
    if need:
        y = plot.y(need)
        line = f"M{plot.left} {y:.1f}H{plot.right}"
        words = f"{need:,} tokens"
        parts.append(f'<path d="{line}" stroke="#c22" stroke-dasharray="5 4"/>')
        parts.append(_svg_text(plot.right - 4, y - 6, "end", words, ' fill="#c22"'))

    path = _svg_path(plot, curve)
    parts.append(f'<path d="{path}" fill="none" stroke="#1a6" stroke-width="2"/></svg>')
    return "\n".join(parts) + "\n"


def _svg_text(x: float, y: float, anchor: str, words: str, more: str = "") -> str:
    return f'<text x="{x:.1f}" y="{y:.1f}" text-anchor="{anchor}"{more}>{words}</text>'


def _marks(plot: _Plot, curve: list[CurvePoint]) -> Iterator[str]:
    """Tokens in quarters along the left, and some seven settings along the floor."""
    for quarter in range(5):
        tokens = plot.highest * quarter // 4
        yield _svg_text(plot.left - 8, plot.y(tokens) + 4, "end", f"{tokens:,}")
    places = {round(number * (len(curve) - 1) / 6) for number in range(7)}
    for place in sorted(places):
        setting = curve[place].setting
        yield _svg_text(plot.x(setting), plot.floor + 18, "middle", str(setting))


def _svg_path(plot: _Plot, curve: list[CurvePoint]) -> str:
    first = curve[0]
    parts = [f"M{plot.x(first.setting):.1f} {plot.y(first.tokens):.1f}"]
    for point in curve[1:]:
        parts.append(f"H{plot.x(point.setting):.1f}V{plot.y(point.tokens):.1f}")
    return "".join(parts)

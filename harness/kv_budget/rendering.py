"""The answer for people: what a setting gives, which setting is needed, the curve, the
sources."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from decimal import Decimal
from html import escape

from mmrepro.base.units import size
from mmrepro.kv_budget.answer import Answer, Computed, Need
from mmrepro.kv_budget.base import Budget, MemoryPlan, Smallest, steps
from packaging.version import Version
from rich.console import Console
from rich.table import Table


def show(answer: Answer, curve: list[Point], console: Console, *, full: bool) -> None:
    """Print the answer; with ``full`` what it stands among before it, as plain
    lines."""

    def line(text: str, style: str = "") -> None:
        console.print(
            text, style=style or None, markup=False, highlight=False, soft_wrap=True
        )

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
    whole = plan.engine.whole
    ticks = {
        Decimal(1 << n) if whole else Decimal(n + 1) / 10
        for n in range(8 if whole else 10)
    }
    for setting in sorted(ticks | ({chosen.setting} if chosen else set())):
        if not plan.takes(setting):
            continue
        budget = plan.forward(setting)
        prompt = _longest(budget, short=True) if budget.starts else "does not start"
        cells = [str(setting), size(budget.pool_bytes, 2), f"{budget.blocks:,}", prompt]
        if need:
            cells.append("yes" if budget.holds(need.tokens) else "no")
        table.add_row(
            *cells, style="bold" if chosen and setting == chosen.setting else None
        )
    return table


def _other(other: Computed) -> str:
    parts = []
    if (b := other.budget) is not None:
        parts.append(
            f"{b.blocks:,} blocks, {_longest(b)}"
            if b.starts
            else f"no start: {b.refusal}"
        )
    if other.smallest is not None:
        least = other.smallest.setting
        parts.append(f"needs {least.setting}" if least else "no setting holds it")
    return "; ".join(parts)


def _longest(budget: Budget, *, short: bool = False) -> str:
    """``1,344 tokens``, and what limits it."""
    if budget.unlimited:
        return "no limit" if short else "no limit (sliding window)"
    if short:
        return f"{budget.max_tokens:,}" + (
            " (context)" if budget.limited_by == "context" else ""
        )
    words = {"context": " (the context's limit)", "window": " (sliding window)"}
    return f"{budget.max_tokens:,} tokens{words.get(budget.limited_by, '')}"


# ------------------------------------------------------------------ the curve

_EIGHTHS = " ▁▂▃▄▅▆▇█"


@dataclass(frozen=True)
class Point:
    setting: Decimal
    tokens: int


def points(plan: MemoryPlan, decimals: int = 2, most: int = 1 << 40) -> list[Point]:
    """One point a step; unlimited prompts are cut at ``most`` tokens."""
    budgets = [plan.forward(step) for step in steps(plan, decimals)]
    return [Point(b.setting, min(b.max_tokens, most)) for b in budgets]


def text_curve(
    curve: list[Point], need: int = 0, *, width: int = 60, height: int = 8
) -> list[str]:
    """Rows of block characters, highest first; a row of dashes where ``need`` tokens
    are."""
    top = max([p.tokens for p in curve] + [need])
    if not top:
        return []
    columns = [curve[(i * len(curve)) // width].tokens for i in range(width)]
    need_row = height - 1 - min(int(need / top * height), height - 1) if need else -1
    rows = []
    for row in range(height):
        base = (height - 1 - row) / height * top
        filled = [round((tokens - base) / (top / height) * 8) for tokens in columns]
        cells = "".join(_EIGHTHS[max(0, min(8, eighths))] for eighths in filled)
        if row == need_row:
            cells = cells.replace(" ", "╌")
        label = f"{top:,}" if row == 0 else f"{need:,}" if row == need_row else ""
        rows.append(f"{label:>9} ┤{cells}")
    low, high = str(curve[0].setting), str(curve[-1].setting)
    rows.append(" " * 9 + " └" + "─" * width)
    rows.append(" " * 11 + low + high.rjust(width - len(low)))
    return rows


def svg_curve(answer: Answer, curve: list[Point]) -> str:
    """A standalone SVG: steps, the needed tokens as a line. No script, no outside
    resource."""
    engine, need = answer.plan.engine, answer.need.tokens if answer.need else 0
    title = escape(f"{engine.title} {answer.plan.release}: longest prompt in tokens")
    width, height, left, bottom, top = 720, 360, 90, 50, 50
    floor, right = height - bottom, width - 30
    highest = max([p.tokens for p in curve] + [need, 1])
    low, high = float(curve[0].setting), float(curve[-1].setting)

    def x(setting: Decimal) -> float:
        return left + (float(setting) - low) / ((high - low) or 1.0) * (right - left)

    def y(tokens: int) -> float:
        return floor - tokens / highest * (floor - top)

    def text(x: float, y: float, anchor: str, words: str, more: str = "") -> str:
        return (
            f'<text x="{x:.1f}" y="{y:.1f}" text-anchor="{anchor}"{more}>{words}</text>'
        )

    path = f"M{x(curve[0].setting):.1f} {y(curve[0].tokens):.1f}"
    path += "".join(f"H{x(p.setting):.1f}V{y(p.tokens):.1f}" for p in curve[1:])
    quarters = [highest * share // 4 for share in range(5)]
    marked = [
        curve[at] for at in sorted({round(n * (len(curve) - 1) / 6) for n in range(7)})
    ]
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {height}" '
        'font-family="sans-serif" font-size="13" role="img">',
        f"<title>{title}</title>",
        f'<rect width="{width}" height="{height}" fill="#fff"/>',
        text(left, 24, "start", title, ' font-size="15"'),
        f'<path d="M{left} {top}V{floor}H{right}" fill="none" stroke="#666"/>',
        *(text(left - 8, y(tokens) + 4, "end", f"{tokens:,}") for tokens in quarters),
        *(text(x(p.setting), floor + 18, "middle", str(p.setting)) for p in marked),
        text(width / 2, height - 10, "middle", escape(engine.setting)),
    ]
    if need:
        parts += [
            (
                f'<path d="M{left} {y(need):.1f}H{right}" stroke="#c22" '
                f'stroke-dasharray="5 4"/>'
            ),
            text(right - 4, y(need) - 6, "end", f"{need:,} tokens", ' fill="#c22"'),
        ]
    parts.append(f'<path d="{path}" fill="none" stroke="#1a6" stroke-width="2"/></svg>')
    return "\n".join(parts) + "\n"

"""The answer for people: what a setting gives, which setting is needed, the curve, the sources."""

from __future__ import annotations

from mmrepro.base.units import size
from mmrepro.kv_budget.base import Budget, MemoryPlan, Smallest
from mmrepro.kv_budget.curve import Point, text_curve, ticks
from mmrepro.kv_budget.inputs import NAMES, newest_read
from mmrepro.kv_budget.result import Answer, is_unlimited
from packaging.version import Version
from rich.console import Console
from rich.table import Table

_WORDS = {"context": " (the context's limit)", "window": " (sliding window)"}


def show(answer: Answer, curve: list[Point], console: Console) -> None:
    """Print everything; plain lines when it is not a terminal."""
    plan = answer.plan
    release = answer.question.release
    newer = Version(release) > Version(newest_read(plan.engine))
    read = f", read in {newest_read(plan.engine)}" if newer else ""
    since = plan.formula_release
    line(console, f"{NAMES[plan.engine]} {release}, computed as since {since}{read}")
    line(
        console,
        f"one block: {plan.block_bytes:,} bytes for {plan.block_size} token"
        + ("s" if plan.block_size > 1 else ""),
    )
    if answer.budget is not None:
        _forward(answer.budget, plan, console)
    if answer.smallest is not None:
        _backward(answer, answer.smallest, console)
    _table(answer, console)
    for row in text_curve(curve, answer.need.tokens if answer.need else 0):
        line(console, row)
    line(console, " " * 11 + plan.setting_name)
    _others(answer, console)
    _sources(answer, console)


def line(console: Console, text: str, style: str = "") -> None:
    console.print(text, style=style or None, markup=False, highlight=False, soft_wrap=True)


def _forward(budget: Budget, plan: MemoryPlan, console: Console) -> None:
    line(console, f"\n{plan.setting_name} {budget.setting}", "bold")
    line(console, f"  set aside       {size(budget.reserve_bytes, 2)}")
    line(console, f"  for the cache   {size(budget.pool_bytes, 2)} ({budget.pool_bytes:,} bytes)")
    line(console, f"  blocks          {budget.blocks:,}")
    if budget.starts:
        line(console, f"  longest prompt  {longest(budget)}")
    else:
        line(console, f"  does not start  {budget.refusal}", "red")
    if budget.log:
        line(console, f"  in its log      {budget.log}")
    for note in budget.notes:
        line(console, f"  note            {note}", "yellow")


def _backward(answer: Answer, smallest: Smallest, console: Console) -> None:
    assert answer.need is not None
    name = answer.plan.setting_name
    line(console, f"\nA prompt of {answer.need.words()} needs {smallest.blocks:,} blocks.", "bold")
    if smallest.setting is None:
        best = smallest.best
        most = f"{best.setting} holds {longest(best)}" if best and best.starts else "none starts"
        line(console, f"  no {name} holds it: {most}.", "red")
        return
    got = smallest.setting
    line(
        console,
        f"  smallest {name} that works: {got.setting} ({got.blocks:,} blocks, {longest(got)})",
        "green",
    )
    if smallest.below is not None:
        below = smallest.below
        why = longest(below) if below.starts else f"does not start: {below.refusal}"
        line(console, f"  one step less, {below.setting}: {below.blocks:,} blocks, {why}")
    if smallest.lowest is not None and smallest.lowest.setting != got.setting:
        low = smallest.lowest
        line(
            console,
            f"  {low.setting} works as well ({low.blocks:,} blocks, {longest(low)}), but not every "
            f"value up to {got.setting} does",
            "yellow",
        )
        for note in low.notes:
            line(console, f"    there {note}", "yellow")


def _table(answer: Answer, console: Console) -> None:
    table = Table(box=None, pad_edge=False)
    for heading in ("setting", "cache", "blocks", "longest prompt"):
        table.add_column(heading, justify="right", no_wrap=True)
    need = answer.need.tokens if answer.need else 0
    if need:
        table.add_column(f"holds {need:,}", no_wrap=True)
    for setting in ticks(answer.plan, answer.budget):
        budget = answer.plan.forward(setting)
        cells = [
            str(setting),
            size(budget.pool_bytes, 2),
            f"{budget.blocks:,}",
            _short(budget),
        ]
        if need:
            cells.append("yes" if budget.holds(need) else "no")
        chosen = answer.budget is not None and setting == answer.budget.setting
        table.add_row(*cells, style="bold" if chosen else None)
    console.print()
    console.print(table)
    console.print()


def _others(answer: Answer, console: Console) -> None:
    if not answer.others:
        return
    line(console, "\nThe same numbers in other releases", "bold")
    for other in answer.others:
        parts = []
        if other.budget is not None:
            b = other.budget
            parts.append(
                f"{b.blocks:,} blocks, {longest(b)}" if b.starts else f"no start: {b.refusal}"
            )
        if other.smallest is not None:
            smallest = other.smallest.setting
            parts.append(f"needs {smallest.setting}" if smallest else "no setting holds it")
        line(console, f"  {other.release:<8} {'; '.join(parts)}")


def _sources(answer: Answer, console: Console) -> None:
    line(console, "\nWhere the formulas are from", "bold")
    for source in answer.plan.sources:
        line(console, f"  {source.says}")
        line(console, f"    {source}", "dim")


def _short(budget: Budget) -> str:
    if not budget.starts:
        return "does not start"
    if is_unlimited(budget):
        return "no limit"
    return f"{budget.max_tokens:,}" + (" (context)" if budget.limited_by == "context" else "")


def longest(budget: Budget) -> str:
    """``1,344 tokens``."""
    if is_unlimited(budget):
        return "no limit (sliding window)"
    return f"{budget.max_tokens:,} tokens{_WORDS.get(budget.limited_by, '')}"

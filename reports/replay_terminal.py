"""What a person sees of a replay: the findings, and at the end what to type next."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING

from mmrepro.base.units import duration
from mmrepro.incident.replay import Finding, Replay
from mmrepro.reports import replay_view as view
from mmrepro.reports.lines import TONES, Printer
from mmrepro.text.sanitize import one_line

if TYPE_CHECKING:
    from rich.console import Console
    from rich.table import Table


def finding_table(replay: Replay) -> Table:
    """The findings, the worst first."""
    return rows_table(view.rows(replay))


def rows_table(rows: list[view.Row]) -> Table:
    """A line for each. Nothing in it is read as markup."""
    from rich import box
    from rich.table import Table
    from rich.text import Text

    table = Table(box=box.SIMPLE_HEAD, pad_edge=False)
    after = any(row.after for row in rows)
    for head in ("", "class", "known", "", "requests", "rate", *["first seen"] * after):
        table.add_column(head, overflow="fold")
    for row in rows:
        cells = [row.id, row.finding.finding_class.value, row.known, row.state, row.requests]
        texts = [Text(one_line(cell, 80)) for cell in (*cells, row.rate, *[row.after] * after)]
        texts[1].stylize(TONES[row.tone])
        table.add_row(*texts)
    return table


def print_replay(replay: Replay, console: Console, folder: str) -> None:
    """The answer, the findings, what was seen besides, where it is and what to type next."""
    line = partial(Printer(console).line, cut=False)
    head = view.headline(replay)
    line()
    line((head.label.upper(), TONES[head.tone]), f"  {view.title(replay)}")
    line(head.said)
    if replay.failure:
        line((replay.failure, "yellow"))
    if replay.findings:
        console.print(finding_table(replay))
    for finding in replay.findings:
        finding_lines(finding.id, finding, line)
    for sighting in replay.unconfirmed:
        line()
        line((f"seen once, not again: {sighting.finding_class}", "bold"), f"  {sighting.said}")
    line()
    if replay.counted:
        line(f"counted, not reported: {view.counts(replay.counted)}")
    for text in replay.unseen:
        line("not judged: ", text)
    for text in replay.limits:
        line("limit: ", text)
    line(f"{view.starts(replay)} of at most {replay.budget} servers were started, ", end(replay))
    line("  ", folder)
    for finding in replay.findings:
        line(f"  to reproduce {finding.id}:  {folder}/{finding.folder}/reproduce.py")
    line(f"  to repeat it:  {replay.command}")
    if replay.state == "interrupted" and replay.resume:
        line(f"  to go on:  {replay.resume}")


def end(replay: Replay) -> str:
    return f"{duration(view.seconds(replay))} in all"


def finding_lines(id: str, finding: Finding, line: partial[None]) -> None:
    line()
    line((f"{id}  {view.CLASS_WORDS[finding.finding_class]}", "bold"))
    line(f"  {view.said(finding)}")
    line(f"  expected: {view.expected(finding)}")
    for one in finding.also:
        line(f"  also: {one}")
    if finding.known:
        line(f"  known: {view.known_name(finding)}", (f"  {finding.known_why}", "dim"))
    line(f"  {view.requests_words(finding)}; {view.rate_words(finding.rate)}")
    for frame in finding.stack[:3]:
        line("    ", (frame, "dim"))

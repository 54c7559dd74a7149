"""What a person sees of a fuzzing session: the findings, and at the end what to type next."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING

from mmrepro.incident.replay import Fuzz
from mmrepro.reports import fuzz_view as fuzzing
from mmrepro.reports.lines import TONES, Printer
from mmrepro.reports.replay_terminal import finding_lines, rows_table

if TYPE_CHECKING:
    from rich.console import Console
    from rich.table import Table


def finding_table(fuzz: Fuzz) -> Table:
    """The findings, in the order in which they were seen."""
    return rows_table(fuzzing.rows(fuzz))


def print_fuzz(fuzz: Fuzz, console: Console, folder: str) -> None:
    """The answer, the findings, what was seen besides, where it is and what to type next."""
    line = partial(Printer(console).line, cut=False)
    head = fuzzing.headline(fuzz)
    line()
    line((head.label.upper(), TONES[head.tone]), f"  {fuzzing.title(fuzz)}")
    line(head.said)
    if fuzz.failure:
        line((fuzz.failure, "yellow"))
    if fuzz.found:
        console.print(finding_table(fuzz))
    for found in fuzz.found:
        finding_lines(found.id, found.finding, line)
    for once in fuzz.once:
        line()
        seen = f"seen once, not again: {once.sighting.finding_class} in episode {once.episode}"
        line((seen, "bold"), f"  {once.sighting.said}")
    line()
    for name, tokens, source in fuzzing.learnt(fuzz):
        line(f"learnt: {name} {tokens} tokens", (f"  {source}", "dim"))
    for text in fuzzing.besides(fuzz):
        line(text)
    for text in fuzz.unseen:
        line("not judged: ", text)
    for text in fuzz.limits:
        line("limit: ", text)
    line(fuzzing.amount(fuzz))
    line(fuzzing.ABSENT)
    line("  ", folder)
    for found in fuzz.found:
        if found.folder:
            line(f"  to reproduce {found.id}:  {folder}/{found.folder}/reproduce.py")
    line(f"  to repeat it:  {fuzz.command}")
    if fuzz.state == "interrupted" and fuzz.resume:
        line(f"  to go on:  {fuzz.resume}")

"""What a person sees of an ablation: the table as it grows, and the end."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING

from mmrepro.incident.searches import Ablation
from mmrepro.reports import ablation_view as view
from mmrepro.reports.lines import TONES, Printer
from mmrepro.reports.words import CLAIM_MARKS, CLAIM_WORDS
from mmrepro.text.sanitize import one_line

if TYPE_CHECKING:
    from rich.console import Console
    from rich.table import Table


def factor_table(ablation: Ablation) -> Table:
    """The table that matters, as far as it is known. Nothing in it is read as markup."""
    from rich import box
    from rich.table import Table
    from rich.text import Text

    table = Table(box=box.SIMPLE_HEAD, pad_edge=False)
    for head in ("factor", "flipped to", "outcome", "symptom", "cause", "class"):
        table.add_column(head, overflow="fold", no_wrap=head in ("factor", "class"))
    for row in view.rows(ablation):
        cells = [row.factor, row.setting, row.outcome, row.symptom, row.cause, row.factor_class]
        texts = [Text(one_line(cell, 120)) for cell in cells]
        texts[-1].stylize(TONES[row.tone])
        table.add_row(*texts)
    return table


def print_ablation(ablation: Ablation, console: Console, folder: str) -> None:
    """Conclusion, table, cures, hypotheses, limits, where it is and what to type next."""
    line = partial(Printer(console).line, cut=False)
    head = view.headline(ablation)
    line()
    line((head.label.upper(), TONES[head.tone]), f"  {view.title(ablation)}")
    if ablation.failure:
        line((ablation.failure, "yellow"))
    if ablation.explanation:
        line(ablation.explanation)
    line()
    console.print(factor_table(ablation))
    for factor in ablation.factors:
        if factor.why:
            line("  ", (factor.name, "bold"), f": {factor.why}")
    if ablation.cures:
        line()
        line(("Smallest cures", "bold"))
        for cure in ablation.cures:
            line("  ", (view.cure_words(cure), "green"), f"  {cure.settings}  ({cure.why})")
    if ablation.hypotheses:
        line()
        line(("The report's hypotheses", "bold"))
        for claim in ablation.hypotheses:
            status = f"{CLAIM_MARKS[claim.status]} {CLAIM_WORDS[claim.status]}"
            line(f"  {status}: {claim.text}  ", (claim.observed, "dim"))
    if ablation.limits:
        line()
        line(("What this does not establish", "bold"))
        for limit in ablation.limits:
            line("  ", limit)
    line()
    reused = f", {ablation.reused} of them reused from earlier calls" if ablation.reused else ""
    line(f"{ablation.runs} runs in {len(ablation.cells)} cells{reused}")
    line("  ", folder)
    line(f"  to repeat it:  {ablation.command}")

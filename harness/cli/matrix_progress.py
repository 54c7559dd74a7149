"""What `mmrepro matrix run` shows as it goes, and with --dry-run in the place of going."""

from __future__ import annotations

import threading
import time
from collections import Counter
from typing import TYPE_CHECKING

from mmrepro.base.units import duration, size
from mmrepro.cli.progress import LiveView
from mmrepro.history.states import Settled, State
from mmrepro.incident.ledger import Attempt, Planned
from mmrepro.matrix.plan import DryRun, Group
from mmrepro.matrix.schedule import Next
from mmrepro.reports.night_words import plural
from mmrepro.text.sanitize import one_line
from rich import box
from rich.console import Console, Group as Lines, RenderableType
from rich.spinner import Spinner
from rich.table import Table
from rich.text import Text

if TYPE_CHECKING:
    from mmrepro.matrix.session import Session


class MatrixProgress(LiveView):
    """A line for each run that ended; on a terminal what is under way below them."""

    def __init__(self, console: Console) -> None:
        super().__init__(console, per_second=4, transient=True)
        self.session: Session | None = None
        self._current: dict[int, tuple[str, float]] = {}
        self._latest = ""
        self._counts: Counter[str] = Counter()

    # ------------------------------------------------------------------ told by the session

    def say(self, text: str) -> None:
        """Of the environments and warm parents."""
        with self._lock:
            self._latest = one_line(text, 200)
        if not self.console.is_terminal:
            self._line(f"  {text}")

    def group(self, group: Group, machine: str) -> None:
        self._line(f"{group.name} on {machine}" if machine else group.name, "bold")

    def began(self, planned: Planned, coming: Next) -> None:
        which = f", {coming.role} run {coming.number}" if coming.number > 1 else ""
        with self._lock:
            told = f"{planned.cell.row} on {planned.cell.release}{which}"
            self._current[threading.get_ident()] = (told, time.monotonic())
            self._latest = ""

    def ended(self, planned: Planned, attempt: Attempt, whole: Settled | None) -> None:
        with self._lock:
            self._current.pop(threading.get_ident(), None)
            if whole is not None:
                self._counts[whole.state] += 1
        outcome = attempt.outcome or f"lost ({attempt.lost})"
        role = "" if attempt.role == "planned" else f" ({attempt.role})"
        text = Text(f"  {planned.cell.row}{role}: {outcome}, {duration(attempt.seconds)}")
        expected = planned.expected is None or attempt.outcome is planned.expected
        if not expected and attempt.outcome is not None:
            text.append(f"; {planned.expected} was expected", style="red")
        if attempt.lost is not None:
            text.append(f": {one_line(attempt.error, 300)}", style="yellow")
        self.console.print(text, soft_wrap=True, highlight=False)
        if whole is not None and whole.state is State.FLAKY:
            self._line(f"  {planned.cell.row}: flaky, {whole.why}", "magenta")

    def _line(self, text: str, style: str = "") -> None:
        self.console.print(Text(one_line(text, 400), style=style), soft_wrap=True, highlight=False)

    # ------------------------------------------------------------------ drawing

    def _draw(self) -> RenderableType:
        session = self.session
        with self._lock:
            current, latest = list(self._current.values()), self._latest
            counts = Counter(self._counts)
        parts: list[RenderableType] = []
        for told, since in current:
            row = Table.grid(padding=(0, 1))
            spent = duration(int(time.monotonic() - since))
            row.add_row(Spinner("dots"), Text(told, style="bold"), Text(spent, style="dim"))
            parts.append(row)
        if session is not None:
            total = len(session.runs.planned)
            ended = total - len(session.todo)
            words = [f"{ended} of {total} cells"]
            words += [f"{count} {state}" for state, count in counts.most_common()]
            if seconds := session.seconds_left:
                words.append(f"about {duration(seconds)} left")
            parts.append(Text(" · ".join(words)))
        if latest:
            parts.append(Text(latest, style="dim", overflow="ellipsis", no_wrap=True))
        return Lines(*parts)


# ---------------------------------------------------------------- before it


def print_dry_run(told: DryRun, console: Console) -> None:
    """The cells by environment, what each takes, and what is fetched first."""
    table = Table(box=box.SIMPLE_HEAD, pad_edge=False)
    for head in ("environment", "cell", "expected", "runs", "about"):
        table.add_column(head)
    for group in told.groups:
        fetched = "" if not group.download_bytes else f", {group.environment}"
        for number, cell in enumerate(group.cells):
            table.add_row(
                f"{group.name}{fetched}" if number == 0 else "",
                one_line(cell.cell.row, 120),
                cell.expected or "–",
                str(cell.runs),
                duration(cell.seconds) if cell.runs else "–",
            )
    console.print(table)
    cells = sum(len(group.cells) for group in told.groups)
    counted = ((cells, "cell"), (len(told.groups), "environment"), (told.runs, "run"))
    sums = [f"{number} {plural(number, word)}" for number, word in counted]
    text = f"Night {told.night}: {sums[0]} in {sums[1]}, {sums[2]}"
    text += f", about {duration(told.seconds)}." if told.runs else ": nothing is left to run."
    if told.download_bytes:
        text += f" About {size(told.download_bytes)} are unpacked first, at most."
    console.print(text, highlight=False, soft_wrap=True)
    for why in dict.fromkeys(c.seconds_from for g in told.groups for c in g.cells if c.runs):
        console.print(f"Times: {why}.", highlight=False, soft_wrap=True)
    for note in told.notes:
        console.print(f"Left out: {note}.", highlight=False, soft_wrap=True)

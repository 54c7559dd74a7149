"""A campaign on the command line: its progress, and what is printed where it breaks
off."""

import time
from collections import Counter
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any, NoReturn, TypeVar

import typer
from mmrepro.base.errors import ExitCode, UsageError
from mmrepro.base.text import one_line
from mmrepro.base.units import duration, slug
from mmrepro.campaign import (
    Campaign,
    CampaignBegan,
    CampaignEnded,
    CampaignEvent,
    Established,
    Note,
    Places,
    Policy,
    RunBegan,
    RunEnded,
    Say,
    TrialOptions,
    json_lines,
)
from mmrepro.cli.building import Sparse
from mmrepro.cli.console import console_for, emit, head_of_page, table_console
from mmrepro.cli.progress import LiveView
from mmrepro.reports.documents import ReportKind
from mmrepro.reports.terminal import TONES
from rich.console import Console, Group, RenderableType
from rich.spinner import Spinner
from rich.table import Table
from rich.text import Text

DocumentT = TypeVar("DocumentT")


def conduct(
    policy: Policy[DocumentT],
    places: Callable[[Say], Places],
    console: Console,
    asked: Any,
    *,
    budget_s: float | None = None,
) -> DocumentT:
    """Run the campaign to its end, with its progress on ``console``.

    Args:
        places: makes them; is given what prints a line on what happens beside the runs.
        asked: has ``events``, a file for JSON lines ("-": standard output, "": none),
            and ``verbose``.

    Raises:
        KeyboardInterrupt, MmreproError: as :meth:`Campaign.execute`; what goes on with
            it is printed before.
    """
    display = CampaignProgress(console, policy.standing, verbose=asked.verbose)
    ended: list[RunEnded] = []

    def note_end(event: CampaignEvent) -> None:
        if isinstance(event, RunEnded):
            ended[:] = [event]

    with json_lines(asked.events) as lines:
        campaign = Campaign(
            policy,
            places(Sparse(lambda text: display(note(text)))),
            [display, note_end, *lines],
            budget_s=budget_s,
        )
        try:
            with display:
                return campaign.execute()
        except BaseException as error:
            if policy.folder.is_dir():
                kept = f"{policy.folder} ({policy.standing()}; what has ended is kept)"
                text = f"Partial {policy.kind}: {kept}"
                if not ended:
                    text = (
                        f"No run of this {policy.kind} ended; its options are "
                        f"in {policy.folder}"
                    )
                if not isinstance(error, UsageError):  # it would end in the same way
                    text += f"\nto resume, run: {policy.resume_command}"
                # A word that was typed may be no UTF-8.
                typer.echo(text.encode("utf-8", "replace"), err=True)
            raise


def finish(
    asked: Any,
    kind: ReportKind[DocumentT],
    made: DocumentT,
    folder: Path,
    exit_code: ExitCode,
) -> None:
    """Print the end of a campaign: with --json its document, else its end screen.

    Beside a document, the page's place and the verdict go to stderr.
    """
    from mmrepro.failure.documents import as_published
    from mmrepro.reports.terminal import print_page

    made = as_published(made)
    place = str(folder / kind.files[1])
    page = kind.compose_at(made, str(folder)) if kind.compose_at else kind.compose(made)
    if asked.json:
        status = slug(page.badge.label)
        emit(kind.stored(made), head_of_page(page, status, exit_code, place))
    aside = asked.json or asked.events == "-"
    quiet = asked.quiet or asked.json
    console = table_console(stderr=aside)
    print_page(page, console, place, full=asked.full, quiet=quiet)


def carry_out(
    policy: Policy[DocumentT],
    kind: ReportKind[DocumentT],
    asked: Any,
    trials: TrialOptions,
    *,
    exit_code: Callable[[DocumentT], ExitCode],
    jobs: int | None,
    device: str = "cpu",
    budget_s: float | None = None,
) -> NoReturn:
    """Run the campaign where ``jobs`` and ``asked.ray`` say, print its end, and exit.

    Raises as :func:`conduct`, and as ``placed``.
    """
    from mmrepro.campaign.cluster import placed_runs

    with placed_runs(jobs, asked.ray) as where:
        made = conduct(
            policy,
            lambda say: where.places(say, trials, device=device),
            console_for(asked),
            asked,
            budget_s=budget_s,
        )
    code = exit_code(made)
    finish(asked, kind, made, policy.folder, code)
    raise typer.Exit(code)


def code_of_search(made: Any) -> ExitCode:
    """The exit code of a search that knows its own; one that failed is at fault."""
    if made.state == "failed":
        return ExitCode.INFRASTRUCTURE
    return ExitCode(made.exit_code)


def announce_servers(
    asked: Any, servers: Iterable[tuple[str, str]], *, new: Path | None = None
) -> None:
    """Tell what the environments of these engines and releases may download.

    Not of other machines, nor once more where something is resumed. ``new`` and what is
    raised: as of :func:`mmrepro.cli.console.announce`."""
    from mmrepro.cli.console import announce
    from mmrepro.engines import spec_for

    if not (asked.ray or asked.resume):
        specs = [spec_for(*one, asked.device) for one in servers]
        announce(*specs, yes=asked.yes, new=None if asked.out else new)


def note(text: str) -> Note:
    """For what happens beside the runs."""
    return Note(text=text, passing=True)


class CampaignProgress(LiveView):
    """A line for each run that ended; on a terminal those in progress below the last
    ones."""

    def __init__(
        self,
        console: Console,
        standing: Callable[[], str] = lambda: "",
        *,
        verbose: bool = False,
    ) -> None:
        super().__init__(console, per_second=4, transient=True)
        self._standing, self._verbose = standing, verbose
        self._lines: list[Text] = []
        self._current: dict[tuple[str, int, str], float] = {}
        self._counts: Counter[str] = Counter()
        self._latest = ""

    def __call__(self, event: CampaignEvent) -> None:
        match event:
            case RunBegan():
                with self._lock:
                    self._current[event.what, event.index, event.machine] = (
                        time.monotonic()
                    )
                    self._latest = ""
            case RunEnded():
                with self._lock:
                    self._current = {
                        key: since
                        for key, since in self._current.items()
                        if key[:2] != (event.what, event.index)
                    }
                    self._counts[event.outcome] += 1
                self._line(_ended(event))
            case Established():
                self._line(Text(one_line(event.text, 400), style=TONES[event.tone]))
            case Note() if (
                event.passing and self.console.is_terminal and not self._verbose
            ):
                with self._lock:
                    self._latest = one_line(event.text, 200)
            case Note():
                self._line(
                    Text(one_line(event.text, 400), style="bold" * (not event.passing))
                )
            case CampaignBegan() | CampaignEnded():
                pass

    def _line(self, line: Text) -> None:
        self.console.print(line, soft_wrap=True, highlight=False)

    def _draw(self) -> RenderableType:
        with self._lock:
            current, latest = dict(self._current), self._latest
            counts = self._counts.most_common()
        parts: list[RenderableType] = []
        for (what, index, machine), since in current.items():
            row = Table.grid(padding=(0, 1))
            name = _name(what, index) + (f" on {machine}" if machine else "")
            spent = f"{time.monotonic() - since:.0f} s"
            row.add_row(
                Spinner("dots"), Text(name, style="bold"), Text(spent, style="dim")
            )
            parts.append(row)

        standing = self._standing()
        words = [standing] if standing else []
        for word, number in counts:
            words.append(f"{number} {word}")
        if words:
            parts.append(Text(" · ".join(words), overflow="ellipsis", no_wrap=True))
        if latest:
            parts.append(Text(latest, style="dim", overflow="ellipsis", no_wrap=True))
        return Group(*parts)


def _name(what: str, index: int) -> str:
    return one_line(what, 100) + (f", run {index}" if index > 1 else "")


def _ended(event: RunEnded) -> Text:
    how = "kept from before" if event.kept else f"in {duration(event.seconds)}"
    where = f" on {event.machine}" if event.machine else ""
    text = Text.assemble(
        f"{_name(event.what, event.index)}{where}: ",
        (one_line(event.outcome, 160), TONES[event.tone]),
        f", {how}",
    )
    if event.detail:
        text.append(f"; {one_line(event.detail, 300)}", style=TONES[event.tone])
    return text

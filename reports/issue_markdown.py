"""The words of issues: titles, bodies, comments.

A body has a mark that nobody sees, a block of status that every night writes anew, and a rest that
is written once and may be edited. What engines wrote cannot mention anybody, refer to another
issue, or end a block: GitHub looks for ``@`` and ``#`` after it has read the Markdown, so that
these are parted from what follows them as well as escaped.
"""

from __future__ import annotations

import re
import shlex
from datetime import datetime
from typing import Final

from mmrepro.history.concerns import OF_A_RELEASE, Concern
from mmrepro.history.issues import LABEL, Action, Close, Open, Update, mark_of, marked
from mmrepro.history.states import Settled
from mmrepro.incident.ledger import Cell, EventKind
from mmrepro.reports import gfm
from mmrepro.reports.night_words import EVENT_WORDS
from mmrepro.text.sanitize import one_line

MAX_TITLE: Final = 200
_APART: Final = "&#8203;"
"""A space of no width."""
_BEGIN: Final = "<!-- mmrepro-status -->"
_END: Final = "<!-- /mmrepro-status -->"
_STATUS: Final = re.compile(f"{re.escape(_BEGIN)}.*?{re.escape(_END)}", re.DOTALL)
_LINKED: Final = re.compile(r"(&#64;|(?<!&)#(?=\w)|:(?=//)|\bgh(?=-\d)|\bwww(?=\.))", re.IGNORECASE)


def as_json(action: Action, run_url: str = "") -> dict[str, object]:
    """What is to be done, with the texts that it takes.

    Args:
        run_url: of the workflow's run that found it.
    """
    if isinstance(action, Open):
        concern = action.concern
        return {
            "do": "open",
            "identity": concern.identity,
            "title": title(concern),
            "body": body(concern, run_url),
            "labels": [LABEL],
        }
    number = action.issue.number
    if isinstance(action, Update):
        return {
            "do": "update",
            "number": number,
            "identity": action.concern.identity,
            "body": updated(action, run_url),
            "comment": _changed(action) if action.changed else "",
        }
    return {
        "do": "close",
        "number": number,
        "identity": action.identity,
        "comment": _closing(action),
        "reason": "not planned" if action.same_as else "completed",
    }


def title(concern: Concern) -> str:
    words = EVENT_WORDS[concern.event.what]
    if concern.cell is None:
        return one_line(f"{words}: none since {concern.event.night or 'the beginning'}", MAX_TITLE)
    return one_line(f"{words}: {concern.cell.row} on {_release(concern.cell)}", MAX_TITLE)


def body(concern: Concern, run_url: str = "") -> str:
    parts = [mark_of(concern).text, _lead(concern), _status(concern, run_url)]
    if concern.cell is not None:
        parts += [_table(concern, concern.cell), *_commands(concern, concern.cell)]
    parts.append(
        "Each night rewrites the block above and closes this issue when it is over; the rest may "
        "be edited. Closed by hand it stays closed until this is found anew."
    )
    return "\n\n".join(parts) + "\n"


def updated(update: Update, run_url: str = "") -> str:
    """The issue's own body, with mark and status as they are now."""
    old = marked(update.issue.body, mark_of(update.concern))
    status = _status(update.concern, run_url)
    if _STATUS.search(old):
        return _STATUS.sub(lambda _: status, old, count=1)
    return f"{old.rstrip()}\n\n{status}\n"


def quiet(text: str, limit: int = 600) -> str:
    """Foreign text as prose on one line, in which nothing is Markdown, HTML or a link."""
    return _LINKED.sub(rf"\1{_APART}", gfm.paragraph(text, limit))


def _lead(concern: Concern) -> str:
    return f"**{EVENT_WORDS[concern.event.what].capitalize()}**: {quiet(concern.event.text, 1200)}"


def _status(concern: Concern, run_url: str) -> str:
    return f"{_BEGIN}\n{_told(concern, run_url)}\n{_END}"


def _told(concern: Concern, run_url: str) -> str:
    link = f" [The run that says so](<{run_url}>)." if gfm.is_web_address(run_url) else ""
    if concern.cell is None:
        return _overdue(concern) + link
    now = concern.tonight
    night = quiet(concern.night, 100)
    if concern.seen == concern.night and now is not None:
        told = f"**Night {night}:** {_counted(now)}"
    else:
        why = f"{now.state}, {quiet(now.why)}" if now is not None else "not run"
        told = f"**Night {night}:** no verdict ({why})"
        if concern.seen and concern.settled is not None:
            told += f"; last known in night {quiet(concern.seen, 100)}: {_counted(concern.settled)}"
    return f"{told}. Told first in night {quiet(concern.since, 100)}.{link}"


def _counted(settled: Settled) -> str:
    """``reproduced, 3 of 3 conclusive runs reproduce it (95 %: 44 to 100 %)``."""
    return (
        f"{settled.state}, {settled.reproduced} of {settled.conclusive} conclusive runs reproduce "
        f"it (95 %: {settled.low:.0%} to {settled.high:.0%})"
    )


def _overdue(concern: Concern) -> str:
    seen = concern.watch
    if seen is None or seen.last is None:
        return "No night of this ledger ran anything."
    night = seen.last.night
    told = f"The last night, {quiet(night.id, 100)}, began on {_time(night.created.wall)}"
    told += f" and is {night.state}"
    return f"{told}; the next one was due on {_time(seen.due)}." if seen.due else f"{told}."


def _time(moment: datetime) -> str:
    return f"{moment:%Y-%m-%d %H:%M} UTC"


def _table(concern: Concern, cell: Cell) -> str:
    run = concern.runs[-1] if concern.runs else None
    expected = concern.settled.expected if concern.settled is not None else None
    rows = [
        ("scenario", cell.row),
        ("engine", f"{_release(cell)} ({cell.device})"),
        ("expected", expected.value if expected is not None else ""),
        ("before", concern.event.before),
        ("changed beside it", ", ".join(concern.event.changed)),
        ("the run says", (run.explanation or run.error) if run is not None else ""),
        ("cell", cell.id),
    ]
    return gfm.table(["", ""], [(name, _cell(value)) for name, value in rows if value])


def _commands(concern: Concern, cell: Cell) -> list[str]:
    found = []
    command = next((a.command for a in reversed(concern.runs) if a.command), "")
    if command:
        again = f"{command} --repeat 5" if concern.event.what is EventKind.FLAKY else command
        found.append("To repeat it:\n\n" + _fence(again))
    if concern.event.what in OF_A_RELEASE and not cell.commit:
        found.append("To find the release that brought it:\n\n" + _fence(_bisect(cell)))
    return found


def _bisect(cell: Cell) -> str:
    words = ["mmrepro", "bisect", cell.scenario, "--find", "introduced", "--bad", cell.release]
    words += ["--variant", cell.variant] if cell.variant else []
    words += [f"--server-arg={one}" for one in cell.server_args]
    words += [f"--mitigation={one}" for one in cell.mitigations]
    words += [f"--option={one}" for one in cell.options]
    return shlex.join([*words, "--device", cell.device])


def _fence(command: str) -> str:
    return gfm.fence(one_line(command, 2000), "sh", 1, 2000)


def _cell(value: str) -> str:
    return quiet(value, 400)


def _release(cell: Cell) -> str:
    return f"{cell.engine} {cell.commit[:12] or cell.release}"


def _changed(update: Update) -> str:
    concern = update.concern
    return f"It was {quiet(update.before, 60)}. {_told(concern, '')}"


def _closing(close: Close) -> str:
    if close.same_as:
        return f"The same as #{close.same_as}, which goes on."
    return quiet(close.why, 1200)

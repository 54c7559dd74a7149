"""The requests of a case in the order of their barriers: a lane each, as text and as
SVG.

Columns are logical: what waits for something stands right of it. Lengths say nothing of
time."""

from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Final

from markupsafe import Markup
from mmrepro.base.text.sanitize import clip, one_line
from mmrepro.reports.svg import WIDTH, path, rect, svg, tag, text
from mmrepro.traffic.case.model import CHAT, COMPLETIONS, Barrier, Case, Operation

_MAX_LANES: Final = 60
_MAX_IMAGES: Final = 60
_RESULT: Final = 64
"""Characters of what came of a request, in the drawing; the table has the rest."""
_KINDS: Final = ("ok", "client", "server", "lost", "left", "unsent", "unknown")
_ENDS: Final = dict(zip(_KINDS, "■□✘?✂·■", strict=True))
LEGEND: Final = (
    "● sent · ▸ tokens that others wait for · ■ answered · □ refused · ✘ failed in the "
    "server · ? never answered · ✂ its client goes away · ! fails"
)


@dataclass
class Lane:
    """One request. Columns count from 0; ``end`` is one past the last one that it runs
    in."""

    operation: Operation
    sent: int
    end: int
    kind: str
    result: str
    images: list[str]
    fails: bool
    marks: dict[int, str] = field(default_factory=dict)
    """Column: the barrier on it that somebody else waits for there."""

    @property
    def shape(self) -> str:
        """``340 characters, 2 images, 4 tokens, streamed``."""
        return _request_shape(self.operation)


@dataclass(frozen=True)
class Sequence:
    lanes: list[Lane]
    columns: int
    letters: dict[str, str]
    """Name of an image: the letter that it is drawn with."""
    hidden: int = 0


def sequence(case: Case, observed: dict[str, str], failing: list[str]) -> Sequence:
    """The lanes of ``case``; at most ``_MAX_LANES``, those that fail among them."""
    sent: dict[str, int] = {}
    ended: dict[str, int] = {}
    marks: dict[str, dict[int, str]] = {op.id: {} for op in case.operations}
    for column, op in enumerate(case.operations):
        sent[op.id] = column
        for wait in op.after:
            barrier = Barrier.parse(wait)
            if barrier.event == "end":
                ended[barrier.op] = min(ended.get(barrier.op, column), column)
            elif barrier.event in ("first-token", "tokens"):
                marks[barrier.op][column - 1] = wait.partition(".")[2]
            elif barrier.event == "running<=":
                over = [o.id for o in case.operations[:column] if o.id not in ended]
                for one in over[: max(0, len(over) - barrier.count)]:
                    ended[one] = column
    columns = len(case.operations) + 1
    lanes = []
    for op in case.operations:
        result, begin = observed.get(op.id, ""), sent[op.id]
        kind = kind_of(result)
        end = columns if kind == "lost" else max(ended.get(op.id, columns), begin + 1)
        images, fails = list(dict.fromkeys(op.images)), op.id in failing
        lanes.append(Lane(op, begin, end, kind, result, images, fails, marks[op.id]))
    kept = lanes if len(lanes) <= _MAX_LANES else _kept(lanes)
    return Sequence(kept, columns, _letters(case), len(lanes) - len(kept))


def _kept(lanes: list[Lane]) -> list[Lane]:
    """The first ones and all that fail, no more than ``_MAX_LANES``."""
    fails = [lane for lane in lanes if lane.fails or lane.kind in ("lost", "server")][
        :_MAX_LANES
    ]
    names = {lane.operation.id for lane in fails}
    for lane in lanes:
        if len(names) >= _MAX_LANES:
            break
        names.add(lane.operation.id)
    return [lane for lane in lanes if lane.operation.id in names]


def kind_of(result: str) -> str:
    """What came of a request, by its first words; see ``Finding.observed``."""
    begins = {
        "no answer": "lost",
        "left": "left",
        "not sent": "unsent",
        "2": "ok",
        "4": "client",
        "": "server" if result else "unknown",
    }
    return next(kind for start, kind in begins.items() if result.startswith(start))


def _request_shape(op: Operation) -> str:
    """What a request is, without its words: ``340 characters, 2 images, 4 tokens,
    streamed``."""
    asked = (
        [one_line(f"{op.method} {op.path}", 60)]
        if op.path not in (CHAT, COMPLETIONS)
        else []
    )
    if op.form is not None:
        return ", ".join([*asked, f"a form of {len(op.form)} fields"])
    if not op.apart:
        size = len(op.body or op.data or "")
        return ", ".join([*asked, f"a body of {size} characters, sent as it is"])
    characters = sum(
        len(part.text or "") for m in op.messages or [] for part in m.parts()
    )
    words = [*asked]
    words += (
        [f"{characters} characters"]
        if characters or (op.prompt is None and not asked)
        else []
    )
    if isinstance(op.prompt, str):
        words = [f"{len(op.prompt)} characters"]
    elif op.prompt is not None:
        words = [f"{len(op.prompt)} token ids"]
    if op.images:
        words.append(f"{len(op.images)} image" + "s" * (len(op.images) > 1))
    if tokens := op.parameters.get(
        "max_completion_tokens", op.parameters.get("max_tokens")
    ):
        words.append(f"max {tokens} tokens")
    more = sorted(
        set(op.parameters) - {"max_tokens", "max_completion_tokens", "temperature"}
    )
    words += [one_line(str(name), 40) for name in more[:6]]
    words += ["streamed"] * op.stream
    words += ["plain completion"] * (op.path == COMPLETIONS)
    return ", ".join(words)


def _letters(case: Case) -> dict[str, str]:
    """A short name for each image: its own if it is short, else A, B, … Z, A1, …"""
    if all(len(name) <= 8 for name in case.images):
        return {name: name for name in case.images}
    return {
        name: chr(65 + number % 26) + (str(number // 26) if number >= 26 else "")
        for number, name in enumerate(case.images)
    }


# ---------------------------------------------------------------------- as text


def drawing(drawn: Sequence) -> str:
    """For Markdown and terminals: fixed width."""
    width = max((len(lane.operation.id) for lane in drawn.lanes), default=2)
    step = 2 if drawn.columns <= 30 else 1
    lines = []
    for lane in drawn.lanes:
        cells = [" "] * (drawn.columns * step)
        if lane.kind != "unsent":
            for at in range(lane.sent * step, lane.end * step - step + 1):
                cells[at] = "─"
            cells[lane.sent * step] = "●"
            for column in lane.marks:
                at = max(lane.sent * step + 1, (column + 1) * step - 1)
                if at < len(cells):
                    cells[at] = "▸"
        last = min(len(cells) - 1, max(lane.end * step - step, lane.sent * step) + 1)
        cells[last] = _ENDS[lane.kind]
        fails = "!" if lane.fails else " "
        letters = "".join(f"[{drawn.letters[name]}]" for name in lane.images[:6])
        waits = (
            f"after {', '.join(lane.operation.after)}"
            if lane.operation.after
            else "at once"
        )
        words = " · ".join(filter(None, (clip(lane.result, _RESULT), letters, waits)))
        row = f"{fails} {lane.operation.id:<{width}} {''.join(cells)} {words}"
        lines.append(_row(row))
    if drawn.hidden:
        lines.append(f"… {drawn.hidden} more requests")
    return "\n".join(lines)


def _row(line: str) -> str:
    """One line, its spaces kept: they are the drawing."""
    return "".join(c if c.isprintable() else " " for c in line.rstrip())[:220]


# ---------------------------------------------------------------------- as SVG

LEFT, TOP, LANE, FOOT = 96, 16, 30, 10
_RIGHT = 440
_FILLS: Final = {"left": "tick", "unsent": "tick", "unknown": "s5-text"}


def picture(drawn: Sequence) -> Markup:
    """An inline SVG without script and style attributes; empty without a request."""
    if not drawn.lanes:
        return Markup("")
    step = (WIDTH - LEFT - _RIGHT) / max(1, drawn.columns)
    body = [
        part
        for number, lane in enumerate(drawn.lanes)
        for part in _lane(drawn, lane, TOP + LANE * number, step)
    ]
    title = f"{len(drawn.lanes)} requests in the order of their barriers, one lane each"
    return svg(TOP + LANE * len(drawn.lanes) + FOOT, title, body)


def _lane(drawn: Sequence, lane: Lane, top: float, step: float) -> Iterator[Markup]:
    op, middle = lane.operation, top + LANE / 2
    sent = lane.kind != "unsent"
    x0, x1 = LEFT + lane.sent * step, LEFT + lane.end * step - min(3.0, step / 4)
    if lane.fails:
        yield rect("b1", 0, top, WIDTH, LANE)
    yield text(4, middle + 4, "! " * lane.fails + one_line(op.id, 12), "name")
    if sent:
        tip = (
            f"{op.id}: {lane.shape}; {', '.join(op.after) or 'at once'}; {lane.result}"
        )
        fill, wide = _FILLS.get(lane.kind, lane.kind), max(6.0, x1 - x0)
        yield rect(fill, x0, middle - 6, wide, 12, one_line(tip, 400), rx=3)
        for column, name in lane.marks.items():
            x, hint = (
                LEFT + (column + 1) * step - step / 3,
                tag("title", one_line(name, 60)),
            )
            yield tag("text", "▸", hint, cls="inbar mid", x=x, y=middle + 4)
    else:
        yield path("grid", f"M{x0:.1f} {middle:.1f}h{step:.1f}")
    classes = "inbar end" if sent else "tick"
    yield text(max(x1, x0 + 6) - 2, middle + 4, _ENDS[lane.kind], classes)
    x = WIDTH - _RIGHT + 8.0
    for name in lane.images[:4]:
        yield from _mark(
            list(drawn.letters).index(name), drawn.letters[name], x, top + 4
        )
        x += 32 + 7 * len(drawn.letters[name])
    toned = lane.kind in ("client", "server", "lost")
    words = one_line(lane.result or lane.shape, 56)
    yield text(x, middle + 4, words, f"{lane.kind}-text" if toned else "tick")


def images_picture(drawn: Sequence, words: dict[str, str]) -> Markup:
    """Each image's mark, and what it is in words; two columns."""
    body: list[Markup] = []
    for number, (name, letter) in enumerate(list(drawn.letters.items())[:_MAX_IMAGES]):
        x, y = 4 + WIDTH / 2 * (number % 2), 4.0 + 26 * (number // 2)
        body += _mark(number, letter, x, y)
        body.append(text(x + 100, y + 15, words.get(name, ""), "tick"))
    rows = -(-min(len(drawn.letters), _MAX_IMAGES) // 2)
    return svg(26 * rows + 8, f"{len(drawn.letters)} images", body)


def _mark(number: int, letter: str, x: float, y: float) -> Iterator[Markup]:
    """A small mark of an image's identity: never its content. Its pattern is its
    number's."""
    bits = (number + 1) * 2654435761 >> 7 & 0xFF | 2 << number % 3
    yield rect("b1", x, y, 20, 20)
    for cell in range(8):
        row, column = divmod(cell, 2)
        for at in (column, 3 - column) if bits >> cell & 1 else ():
            yield rect(f"s{number % 6}-text", x + 5 * at, y + 5 * row, 5, 5)
    yield text(x + 22, y + 15, one_line(letter, 8), f"name s{number % 6}-text")

"""The requests of a case in the order of their barriers: a lane each, as text and as
SVG.

Columns are logical: what waits for something stands right of it. Lengths say nothing of
time."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Final

from markupsafe import Markup
from mmrepro.base.text import clip, one_line
from mmrepro.reports.svg import WIDTH, path, rect, svg, tag, text
from mmrepro.traffic.case import CHAT, COMPLETIONS, Barrier, Case, Operation

_MAX_LANES: Final = 60
_MAX_IMAGES: Final = 60
_RESULT: Final = 64
"""Characters of what came of a request, in the drawing; the table has the rest."""
_KINDS: Final = ("ok", "client", "server", "lost", "left", "unsent", "unknown")
_ENDS: Final = dict(zip(_KINDS, "■□✘?✂·■", strict=True))
_KIND_BY_START: Final = {
    "no answer": "lost",
    "left": "left",
    "not sent": "unsent",
    "2": "ok",
    "4": "client",
}
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
class RequestSequence:
    """The requests of a case that are drawn, a lane each."""

    lanes: list[Lane]
    columns: int
    letters: dict[str, str]
    """Name of an image: the letter that it is drawn with."""
    hidden: int = 0


def sequence(
    case: Case, observed: dict[str, str], failing: list[str]
) -> RequestSequence:
    """The lanes of ``case``; at most ``_MAX_LANES``, those that fail among them."""
    barriers = _Barriers.of(case)
    columns = len(case.operations) + 1
    lanes = []
    for column, op in enumerate(case.operations):
        result = observed.get(op.id, "")
        kind = kind_of(result)
        # What was never answered runs until the end, whatever waited for it.
        end = columns
        if kind != "lost" and op.id in barriers.ended:
            end = max(barriers.ended[op.id], column + 1)
        lane = Lane(
            operation=op,
            sent=column,
            end=end,
            kind=kind,
            result=result,
            images=list(dict.fromkeys(op.images)),
            fails=op.id in failing,
            marks=barriers.marks[op.id],
        )
        lanes.append(lane)

    kept = lanes if len(lanes) <= _MAX_LANES else _kept(lanes)
    return RequestSequence(
        lanes=kept,
        columns=columns,
        letters=_letters(case),
        hidden=len(lanes) - len(kept),
    )


@dataclass
class _Barriers:
    """What the barriers of a case say of the order of its requests.

    Attributes:
        ended: by request, the first column in which it has ended.
        marks: by request, the tokens of it that others wait for, by column.
    """

    ended: dict[str, int]
    marks: dict[str, dict[int, str]]

    @classmethod
    def of(cls, case: Case) -> _Barriers:
        barriers = cls({}, {op.id: {} for op in case.operations})
        begun: list[str] = []
        for column, op in enumerate(case.operations):
            for wait in op.after:
                barriers._take(wait, column, begun)
            begun.append(op.id)

        return barriers

    def _take(self, wait: str, column: int, begun: list[str]) -> None:
        barrier = Barrier.parse(wait)
        if barrier.event == "end":
            known = self.ended.get(barrier.op, column)
            self.ended[barrier.op] = min(known, column)
        elif barrier.event in ("first-token", "tokens"):
            self.marks[barrier.op][column - 1] = wait.partition(".")[2]
        elif barrier.event == "running<=":
            # It does not say which requests end: the oldest ones are drawn as ended.
            running = [name for name in begun if name not in self.ended]
            surplus = max(0, len(running) - barrier.count)
            for name in running[:surplus]:
                self.ended[name] = column


def _kept(lanes: list[Lane]) -> list[Lane]:
    """The first ones and all that fail, no more than ``_MAX_LANES``."""
    names: set[str] = set()
    for lane in lanes:
        fails = lane.fails or lane.kind in ("lost", "server")
        if fails and len(names) < _MAX_LANES:
            names.add(lane.operation.id)

    for lane in lanes:
        if len(names) >= _MAX_LANES:
            break
        names.add(lane.operation.id)

    return [lane for lane in lanes if lane.operation.id in names]


def kind_of(result: str) -> str:
    """What came of a request, by its first words; see ``Finding.observed``."""
    for start, kind in _KIND_BY_START.items():
        if result.startswith(start):
            return kind

    return "server" if result else "unknown"


def _request_shape(op: Operation) -> str:
    """What a request is, without its words: ``340 characters, 2 images, 4 tokens,
    streamed``."""
    usual_path = op.path in (CHAT, COMPLETIONS)
    words = [] if usual_path else [one_line(f"{op.method} {op.path}", 60)]
    if op.form is not None:
        return ", ".join([*words, f"a form of {len(op.form)} fields"])
    if not op.apart:
        size = len(op.body or op.data or "")
        return ", ".join([*words, f"a body of {size} characters, sent as it is"])
    return ", ".join([*_prompt_words(op, words), *_parameter_words(op)])


def _prompt_words(op: Operation, target: list[str]) -> list[str]:
    """What it sends. ``target``: its method and path, where they are unusual."""
    if isinstance(op.prompt, str):
        return [f"{len(op.prompt)} characters"]
    if op.prompt is not None:
        return [f"{len(op.prompt)} token ids"]
    characters = 0
    for message in op.messages or []:
        for part in message.parts():
            characters += len(part.text or "")

    if characters or not target:
        return [*target, f"{characters} characters"]
    return target


def _parameter_words(op: Operation) -> Iterator[str]:
    if op.images:
        plural = "s" if len(op.images) > 1 else ""
        yield f"{len(op.images)} image{plural}"

    most = op.parameters.get("max_tokens")
    tokens = op.parameters.get("max_completion_tokens", most)
    if tokens:
        yield f"max {tokens} tokens"
    usual = {"max_tokens", "max_completion_tokens", "temperature"}
    for name in sorted(set(op.parameters) - usual)[:6]:
        yield one_line(str(name), 40)

    if op.stream:
        yield "streamed"
    if op.path == COMPLETIONS:
        yield "plain completion"


def _letters(case: Case) -> dict[str, str]:
    """A short name for each image: its own if it is short, else A, B, … Z, A1, …"""
    if all(len(name) <= 8 for name in case.images):
        return {name: name for name in case.images}
    letters = {}
    for number, name in enumerate(case.images):
        rounds, place = divmod(number, 26)
        letter = chr(ord("A") + place)
        letters[name] = f"{letter}{rounds}" if rounds else letter

    return letters


# ---------------------------------------------------------------------- as text


def drawing(drawn: RequestSequence) -> str:
    """Draw the lanes for Markdown and terminals: fixed width."""
    width = max((len(lane.operation.id) for lane in drawn.lanes), default=2)
    lines = []
    for lane in drawn.lanes:
        fails = "!" if lane.fails else " "
        name = f"{lane.operation.id:<{width}}"
        cells = _cells(lane, drawn.columns)
        lines.append(_row(f"{fails} {name} {cells} {_lane_words(drawn, lane)}"))

    if drawn.hidden:
        lines.append(f"… {drawn.hidden} more requests")
    return "\n".join(lines)


def _cells(lane: Lane, columns: int) -> str:
    """The lane in characters, two a column where there is room."""
    step = 2 if columns <= 30 else 1
    begin = lane.sent * step
    end = lane.end * step - step
    cells = [" "] * (columns * step)
    if lane.kind != "unsent":
        for place in range(begin, end + 1):
            cells[place] = "─"

        cells[begin] = "●"
        for column in lane.marks:
            # Before what waits for it, and never on the dot.
            place = max(begin + 1, (column + 1) * step - 1)
            if place < len(cells):
                cells[place] = "▸"

    last = min(len(cells) - 1, max(end, begin) + 1)
    cells[last] = _ENDS[lane.kind]
    return "".join(cells)


def _lane_words(drawn: RequestSequence, lane: Lane) -> str:
    letters = "".join(f"[{drawn.letters[name]}]" for name in lane.images[:6])
    after = ", ".join(lane.operation.after)
    waits = f"after {after}" if after else "at once"
    words = (clip(lane.result, _RESULT), letters, waits)
    return " · ".join(filter(None, words))


def _row(line: str) -> str:
    """One line, its spaces kept: they are the drawing."""
    return "".join(c if c.isprintable() else " " for c in line.rstrip())[:220]


# ---------------------------------------------------------------------- as SVG

LEFT: Final = 96
TOP: Final = 16
LANE: Final = 30
FOOT: Final = 10
_RIGHT = 440
_FILLS: Final = {"left": "tick", "unsent": "tick", "unknown": "s5-text"}


def picture(drawn: RequestSequence) -> Markup:
    """An inline SVG without script and style attributes; empty without a request."""
    lanes = drawn.lanes
    if not lanes:
        return Markup("")
    step = (WIDTH - LEFT - _RIGHT) / max(1, drawn.columns)
    body: list[Markup] = []
    for number, lane in enumerate(lanes):
        top = TOP + LANE * number
        body += _lane(drawn, lane, top, step)

    height = TOP + LANE * len(lanes) + FOOT
    title = f"{len(lanes)} requests in the order of their barriers, one lane each"
    return svg(height, title, body)


def _lane(
    drawn: RequestSequence, lane: Lane, top: float, step: float
) -> Iterator[Markup]:
    middle = top + LANE / 2
    name = one_line(lane.operation.id, 12)
    if lane.fails:
        yield rect("b1", 0, top, WIDTH, LANE)
        name = f"! {name}"
    yield text(4, middle + 4, name, "name")

    if lane.kind == "unsent":
        x = LEFT + lane.sent * step
        yield path("grid", f"M{x:.1f} {middle:.1f}h{step:.1f}")
    else:
        yield from _lane_bar(lane, middle, step)
    yield _lane_end(lane, middle, step)
    yield from _lane_result(drawn, lane, top)


def _lane_result(drawn: RequestSequence, lane: Lane, top: float) -> Iterator[Markup]:
    """Right of the columns: the marks of its images, and what came of it."""
    x = WIDTH - _RIGHT + 8.0
    numbers = list(drawn.letters)
    for name in lane.images[:4]:
        letter = drawn.letters[name]
        yield from _mark(numbers.index(name), letter, x, top + 4)
        x += 32 + 7 * len(letter)

    toned = lane.kind in ("client", "server", "lost")
    words = one_line(lane.result or lane.shape, 56)
    base = top + LANE / 2 + 4
    yield text(x, base, words, f"{lane.kind}-text" if toned else "tick")


def _lane_span(lane: Lane, step: float) -> tuple[float, float]:
    """Where its bar begins and ends, a little before the next column."""
    gap = min(3.0, step / 4)
    return LEFT + lane.sent * step, LEFT + lane.end * step - gap


def _lane_bar(lane: Lane, middle: float, step: float) -> Iterator[Markup]:
    op = lane.operation
    left, right = _lane_span(lane, step)
    after = ", ".join(op.after) or "at once"
    yield rect(
        _FILLS.get(lane.kind, lane.kind),
        x=left,
        y=middle - 6,
        width=max(6.0, right - left),
        height=12,
        tip=one_line(f"{op.id}: {lane.shape}; {after}; {lane.result}", 400),
        rx=3,
    )
    for column, name in lane.marks.items():
        x = LEFT + (column + 1) * step - step / 3
        hint = tag("title", one_line(name, 60))
        yield tag("text", "▸", hint, cls="inbar mid", x=x, y=middle + 4)


def _lane_end(lane: Lane, middle: float, step: float) -> Markup:
    left, right = _lane_span(lane, step)
    classes = "tick" if lane.kind == "unsent" else "inbar end"
    x = max(right, left + 6) - 2
    return text(x, middle + 4, _ENDS[lane.kind], classes)


def images_picture(drawn: RequestSequence, words: dict[str, str]) -> Markup:
    """Each image's mark, and what it is in words; two columns."""
    letters = list(drawn.letters.items())[:_MAX_IMAGES]
    body: list[Markup] = []
    for number, (name, letter) in enumerate(letters):
        row, column = divmod(number, 2)
        x = 4 + WIDTH / 2 * column
        y = 4.0 + 26 * row
        body += _mark(number, letter, x, y)
        wording = words.get(name, "")
        body.append(text(x + 100, y + 15, wording, "tick"))

    rows = math.ceil(len(letters) / 2)
    height = 26 * rows + 8
    return svg(height, f"{len(drawn.letters)} images", body)


def _mark(number: int, letter: str, x: float, y: float) -> Iterator[Markup]:
    """A small mark of an image's identity: never its content. Its pattern is its
    number's."""
    yield rect("b1", x, y, 20, 20)
    colour = f"s{number % 6}-text"
    bits = _pattern(number)
    for cell in range(8):
        if not bits >> cell & 1:
            continue
        # Each cell twice, left and right: a mirrored pattern is told apart easily.
        row, column = divmod(cell, 2)
        for place in (column, 3 - column):
            yield rect(
                colour,
                x=x + 5 * place,
                y=y + 5 * row,
                width=5,
                height=5,
            )

    yield text(x + 22, y + 15, one_line(letter, 8), f"name {colour}")


def _pattern(number: int) -> int:
    """Eight bits, never none: Knuth's multiplier makes those of neighbours differ."""
    mixed = (number + 1) * 2654435761
    return (mixed >> 7 & 0xFF) | (2 << number % 3)

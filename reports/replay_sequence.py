"""The requests of a case in the order of their barriers: a lane each, as text and as SVG.

Columns are logical: what waits for something stands right of it. Lengths say nothing of time.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Final

from markupsafe import Markup
from mmrepro.case.model import COMPLETIONS, Barrier, Case, Operation
from mmrepro.text.sanitize import clip, one_line

MAX_LANES: Final = 60
TOLD: Final = 64
"""Characters of what came of a request, in the drawing; the table has the rest."""
KINDS: Final = ("ok", "client", "server", "lost", "left", "unsent", "unknown")
ENDS: Final = {
    "ok": "■",
    "client": "□",
    "server": "✘",
    "lost": "?",
    "left": "✂",
    "unsent": "·",
    "unknown": "■",
}
LEGEND: Final = (
    "● sent · ▸ tokens that others wait for · ■ answered · □ refused · ✘ failed in the server · "
    "? never answered · ✂ its client goes away · ! fails"
)


@dataclass
class Lane:
    """One request. Columns count from 0; ``end`` is one past the last one that it runs in."""

    operation: Operation
    sent: int
    end: int
    kind: str
    told: str
    images: list[str]
    fails: bool
    marks: dict[int, str] = field(default_factory=dict)
    """Column: the barrier on it that somebody else waits for there."""

    @property
    def shape(self) -> str:
        """``340 characters, 2 images, 4 tokens, streamed``."""
        return request_shape(self.operation)


@dataclass(frozen=True)
class Sequence:
    lanes: list[Lane]
    columns: int
    letters: dict[str, str]
    """Name of an image: the letter that it is drawn with."""
    hidden: int = 0


def sequence(case: Case, observed: dict[str, str], failing: list[str]) -> Sequence:
    """The lanes of ``case``; at most ``MAX_LANES``, those that fail among them."""
    sent: dict[str, int] = {}
    ended: dict[str, int] = {}
    marks: dict[str, dict[int, str]] = {op.id: {} for op in case.operations}
    for column, op in enumerate(case.operations):
        sent[op.id] = column
        for text in op.after:
            barrier = Barrier.parse(text)
            if barrier.event == "end":
                ended[barrier.op] = min(ended.get(barrier.op, column), column)
            elif barrier.event in ("first-token", "tokens"):
                marks[barrier.op][column - 1] = text.partition(".")[2]
            elif barrier.event == "running<=":
                over = [o.id for o in case.operations[:column] if o.id not in ended]
                for one in over[: max(0, len(over) - barrier.count)]:
                    ended[one] = column
    columns = len(case.operations) + 1
    letters = _letters(case)
    lanes = []
    for op in case.operations:
        told = observed.get(op.id, "")
        kind = kind_of(told)
        end = ended.get(op.id, columns)
        if kind == "lost":
            end = columns
        lanes.append(
            Lane(
                operation=op,
                sent=sent[op.id],
                end=max(end, sent[op.id] + 1),
                kind=kind,
                told=told,
                images=list(dict.fromkeys(op.images)),
                fails=op.id in failing,
                marks=marks[op.id],
            )
        )
    kept = lanes if len(lanes) <= MAX_LANES else _kept(lanes)
    return Sequence(kept, columns, letters, len(lanes) - len(kept))


def _kept(lanes: list[Lane]) -> list[Lane]:
    """The first ones and all that fail, no more than ``MAX_LANES``."""
    fails = [lane for lane in lanes if lane.fails or lane.kind in ("lost", "server")][:MAX_LANES]
    names = {lane.operation.id for lane in fails}
    for lane in lanes:
        if len(names) >= MAX_LANES:
            break
        names.add(lane.operation.id)
    return [lane for lane in lanes if lane.operation.id in names]


def kind_of(told: str) -> str:
    """What came of a request, by its first words; see ``Finding.observed``."""
    if told.startswith("no answer"):
        return "lost"
    if told.startswith("left"):
        return "left"
    if told.startswith("not sent"):
        return "unsent"
    if told[:1] == "2":
        return "ok"
    if told[:1] == "4":
        return "client"
    return "server" if told else "unknown"


def request_shape(op: Operation) -> str:
    """What a request is, without its words: ``340 characters, 2 images, 4 tokens, streamed``."""
    characters = sum(len(part.text or "") for m in op.messages or [] for part in m.parts())
    told = [f"{characters} characters"] if characters or op.prompt is None else []
    if isinstance(op.prompt, str):
        told = [f"{len(op.prompt)} characters"]
    elif op.prompt is not None:
        told = [f"{len(op.prompt)} token ids"]
    if op.images:
        told.append(f"{len(op.images)} image" + "s" * (len(op.images) > 1))
    if tokens := op.parameters.get("max_completion_tokens", op.parameters.get("max_tokens")):
        told.append(f"max {tokens} tokens")
    more = sorted(set(op.parameters) - {"max_tokens", "max_completion_tokens", "temperature"})
    told += [one_line(str(name), 40) for name in more[:6]]
    told += ["streamed"] * op.stream
    told += ["plain completion"] * (op.path == COMPLETIONS)
    return ", ".join(told)


def _letters(case: Case) -> dict[str, str]:
    """A short name for each image: its own if it is short, else A, B, … Z, A1, …"""
    if all(len(name) <= 8 for name in case.images):
        return {name: name for name in case.images}
    found = {}
    for number, name in enumerate(case.images):
        found[name] = chr(65 + number % 26) + (str(number // 26) if number >= 26 else "")
    return found


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
        cells[last] = ENDS[lane.kind]
        fails = "!" if lane.fails else " "
        letters = "".join(f"[{drawn.letters[name]}]" for name in lane.images[:6])
        waits = f"after {', '.join(lane.operation.after)}" if lane.operation.after else "at once"
        told = " · ".join(filter(None, (clip(lane.told, TOLD), letters, waits)))
        row = f"{fails} {lane.operation.id:<{width}} {''.join(cells)} {told}"
        lines.append(_row(row))
    if drawn.hidden:
        lines.append(f"… {drawn.hidden} more requests")
    return "\n".join(lines)


def _row(text: str) -> str:
    """One line, its spaces kept: they are the drawing."""
    return "".join(c if c.isprintable() else " " for c in text.rstrip())[:220]


# ---------------------------------------------------------------------- as SVG

LEFT, TOP, LANE, FOOT = 96, 16, 30, 10
RIGHT = 440
WIDTH: Final = 1080
_MARK_CLASS: Final = {"left": "tick", "unsent": "tick", "unknown": "s5-text"}


def picture(drawn: Sequence) -> Markup:
    """An inline SVG without script and style attributes; empty without a request."""
    if not drawn.lanes:
        return Markup("")
    step = (WIDTH - LEFT - RIGHT) / max(1, drawn.columns)
    height = TOP + LANE * len(drawn.lanes) + FOOT
    body = []
    for number, lane in enumerate(drawn.lanes):
        body += _lane(drawn, lane, TOP + LANE * number, step)
    label = f"{len(drawn.lanes)} requests in the order of their barriers, one lane each"
    return Markup(
        '<svg class="picture" viewBox="0 0 {} {}" role="img" aria-label="{}">{}</svg>'
    ).format(WIDTH, height, label, Markup("").join(body))


def _lane(drawn: Sequence, lane: Lane, top: float, step: float) -> list[Markup]:
    op, middle = lane.operation, top + LANE / 2
    fill = _MARK_CLASS.get(lane.kind, lane.kind)
    x0, x1 = LEFT + lane.sent * step, LEFT + lane.end * step - min(3.0, step / 4)
    drawn_parts = []
    if lane.fails:
        drawn_parts.append(
            Markup('<rect class="b1" x="0" y="{:.1f}" width="{}" height="{}"/>').format(
                top, WIDTH, LANE
            )
        )
    drawn_parts.append(
        Markup('<text class="name" x="4" y="{:.1f}">{}{}</text>').format(
            middle + 4, "! " if lane.fails else "", one_line(op.id, 12)
        )
    )
    title = f"{op.id}: {lane.shape}; {', '.join(op.after) or 'at once'}; {lane.told}"
    if lane.kind != "unsent":
        drawn_parts.append(
            Markup(
                '<rect class="{}" x="{:.1f}" y="{:.1f}" width="{:.1f}" height="{}" rx="3">'
                "<title>{}</title></rect>"
            ).format(fill, x0, middle - 6, max(6.0, x1 - x0), 12, one_line(title, 400))
        )
        for column, name in lane.marks.items():
            x = LEFT + (column + 1) * step - step / 3
            drawn_parts.append(
                Markup(
                    '<text class="inbar mid" x="{:.1f}" y="{:.1f}">▸<title>{}</title></text>'
                ).format(x, middle + 4, one_line(name, 60))
            )
    else:
        drawn_parts.append(
            Markup('<line class="grid" x1="{:.1f}" y1="{:.1f}" x2="{:.1f}" y2="{:.1f}"/>').format(
                x0, middle, x0 + step, middle
            )
        )
    drawn_parts.append(
        Markup('<text class="{}" x="{:.1f}" y="{:.1f}">{}</text>').format(
            "inbar end" if lane.kind != "unsent" else "tick",
            max(x1, x0 + 6) - 2,
            middle + 4,
            ENDS[lane.kind],
        )
    )
    x = WIDTH - RIGHT + 8.0
    for name in lane.images[:4]:
        drawn_parts += thumbnail(list(drawn.letters).index(name), drawn.letters[name], x, top + 4)
        x += 32 + 7 * len(drawn.letters[name])
    drawn_parts.append(
        Markup('<text class="{}" x="{:.1f}" y="{:.1f}">{}</text>').format(
            f"{lane.kind}-text" if lane.kind in ("client", "server", "lost") else "tick",
            x,
            middle + 4,
            one_line(lane.told or lane.shape, 56),
        )
    )
    return drawn_parts


def thumbnails(drawn: Sequence) -> dict[str, Markup]:
    """By the image's name: its mark, as a picture of its own."""
    frame = Markup('<svg class="mark" viewBox="0 0 110 26" role="img" aria-label="{}">{}</svg>')
    return {
        name: frame.format(letter, Markup("").join(thumbnail(number, letter, 2, 3)))
        for number, (name, letter) in enumerate(drawn.letters.items())
    }


def thumbnail(number: int, letter: str, x: float, y: float) -> list[Markup]:
    """A small mark of an image's identity: never its content. Its pattern is its number's."""
    bits = (number + 1) * 2654435761 >> 7 & 0xFF | 2 << number % 3
    parts = [
        Markup('<rect class="band b1" x="{:.1f}" y="{:.1f}" width="20" height="20"/>').format(x, y)
    ]
    for cell in range(8):
        if bits >> cell & 1:
            row, column = divmod(cell, 2)
            for at in (column, 3 - column):
                parts.append(
                    Markup(
                        '<rect class="s{}-text" x="{:.1f}" y="{:.1f}" width="5" height="5"/>'
                    ).format(number % 6, x + 5 * at, y + 5 * row)
                )
    parts.append(
        Markup('<text class="name s{}-text" x="{:.1f}" y="{:.1f}">{}</text>').format(
            number % 6, x + 22, y + 15, one_line(letter, 8)
        )
    )
    return parts

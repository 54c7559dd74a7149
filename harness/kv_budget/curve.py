"""The longest prompt over the setting: as text, and as a picture of its own."""

from __future__ import annotations

from dataclasses import dataclass
from decimal import Decimal
from html import escape

from mmrepro.kv_budget.base import Budget, MemoryPlan, steps

_EIGHTHS = " ▁▂▃▄▅▆▇█"


@dataclass(frozen=True)
class Point:
    setting: Decimal
    tokens: int


def points(plan: MemoryPlan, decimals: int = 2, most: int = 1 << 40) -> list[Point]:
    """One point a step; unlimited prompts are cut at ``most`` tokens."""
    budgets = [plan.forward(step) for step in steps(plan, decimals)]
    return [Point(b.setting, min(b.max_tokens, most)) for b in budgets]


def ticks(plan: MemoryPlan, shown: Budget | None) -> list[Decimal]:
    """Settings for a table: tenths (or powers of two) and the one that was asked for."""
    if plan.whole:
        values = {Decimal(1 << n) for n in range(8)}
    else:
        values = {Decimal(n) / 10 for n in range(1, 11)}
    if shown is not None:
        values.add(shown.setting)
    return sorted(v for v in values if plan.takes(v))


def text_curve(curve: list[Point], need: int = 0, *, width: int = 60, height: int = 8) -> list[str]:
    """Rows of block characters, highest first; a row of dashes where ``need`` tokens are."""
    top = max([p.tokens for p in curve] + [need])
    if not top:
        return []
    columns = [curve[(i * len(curve)) // width].tokens for i in range(width)]
    need_row = height - 1 - min(int(need / top * height), height - 1) if need else -1
    rows = []
    for row in range(height):
        base = (height - 1 - row) / height * top
        cells = [
            _EIGHTHS[max(0, min(8, round((tokens - base) / (top / height) * 8)))]
            for tokens in columns
        ]
        if row == need_row:
            cells = [c if c != " " else "╌" for c in cells]
        label = f"{top:>9,}" if row == 0 else f"{need:>9,}" if row == need_row else " " * 9
        rows.append(f"{label} ┤{''.join(cells)}")
    low, high = curve[0].setting, curve[-1].setting
    rows.append(" " * 9 + " └" + "─" * width)
    rows.append(" " * 11 + f"{low}" + f"{high}".rjust(width - len(str(low))))
    return rows


def svg_curve(curve: list[Point], *, title: str, axis: str, need: int = 0) -> str:
    """A standalone SVG: steps, the needed tokens as a line. No script, no outside resource."""
    width, height, left, bottom, top = 720, 360, 90, 50, 50
    highest = max([p.tokens for p in curve] + [need, 1])
    low, high = float(curve[0].setting), float(curve[-1].setting)
    span = (high - low) or 1.0

    def x(setting: Decimal) -> float:
        return left + (float(setting) - low) / span * (width - left - 30)

    def y(tokens: int) -> float:
        return height - bottom - tokens / highest * (height - bottom - top)

    path = f"M{x(curve[0].setting):.1f} {y(curve[0].tokens):.1f}"
    for point in curve[1:]:
        path += f"H{x(point.setting):.1f}V{y(point.tokens):.1f}"
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {height}" '
        'font-family="sans-serif" font-size="13" role="img">',
        f"<title>{escape(title)}</title>",
        f'<rect width="{width}" height="{height}" fill="#fff"/>',
        f'<text x="{left}" y="24" font-size="15">{escape(title)}</text>',
        f'<path d="M{left} {top}V{height - bottom}H{width - 30}" fill="none" stroke="#666"/>',
    ]
    for share in range(5):
        tokens = highest * share // 4
        parts.append(
            f'<text x="{left - 8}" y="{y(tokens) + 4:.1f}" text-anchor="end">{tokens:,}</text>'
        )
    for index in sorted({round(n * (len(curve) - 1) / 6) for n in range(7)}):
        point = curve[index]
        parts.append(
            f'<text x="{x(point.setting):.1f}" y="{height - bottom + 18}" '
            f'text-anchor="middle">{point.setting}</text>'
        )
    parts.append(
        f'<text x="{width / 2:.0f}" y="{height - 10}" text-anchor="middle">{escape(axis)}</text>'
    )
    if need:
        parts.append(
            f'<path d="M{left} {y(need):.1f}H{width - 30}" stroke="#c22" stroke-dasharray="5 4"/>'
            f'<text x="{width - 34}" y="{y(need) - 6:.1f}" text-anchor="end" fill="#c22">'
            f"{need:,} tokens</text>"
        )
    parts.append(f'<path d="{path}" fill="none" stroke="#1a6" stroke-width="2"/></svg>')
    return "\n".join(parts) + "\n"

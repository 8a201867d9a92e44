"""Plots as inline SVG: a histogram and a line on logarithmic axes. Colours come from the page's CSS classes.

Every number here is ours; what may hold text of others (titles, labels) is escaped.
"""

from __future__ import annotations

import html
import math
from collections.abc import Sequence

from pretrain.audit.lengths import Bar

WIDTH = 520
HEIGHT = 220
_LEFT, _RIGHT, _TOP, _BOTTOM = 58, 12, 14, 42
_INNER_WIDTH = WIDTH - _LEFT - _RIGHT
_INNER_HEIGHT = HEIGHT - _TOP - _BOTTOM
_MOST_TICKS = 7
_GAP = 1.0
_WIDER = 2


def histogram(bars: Sequence[Bar], label: str, mark: int | None = None) -> str:
    """Draw a histogram.

    Args:
        bars: Neighbouring bars, from the shortest length to the longest.
        label: What is counted along the x axis.
        mark: A length to mark with a line, such as seq_len.

    Returns:
        An <svg> element.
    """
    if not bars:
        return '<p class="none">nothing to plot</p>'
    top = _nice_top(max(bar.count for bar in bars))
    step = _INNER_WIDTH / len(bars)
    parts = [_horizontal_grid(top)]
    for number, bar in enumerate(bars):
        height = _INNER_HEIGHT * bar.count / top
        x, y = _LEFT + number * step, _TOP + _INNER_HEIGHT - height
        name = f"{bar.first:,}" if bar.first == bar.last else f"{bar.first:,} to {bar.last:,}"
        parts.append(
            f'<rect class="bar" x="{x:.1f}" y="{y:.1f}" width="{max(step - _GAP, 0.5):.1f}" height="{height:.1f}">'
            f"<title>{name}: {bar.count:,}</title></rect>"
        )
    stride = max(1, math.ceil(len(bars) / _MOST_TICKS))
    # counted from the right, so that the last bar, which is often the point, has its label
    ticks = range((len(bars) - 1) % stride, len(bars), stride)
    parts += [_x_tick(_LEFT + (number + 0.5) * step, _bar_name(bars, number)) for number in ticks]
    if mark is not None:
        parts += [_mark(bars, step, mark)]
    return _frame(parts, label)


def ranks(points: Sequence[tuple[int, int]], label: str) -> str:
    """Draw counts by rank, (rank, count) from the first rank on, both axes logarithmic."""
    if not points:
        return '<p class="none">nothing to plot</p>'
    right = max(math.ceil(math.log10(points[-1][0])), 1)
    top = max(math.ceil(math.log10(points[0][1])), 1)
    parts = [_grid_line(_TOP + _INNER_HEIGHT * (1 - power / top), _short(10**power)) for power in range(top + 1)]
    parts += [_x_tick(_LEFT + _INNER_WIDTH * power / right, _short(10**power)) for power in range(right + 1)]
    line = " ".join(
        f"{_LEFT + _INNER_WIDTH * math.log10(rank) / right:.1f},"
        f"{_TOP + _INNER_HEIGHT * (1 - math.log10(count) / top):.1f}"
        for rank, count in points
    )
    return _frame([*parts, f'<polyline class="line" points="{line}"/>'], label)


def _frame(parts: Sequence[str], label: str) -> str:
    text = html.escape(label)
    x, y = _LEFT + _INNER_WIDTH / 2, HEIGHT - 6
    axis = _TOP + _INNER_HEIGHT
    return (
        f'<svg viewBox="0 0 {WIDTH} {HEIGHT}" role="img" aria-label="{text}">{"".join(parts)}'
        f'<line class="axis" x1="{_LEFT}" y1="{axis}" x2="{WIDTH - _RIGHT}" y2="{axis}"/>'
        f'<text class="label" x="{x:.0f}" y="{y}" text-anchor="middle">{text}</text></svg>'
    )


def _mark(bars: Sequence[Bar], step: float, mark: int) -> str:
    """Draw a dashed line at a length, if the bars reach it."""
    for number, bar in enumerate(bars):
        if bar.first <= mark <= bar.last:
            x = _LEFT + (number + 0.5) * step
            anchor = "end" if number > len(bars) / 2 else "start"
            return (
                f'<line class="mark" x1="{x:.1f}" y1="{_TOP}" x2="{x:.1f}" y2="{_TOP + _INNER_HEIGHT}"/>'
                f'<text class="mark-label" x="{x + (-4 if anchor == "end" else 4):.1f}" y="{_TOP + 8}" '
                f'text-anchor="{anchor}">seq_len {mark}</text>'
            )
    return ""


def _horizontal_grid(top: int) -> str:
    return "".join(
        _grid_line(_TOP + _INNER_HEIGHT * (1 - quarter / 4), _short(top * quarter / 4)) for quarter in range(5)
    )


def _grid_line(y: float, text: str) -> str:
    return (
        f'<line class="grid" x1="{_LEFT}" y1="{y:.1f}" x2="{WIDTH - _RIGHT}" y2="{y:.1f}"/>'
        f'<text class="tick" x="{_LEFT - 6}" y="{y + 3.5:.1f}" text-anchor="end">{text}</text>'
    )


def _x_tick(x: float, text: str) -> str:
    return f'<text class="tick" x="{x:.1f}" y="{_TOP + _INNER_HEIGHT + 15}" text-anchor="middle">{text}</text>'


def _bar_name(bars: Sequence[Bar], number: int) -> str:
    """Return where a bar starts; "158+" for a last one that takes in all that is longer."""
    widths = [bar.last - bar.first for bar in bars[-2:]]
    is_rest = number == len(bars) - 1 and len(bars) > 1 and widths[1] > _WIDER * (widths[0] + 1)
    return f"{_short(bars[number].first)}{'+' if is_rest else ''}"


def _nice_top(count: int) -> int:
    """Return the first of 4, 8, 12, 20, 40, 80, 120 ... that is not below a count: its quarters are round."""
    power = 1
    while True:
        for factor in (4, 8, 12, 20):
            if count <= factor * power:
                return factor * power
        power *= 10


def _short(number: float) -> str:
    """Return a number for an axis: 950, 1.5k, 20k, 3M."""
    for size, unit in ((1e12, "T"), (1e9, "G"), (1e6, "M"), (1e3, "k")):
        if number >= size:
            return f"{number / size:.3g}{unit}"
    return f"{number:.3g}"

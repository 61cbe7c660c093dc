"""Allocated and reserved memory over time, as SVG."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from memlab._notebook.html_style import size
from memlab.watching import Timeline, TimelinePoint

_WIDTH, _HEIGHT = 900, 230
_LEFT, _RIGHT, _TOP, _BOTTOM = 70, 12, 34, 24
_COLUMNS = 450

# Maximum and minimum in a column: a light and a dark blue, which differ in brightness too.
_MOST, _LEAST = "#56b4e9", "#0072b2"


def chart(timeline: Timeline, peak: int, ended: bool) -> str:
    """The SVG picture; empty if the timeline is empty."""
    columns = _columns(timeline)
    reserved = max((column.reserved for column in columns), default=0)
    top = max(peak, reserved) * 1.06
    if not top or timeline.duration <= 0:
        return ""

    def x(column: float) -> float:
        return _LEFT + (_WIDTH - _LEFT - _RIGHT) * column / _COLUMNS

    def y(nbytes: float) -> float:
        return _TOP + (_HEIGHT - _TOP - _BOTTOM) * (1 - nbytes / top)

    def steps(values: Sequence[int]) -> str:
        path, before = [f"M{_LEFT} {y(values[0]):.1f}"], values[0]
        for index, value in enumerate(values):
            if value != before:
                path.append(f"H{x(index):.1f}V{y(value):.1f}")
                before = value
        return "".join(path) + f"H{_WIDTH - _RIGHT}"

    base = f"V{y(0):.1f}H{_LEFT}Z"
    parts = _grid(top, y) + _time_axis(timeline.duration)
    parts += [
        f'<path d="{steps([column.most for column in columns])}{base}" fill="{_MOST}"/>',
        f'<path d="{steps([column.least for column in columns])}{base}" fill="{_LEAST}"/>',
        f'<path d="{steps([column.reserved for column in columns])}" fill="none" stroke="currentColor" stroke-width="1.3" '
        'stroke-dasharray="5 3"/>',
    ]
    at = x(min(_COLUMNS, _COLUMNS * timeline.peak_time / timeline.duration))
    anchor, beside = ("end", at - 8) if at > _WIDTH / 2 else ("start", at + 8)
    parts.append(
        f'<path d="M{at:.1f} {_TOP - 5}V{y(0):.1f}" stroke="currentColor" stroke-dasharray="1 3"/>'
        f'<text x="{at:.1f}" y="{_TOP - 8}" text-anchor="middle">▼</text>'
        f'<text x="{beside:.1f}" y="{_TOP - 8}" text-anchor="{anchor}" font-weight="600">peak {size(peak)} after '
        f"{seconds(timeline.peak_time)}</text>"
    )
    parts.append(_legend(left=at > _WIDTH / 2))
    state = f"over {seconds(timeline.duration)}" if ended else f"in {seconds(timeline.duration)} until now"
    label = f"memory {state}: peak {size(peak)} allocated, at most {size(reserved)} reserved"
    svg = f'<svg viewBox="0 0 {_WIDTH} {_HEIGHT}" role="img" aria-label="{label}">'
    return f"{svg}<title>{label}</title>{''.join(parts)}</svg>"


def seconds(nanoseconds: int) -> str:
    """`1.20 s`, `350 ms`, `12 µs`, `2 min 5 s`."""
    if nanoseconds >= 60_000_000_000:
        minutes, rest = divmod(nanoseconds // 1_000_000_000, 60)
        return f"{minutes} min {rest} s"
    for unit, name in ((1_000_000_000, "s"), (1_000_000, "ms"), (1_000, "µs")):
        if nanoseconds >= unit:
            value = nanoseconds / unit
            return f"{value:.3g} {name}" if value < 1000 else f"{value:.0f} {name}"
    return "0 s"


def _columns(timeline: Timeline) -> list[TimelinePoint]:
    """The timeline in columns of equal width."""
    columns: list[TimelinePoint | None] = [None] * _COLUMNS
    duration = max(timeline.duration, 1)

    def put(column: int, point: TimelinePoint) -> None:
        old = columns[column]
        if old is not None:
            least, most = min(old.least, point.least), max(old.most, point.most)
            point = TimelinePoint(old.time, least, most, point.last, max(old.reserved, point.reserved))
        columns[column] = point

    held, following = TimelinePoint(0, 0, 0, 0, 0), 0
    for number, point in enumerate(timeline.points):
        first = min(_COLUMNS - 1, point.time * _COLUMNS // duration)
        end = point.time + timeline.width
        if number + 1 < len(timeline.points):
            end = min(end, timeline.points[number + 1].time)
        last = min(_COLUMNS - 1, max(end - 1, point.time) * _COLUMNS // duration)
        for column in range(following, first):
            put(column, held)
        for column in range(first, last + 1):
            put(column, point)
        held, following = TimelinePoint(point.time, point.last, point.last, point.last, point.reserved), last + 1
    for column in range(following, _COLUMNS):
        put(column, held)
    return [column for column in columns if column is not None]


def _grid(top: float, y: Callable[[float], float]) -> list[str]:
    step = 1
    while top / step > 5:
        step *= 2
    parts = []
    for nbytes in range(0, int(top) + 1, step):
        parts.append(
            f'<path d="M{_LEFT} {y(nbytes):.1f}H{_WIDTH - _RIGHT}" stroke="currentColor" stroke-opacity=".18"/>'
            f'<text x="{_LEFT - 7}" y="{y(nbytes) + 4:.1f}" text-anchor="end">{_tick(nbytes)}</text>'
        )
    return parts


def _tick(nbytes: int) -> str:
    for power, unit in ((40, "TiB"), (30, "GiB"), (20, "MiB"), (10, "KiB")):
        if nbytes >= 1 << power:
            return f"{nbytes >> power} {unit}"
    return f"{nbytes} B" if nbytes else "0"


def _time_axis(duration: int) -> list[str]:
    step = next(digit * 10**power for power in range(20) for digit in (1, 2, 5) if duration // (digit * 10**power) <= 8)
    parts = []
    for time in range(0, duration + 1, step):
        at = _LEFT + (_WIDTH - _LEFT - _RIGHT) * time / duration
        anchor = "end" if at > _WIDTH - 40 else "middle"
        parts.append(
            f'<path d="M{at:.1f} {_HEIGHT - _BOTTOM}v4" stroke="currentColor"/>'
            f'<text x="{at:.1f}" y="{_HEIGHT - _BOTTOM + 16}" text-anchor="{anchor}">{seconds(time)}</text>'
        )
    return parts


def _legend(left: bool) -> str:
    """The legend, on the side opposite to the peak's label."""
    at = _LEFT if left else _WIDTH - 265
    return (
        f'<rect x="{at}" y="6" width="12" height="10" fill="{_LEAST}"/><text x="{at + 17}" y="15">allocated</text>'
        f'<rect x="{at + 85}" y="6" width="12" height="10" fill="{_MOST}"/>'
        f'<text x="{at + 102}" y="15">at times</text>'
        f'<path d="M{at + 162} 11h22" stroke="currentColor" stroke-width="1.3" stroke-dasharray="5 3"/>'
        f'<text x="{at + 190}" y="15">reserved</text>'
    )

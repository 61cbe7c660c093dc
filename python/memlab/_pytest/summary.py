"""The output of the plugin: reasons of failures, and the table at the end."""

from __future__ import annotations

from typing import NamedTuple, TypedDict

import pytest

from memlab._native import format_size

_MOST_LINES = 8
_EMPTY = ": the tools return empty results"  # A part of the tools' messages that does not apply to tests.


class Row(TypedDict):
    """The figures of a test, which pytest-xdist sends from its workers."""

    peak: int
    kept: int
    line: str  # The line that held most at the peak.
    line_bytes: int  # Bytes held by that line.
    why_not: str | None  # The reason why nothing was measured.
    limited: bool  # True if the test has a limit.


class Place(NamedTuple):
    """The memory held by a line or a layer."""

    nbytes: int
    where: str
    what: str | None  # The line's code, or the layer's class.


def over_limit(what: str, nbytes: int, limit: int, lines: list[Place], layers: list[Place], gap: bool) -> str:
    """The message of a failed test. `what` has placeholders for the two sizes."""
    text = ["The test " + what.format(*_different(nbytes, limit))]
    text += _places("line", lines) + _places("layer", layers)
    if gap:
        text.append("Events are missing in the recording: the figures cover the time before.")
    return "\n".join(text)


def _different(first: int, second: int) -> tuple[str, str]:
    """Two sizes as text; in bytes if the texts would be equal."""
    texts = format_size(first), format_size(second)
    return texts if texts[0] != texts[1] else (f"{first} bytes", f"{second} bytes")


def _places(kind: str, places: list[Place]) -> list[str]:
    if not places:
        return []
    text = [f"by {kind}:"]
    text += [
        f"  {format_size(place.nbytes):>10}  {place.where}  {place.what or ''}".rstrip() for place in places[:_MOST_LINES]
    ]
    rest = places[_MOST_LINES:]
    if rest:
        text.append(f"  {format_size(sum(place.nbytes for place in rest)):>10}  {len(rest)} more")
    return text


def write_summary(terminal: pytest.TerminalReporter, rows: list[tuple[str, Row]], most: int) -> None:
    """Prints the `most` most expensive tests, and one line per reason for unchecked limits."""
    reasons = {row["why_not"] for _, row in rows if row["why_not"] and (most or row["limited"])}
    measured = [(name, row) for name, row in rows if not row["why_not"]]
    if most and measured:
        expensive = sorted(measured, key=lambda entry: -entry[1]["peak"])[:most]
        terminal.section("GPU memory of the most expensive tests")
        terminal.write_line(f"{'PEAK':>10}  {'LEFT':>10}  TEST")
        for name, row in expensive:
            kept = format_size(max(row["kept"], 0))
            terminal.write_line(f"{format_size(row['peak']):>10}  {kept:>10}  {name}")
            if row["line"]:
                terminal.write_line(f"{'':>24}{format_size(row['line_bytes'])}  {row['line']}")
    for reason in sorted(reasons):
        limited = sum(row["limited"] for _, row in rows if row["why_not"] == reason)
        unchecked = f"; {limited} {'test' if limited == 1 else 'tests'} with limits passed unchecked" if limited else ""
        terminal.write_line(f"memlab: {reason.removesuffix(_EMPTY)}{unchecked}")

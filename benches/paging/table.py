"""Prints measurements as tables: as text for the terminal, and as Markdown for benches/RESULTS.md."""

import statistics

import shapes
from methods import METHODS

GIB = 1 << 30
HEAD = [
    "method",
    "forward, ms",
    "of the floor",
    "GB/s",
    "GPU peak, GiB (for weights; reserved)",
    "NVML, GiB",
    "host, GiB (RSS; at setup)",
    "set up, s",
    "first, s",
    "equal",
]


def median(values):
    values = [value for value in values if value is not None]
    return statistics.median(values) if values else None


def grouped(lines):
    """{(shape, layers, scale): {method: lines}} in the order of appearance."""
    found: dict = {}
    for line in lines:
        key = (line["shape"], line.get("layers"), line.get("scale"))
        found.setdefault(key, {}).setdefault(line["method"], []).append(line)
    return found


class Facts:
    """Figures that are the same for all methods of a shape."""

    def __init__(self, by_method):
        good = [line for lines in by_method.values() for line in lines if "error" not in line]
        self.ceiling = median([line.get("ceiling_gbs") for line in good])
        self.weights = median([line["weights"] for line in good])
        self.needed = median([line["needed"] for line in good])
        self.budget = median([line.get("budget") for line in good])
        alone = [time for line in by_method.get("resident", []) for time in line.get("times", [])]
        most = median([line["peak"].get("allocated") for line in by_method.get("resident", []) if "peak" in line])
        self.activations = None if most is None or self.weights is None else most - self.weights
        self.compute = median(alone) or median([line.get("resident_seconds") for line in good])

    def sent(self, line):
        """Minimum bytes that a forward of this method has to copy."""
        track = METHODS[line["method"]].track
        if track in ("resident", "free"):
            return 0  # It may keep enough to hide the transfer, so it has to be as fast as the resident model.
        return max(0, self.needed - (self.budget if track == "budget" and self.limited else 0))

    limited = False

    def floor(self, line):
        if self.compute is None or self.ceiling is None:
            return None
        return max(self.compute, self.sent(line) / self.ceiling / 1e9)


def number(value, digits=1, factor=1.0):
    return "–" if value is None else f"{value * factor:.{digits}f}"


def equal(lines):
    said = [line[key] for line in lines for key in ("equal_first", "equal_last")]
    wrong = [word for word in said if isinstance(word, str)]
    if wrong:
        return wrong[0]
    return "yes" if said and all(word is True for word in said) else "–"


def row(method, lines, facts, simulated):
    good = [line for line in lines if "error" not in line]
    if not good:
        return [method, lines[0]["error"]] + [""] * (len(HEAD) - 2)
    times = [time for line in good for time in line["times"]]
    taken = statistics.median(times)
    floor = facts.floor(good[0])
    apart = [statistics.median(line["times"]) for line in good]
    spread = f" ±{(max(apart) - min(apart)) / taken * 50:.0f} %" if len(apart) > 1 else ""
    sent = facts.sent(good[0])
    host = median([line.get("host") for line in good])
    rss = median([line.get("rss") for line in good])
    peak = median([line.get("host_peak_setup") for line in good])
    allocated = median([line["peak"].get("allocated") for line in good])
    weights = None if allocated is None or facts.activations is None else allocated - facts.activations
    reserved = median([line["peak"].get("reserved") for line in good])
    return [
        method,
        f"{taken * 1e3:.1f} ({len(times)}){spread}",
        number(floor and floor / taken, 0, 100) + (" %" if floor else ""),
        number(sent / taken if sent else None, 1, 1e-9),
        f"{number(allocated, 2, 1 / GIB)} ({number(weights, 2, 1 / GIB)}; {number(reserved, 2, 1 / GIB)})",
        number(median([line.get("nvml") for line in good]), 2, 1 / GIB),
        f"{number(host, 1, 1 / GIB)} ({number(rss, 1, 1 / GIB)}; {number(peak, 1, 1 / GIB)})",
        number(median([line["setup_seconds"] for line in good]), 2),
        number(median([line["first_seconds"] for line in good]), 2),
        "simulated" if simulated else equal(good),
    ]


def title(key, facts, by_method):
    name, _, scale = key
    if facts.weights is None:
        return f"{name}: nothing ran"
    blocks = next(line["blocks"] for lines in by_method.values() for line in lines if "error" not in line)
    text = f"{name}: {facts.weights / 1e9:.3g} GB of weights in {blocks} blocks"
    if facts.needed != facts.weights:
        text += f", of which a forward needs {facts.needed / 1e9:.3g}"
    if facts.budget is not None:
        text += f"; budget {facts.budget / 1e9:.3g} GB"
    if facts.ceiling:
        text += f"; ceiling {facts.ceiling:.1f} GB/s: all that it needs in {facts.needed / facts.ceiling / 1e6:.1f} ms"
    if facts.compute:
        text += f"; resident {facts.compute * 1e3:.1f} ms"
    return text + (f"; scale {scale}: no figures" if scale == "small" else "")


def sections(lines):
    """(title, rows) of each shape."""
    limited = {shape.name for named in shapes.SHAPES.values() for shape in named if shape.percent is not None}
    for key, by_method in grouped(lines).items():
        facts = Facts(by_method)
        facts.limited = key[0] in limited or key[0].endswith("%")
        ordered = sorted(by_method, key=lambda name: list(METHODS).index(name))
        simulated = any(line.get("simulated") for found in by_method.values() for line in found)
        yield title(key, facts, by_method), [row(name, by_method[name], facts, simulated) for name in ordered]


def plain(lines):
    out = []
    for heading, rows in sections(lines):
        errors = [found for found in rows if found[2:] == [""] * (len(HEAD) - 2)]
        table = [HEAD, *(found for found in rows if found not in errors)]
        widths = [max(len(found[column]) for found in table) for column in range(len(HEAD))]
        out += [heading]
        out += [
            "  " + "  ".join(cell.ljust(width) for cell, width in zip(found, widths, strict=True)).rstrip()
            for found in table
        ]
        out += [f"  {found[0]}: {found[1]}" for found in errors] + [""]
    return "\n".join(out)


def markdown(lines):
    out = []
    for heading, rows in sections(lines):
        out += [f"{heading}", "", "| " + " | ".join(HEAD) + " |", "|" + "---|" * len(HEAD)]
        out += ["| " + " | ".join(cell.replace("|", "/") for cell in found) + " |" for found in rows] + [""]
    return "\n".join(out)

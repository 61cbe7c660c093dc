"""Runs programs with a known leak or out-of-memory error, and clean ones, and judges memlab's findings.

    make bench BENCH=leaks          (or, on a machine with a GPU: python benches/leaks.py)

For each program it prints whether the report names the holder and the cure, how long the program stood still for a search,
and how long the search took. Then come the bytes that memlab promised for a release and those that PyTorch freed, and
PyTorch's counter before and after the cure. Clean programs must have no finding of growth.
"""

import importlib.util
import json
import os
import re
import subprocess
import sys
import tempfile
from collections import Counter
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT / "tests" / "cases"))

from leak_cases import CASES, PROGRAMS  # noqa: E402

MIB = 1 << 20
MEMLAB = ROOT / "target" / "release" / "memlab"
HAS_GPU = Path("/dev/nvidiactl").exists()
CLEAN = ROOT / "tests" / "see" / "programs" / "clean.py"


def run(path, folder, name, limit=""):
    """Runs a program under memlab; returns its output, PyTorch's counters, and the traces of its processes."""
    limited = ["--limit", limit] if limit and HAS_GPU else []
    command = [MEMLAB, "run", "--force", *limited, "-o", folder / f"{name}-%p.jsonl", "--", sys.executable, path]
    if not HAS_GPU:
        command = [MEMLAB, "simulate", "--", *command]
    environment = os.environ | {"PYTHONPATH": os.pathsep.join([str(PROGRAMS), str(ROOT / "python")])}
    done = subprocess.run(command, capture_output=True, text=True, env=environment)
    counters = [dict(re.findall(r"(\w+)=(\d+)", line)) for line in done.stderr.splitlines() if line.startswith("TRUTH")]
    most = max(counters, key=lambda each: int(each["alloc"]), default={})
    figures = {"code": done.returncode} | {key: int(value) for key, value in most.items()}
    return done, figures, sorted(folder.glob(f"{name}-*.jsonl"))


def report(trace):
    return json.loads(subprocess.run([MEMLAB, "report", trace, "--json"], capture_output=True, text=True, check=True).stdout)


def changed(case, replacements, folder, name):
    """Runs a case with changes to its source."""
    path = folder / name / case.path.name
    path.parent.mkdir(exist_ok=True)
    path.write_text("import probe; " + case.source(replacements))
    return run(path, folder, name, case.limit)


def verdict(case, traces):
    """Judges the findings on a program: found, half (holder or cure only), wrong, missed, false alarm, silent."""
    findings = [finding for trace in traces for finding in report(trace)["findings"]]
    wanted = {"leak", "out_of_memory", "earlier_forwards", "graph_pools"}
    findings = [finding for finding in findings if finding["kind"] in wanted]
    if not case.finding:
        return "false alarm" if findings else "silent"
    said = [finding for finding in findings if finding["kind"] == case.finding]
    if not findings:
        return "missed"
    parts = [
        any(re.search(case.holder, finding["what"]) for finding in findings),
        any(case.cure in finding["next"] for finding in said),
    ]
    return {2: "found", 1: "half", 0: "wrong"}[sum(parts)]


def searches(traces):
    """The longest pause and the longest search, in milliseconds."""
    lines = [
        json.loads(line) for trace in traces for line in trace.read_bytes().splitlines() if line.startswith(b'{"holder')
    ]
    return [max((line[key] / 1e6 for line in lines if key in line), default=0.0) for key in ("pause_ns", "took_ns")]


def judge(case, folder):
    missing = [package for package in case.needs if not importlib.util.find_spec(package)]
    if missing:
        print(f"= {case.name}: left out, {missing[0]} is not installed")
        return "left out"
    _, before, traces = changed(case, (), folder, case.name)
    found = verdict(case, traces)
    pause, took = searches(traces)
    line = f"= {case.name}: {found}, pause {pause:.0f} ms, search {took:.0f} ms"
    if case.release:
        done, *_ = changed(case, case.release, folder, f"{case.name}_released")
        probes = [json.loads(line[6:]) for line in done.stdout.splitlines() if line.startswith("PROBE")]
        line += ", promised {promised:,} B, freed {freed:,} B".format(**probes[0]) if probes else ", no promise"
    if case.cured:
        _, after, traces = changed(case, case.cured, folder, f"{case.name}_cured")
        still = any(finding["kind"] == case.finding for trace in traces for finding in report(trace)["findings"])
        figures = [each["code"] if case.effect == "code" else each[case.effect] // MIB for each in (before, after)]
        line += ", {} {} -> {} with the cure{}".format(case.effect, *figures, ", still found" if still and case.ends else "")
    print(line, flush=True)
    return found


def clean(folder):
    done, _, traces = run(CLEAN, folder, "clean")
    names = dict(reversed(line.split()) for line in done.stdout.splitlines() if len(line.split()) == 2)
    alarms = 0
    for trace in traces:
        name = names.get(trace.stem.rpartition("-")[2])
        found = [finding["what"] for finding in report(trace)["findings"]] if name else []
        alarms += bool(found)
        for what in found:
            print(f"= clean program {name}: false alarm: {what}")
    print(f"= clean programs: {len(names)}, false alarms: {alarms}")


def main():
    chosen = sys.argv[1:]
    with tempfile.TemporaryDirectory() as folder:
        counts = Counter(judge(case, Path(folder)) for case in CASES if not chosen or case.name in chosen)
        print("= all:", ", ".join(f"{count} {verdict}" for verdict, count in counts.most_common()))
        if not chosen:
            clean(Path(folder))


if __name__ == "__main__":
    main()

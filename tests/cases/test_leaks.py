"""Leaks and out-of-memory errors rebuilt from reports: each is found with its holder and a cure that was tried."""

import json
import re
import subprocess

import pytest
from conftest import ROOT
from leak_cases import CASES, PROGRAMS

GROWTH = {"leak", "earlier_forwards", "graph_pools"}
SPAN = re.compile(r"from (?:the end of step|iteration) (\d+) to (?:the end of step|iteration) (\d+)")
TABLE = re.compile(r"between ((?:the ends of steps|iterations) \d+ and \d+.*?: .*)", re.IGNORECASE)


def started(memlab, case, replacements=(), first=""):
    """Runs the program with changes, after a first statement. Returns the run, PyTorch's counters, and the findings."""
    folder = memlab.folder / f"changed-{len(list(memlab.folder.glob('changed-*')))}"
    folder.mkdir()
    path = folder / case.path.name
    path.write_text(first + case.source(replacements))
    env = {"PYTHONPATH": f"{PROGRAMS}:{ROOT / 'python'}", "MEMLAB_OUTPUT": str(folder / "%p.jsonl")}
    run = memlab.python(path, env=env, fresh=True)
    counters = [dict(re.findall(r"(\w+)=(\d+)", line)) for line in run.errors.splitlines() if line.startswith("TRUTH")]
    counters = max(counters, key=lambda each: int(each["alloc"]), default={}) | {"code": run.code}
    findings = [finding for trace in folder.glob("*.jsonl") for finding in memlab.report(trace)["findings"]]
    return run, {key: int(value) for key, value in counters.items()}, findings


def growth_tables(memlab):
    """Titles of the tables of growth in the text reports of the first run, which those in HTML repeat."""
    titles = []
    for trace in memlab.folder.glob("changed-0/*.jsonl"):
        report = [memlab.command, "report"]
        options = {"capture_output": True, "text": True, "check": True, "env": memlab.environment(COLUMNS=200)}
        shown = TABLE.findall(subprocess.run([*report, "--full", trace], **options).stdout)
        page = re.sub(r"<[^>]*>", "", subprocess.run([*report, "--html", "-", trace], **options).stdout)
        assert all(title in page for title in shown), shown
        titles += shown
    return titles


@pytest.mark.parametrize("case", [pytest.param(case, id=case.name) for case in CASES])
def test_a_leak_is_found_with_its_holder_and_cure(memlab, case):
    for package in case.needs:
        pytest.importorskip(package)
    # GIVEN a program; WHEN it has run
    _, before, findings = started(memlab, case)
    said = [finding for finding in findings if finding["kind"] == case.finding]
    if not case.finding:
        # THEN one that only looks like a leak has no finding of growth
        assert not GROWTH & {finding["kind"] for finding in findings}, findings
        titles = growth_tables(memlab)
        assert titles and all(title.endswith((": none", ", no leak found")) for title in titles), titles
        return
    # THEN the table of growth has the steps or iterations of the finding
    for first, last in (span.groups() for finding in said if (span := SPAN.search(finding["what"]))):
        titles = [title for title in growth_tables(memlab) if f" {first} and {last}" in title]
        assert titles and not any("none" in title or "no leak" in title for title in titles), titles
    # AND the holder and the cure are named
    assert any(re.search(case.holder, finding["what"]) for finding in findings), findings
    assert any(case.cure in finding["next"] for finding in said), findings
    # AND with the cure the memory is freed, and no finding is left
    run, after, findings = started(memlab, case, case.cured)
    assert after[case.effect] <= case.at_most * before[case.effect], (before, after, run.errors[-2000:])
    assert not case.ends or case.finding not in {finding["kind"] for finding in findings}, findings


@pytest.mark.parametrize("case", [pytest.param(case, id=case.name) for case in CASES if case.release])
def test_a_release_frees_what_was_promised(memlab, case):
    for package in case.needs:
        pytest.importorskip(package)
    # GIVEN a program that releases the holder where it holds most; THEN PyTorch frees the promised bytes
    run, *_ = started(memlab, case, case.release, "import probe; ")
    probes = [json.loads(line[6:]) for line in run.output.splitlines() if line.startswith("PROBE")]
    assert probes, run.errors[-2000:]
    for probe in probes:
        assert abs(probe["promised"] - probe["freed"]) <= probe["freed"] / 100, probe

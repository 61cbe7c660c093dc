"""memlab's findings in programs with one mistake each; a finding disappears when its advice is followed."""

import json
import subprocess
from pathlib import Path

import pytest

PROGRAMS = Path(__file__).parent / "programs"

PROGRAM = PROGRAMS / "findings.py"


def reports(memlab, *programs, **options):
    """Reports of programs that run one after the other, by name, and their output."""
    env = {"MEMLAB_OUTPUT": str(memlab.folder / "%p.jsonl")} | options.pop("env", {})
    run = memlab.python(PROGRAM, *programs, env=env, **options)
    assert run.code == 0, run.errors
    printed = dict(line.split() for line in run.output.splitlines() if line.split()[-1].isdigit())
    return {name: memlab.report(memlab.folder / f"{printed[name]}.jsonl") for name in programs}, printed


def kinds(report):
    return [finding["kind"] for finding in report["findings"]]


def line_of(text):
    """Number of the program's line that contains this text."""
    lines = PROGRAM.read_text().splitlines()
    (number,) = [number for number, line in enumerate(lines, 1) if text in line]
    return f"findings.py:{number}"


def test_memory_that_rises_for_good_reasons_is_no_leak(memlab):
    # GIVEN programs without a leak: warm-up, caches, curricula, ring buffers, metrics, texts that grow, several forwards …
    run = memlab.python(PROGRAMS / "clean.py", env={"MEMLAB_OUTPUT": str(memlab.folder / "%p.jsonl")})
    assert run.code == 0, run.errors
    pids = dict(line.split() for line in run.output.splitlines())
    assert len(pids) == 19
    # THEN none has a finding of growth
    found = {name: memlab.report(memlab.folder / f"{pid}.jsonl")["findings"] for name, pid in pids.items()}
    alarms = {name: [finding["what"] for finding in findings] for name, findings in found.items() if findings}
    assert alarms == {}


def test_leaks_are_found_with_their_cause_and_remedy(memlab):
    # GIVEN programs that keep memory by mistake, and the same programs with memlab's advice followed
    names = ["evaluates", "epochs", "losses", "serves"]
    found, _ = reports(memlab, *names, *(f"{name}+mended" for name in names))
    # THEN each mistake is found once, with line, caller and reason
    for name in names:
        assert kinds(found[name]) == ["leak"], (name, found[name]["findings"])
    said = {name: found[name]["findings"][0]["what"] for name in names}
    evaluation = line_of("kept.append((model(x) - x)")
    for name in ["evaluates", "epochs"]:
        assert f"{line_of('return self.outer')} Net.forward and 2 more lines allocate it." in said[name], said[name]
        assert "activations of the forward that" in said[name] and f"{evaluation} evaluate calls" in said[name]
        assert "; backward never uses them." in said[name]
        assert "torch.no_grad()" in found[name]["findings"][0]["next"]
    assert "every 10 steps, 3 times" in said["epochs"], said["epochs"]
    assert "22.0 MiB from the end of step 1 to the end of step 23 (1.00 MiB a step)" in said["losses"], said["losses"]
    assert f"{line_of('y = model(x)')} step calls; they stay allocated after backward" in said["losses"]
    assert ".item()" in found["losses"]["findings"][0]["next"]
    assert f"{line_of('y = model(batch())')} serves" in said["serves"] and ".cpu()" in found["serves"]["findings"][0]["next"]
    # AND following the advice removes it
    for name in names:
        assert kinds(found[f"{name}+mended"]) == [], name
    # AND the text report and the page have the same text, and the dashboard the verdict and the cure
    trace = found["evaluates"]["trace"]["path"]
    text = subprocess.run([memlab.command, "report", "--full", trace], capture_output=True, text=True).stdout
    page = subprocess.run([memlab.command, "report", "--html", "-", trace], capture_output=True, text=True).stdout
    view = subprocess.run(
        [memlab.command, "view", "--once", "--size", "600x40", trace], capture_output=True, text=True
    ).stdout
    assert text.index("Findings") < text.index("=== Device")
    assert "backward never uses them" in " ".join(text.split())
    assert "backward never uses them" in page and "Grows" in view and "torch.no_grad()" in view


def test_holes_are_found_and_expandable_segments_close_them(memlab):
    found, _ = reports(memlab, "fragments", "fragments+mended")
    assert kinds(found["fragments"]) == ["fragmentation"]
    assert "expandable_segments:True" in found["fragments"]["findings"][0]["next"]
    assert kinds(found["fragments+mended"]) == []


def test_a_failed_first_allocation_is_found_with_the_other_process(memlab):
    # GIVEN a card of 4 GiB, another process that holds 3 GiB, and a program whose first allocation is 2 GiB
    found, printed = reports(memlab, "crowded", memory="4GiB")
    report = found["crowded"]
    # THEN both are found, the other process with its pid
    assert kinds(report) == ["out_of_memory", "other_processes"], report["findings"]
    failure, others = report["findings"]
    assert f"{line_of('torch.empty(2048')} crowded requested 2.00 GiB with 0 B allocated" in failure["what"]
    assert f"pid {printed['other']}" in failure["next"] and f"pid {printed['other']}" in others["what"]
    (device,) = report["devices"]
    assert (device["index"], device["allocations"]) == (0, 0) and "SimGPU" in device["name"]
    # AND every report shows it
    for command in [["report"], ["report", "--html", "-"], ["view", "--once", "--size", "200x40"]]:
        shown = subprocess.run([memlab.command, *command, report["trace"]["path"]], capture_output=True, text=True).stdout
        assert "Out of memory" in shown and "2.00 GiB" in shown, (command, shown)
        assert "No GPU memory was allocated" not in shown and "no device memory was allocated" not in shown


@pytest.mark.parametrize("limit", ["100MiB", "600MiB"])
def test_a_limit_below_the_first_allocation_is_found_and_a_higher_one_helps(memlab, limit):
    found, _ = reports(memlab, "fills", env={"MEMLAB_LIMIT": limit})
    report = found["fills"]
    assert report["devices"][0]["limit_bytes"] == int(limit[:3]) << 20 and report["devices"][0]["on_limit"] == "oom"
    assert kinds(report) == (["out_of_memory"] if limit == "100MiB" else [])
    if limit == "100MiB":
        assert "A limit of 100 MiB was set" in report["findings"][0]["next"]
        assert report["ooms"][0]["limit_bytes"] == 100 << 20


@pytest.mark.parametrize("limit", ["500MiB", "1GiB"])
def test_spilled_memory_is_not_used_memory_and_a_higher_limit_helps(memlab, limit):
    found, _ = reports(memlab, "spills", env={"MEMLAB_LIMIT": limit, "MEMLAB_ON_LIMIT": "spill"})
    report = found["spills"]
    (device,) = report["devices"]
    assert device["on_limit"] == "spill"
    held = sum(row["bytes_at_peak"] for row in report["categories"])
    assert held == device["used_bytes_at_peak"] + device["host_bytes_at_peak"]
    if limit == "1GiB":
        assert kinds(report) == [] and device["peak_host_bytes"] == 0
        return
    # A context of 256 MiB leaves room for four blocks of 60 MiB; the other six are on the host.
    assert kinds(report) == ["spilling"] and device["host_bytes_at_peak"] == 360 << 20
    command = [memlab.command, "report", "--full", report["trace"]["path"]]
    text = subprocess.run(command, capture_output=True, text=True).stdout
    assert "600 MiB reserved and 496 MiB in use at that moment\n  and 360 MiB in host memory" in text, text
    assert "a limit of 500 MiB was set" in text and "- in host memory      -360 MiB" in text
    page = subprocess.run(
        [memlab.command, "report", "--html", "-", report["trace"]["path"]], capture_output=True, text=True
    ).stdout
    assert "in host memory at most" in page and json.dumps(device["host_bytes_at_peak"]) in page

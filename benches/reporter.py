"""Measures a report of 10,000 live tensors, compared with pytorch_memlab, in one run.

    make bench BENCH=tools           (or, on a machine with a GPU: python benches/reporter.py)

Reports in fresh processes, interleaved: 10,000 tensors without names, and a training with as many (parameters, gradients
and the state of Adam, all named). The report is written to a file and to a terminal. Prints for each

    tensors, to a file: pytorch_memlab … ms, memlab … ms, ratio …

The figure of a process is the quickest of its reports, because machines are shared. The printed figure is the median over
rounds. Finding tensors requires a look at every object of the process, so the number of objects and the time of Python's
`gc.get_objects()` alone are printed too.
"""

import argparse
import contextlib
import gc
import json
import os
import pty
import statistics
import subprocess
import sys
import time
import warnings

TENSORS = 10_000
TOOLS = ("pytorch_memlab", "memlab")
SCENES = ("tensors", "training")
SINKS = ("file", "terminal")


def make_tensors(reporter_class):
    import torch

    kept = [torch.empty(4, 4, device="cuda") for _ in range(TENSORS)]
    return reporter_class(), kept


def make_training(reporter_class):
    """A quarter of the tensors are parameters, a quarter gradients, the rest Adam's."""
    import torch

    model = torch.nn.Sequential(*(torch.nn.Linear(8, 8) for _ in range(TENSORS // 8))).cuda()
    optimizer = torch.optim.Adam(model.parameters())
    reporter = reporter_class(model)
    for parameter in model.parameters():
        parameter.grad = torch.zeros_like(parameter)
    optimizer.step()
    reporter.add_optimizer(optimizer)
    return reporter, (model, optimizer)


def quickest(function, runs):
    took = []
    for _ in range(runs):
        start = time.perf_counter()
        function()
        took.append(time.perf_counter() - start)
    return min(took) * 1e3


def measure(tool, scene, runs):
    """Measures in one process and prints the milliseconds of a report by sink."""
    warnings.simplefilter("ignore")
    module = __import__(tool)
    reporter, kept = (make_tensors if scene == "tensors" else make_training)(module.MemReporter)
    found = {"objects": len(gc.get_objects()), "get_objects": quickest(gc.get_objects, runs)}
    with open("/dev/null", "w") as sink, contextlib.redirect_stdout(sink):
        found["file"] = quickest(reporter.report, runs)
    master, terminal = pty.openpty()
    with subprocess.Popen(["cat"], stdin=master, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL) as reader:
        with os.fdopen(terminal, "w", buffering=1) as sink, contextlib.redirect_stdout(sink):
            found["terminal"] = quickest(reporter.report, runs)
        reader.kill()
    print(json.dumps(found))
    del kept


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--runs", type=int, default=15)
    parser.add_argument("--measure", nargs=2, help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.measure:
        tool, scene = arguments.measure
        measure(tool, scene, arguments.runs)
        return
    for scene in SCENES:
        rounds: dict[str, list[dict[str, float]]] = {tool: [] for tool in TOOLS}
        for _ in range(arguments.rounds):
            for tool in TOOLS:
                command = [sys.executable, __file__, "--runs", str(arguments.runs), "--measure", tool, scene]
                done = subprocess.run(command, stdout=subprocess.PIPE, text=True, check=True)
                rounds[tool].append(json.loads(done.stdout))
        median = {tool: {key: statistics.median(one[key] for one in ran) for key in ran[0]} for tool, ran in rounds.items()}
        for sink in SINKS:
            theirs, ours = (median[tool][sink] for tool in TOOLS)
            print(f"{scene}, to a {sink}: pytorch_memlab {theirs:.1f} ms, memlab {ours:.1f} ms, ratio {ours / theirs:.2f}")
            print(f"= {scene}, to a {sink}, pytorch_memlab: {theirs:.1f} ms")
            print(f"= {scene}, to a {sink}, memlab: {ours:.1f} ms")
            print(f"= {scene}, to a {sink}, ratio: {ours / theirs:.2f}")
        for tool in TOOLS:
            objects, alone = median[tool]["objects"], median[tool]["get_objects"]
            print(f"{scene}, {tool}: {objects:.0f} objects, gc.get_objects() alone {alone:.1f} ms")


if __name__ == "__main__":
    main()

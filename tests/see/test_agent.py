"""Blocks get the right category also in unusual programs, which run as without memlab."""

import json
import re
import shutil
from pathlib import Path

import pytest
from trace_reader import Trace

PROGRAMS = Path(__file__).parent / "programs"

WORKSPACE = 8


@pytest.mark.parametrize("mode", ["threads", "compiled"])
def test_tags(memlab, mode):
    # GIVEN models trained by several threads at once, or by a compiled optimizer
    run = memlab.python(PROGRAMS / "tagged.py", mode, memlab.folder / "truth.json")
    assert run.code == 0, run.errors
    truth = json.loads((memlab.folder / "truth.json").read_text())
    trace = Trace(run.trace)
    # WHEN the last tag of each address is looked up
    tags, roots = {}, {}
    for event in trace.events:
        if event[0] == "tag":
            _, _, _, address, category, size, root, name = event
            tags[str(address)] = [category, name, size]
            roots[str(address)] = root
    # THEN each model's parameters, gradients and optimizer state have their names and their model
    met = set()
    for expected in truth["models"]:
        assert {address: tags.get(address) for address in expected} == expected
        (root,) = {roots[address] for address in expected}
        assert trace.layers[root]["type"] == "Sequential"
        met.add(root)
    assert len(met) == len(truth["models"])
    # AND every step and every byte are counted
    assert sum(event[0] == "step" for event in trace.events) == {"threads": 160, "compiled": 12}[mode]
    assert trace.at().allocated() == truth["allocated"]
    # AND the program's output is the same as without memlab
    if mode == "compiled":
        alone = memlab.python(PROGRAMS / "tagged.py", mode, memlab.folder / "alone.json", preload=False)
        assert run.output == alone.output
        assert without_times(run.errors) == without_times(alone.errors)
    else:
        assert (run.output, run.errors) == ("", "")


def without_times(errors):
    """PyTorch's log without the times."""
    return re.sub(r"^([WE])\d+ [\d:.]+ \d+ ", r"\1 ", errors, flags=re.MULTILINE)


def test_workspaces_after_running_out_of_memory(memlab):
    # GIVEN a program that continues after an allocation of a library's workspace failed
    run = memlab.python(PROGRAMS / "workspace.py", memory="512MiB")
    assert (run.code, run.errors) == (0, "")
    events = [event for event in Trace(run.trace).events if event[0] in ("a", "oom")]
    last_oom = max(index for index, event in enumerate(events) if event[0] == "oom")
    # THEN its later blocks are not workspaces, and only the workspace is one
    made = [(event[5], event[8] & WORKSPACE != 0) for event in events[last_oom:] if event[0] == "a"]
    before, product, after = map(int, run.output.split())
    (workspace,) = [size for size, is_workspace in made if is_workspace]
    assert made == [(before, False), (product, False), (workspace, True), (after, False)]


@pytest.mark.parametrize("moment", ["naming", "tagging"])
def test_an_interrupted_agent_completes_its_work(memlab, moment):
    # GIVEN a program that is interrupted while the agent names its model, and continues with the same model
    run = memlab.python(PROGRAMS / "interrupted_once.py", moment)
    assert (run.code, run.output, run.errors) == (0, "interrupted 1\n", "")
    trace = Trace(run.trace)
    # THEN layers and parameters get their names, although none of them is new any more
    assert sorted(layer["name"] for layer in trace.layers.values()) == ["", "body", "body.0", "body.1", "head"]
    tagged = {event[7] for event in trace.events if event[0] == "tag" and event[4] != "input"}
    assert tagged == {"body.0.weight", "body.0.bias", "head.weight", "head.bias"}


@pytest.mark.parametrize("what", ["traced", "transformed", "moded", "odd"])
def test_the_agent_is_invisible_to_the_program(memlab, what):
    # GIVEN models that are called for the first time while something records PyTorch's operations (a JIT trace, an export, a
    # transform, a mode, a profiler), or that print the operations themselves
    run = memlab.python(PROGRAMS / "watched.py", what)
    alone = memlab.python(PROGRAMS / "watched.py", what, preload=False)
    # THEN the recording is the same as without memlab
    assert alone.code == 0, alone.errors
    assert run.code == 0, run.errors
    assert run.output == alone.output
    assert "memlab" not in run.errors
    # AND layers and tensors have their names, since the postponed work is done later
    trace = Trace(run.trace)
    assert {None} != {layer["name"] for layer in trace.layers.values()} >= {"", {"odd": "parts.0"}.get(what, "1.1")}
    expected = {"odd": {"inner.weight", "parts.0.bias", "talking", "wrapped"}}.get(
        what, {"0.weight", "1.1.running_mean", "2.bias"}
    )
    assert {event[7] for event in trace.events if event[0] == "tag"} >= expected


OWN = f"{['a', 'b'] * 4} [0, 1]\n"
LAST = f"{['last'] * 4}\n"


@pytest.mark.parametrize(
    ("when", "output", "steps"),
    [
        ("own", OWN, range(4, 5)),
        ("thread", LAST, range(3, 4)),
        ("inside", LAST, range(2, 5)),
        ("forked", "child ['last']\nparent ['last']\n0\n", range(3, 4)),
    ],
)
def test_hooks_of_the_program_are_called(memlab, when, output, steps):
    # GIVEN a program with its own hooks after steps, and memlab's hook for steps
    run = memlab.python(PROGRAMS / "stepping.py", when)
    # THEN PyTorch calls all of them
    assert (run.code, run.errors) == (0, "")
    assert sorted(run.output.splitlines()) == sorted(output.splitlines())
    # AND steps are counted
    assert sum(event[0] == "step" for event in Trace(run.trace).events) in steps


def test_two_memlabs(memlab):
    # GIVEN a program with two copies of memlab in it
    copy = memlab.folder / "libmemlab.so"
    shutil.copy(memlab.library, copy)
    env = {"LD_PRELOAD": f"{memlab.library}:{copy}"}
    run = memlab.python(PROGRAMS / "stepping.py", "own", preload=False, env=env)
    # THEN its own hooks are called
    assert (run.code, run.output) == (0, OWN), run.errors


def test_weights_of_modules_that_are_never_called(memlab):
    # GIVEN copies and averages of a model, and an unused module
    run = memlab.python(PROGRAMS / "held.py", memlab.folder / "truth.json")
    assert (run.code, run.errors) == (0, "")
    truth = json.loads((memlab.folder / "truth.json").read_text())
    # THEN their tensors have the right category and the names of their holders
    tags = {(str(event[3]), event[4], event[7]) for event in Trace(run.trace).events if event[0] == "tag"}
    assert {tag for tag in tags if tag[0] in truth["held"]} == {(at, *known) for at, known in truth["held"].items()}
    # AND only the batch is an input
    categories = {row["name"]: row["bytes_at_end"] for row in memlab.report(run.trace)["categories"]}
    assert truth["batch"] <= categories["input"] < truth["batch"] + 512


def test_gradients_without_an_optimizer(memlab):
    # GIVEN a program that updates parameters itself
    run = memlab.python(PROGRAMS / "by_hand.py", memlab.folder / "truth.json")
    assert (run.code, run.errors) == (0, "")
    truth = json.loads((memlab.folder / "truth.json").read_text())
    # THEN its layers hold their gradients
    rows = memlab.report(run.trace)["layers"]
    assert {row["name"]: row["gradient_bytes"] for row in rows if row["gradient_bytes"]} == truth["bytes"]
    # AND the gradients of the second and third backward are tagged before the end
    tags = [event[3] for event in Trace(run.trace).events if event[0] == "tag" and event[4] == "gradient"]
    assert tags == [address for step in truth["trained"][1:] for address in step] + truth["trained"][-1]


def test_the_heap_search_holds_no_references(memlab):
    # GIVEN a thread in which C++ constantly drops tensors, and models whose first calls make memlab search the heap
    run = memlab.python(PROGRAMS / "searched.py")
    # THEN PyTorch (before 2.10) does not warn about live references to such a tensor
    assert (run.code, run.errors) == (0, "")

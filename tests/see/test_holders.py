"""The objects that keep memory alive: each promise equals the bytes that PyTorch frees, in programs that hold memory in
every way."""

import json
from pathlib import Path

import pytest
from conftest import PYTHON, runs_the_package

PROGRAMS = Path(__file__).parent / "programs"

if not runs_the_package(PYTHON):
    pytest.skip("the package needs CPython 3.10", allow_module_level=True)


def searched(memlab, name, **options):
    run = memlab.python(PROGRAMS / "holders.py", name, **options)
    assert run.code == 0, run.errors[-3000:]
    return json.loads(run.output.splitlines()[-1])


@pytest.mark.parametrize(
    ("name", "names", "kind"),
    [
        ("a_list", ["kept"], "list"),
        ("an_attribute", ["keeper.kept[0]"], "item"),
        ("a_class", ["Keeper.table['first']"], "item"),
        ("a_deque", ["queue"], "deque"),
        ("a_cache", ["made"], "cache of"),
        ("a_slot", ["slotted.value"], "attribute"),
        ("slots_together", ["slotted"], "variable"),
        ("a_coroutine", ["waiting"], "generator"),
        ("an_array", ["table"], "array"),
        ("a_part_of_an_array", ["row"], "array"),
        ("a_script", ["scripted"], "variable"),
        ("a_view", ["row"], "variable"),
        ("a_gradient", ["weight"], "variable"),
        ("two_names", ["first", "second"], "names"),
    ],
)
def test_the_promise_is_what_the_release_frees(memlab, name, names, kind):
    # GIVEN a program that holds memory in one way; WHEN it asks what holds it
    found = searched(memlab, name)
    # THEN the holder is named, AND its release frees the promised bytes
    assert (found["names"], found["kind"]) == (names, kind), found
    assert found["releases"] == found["freed"] > 0, found


def test_buckets_that_no_object_refers_to_are_ddps(memlab):
    # GIVEN a model under DistributedDataParallel
    found = searched(memlab, "buckets")
    # THEN its weight has a name, AND the bucket, of the same size, is known; the model's release frees both
    assert sorted(found["kinds"]) == ["DDP buckets", "variable"], found
    assert found["promised"] == found["freed"] == 2 * 4 << 20, found


@pytest.mark.parametrize("name", ["a_closure", "an_exception", "a_generator", "graphs_in_a_list"])
def test_what_objects_keep_inside_is_found(memlab, name):
    # GIVEN memory in a closure, the frames of a kept exception, a generator, a gradient, a graph
    found = searched(memlab, name)
    # THEN the release of the named object frees the promised bytes
    assert found["releases"] == found["freed"] > 0, found


@pytest.mark.parametrize(("name", "cure"), [("garbage", "Break the reference cycle"), ("a_ctx", "ctx.save_for_backward")])
def test_garbage_is_told_from_what_is_held(memlab, name, cure):
    # GIVEN a cycle that only the collector frees; THEN its kind is garbage, AND a collection frees the promised bytes
    found = searched(memlab, name)
    assert found["kind"] == "garbage" and cure in found["cure"], found
    assert found["releases"] == found["freed"] > 0, found


REFUSED = "the system refuses a copy of this process"


@pytest.mark.parametrize("name", ["a_list", "graphs_in_a_list", "an_exception", "two_names"])
def test_where_the_system_refuses_a_copy_the_search_runs_in_the_process(memlab, name):
    # GIVEN a system that refuses copies of the process; WHEN the program asks what holds its memory
    run = memlab.python(PROGRAMS / "holders.py", name, "refused")
    found = json.loads(run.output.splitlines()[-1])
    # THEN the promise is what the release frees, as the search keeps no reference; AND one line names its place
    assert found["releases"] == found["freed"] > 0, found
    assert run.errors.count(REFUSED) == 1, run.errors


def test_a_search_in_the_process_uses_nothing_of_the_program(memlab):
    # GIVEN hostile objects, and a system that refuses copies of the process
    run = memlab.python(PROGRAMS / "hostile.py", "refused")
    assert run.code == 0, run.errors[-3000:]
    # WHEN the program is searched three times, THEN no method ran, and no reference or setting changed
    found = json.loads(run.output.splitlines()[-1])
    assert (found["uses"], found["references"]) == ([], True), found
    assert found["collector"] == [True, [12345, 12, 13]] and REFUSED in run.errors, found
    # AND all memory is accounted for
    assert found["bytes"] == [found["allocated"]] * 3, found


@pytest.mark.parametrize("frozen", [[], ["frozen"]])
def test_a_search_uses_nothing_of_the_program(memlab, frozen):
    # GIVEN objects that count every use of their methods, metaclasses and subclasses of containers, a thread that changes a
    # dictionary, a list of depth 100,000, handlers of children and of forks, and a collector with other settings
    run = memlab.python(PROGRAMS / "hostile.py", *frozen)
    assert run.code == 0, run.errors[-3000:]
    # WHEN the program is searched three times, THEN no method ran, no child was seen, and no reference or setting changed
    lines = run.output.splitlines()
    found = json.loads(lines[-1])
    assert (lines[:-1], found["uses"], found["signals"], found["children"]) == ([], [], [], False), found
    assert found["references"] and found["collector"] == [True, [12345, 12, 13]], found
    # AND all memory has a holder
    assert found["bytes"] == [found["allocated"]] * 3 and found["unreached"] == [0, 0, 0], found

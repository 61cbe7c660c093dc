"""The objects that keep memory alive: each promise equals the bytes that PyTorch frees, in programs that hold memory in
every way."""

import json
from pathlib import Path

import pytest

PROGRAMS = Path(__file__).parent / "programs"


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
        ("a_slot", ["slotted"], "object"),
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

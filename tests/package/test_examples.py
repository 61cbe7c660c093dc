"""The examples in the docstrings of the public names run, with a GPU and without, and print the documented output."""

import doctest
import inspect

import memlab
import pytest
from conftest import ROOT
from tool_runs import START, run_tool

# Public names whose classes are documented member by member.
TOOLS = ["Courtesy", "LineProfiler", "MemReporter", "annotate", "memory_profiler", "tracker", "watch"]


def documented(name):
    """What has a docstring of its own: the name, and for tools its public members."""
    thing = getattr(memlab, name)
    kind = thing if inspect.isclass(thing) else type(thing)
    members = vars(kind).items() if name in TOOLS else ()
    public = {f"{name}.{member}": value for member, value in members if not member.startswith("_")}
    own = {f: value for f, value in public.items() if inspect.isfunction(value) or isinstance(value, property)}
    return {name: kind if name == "tracker" else thing} | own


def examples(name, thing):
    return doctest.DocTestParser().get_doctest(inspect.getdoc(thing) or "", {}, name, None, 0)


@pytest.mark.parametrize("name", memlab.__all__)
def test_examples_without_a_gpu(name):
    # GIVEN a public name; WHEN the examples of its docstrings run, THEN they print the documented output
    for member, thing in documented(name).items():
        example = examples(member, thing)
        assert example.examples, f"{member} has no example"
        assert doctest.DocTestRunner().run(example).failed == 0


@START
def test_examples_of_the_tools_with_a_gpu(memlab, preload):
    program = """
    import sys, json, torch, doctest
    sys.path[:0] = PATHS
    import test_examples
    held = torch.zeros(1 << 20, device="cuda")
    failed = []
    for name in [*test_examples.TOOLS, "start", "stop", "profile", "profile_every", "set_target_gpu"]:
        for member, thing in test_examples.documented(name).items():
            if doctest.DocTestRunner().run(test_examples.examples(member, thing)).failed:
                failed.append(member)
    json.dump(failed, open("result", "w"))
    """
    failed, run = run_tool(
        memlab, program.replace("PATHS", repr([str(ROOT / "tests"), str(ROOT / "tests" / "package")])), preload
    )
    assert failed == [], run.output

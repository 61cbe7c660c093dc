"""The examples in the docstrings of the public names run, with a GPU and without, and print the documented output. As
programs, like those of the docs, they write nothing to stderr."""

import doctest
import gc
import inspect
import re
import textwrap

import memlab
import pytest
from conftest import ROOT
from documented import GIVEN, NOT_RUN, PAGES, blocks, documented_programs
from tool_runs import START, run_tool

# Public names whose classes are documented member by member.
TOOLS = ["Courtesy", "LineProfiler", "MemReporter", "annotate", "memory_profiler", "tracker", "watch"]


def documented(name):
    """Objects with a separate docstring: the name, and for tools its public members."""
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


def run_as_program(memlab, code):
    """Runs an example as a separate program, to the interpreter's end, on a simulated GPU."""
    script = memlab.folder / "example.py"
    script.write_text(code)
    return memlab.python(script, preload=False, fresh=True, env={"PYTHONPATH": ROOT / "python", "MEMLAB_PATIENCE": 1000})


@pytest.mark.parametrize("code", [pytest.param(code, id=place) for place, code in documented_programs()])
def test_documented_programs_write_nothing_to_stderr(memlab, code):
    # GIVEN an example of the docs; WHEN it runs as a program, THEN it succeeds and stderr is empty
    run = run_as_program(memlab, GIVEN + code)
    assert (run.code, run.errors) == (0, "")


@pytest.mark.parametrize("name", memlab.__all__)
def test_docstrings_write_nothing_to_stderr(memlab, name):
    # GIVEN the examples of a name and its members, except those that raise; WHEN they run as a program
    found = [example for member, thing in documented(name).items() for example in examples(member, thing).examples]
    run = run_as_program(memlab, "import torch\n" + "".join(example.source for example in found if example.exc_msg is None))
    # THEN it succeeds, and stderr is empty
    assert (run.code, run.errors) == (0, "")


def test_documented_programs_are_left_out_for_a_reason_that_holds():
    # GIVEN the markers of examples that are not run; THEN the docs have an example for each
    code = "".join(block for page in PAGES for _, block in blocks(page))
    assert [part for part in NOT_RUN if part not in code] == []


def test_tools_are_dropped_after_their_modules_in_silence(memlab):
    # GIVEN tools after use; WHEN their modules have lost their names, as at the end of the interpreter
    program = """
    import os, sys, torch, memlab
    def work(x):
        return (x * x).exp().exp()
    x = torch.ones(1 << 20, device="cuda", requires_grad=True)
    profiler, watched, reporter = memlab.LineProfiler(work), memlab.watch(), memlab.MemReporter()
    with profiler, watched, memlab.offload_activations("1MiB"):
        result = work(x)
    reporter.collect()
    modules = [vars(module) for name, module in sys.modules.items() if name.partition(".")[0] == "memlab"]
    vars(memlab._native).update(dict.fromkeys(vars(memlab._native)))
    del profiler, watched
    for names in modules:
        names.update(dict.fromkeys(names))
    del reporter, result
    os._exit(0)
    """
    # THEN dropping them raises nothing
    run = run_as_program(memlab, textwrap.dedent(program))
    assert (run.code, run.errors) == (0, "")


@pytest.mark.filterwarnings("error::pytest.PytestUnraisableExceptionWarning")
def test_wrong_arguments_raise_once():
    # GIVEN a tool created with an unknown argument; THEN its incomplete object is dropped silently
    with pytest.raises(TypeError):
        memlab.watch(gpu=1)
    gc.collect()


@pytest.mark.parametrize(
    "name, python, torch, needed",
    [
        ("page", (3, 9, 18), "2.15.0", "memlab.page needs CPython 3.10 or newer"),
        ("page", (3, 11, 7), "2.4.1+cu121", "memlab.page needs PyTorch 2.6 or newer, and 2.4.1+cu121 is installed"),
        ("MemReporter", (3, 11, 7), "2.1.2", "memlab.MemReporter needs PyTorch 2.4 or newer, and 2.1.2 is installed"),
    ],
)
def test_old_versions_are_refused_by_name(monkeypatch, name, python, torch, needed):
    # GIVEN an old CPython or PyTorch; WHEN a name needs a newer one, THEN the error names the version
    with monkeypatch.context() as old, pytest.raises(ImportError, match=re.escape(needed)):
        old.setattr("sys.version_info", python)
        old.setattr("importlib.metadata.version", lambda _package: torch)
        memlab.__getattr__(name)

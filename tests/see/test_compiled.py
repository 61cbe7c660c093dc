"""Memory that torch.compile's code allocates belongs to the lines and layers of the program."""

import functools
import json
from collections import Counter
from pathlib import Path

import pytest
from conftest import Memlab, full
from trace_reader import BACKWARD, OPTIMIZER, Trace
from wrapper_oracle import Oracle, comment_of, operands_of

PROGRAMS = Path(__file__).parent / "programs"

# One process runs all tests of this file, so that shared programs are compiled once.
pytestmark = [pytest.mark.programs, pytest.mark.xdist_group("compiled")]

PROGRAM = PROGRAMS / "compiled.py"
LINES = PROGRAM.read_text().splitlines()
LOSS = next(line for line in LINES if "return F.cross_entropy(" in line)
BENCHMARKS = "(torch.compile's benchmarks)"
STATE = ("parameter_bytes", "gradient_bytes", "optimizer_state_bytes", "buffer_bytes")


def run(memlab, case, program=PROGRAM, preload=True, late=(), **env):
    """Runs a case with Inductor's cache in the test's folder; returns the run and PyTorch's own figures of it."""
    settings = {
        "TORCHINDUCTOR_CACHE_DIR": memlab.folder / "cache",
        "TRITON_CACHE_DIR": memlab.folder / "cache" / "triton",
        "TORCHINDUCTOR_COMPILE_THREADS": 1,
        "TORCHINDUCTOR_DETERMINISTIC": 1,  # With few benchmarks, which take long.
    }
    before = set(memlab.folder.glob("*.jsonl"))
    done = memlab.python(program, case, memlab.folder / "out.json", *late, preload=preload, env=settings | env)
    assert done.code == 0, done.errors
    assert "memlab" not in done.errors, done.errors
    traces = set(memlab.folder.glob("*.jsonl")) - before
    return (traces.pop() if traces else None), json.loads((memlab.folder / "out.json").read_text())


@pytest.fixture(scope="module")
def recorded(tmp_path_factory):
    """Runs a case like `run`, with an empty cache. Returns the same."""
    return functools.cache(lambda case: run(Memlab(tmp_path_factory.mktemp(case)), case))


class Compiled:
    """Allocations of a trace that are made in Inductor's code."""

    def __init__(self, path):
        self.trace = trace = Trace(path)
        self.places = Counter()  # (frame of a wrapper, layer, phase) -> bytes
        for event in trace.events:
            if event[0] == "a":
                stack, layer, flags = event[6:9]
                while stack:
                    stack, frame = trace.stacks[stack]
                    stands_for = [trace.frames[known][0] for known in trace.stands_for.get(frame, ())]
                    if BENCHMARKS in stands_for:
                        break
                    if frame in trace.stands_for:
                        self.places[frame, layer, flags & 3] += event[5]
                        break

    def lines(self, frame):
        return tuple(self.trace.frames[known][:2] for known in self.trace.stands_for[frame])

    def layer(self, layer):
        """(name, name of the caller) of a layer."""
        caller = self.trace.layers[layer].get("parent", 0)
        return self.trace.layer_name(layer) or "", self.trace.layer_name(caller) or ""

    def attributed(self):
        """Bytes by the program lines behind a wrapper's line, and by layer and phase, with file names instead of paths."""
        found = Counter()
        for (frame, layer, phase), size in self.places.items():
            lines = tuple((Path(file).name, line) for file, line in self.lines(frame))
            found[lines, self.trace.layer_name(layer), phase] += size
        return found


def states(report):
    """State that each layer holds, by name."""
    rows = ((row["name"], [row[state] for state in STATE]) for row in report["layers"])
    return {name: held for name, held in rows if any(held)}


def gradients(trace):
    """The layers in which the memory of each parameter's gradients was allocated, by the parameter's name."""
    allocated, found = {}, {}
    for event in trace.events:
        if event[0] == "a":
            allocated[event[4]] = trace.layer_name(event[7])
        elif event[0] == "tag" and event[4] in ("parameter", "gradient"):
            layers = found.setdefault(event[7], set())
            if event[4] == "gradient":
                layers.add(allocated[event[3]])
    return found


def within(name, caller):
    """A layer's name in its caller."""
    return name.removeprefix(caller).lstrip(".")


def check(compiled, truth):
    """Asserts that the source nodes allow each line and layer. Returns the bytes of known and unknown lines, and as "around"
    those whose layer only encloses the right one."""
    oracle, known = Oracle(truth), Counter()
    for (frame, layer, _), size in compiled.places.items():
        file, line, _ = compiled.trace.frames[frame]
        source = Path(file).read_text()
        comment = comment_of(source, line)
        lines = compiled.lines(frame)
        known[lines != ()] += size
        place = f"{file}:{line}: {comment}"
        if not lines:
            continue
        # A launch without data from Inductor belongs to the operation whose result it reads.
        comments = [comment] if oracle.tells(comment) else operands_of(source, line)
        assert any(oracle.allows_lines(comment, lines) for comment in comments), (place, lines)
        name, caller = compiled.layer(layer)
        if not any(oracle.allows_layer(comment, within(name, caller)) for comment in comments):
            assert any(oracle.is_around(comment, within(name, caller)) for comment in comments), (place, name)
            known["around"] += size
    return known


CASES = {
    # The layers that must appear.
    "whole": {"blocks.0.norm", "blocks.1.up", "blocks.2.down", "head"},
    "regional": {"blocks.0.norm", "blocks.1.up", "blocks.2.down"},
    "function": {"blocks.0.norm", "blocks.1.up", "blocks.2.down", "head"},
    "inference": {"blocks.0.norm", "blocks.1.up", "blocks.2.down", "head"},
    "reduce_overhead": {"blocks.0.norm", "blocks.1.up", "blocks.2.down", "head"},
    "breaking": {"blocks.0.norm", "blocks.1.up", "blocks.2.down", "head"},
    "checkpointing": {"blocks.0.norm", "blocks.1.up", "blocks.2.down", "head"},
    "hugging_face": {"transformer.h.0.attn.c_attn", "transformer.h.1.mlp.c_fc", "lm_head"},
}


# The bodies of checkpointed calls are separate graphs, in which nodes have the same names.


@pytest.mark.parametrize("case", [case for case in CASES if case != "hugging_face"] + full("hugging_face"))
def test_memory_is_where_its_operations_are(recorded, case):
    # GIVEN a compiled program, and Inductor's data about each kernel from its generation
    trace, out = recorded(case)
    compiled = Compiled(trace)
    # WHEN the lines and layers are compared with those of the source nodes of the kernel that fills the memory
    known = check(compiled, out["truth"])
    # THEN no bytes are elsewhere, AND at most 1 % is unknown
    assert known[False] + known["around"] <= known.total() / 100, known
    # AND each is in its innermost layer, except for some launches of partitions, which have no traces
    assert known["around"] == 0 or case == "reduce_overhead", known
    # AND all layers appear
    expected = CASES[case]
    if case == "inference" and out["torch"] < [2, 11]:  # Larger values of later blocks are in memory of the first.
        expected = {"blocks.0.norm", "blocks.0.up", "blocks.1.norm", "blocks.2.norm", "head"}
    assert expected <= {compiled.trace.layer_name(layer) for _, layer, _ in compiled.places}


def test_an_eager_and_a_compiled_training_agree(memlab, recorded):
    # GIVEN the same training, eager and compiled
    reports = {}
    for case in ("eager", "whole"):
        trace, out = recorded(case)
        report = reports[case] = memlab.report(trace)
        # THEN the lines' bytes sum to PyTorch's allocated bytes
        assert sum(row["live_bytes_at_end"] for row in report["lines"]) == out["allocated"]
    # AND each layer has the same parameters, gradients, optimizer state and buffers
    assert states(reports["eager"]) == states(reports["whole"])
    # AND at the peak, activations are in named layers and on lines of the program
    activations = Counter()
    for row in reports["whole"]["layers"]:
        activations[bool(row["root"] and row["name"])] += row["activation_bytes"]
    assert activations[False] <= activations.total() / 100, activations
    at_peak = {Path(row["file"]).name for row in reports["whole"]["lines"] if row["live_bytes_at_peak"]}
    assert at_peak - {BENCHMARKS} == {PROGRAM.name}


@pytest.mark.long
@pytest.mark.parametrize("autograd_cache", [1, *full(0)])
def test_caches_make_no_difference(memlab, autograd_cache):
    env = {"TORCHINDUCTOR_AUTOGRAD_CACHE": autograd_cache}
    # GIVEN a program, and one with the same model some lines further down
    program, moved = memlab.folder / "program.py", 7
    (memlab.folder / "compiled_truth.py").write_text((PROGRAMS / "compiled_truth.py").read_text())
    text = PROGRAM.read_text()
    program.write_text(text)
    # WHEN it runs with an empty cache, with that run's cache, and after the model has moved
    cold, out = run(memlab, "whole", program, **env)
    warm, again = run(memlab, "whole", program, **env)
    program.write_text(text.replace("class Block(", "# A comment.\n" * moved + "class Block("))
    later, last = run(memlab, "whole", program, **env)
    # THEN the cache is used
    hits = "autograd_cache_hit" if autograd_cache else "fxgraph_cache_hit"
    kind = "aot_autograd" if autograd_cache else "inductor"
    assert [hits in found["counters"][kind] for found in (out, again, last)] == [False, True, True]
    # AND lines and layers are the same, or the new ones
    attributed = Compiled(cold).attributed()
    assert sum(attributed.values()) > 0
    assert Compiled(warm).attributed() == attributed
    expected = Counter()
    for (lines, layer, phase), size in attributed.items():
        expected[tuple((file, line + moved) for file, line in lines), layer, phase] += size
    assert Compiled(later).attributed() == expected


@pytest.mark.long
def test_memlab_may_be_loaded_by_the_program(memlab, recorded):
    # GIVEN training that was recorded from its beginning
    trace, _ = recorded("whole")
    expected = Compiled(trace).attributed()
    # WHEN another process runs it and loads memlab itself, before it compiles
    late, out = run(memlab, "whole", preload=False, late=(memlab.library,))
    # THEN the lines and layers are the same
    assert Compiled(late).attributed() == expected
    # AND the sums are PyTorch's
    assert sum(row["live_bytes_at_end"] for row in memlab.report(late)["lines"]) == out["allocated"]


@pytest.mark.long
def test_a_backward_that_compiled_autograd_captures(memlab, recorded):
    # GIVEN eager training, and training whose backward is compiled apart from its forward, with an empty cache and a full
    # one
    eager, _ = recorded("eager")
    expected = states(memlab.report(eager))
    for _ in range(2):
        trace, out = run(memlab, "captured")
        report, compiled = memlab.report(trace), Compiled(trace)
        # THEN each layer has the same parameters, gradients, optimizer state and buffers
        assert states(report) == expected
        assert sum(row["live_bytes_at_end"] for row in report["lines"]) == out["allocated"]
        # AND its code's allocations are backward's, on lines of the program's forward, in layers of the model
        layers, is_known = Counter(), out["torch"] >= [2, 8]
        for (frame, layer, phase), size in compiled.places.items():
            if phase == BACKWARD:
                assert {file for file, _ in compiled.lines(frame)} == ({str(PROGRAM)} if is_known else set())
                # The gradient of the loss is the outermost module's, as in eager.
                name = compiled.trace.layer_name(layer)
                is_loss = name == "" and LINES[compiled.lines(frame)[-1][1] - 1] == LOSS
                layers["loss" if is_loss else name] += size
        assert layers
        if not is_known:  # Older versions do not keep the operations from which a backward was captured.
            continue
        assert {"blocks.0.up", "blocks.1.down", "blocks.2.norm", "head"} <= layers.keys()
        assert layers[None] + layers[""] <= layers.total() / 100, layers
        # AND gradients are allocated in the layers of their parameters, except for small ones in reused memory
        of_gradients = gradients(compiled.trace)
        elsewhere = {name for name, layers in of_gradients.items() if layers != {name.rpartition(".")[0]}}
        assert len(elsewhere) <= len(of_gradients) / 4, of_gradients
        assert all(name.endswith("bias") for name in elsewhere), of_gradients


def test_a_compiled_step_is_the_optimizers(memlab):
    # GIVEN an optimizer whose compiled step allocates memory
    trace, _ = run(memlab, "compiled_optimizer")
    compiled = Compiled(trace)
    assert compiled.places
    for frame, layer, phase in compiled.places:
        # THEN the memory is the optimizer's, on its lines, and in no layer
        assert phase == OPTIMIZER
        assert compiled.lines(frame)[-1][0] == str(PROGRAM)
        assert compiled.layer(layer)[0] == ""


@pytest.mark.long
def test_torch_compile_does_not_notice(memlab):
    # GIVEN runs with memlab and without, with an empty cache and a full one each
    found = {}
    for preload in (True, False):
        folder = memlab.folder / str(preload)
        env = {"TORCHINDUCTOR_CACHE_DIR": folder, "TRITON_CACHE_DIR": folder / "triton"}
        found[preload] = [run(memlab, "breaking", preload=preload, **env)[1] for _ in range(2)]
    # THEN counters of TorchDynamo and Inductor are the same, including cache hits, and so are PyTorch's allocations
    for traced, alone in zip(found[True], found[False], strict=True):
        assert traced["counters"] == alone["counters"]
        assert traced["allocated"] == alone["allocated"]
        assert traced["visible"] == alone["visible"]

"""Every allocation belongs to the layer that made it, in forward and in backward."""

import fnmatch
import json
from pathlib import Path

import pytest
from trace_reader import BACKWARD, FORWARD, Trace

PROGRAMS = Path(__file__).parent / "programs"

CASES = [
    "nesting",
    "called_twice",
    "shared",
    "several_roots",
    "made_and_dropped",
    "checkpointing",
    "custom_function",
    "compiled",
    "addresses_used_again",
    "replicas",
    "one_module_in_threads",
    "threads_in_turn",
    "short_lived",
    "functional",
]
RECOMPUTED = 32


def phase_of(flags):
    if flags & 3 == BACKWARD:
        return "recomputed" if flags & RECOMPUTED else "backward"
    return "forward" if flags & 3 == FORWARD else None


@pytest.mark.parametrize("case", CASES)
def test_layers(memlab, case):
    # GIVEN modules in some arrangement, each with results of a unique size
    run = memlab.python(PROGRAMS / "layers.py", case, memlab.folder / "expected.json")
    if "no address was used again" in run.errors:
        pytest.skip("this Python's allocator gives away addresses too late")
    assert run.code == 0, run.errors
    assert "memlab" not in run.errors
    assert run.errors == "" or "Warning: " in run.errors  # Some versions of PyTorch warn about themselves.
    assert "live PyObject references" not in run.errors  # They may also warn about references that memlab holds.
    expected = json.loads((memlab.folder / "expected.json").read_text())
    trace = Trace(run.trace)

    # WHEN their allocations are looked up by size
    met = {phase: set() for phase in expected}
    for event in trace.events:
        if event[0] != "a":
            continue
        _, _, _, _, _, size, _, layer, flags, *_ = event
        phase = phase_of(flags)
        if phase is None or str(size) not in expected[phase]:
            continue
        name, kind = expected[phase][str(size)]
        met[phase].add(str(size))
        # THEN each belongs to its layer
        found = trace.layers[layer] if layer else {"name": None, "type": None}
        assert fnmatch.fnmatchcase(str(found["name"]), name), (phase, size, found)
        assert fnmatch.fnmatchcase(str(found["type"]), kind), (phase, size, found)

    # AND none is missing
    assert met == {phase: set(sizes) for phase, sizes in expected.items()}
    if case == "one_module_in_threads":
        # AND all threads refer to the same layer
        assert len({layer["name"] for layer in trace.layers.values()}) == len(trace.layers)


def test_backward_belongs_to_the_forward_line(memlab):
    # GIVEN four threads that run forward and backward at once, each with its own sequence numbers
    run = memlab.python(PROGRAMS / "autograd.py", memlab.folder / "expected.json")
    assert run.code == 0, run.errors
    expected = json.loads((memlab.folder / "expected.json").read_text())
    trace = Trace(run.trace)
    met = set()
    for event in trace.events:
        if event[0] == "a" and event[8] & 3 == BACKWARD and str(event[5]) in expected:
            # THEN allocations in a node's backward have the line on which the node was created
            file, line = trace.line(event[6])
            assert file.endswith("autograd.py")
            assert line == expected[str(event[5])], event
            met.add(str(event[5]))
    assert met == expected.keys()


def test_models_of_one_class_have_different_names(memlab):
    # GIVEN models of one class, held by a variable of the program, of a function, of closures, by attributes and by a list
    run = memlab.python(PROGRAMS / "roots.py")
    assert (run.code, run.errors) == (0, "")
    rows = memlab.report(run.trace)["layers"]
    roots = {row["root"]: (row["root_type"], row["root_name"]) for row in rows if row["root"]}
    # THEN each has its own name, and a class with one model gives that model its name
    held = [("Net", name) for name in ("A", "C", "D", "G", "Net #5", "Net #6", "Trainer.encoder", "Whole.decoder")]
    assert sorted(roots.values()) == [*held, ("Sequential", "Sequential")]


def test_replicas_have_the_names_of_their_model(memlab):
    # GIVEN a model that nn.DataParallel copies to two devices for each forward
    run = memlab.python(PROGRAMS / "replicated.py", devices=2)
    assert run.code == 0, run.errors
    assert "memlab" not in run.errors
    # THEN the allocations on each device belong to layers of the one model
    names = {0: set(), 1: set()}
    for row in memlab.report(run.trace)["layers"]:
        if row["root"]:
            assert (row["root_type"], row["root_name"]) == ("DataParallel", "DataParallel")
            names[row["device"]].add(row["name"])
    layers = {f"module.encoder.layer.{number}.{part}" for number in range(2) for part in range(2)} | {"module.head"}
    assert layers <= names[0] & names[1]
    assert not [name for name in names[0] | names[1] if "<" in name]


@pytest.fixture
def odd_modules(memlab):
    """Report of training unusual modules: its layer rows without those outside layers, and the bytes of its parameters."""

    def report(kind):
        run = memlab.python(PROGRAMS / "odd_modules.py", kind, env={"MEMLAB_TIME": "1"})
        assert run.code == 0, run.errors
        report = memlab.report(run.trace)
        return report, [row for row in report["layers"] if row["root_type"]], int(run.output)

    return report


def at_peak(report, category):
    return next(row["bytes_at_peak"] for row in report["categories"] if row["name"] == category)


def test_modules_that_are_called_one_by_one_are_counted_once(odd_modules):
    # GIVEN a list of modules that are called one by one
    report, layers, parameters = odd_modules("one_by_one")
    # THEN their parameters count in the modules, AND not in the list as well
    assert sum(row["parameter_bytes"] for row in report["layers"]) == parameters
    assert {row["root_type"] for row in layers} == {"EmbeddingBag"}


def test_the_bytes_of_parameters_are_those_of_their_blocks(odd_modules):
    # GIVEN a parameter of 51,463,168 bytes, for which PyTorch's allocator uses a block of 52,428,800
    report, (layer,), parameters = odd_modules("large")
    # THEN its layer holds the bytes of the block, and of its gradient
    assert parameters <= 51_463_168 < layer["parameter_bytes"] == at_peak(report, "parameter") == 52_428_800
    assert layer["gradient_bytes"] == 52_428_800


def test_sparse_gradients_belong_to_their_layer(odd_modules):
    # GIVEN a parameter with sparse gradients; THEN its layer holds their indices and values
    report, (layer,), _ = odd_modules("sparse")
    assert layer["gradient_bytes"] == at_peak(report, "gradient") > 0


def test_a_class_with_its_own_call_has_its_layers(odd_modules):
    # GIVEN a model whose class does not use PyTorch's `__call__`
    _, layers, parameters = odd_modules("own_call")
    # THEN its layers are named within it
    assert {(row["root_type"], row["name"]) for row in layers} == {("Called", "first"), ("Called", "second")}
    assert sum(row["parameter_bytes"] for row in layers) == parameters


def test_layers_sum_to_the_device(odd_modules):
    # GIVEN training that also allocates outside of layers; THEN one row has that memory, and all rows sum to the device's
    # figures
    report, layers, _ = odd_modules("one_by_one")
    (device,) = report["devices"]
    (outside,) = [row for row in report["layers"] if row not in layers]
    assert outside["live_bytes_at_peak"] == device["outside_layers_bytes_at_peak"] > 0
    assert sum(row["live_bytes_at_peak"] for row in report["layers"]) == device["peak_allocated_bytes"]
    assert sum(row["gpu_time_ns"] for row in report["layers"]) == device["gpu_time_ns"]

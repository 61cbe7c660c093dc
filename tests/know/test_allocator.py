"""memlab's model of PyTorch's allocator against PyTorch's own, on the simulated GPU."""

import csv
import json
import os
import pickle
import subprocess
from collections import Counter
from pathlib import Path
from random import Random

import pytest
from conftest import PYTHON, ROOT, full
from memlab import _native, allocator

PROGRAMS = Path(__file__).parent / "programs"

# Settings, and the use of a private pool for some requests.
SETTINGS = [
    ("", "", False),
    ("", "", True),
    ("", "0.5", True),
    ("expandable_segments:True", "", False),
    ("expandable_segments:True", "0.6", True),
    ("max_split_size_mb:32", "", False),
    ("max_split_size_mb:64,max_non_split_rounding_mb:64", "", False),
    ("roundup_power2_divisions:4", "", False),
    ("roundup_power2_divisions:[64:8,256:4,1024:2,>:1]", "", True),
    ("garbage_collection_threshold:0.5", "0.8", False),
    ("garbage_collection_threshold:0.3,max_split_size_mb:48", "0.9", False),
    ("garbage_collection_threshold:0.4,expandable_segments:True", "0.7", False),
    ("large_segment_size_mb:12", "", False),
    ("large_segment_size_mb:40,expandable_segments:True", "", True),
]


@pytest.mark.parametrize("settings", [SETTINGS[::3], SETTINGS[1::3], SETTINGS[2::3]], ids=range(3))
def test_random_requests_lead_to_the_same_segments_and_blocks(memlab, settings):
    """GIVEN random requests on three streams, some to a private pool, on a small card
    WHEN they are made to PyTorch's allocator and to the model
    THEN counters, segments and blocks are equal after each, and the same requests fail."""
    twins = (PROGRAMS / "allocator_twin.py", 0, 4, 500)
    commands = [(*twins, "--pools") if pools else twins for _, _, pools in settings]
    environments = [
        {"PYTORCH_CUDA_ALLOC_CONF": text} | ({"MEMORY_FRACTION": fraction} if fraction else {})
        for text, fraction, _ in settings
    ]
    env = {"PYTHONPATH": ROOT / "python"}
    times_full = memlab.each(*commands, environments=environments, memory="1280MiB", env=env)
    assert min(times_full) > 3, "the card was hardly ever full"


HISTORY = """
import json, sys, torch
from memlab import allocator

def train(steps):
    model = torch.nn.Sequential(*(torch.nn.Linear(700 + 37 * i, 700 + 37 * (i + 1)) for i in range(12))).cuda()
    optimizer = torch.optim.AdamW(model.parameters())
    for step in range(steps):
        model(torch.randn(300 + 50 * (step % 3), 700, device="cuda")).sum().backward()
        optimizer.step()
        optimizer.zero_grad()
        if step == 2:
            torch.cuda.empty_cache()
    return model, optimizer

torch.cuda.init()
torch.cuda.memory._record_memory_history(context=None)
held = train(6)
snapshot = torch.cuda.memory._snapshot()
replayed = allocator.replay(snapshot)
stats = torch.cuda.memory_stats()
def shape(segments):
    return [(s["total_size"], s["segment_type"], [(b["size"], b["state"]) for b in s["blocks"]])
            for s in sorted(segments, key=lambda s: s["address"])]
json.dump({
    "model": [replayed.peak_allocated, replayed.peak_reserved, replayed.allocated, replayed.reserved],
    "torch": [stats[f"{name}_bytes.all.{figure}"] for figure in ("peak", "current") for name in ("allocated", "reserved")],
    "same": shape(replayed.segments) == shape(snapshot["segments"]),
    "segments": len(snapshot["segments"]),
    "half": allocator.replay(snapshot, card=replayed.peak_reserved // 2).fits,
}, sys.stdout)
"""


def test_a_snapshots_history_leads_to_its_segments(memlab):
    """GIVEN training with history, which empties the cache in between
    WHEN its snapshot is replayed
    THEN peaks, segments and blocks are those of the snapshot, and half the memory is too little."""
    run = memlab.python("-c", HISTORY, preload=False, env={"PYTHONPATH": ROOT / "python"})

    assert run.code == 0, run.errors
    found = json.loads(run.output)
    assert found["model"] == found["torch"]
    assert found["same"]
    assert found["segments"] > 10
    assert not found["half"]


def test_errors_name_the_cause(memlab):
    """GIVEN a wrong setting, a snapshot without history, and a free without an allocation
    WHEN they are replayed
    THEN the error states the cause and the remedy."""
    program = """
from memlab import allocator
for arguments in [([], "max_split_size_mb:3"), ({"segments": []},), ([("free", 7)],), ([("give", 7)],)]:
    try:
        allocator.replay(*arguments)
    except ValueError as error:
        print(error)
"""
    run = memlab.run(PYTHON, "-c", program, preload=False, env={"PYTHONPATH": ROOT / "python"})

    messages = run.output.splitlines()
    assert messages[0] == "max_split_size_mb takes a number of MiB, at least 20, not '3'"
    assert "_record_memory_history() before" in messages[1]
    assert messages[2] == "7 is freed, but was not allocated"
    assert messages[3] == "'give' is not a kind of request"


DUMPED = """
import json, sys, torch

torch.cuda.memory._record_memory_history()
blocks = [torch.empty(3 << 20, dtype=torch.uint8, device="cuda") for _ in range(40)]
del blocks[::2]
blocks += [torch.empty(5 << 20, dtype=torch.uint8, device="cuda") for _ in range(20)]
torch.cuda.memory._dump_snapshot(sys.argv[1])
print(json.dumps([torch.cuda.max_memory_allocated(), torch.cuda.max_memory_reserved()]))
"""


def replayed(memlab, *arguments):
    return subprocess.run(
        [PYTHON, "-m", "memlab.allocator", *arguments],
        capture_output=True,
        text=True,
        env=memlab.environment() | {"PYTHONPATH": str(ROOT / "python")},
    )


def test_a_snapshot_is_replayed_from_the_command_line(memlab, tmp_path):
    """GIVEN a snapshot written by PyTorch
    WHEN it is replayed with its settings and with others
    THEN the former give PyTorch's figures to the byte, and for a card that is too small the command names the failed
    request."""
    snapshot, timeline = tmp_path / "snapshot.pickle", tmp_path / "timeline.csv"
    run = memlab.python("-c", DUMPED, snapshot, preload=False)
    assert run.code == 0, run.errors
    allocated, reserved = json.loads(run.output)

    done = replayed(memlab, snapshot, "--timeline", timeline)
    assert done.returncode == 0, done.stderr
    rows = done.stdout.splitlines()
    assert [row.split("  ")[-1] for row in rows[1:]] == ["PyTorch's default", *_native.SETTINGS_TO_TRY[1:]]
    with timeline.open() as file:
        figures = list(csv.DictReader(file))
    assert max(int(row["allocated_bytes"]) for row in figures) == allocated
    assert max(int(row["reserved_bytes"]) for row in figures) == reserved
    assert all(int(row["reserved_bytes"]) - int(row["allocated_bytes"]) == int(row["unused_bytes"]) for row in figures)
    assert _native.format_size(reserved) in rows[1]

    small = replayed(memlab, snapshot, "--card", "100MiB", "--settings", "expandable_segments:True")
    assert "request 33" in small.stdout, small.stdout


OTHER_SETTINGS = [
    "",
    "max_split_size_mb:20",
    "roundup_power2_divisions:4",
    "garbage_collection_threshold:0.5,max_split_size_mb:32",
    "expandable_segments:True",
]


@pytest.mark.parametrize(
    "kind", ["unet", "llama-lora", "gradients", "lengths", *full("gpt", "gpt-eager", "resnet", "words", "optimizer")]
)
def test_a_recorded_training_is_replayed_under_other_settings(memlab, kind, tmp_path):
    """GIVEN training that was recorded for a plan
    WHEN its requests are replayed under other allocator settings
    THEN the peaks of allocated and reserved memory equal those of the training under these settings, to the byte."""
    program = PROGRAMS / "advised.py"
    plan = [memlab.command, "plan", "--steps", "99", "--keep", tmp_path, "--", PYTHON, program, kind]
    recorded = subprocess.run(plan, capture_output=True, text=True, env=memlab.environment())
    assert recorded.returncode == 0, recorded.stderr
    environments = [{"PYTORCH_CUDA_ALLOC_CONF": settings} for settings in OTHER_SETTINGS]
    truths = memlab.each(*[(program, kind)] * len(environments), environments=environments)
    for settings, truth in zip(OTHER_SETTINGS, truths, strict=True):
        then = allocator.replay(tmp_path / "run.jsonl", settings)
        assert (then.peak_allocated, then.peak_reserved) == (truth["allocated"], truth["reserved"]), settings


def test_a_recorded_run_is_replayed_from_the_command_line(memlab):
    """GIVEN a run recorded by memlab
    THEN the command shows it under its own settings, and under others."""
    run = memlab.python(PROGRAMS / "advised.py", "lengths")
    assert run.code == 0, run.errors
    truth = json.loads(run.output.splitlines()[-1])
    done = replayed(memlab, run.trace)
    assert done.returncode == 0, done.stderr
    first = done.stdout.splitlines()[1]
    assert first.split("  ")[-1] == "PyTorch's default"
    assert all(_native.format_size(truth[figure]) in first for figure in ("allocated", "reserved"))


def test_other_files_than_snapshots_are_refused(memlab, tmp_path):
    """GIVEN files that are no snapshots, one of which would run a command when it is unpickled
    THEN each is refused with its name and the reason, and nothing is run."""

    class Harmful:
        def __reduce__(self):
            return (os.system, (f"touch {tmp_path}/harm",))

    for name, content, reason in [
        ("harmful.pickle", pickle.dumps(Harmful()), "it contains a posix.system"),
        ("broken.pickle", b"\x80\x04}q", "cannot be read"),
        ("empty.pickle", b"", "cannot be read"),
        ("list.pickle", pickle.dumps([1]), "not a snapshot"),
        ("bare.pickle", pickle.dumps({"device_traces": [[]]}), "no history"),
        ("keyless.pickle", pickle.dumps({"device_traces": [[{"action": "alloc"}]]}), "KeyError: 'size'"),
        ("typeless.pickle", pickle.dumps({"device_traces": 7}), "use one of torch.cuda.memory._dump_snapshot: TypeError"),
        ("lines.pickle", b"cos\n\x1b[31msystem\n.", "it contains a os. [31msystem"),
    ]:
        (tmp_path / name).write_bytes(content)
        done = replayed(memlab, tmp_path / name)
        assert done.returncode == 2
        assert name in done.stderr and reason in done.stderr, done.stderr
        assert len(done.stderr.splitlines()) == 1 and done.stderr.strip().isprintable(), done.stderr
    assert not (tmp_path / "harm").exists()


HISTORY_OF_A_TRAINING = [
    {"action": action, "addr": address, "size": 3 << 20, "stream": 0, "pool_id": (0, 0), "frames": [], "time_us": 1}
    for address in range(8)
    for action in ("alloc", "free_requested", "free_completed")
]
WRONG = [None, "text", b"bytes", -1, 1 << 70, 1.5, float("nan"), [], {}, (1, 2, 3), [None], -(1 << 63), (1 << 64) - 1]


def damaged(random):
    """A snapshot that is cut off, has other bytes, lacks keys, or has values of wrong types."""
    entries = [dict(entry) for entry in HISTORY_OF_A_TRAINING]
    history = list(entries)
    snapshot = {"segments": [], "device_traces": [history]}
    kind = random.choice(["cut", "bytes", "keys", "values"])
    for _ in range(random.choice([1, 3, 10])):
        holder = random.choice([snapshot, history, *entries])
        key = random.randrange(len(holder)) if holder is history else random.choice(["segments", *holder])
        if kind == "values":
            holder[key] = random.choice(WRONG)
        elif kind == "keys" and holder is not history:
            holder.pop(key, None)
    content = bytearray(pickle.dumps(snapshot))
    if kind == "cut":
        return content[: random.randrange(len(content))]
    if kind == "bytes":
        for _ in range(random.choice([1, 2, 20])):
            content[random.randrange(len(content))] = random.randrange(256)
    return content


@pytest.mark.parametrize("seed", range(4))
def test_a_damaged_snapshot_is_refused_in_a_line(tmp_path, capsys, seed):
    """GIVEN snapshots that are damaged in many ways
    WHEN the command reads them
    THEN it replays them, or prints one plain line and fails."""
    random = Random(seed)
    snapshot, codes = tmp_path / "snapshot.pickle", Counter()
    for _ in range(250):
        snapshot.write_bytes(damaged(random))
        code = allocator._main([str(snapshot)])
        errors = capsys.readouterr().err
        assert (code, len(errors.splitlines())) in ((0, 0), (2, 1)), errors
        codes[code] += 1
    assert codes[2] > 50


def test_a_timeline_that_cannot_be_written_is_reported(memlab, tmp_path):
    """GIVEN a missing folder
    THEN the command reports it."""
    snapshot = tmp_path / "snapshot.pickle"
    snapshot.write_bytes(pickle.dumps({"device_traces": [HISTORY_OF_A_TRAINING]}))
    done = replayed(memlab, snapshot, "--timeline", tmp_path / "missing" / "timeline.csv")
    assert done.returncode == 2
    assert done.stderr == f"memlab: {tmp_path}/missing/timeline.csv: No such file or directory\n"

"""Memory beyond a limit, or beyond the card, lies on the host for a few steps at most: changes that leave results as they
are make room."""

import re
from pathlib import Path

import pytest
from conftest import PYTHON
from trace_reader import Trace

PROGRAM = Path(__file__).parent / "programs" / "spilled.py"
MIB = 1 << 20
LOSS = "The loss is now computed in rows"
STATE = "of the optimizer's state are now on the host between steps"
ACTIVATIONS = "Activations now keep"
CLEAR = "all memory is on the GPU since step"
HOPELESS = "It stays there: memlab has nothing more to move"
UPDATE = "fused=True makes none"


def run(memlab, case, *options, memory="8GiB"):
    """Runs a case; returns memlab's messages, the exit code, the bytes on the host after each optimizer step, and the least
    free bytes of the card."""
    trace = memlab.folder / "run.jsonl"
    command = [memlab.command, "run", *options, "--force", "-o", trace, "--", PYTHON, PROGRAM, case]
    done = memlab.run(*command, preload=False, memory=memory, fresh=True, env={"SIMGPU_CONTEXT": "64MiB"})
    now, most, on_host = 0, 0, []
    for event in Trace(trace).events:
        if event[0] == "moved":
            now = event[3]
            most = max(most, now)
        elif event[0] == "step":
            on_host.append(most)
            most = now
    free = re.search(r'"free": (\d+)', done.output)
    return done.errors, done.code, on_host, int(free[1]) if free else None


@pytest.mark.parametrize(
    ("case", "limit", "expected"),
    [
        ("logits", 360, [LOSS, CLEAR]),
        ("state", 1650, [STATE, CLEAR]),
        ("activations", 480, [ACTIVATIONS, CLEAR]),
        ("step", 1250, [UPDATE]),
        ("data", 400, [HOPELESS]),
    ],
)
def test_memory_beyond_a_limit_comes_back(memlab, case, limit, expected):
    # GIVEN a training that needs more than its limit, for the case's kind of memory
    messages, code, on_host, _ = run(memlab, case, "--limit", f"{limit}MiB", "--on-limit", "spill")
    # THEN it ends as without the limit
    assert code == 0, messages
    assert max(on_host) > 20 * MIB
    # AND the change for this kind of memory is made, no other, and a message has it
    found = [change for change in (LOSS, STATE, ACTIVATIONS, UPDATE, CLEAR, HOPELESS) if change in messages]
    assert found == expected, messages
    # AND then nothing is on the host any more
    if CLEAR in expected:
        clear = int(re.search(rf"{CLEAR} (\d+)", messages)[1])
        assert on_host[clear:] and not any(on_host[clear:]), on_host


@pytest.mark.parametrize("case", ["logits", "activations"])
def test_a_full_card_does_not_end_the_program(memlab, case):
    # GIVEN a training that runs out of memory on a small card
    messages, code, _, _ = run(memlab, case, memory="450MiB")
    assert code == 1 and "OutOfMemoryError" in messages
    # WHEN it may spill then
    messages, code, on_host, free = run(memlab, case, "--on-oom", "spill", memory="450MiB")
    # THEN it goes on, AND after some steps with everything on the card
    assert code == 0 and CLEAR in messages, messages
    assert max(on_host) > 0 and on_host[-1] == 0
    # AND the driver has room for kernels: a 32nd of the card, less small blocks
    assert free >= 450 * MIB // 32 - 2 * MIB


def test_a_card_with_room_changes_nothing(memlab):
    # GIVEN a training that fits
    messages, code, on_host, _ = run(memlab, "activations", "--on-oom", "spill")
    # THEN nothing is changed
    assert code == 0 and not any(on_host)
    assert "memlab: cuda:0" not in messages

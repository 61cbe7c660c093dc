"""torch's memory history and snapshot, and the figures in its out-of-memory error."""

import pickle
import tempfile

import torch

GIB = 1 << 30

torch.cuda.memory._record_memory_history(max_entries=1000)
blocks = [torch.empty(1 << 20, device="cuda") for _ in range(8)]
del blocks[::2]
with tempfile.NamedTemporaryFile(suffix=".pickle") as file:
    torch.cuda.memory._dump_snapshot(file.name)
    snapshot = pickle.load(file)
torch.cuda.memory._record_memory_history(enabled=None)
actions = [entry["action"] for entry in snapshot["device_traces"][0]]
assert actions.count("alloc") == 8 and actions.count("free_completed") == 4, actions
active = [b for s in snapshot["segments"] for b in s["blocks"] if b["state"] == "active_allocated"]
assert len(active) == 4
assert "Allocated memory" in torch.cuda.memory_summary()

# WHEN the program asks for more than the GPU has
total = torch.cuda.get_device_properties(0).total_memory
try:
    torch.empty(total, dtype=torch.uint8, device="cuda")
except torch.OutOfMemoryError as error:
    # THEN torch reports it, with the GPU's size and this process's share, which torch gets from NVML
    message = str(error)
    assert f"total capacity of {total / GIB:.2f} GiB" in message, message
    assert "this process has" in message, message
else:
    raise AssertionError("there is no room for that")

# AND continues afterwards
assert torch.ones(3).cuda().cpu().sum().item() == 3.0
print("ok")

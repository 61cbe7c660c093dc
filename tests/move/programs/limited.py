"""Uses GPU memory under a limit.

limited.py train      trains and keeps more each step until memory runs out; prints the step and the bytes held. Then waits
                      for a sample in the trace with at least the second argument's MiB in use, if it is given
limited.py fragments  fills the cache with blocks of one size, asks for others; prints how often the cache was emptied
limited.py shown      prints PyTorch's figures of the devices' memory
limited.py patterns   fills the second argument's MiB with patterns, copies them; prints their checksums.
                      Before freeing them it waits for a sample of the third argument's size
limited.py devices    fills every device; prints the bytes allocated on each
limited.py late       allocates, loads libmemlab (the second argument), then fills the device
limited.py obey       runs the commands on stdin: take MIB, drop, sums, where, free
"""

import ctypes
import hashlib
import json
import sys
import time
import traceback
from pathlib import Path

import torch

MIB = 1 << 20


def held(device=0):
    return [torch.cuda.memory_allocated(device), torch.cuda.memory_reserved(device)]


def until_seen(arguments):
    """Waits until a sample in the trace shows the first argument's MiB in use by this process."""
    deadline = time.monotonic() + 600
    while arguments and most_seen() < int(arguments[0]) * MIB:
        assert time.monotonic() < deadline, "memlab has not sampled the card"
        time.sleep(0.02)


def most_seen():
    lines = [line for trace in Path().glob("*.jsonl") for line in trace.read_bytes().split(b"\n")]
    return max((json.loads(line)[5] or 0 for line in lines if line.startswith(b'["used"')), default=0)


def train():
    model = torch.nn.Sequential(*(torch.nn.Linear(512, 512) for _ in range(6))).cuda()
    optimizer = torch.optim.Adam(model.parameters())
    kept = []
    try:
        for step in range(10_000):
            x = torch.empty(256 + 128 * (step % 5), 512, device="cuda")
            loss = model(x).square().mean()
            loss.backward()
            optimizer.step()
            kept.append(model(x))
            kept.append(torch.empty((step % 7 * 3 + 1) * MIB + 1000, dtype=torch.uint8, device="cuda"))
    except torch.OutOfMemoryError as error:
        frames = traceback.extract_tb(error.__traceback__)
        where = [frame.lineno for frame in frames if frame.filename == __file__]
        at_failure, free = held(), torch.cuda.mem_get_info()
        asked = str(error).partition(" is free")[0]
        print(json.dumps({"step": step, "lines": where, "held": at_failure, "free": free, "asked": asked}))
        print(json.dumps({"most": torch.cuda.max_memory_reserved()}))
        until_seen(sys.argv[2:])


def fragments():
    for size in (30, 50, 90, 120):
        # Each block is larger than the last and takes more than half of the GPU, so cached blocks do not help and are freed.
        blocks = [torch.empty(size * MIB, dtype=torch.uint8, device="cuda") for _ in range(360 // size)]
        del blocks
    stats = torch.cuda.memory_stats()
    print(json.dumps({"retries": stats["num_alloc_retries"], "ooms": stats["num_ooms"], "held": held()}))
    print(json.dumps({"most": torch.cuda.max_memory_reserved()}))


def shown():
    for device in range(torch.cuda.device_count()):
        torch.empty(5 * MIB, dtype=torch.uint8, device=f"cuda:{device}")
        total = torch.cuda.get_device_properties(device).total_memory
        print(json.dumps([total, *torch.cuda.mem_get_info(device)]))


def patterns():
    count = int(sys.argv[2]) // 16
    random = torch.Generator().manual_seed(1)
    sources = [torch.randint(256, (16 * MIB,), generator=random, dtype=torch.uint8) for _ in range(3)]

    def digest(tensors):
        return [hashlib.sha256(tensor.cpu().numpy().tobytes()).hexdigest()[:12] for tensor in tensors]

    # Filled from the host, copied to each other on the device, partly overwritten and partly set to zero.
    kept = [sources[i % 3].cuda() for i in range(count)]
    for i in range(0, count, 2):
        kept[i][: 5 * MIB].copy_(kept[(i * 7 + 3) % count][MIB : 6 * MIB])
        kept[i][7 * MIB : 8 * MIB].zero_()
    print(json.dumps(digest(kept)))
    until_seen(sys.argv[3:])
    # Frees some and allocates others of different sizes, small ones too.
    del kept[::3]
    kept += [kept[i][: (i + 1) * MIB + 512].clone() for i in range(6)]
    kept += [sources[0][i : i + 700].cuda() for i in range(6)]
    print(json.dumps(digest(kept)))
    del kept
    torch.cuda.empty_cache()
    print(json.dumps(held()))


def devices():
    for device in range(torch.cuda.device_count()):
        kept = []
        try:
            while len(kept) < 100:
                kept.append(torch.empty(20 * MIB, dtype=torch.uint8, device=f"cuda:{device}"))
        except torch.OutOfMemoryError:
            pass
        print(json.dumps([len(kept), *held(device), *torch.cuda.mem_get_info(device)]))


def late():
    kept = [torch.empty(100 * MIB, dtype=torch.uint8, device="cuda")]
    ctypes.CDLL(sys.argv[2])
    devices()
    print(json.dumps(len(kept)))


def obey():
    kept = []
    print("ready", flush=True)
    for line in sys.stdin:
        match line.split():
            case ["take", size]:
                try:
                    kept.append(torch.empty(int(size) * MIB, dtype=torch.uint8, device="cuda"))
                    kept[-1][:MIB].copy_(torch.randint(256, (MIB,), dtype=torch.uint8))
                    said = "taken"
                except torch.OutOfMemoryError:
                    said = "refused"
            case ["library", size]:  # A block of a library, in KiB.
                said = str(ctypes.CDLL(None).cudaMalloc(ctypes.byref(ctypes.c_void_p()), ctypes.c_size_t(int(size) << 10)))
            case ["managed", size]:
                block, nbytes = ctypes.c_void_p(), ctypes.c_size_t(int(size) * MIB)
                said = str(ctypes.CDLL(None).cudaMallocManaged(ctypes.byref(block), nbytes, 1))
            case ["forget"]:  # Blocks return to the allocator.
                kept.clear()
                said = "forgotten"
            case ["drop"]:
                kept.clear()
                torch.cuda.empty_cache()
                said = "dropped"
            case ["sums"]:
                said = json.dumps([int(block[:MIB].cpu().sum()) for block in kept])
            case ["where"]:
                said = json.dumps(kept[0].data_ptr())
            case ["free"]:
                said = json.dumps(torch.cuda.mem_get_info())
        print(said, flush=True)


globals()[sys.argv[1]]()

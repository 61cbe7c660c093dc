"""Programs that each make one mistake with GPU memory. As `NAME+mended` they follow memlab's advice.

Each named program runs in its own process, forked before CUDA is used, and prints its name and process id.

evaluates   evaluates after training without torch.no_grad() and keeps its losses until it returns
epochs      evaluates after each epoch and never drops the losses
losses      keeps the loss and the output of every training step
serves      answers requests without training and keeps every answer
fragments   leaves holes that are too small for later blocks
fills       asks for more memory than the device has, in its first allocation
spills      takes 600 MiB regardless of the limit
crowded     starts a process that takes 3 GiB of the device, then asks for 2 GiB itself
holds       is that other process; it waits for a line
"""

import os
import subprocess
import sys
from contextlib import nullcontext

import recording
import torch

MIB = 1 << 20
MENDED = False


class Net(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.inner = torch.nn.Linear(512, 2048)
        self.outer = torch.nn.Linear(2048, 512)

    def forward(self, x):
        return self.outer(torch.relu(self.inner(x)))


def batch():
    return torch.randn(512, 512, device="cuda")


def evaluate(model, kept, batches=12):
    with torch.no_grad() if MENDED else nullcontext():
        for _ in range(batches):
            x = batch()
            kept.append((model(x) - x).square().mean())


def step(model, optimizer):
    x = batch()
    y = model(x)
    loss = (y - x).square().mean()
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    return loss, y


def trainer():
    model = Net().cuda()
    return model, torch.optim.SGD(model.parameters(), lr=0.1)


def evaluates():
    model, optimizer = trainer()
    for _ in range(3):
        for _ in range(8):
            step(model, optimizer)
        evaluate(model, [])


def epochs():
    model, optimizer = trainer()
    losses = []
    for _ in range(4):
        for _ in range(10):
            step(model, optimizer)
        evaluate(model, losses)
    step(model, optimizer)


def losses():
    model, optimizer = trainer()
    history = []
    for _ in range(24):
        loss, y = step(model, optimizer)
        history.append(loss.item() if MENDED else (loss, y))


def serves():
    model = Net().cuda().eval()
    answers = []
    for _ in range(40):
        with torch.no_grad():
            y = model(batch())
        answers.append(y.cpu() if MENDED else y)


def fragments():
    if MENDED:
        torch.cuda.memory._set_allocator_settings("expandable_segments:True")
    kept = []
    for size in (11, 13, 15, 17):
        # A few blocks stay. The holes between them are too small for the larger blocks that follow.
        blocks = [torch.empty(size * MIB, dtype=torch.uint8, device="cuda") for _ in range(48)]
        kept.append(blocks[::12])
        del blocks
    kept.append([torch.empty(19 * MIB, dtype=torch.uint8, device="cuda") for _ in range(118)])


def fills():
    torch.empty(200 * MIB, dtype=torch.uint8, device="cuda")


def spills():
    kept = [torch.empty(60 * MIB, dtype=torch.uint8, device="cuda") for _ in range(10)]
    # 256 MiB of context and four blocks fit under the lower limit.
    recording.until(lambda: max(recording.used(), default=0) >= 496 * MIB, "the device is sampled")
    return kept


def crowded():
    other = subprocess.Popen(
        [sys.executable, __file__, "holds"], env=os.environ | {"MEMLAB": "0"}, stdin=subprocess.PIPE, stdout=subprocess.PIPE
    )
    other.stdout.readline()
    try:
        torch.empty(2048 * MIB, dtype=torch.uint8, device="cuda")
    except torch.OutOfMemoryError:
        # memlab samples the other processes before the device.
        recording.until(recording.used, "the device is sampled")
    other.communicate(b"\n")
    print("other", other.pid, flush=True)


def holds():
    kept = torch.empty(3072 * MIB, dtype=torch.uint8, device="cuda")
    print("holds", flush=True)
    sys.stdin.readline()
    del kept


if sys.argv[1:] == ["holds"]:
    holds()
    sys.exit()
for program in sys.argv[1:]:
    pid = os.fork()
    if pid == 0:
        name, _, variant = program.partition("+")
        MENDED = variant == "mended"
        try:
            globals()[name]()
        except torch.OutOfMemoryError:
            print("out of memory", flush=True)
        print(program, os.getpid(), flush=True)
        sys.exit()
    os.waitpid(pid, 0)

"""Training whose steps reach the trace. Prints the statistics of each run; tests compare them with the trace."""

import json

import memlab
import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

WIDTH = 32768  # Of activations that are large enough for the host.

torch.manual_seed(0)
inputs, targets = torch.randn(50, 16), torch.randint(0, 4, (50,))
loader = DataLoader(TensorDataset(inputs, targets), batch_size=20)
# A recording begins with the first memory of a GPU.
held = torch.zeros(1, device="cuda")


def training(model, loader, **options):
    optimizer = torch.optim.Adam(model.parameters())
    return memlab.InfinityBatch(model, optimizer, nn.CrossEntropyLoss(), loader, verbose=False, **options)


# On the CPU, where losses are available at once: two epochs, and a custom loop with two batches per step.
ib = training(nn.Sequential(nn.Linear(16, 8), nn.ReLU(), nn.Linear(8, 4)), loader, micro_batch=7)
ib.train(2)
ib.epochstart_()
for index, _ in enumerate(ib.dataloader):
    ib.batch_()
    ib.loss()
    ib.backward()
    if index:
        ib.step()
        ib.zero_grad()
said = [ib.statistics()]

# A custom backward and loss.
for batch, _ in ib.dataloader:
    outputs = ib.batch_(batch[:10])
    outputs.square().mean().backward()
    ib.step()
    ib.zero_grad()

# Two models, one with an optimizer that is not PyTorch's.
models = {"one": nn.Linear(16, 4), "two": nn.Linear(16, 4)}


class Optimizer:
    def __init__(self, parameters):
        self.param_groups = [{"params": list(parameters)}]

    def step(self):
        pass

    zero_grad = step


optimizers = {"one": torch.optim.SGD(models["one"].parameters(), 0.1), "two": Optimizer(models["two"].parameters())}
ib = memlab.InfinityBatch(models, optimizers, nn.CrossEntropyLoss(), loader, verbose=False)
for name in ("two", "one"):
    with ib.phase(name):
        ib.epoch()
said.append([row for row in ib.statistics() if row["phase"] == "one"])

# On the GPU, where nothing may synchronise: epochs end, and other runs begin, before losses are read.
on_gpu = [(batch.cuda(), labels.cuda()) for batch, labels in loader]
models = []
for options in ({"micro_batch": 7}, {"memory": "16MiB"}):
    model = nn.Sequential(nn.Linear(16, WIDTH), nn.BatchNorm1d(WIDTH), nn.ReLU(), nn.Linear(WIDTH, 4)).cuda()
    models.append(training(model, on_gpu, **options))
    models[-1].epoch()
plain = training(nn.Sequential(nn.Linear(16, 8), nn.ReLU(), nn.Linear(8, 4)).cuda(), on_gpu, micro_batch=7)
plain.epoch()
torch.cuda.set_sync_debug_mode("error")
plain.epoch()
torch.cuda.set_sync_debug_mode("default")
said += [ib.statistics() for ib in [*models, plain]]
# The GPU is late with the losses of the last epoch, and the process ends.
torch.cuda.Event.query = lambda event: False
plain.epoch()
print(json.dumps(said))

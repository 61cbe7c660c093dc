"""Peak allocation of micro-batches on a GPU under a memory limit, and the limit.

budgets.py CASE: `pieces` has a mean as its loss; `replay` has a loss over all samples; `dropout` is `replay` with random
numbers and the memory of a whole small card. The outputs, which replay keeps with their gradients, use much of the limit.
"""

import json
import sys
import warnings

import memlab
import torch
from torch import nn

warnings.filterwarnings("ignore")
MIB = 1 << 20
case = sys.argv[1]


def model():
    blocks = [nn.Sequential(nn.Linear(512, 2048), nn.GELU(), nn.Linear(2048, 512)) for _ in range(3)]
    return nn.Sequential(*blocks, nn.Dropout(0.1) if case == "dropout" else nn.Identity()).cuda()


def among_samples(outputs, *_targets):
    return (outputs @ outputs[:16].T).logsumexp(1).mean()


inputs, targets = torch.randn(40_000, 512), torch.randint(512, (40_000,))
loss = nn.CrossEntropyLoss() if case == "pieces" else among_samples
limits = [None] if case == "dropout" else [350 * MIB, 500 * MIB]
for limit in limits:
    for set_to_none in (True, False):
        net = model()
        optimizer = torch.optim.SGD(net.parameters(), 0.0)
        most = []
        for _step in range(3):
            torch.cuda.reset_peak_memory_stats()
            memlab.accumulate(net, inputs, loss, targets=targets, memory=limit or "auto")
            most.append(torch.cuda.max_memory_allocated())
            optimizer.step()
            optimizer.zero_grad(set_to_none=set_to_none)
        allowed = limit or torch.cuda.mem_get_info()[1]
        ooms = torch.cuda.memory_stats()["num_ooms"]
        print(json.dumps({"case": case, "allowed": allowed, "most": max(most), "ooms": ooms}), flush=True)
        del net, optimizer

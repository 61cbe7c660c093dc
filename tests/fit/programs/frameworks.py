"""Trains a small network as users of a framework do: `frameworks.py CASE`. Prints PyTorch's most reserved bytes as JSON."""

import json
import os
import sys
import warnings

import torch
from torch import nn

warnings.simplefilter("ignore")
CASE = sys.argv[1]
WIDTH, STEPS = 512, 6


class Block(nn.Module):
    def __init__(self):
        super().__init__()
        self.norm, self.up, self.down = nn.LayerNorm(WIDTH), nn.Linear(WIDTH, 4 * WIDTH), nn.Linear(4 * WIDTH, WIDTH)

    def forward(self, x):
        return x + self.down(nn.functional.gelu(self.up(self.norm(x))))


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.blocks = nn.ModuleList(Block() for _ in range(8))

    def forward(self, x):
        for block in self.blocks:
            x = block(x)
        return x


def batch(device="cuda"):
    return torch.randn(32, 512, WIDTH, device=device)


def train(model, optimizer, backward=torch.Tensor.backward):
    for _ in range(STEPS):
        optimizer.zero_grad()
        backward(model(batch()).square().mean())
        optimizer.step()


def ranks(wrap):
    rank = int(os.environ["LOCAL_RANK"])
    torch.cuda.set_device(rank)
    torch.distributed.init_process_group("nccl")
    model = wrap(Net().cuda())
    train(model, torch.optim.AdamW(model.parameters()))
    torch.distributed.destroy_process_group()


def ddp():
    ranks(nn.parallel.DistributedDataParallel)


def fsdp():
    from torch.distributed.fsdp import fully_shard

    def wrap(model):
        for block in model.blocks:
            fully_shard(block)
        return fully_shard(model)

    ranks(wrap)


def gan():
    generator, critic = Net().cuda(), Net().cuda()
    optimizers = [torch.optim.Adam(model.parameters()) for model in (generator, critic)]
    for _ in range(STEPS):
        for model, optimizer in zip((critic, generator), reversed(optimizers), strict=True):
            made = generator(batch())
            loss = critic(made.detach() if model is critic else made).square().mean()
            model.zero_grad()
            loss.backward()
            optimizer.step()


def accelerate():
    from accelerate import Accelerator

    accelerator = Accelerator(mixed_precision="bf16")
    model = Net()
    model, optimizer = accelerator.prepare(model, torch.optim.AdamW(model.parameters()))
    train(model, optimizer, accelerator.backward)


def lightning():
    import lightning

    class Module(lightning.LightningModule):
        def __init__(self):
            super().__init__()
            self.net = Net()

        def training_step(self, given, _index):
            return self.net(given[0]).square().mean()

        def configure_optimizers(self):
            return torch.optim.AdamW(self.parameters())

    inputs = torch.utils.data.TensorDataset(torch.randn(32 * STEPS, 512, WIDTH))
    quiet = dict.fromkeys(("logger", "enable_checkpointing", "enable_progress_bar", "enable_model_summary"), False)
    trainer = lightning.Trainer(max_steps=STEPS, accelerator="gpu", devices=1, **quiet)
    trainer.fit(Module(), torch.utils.data.DataLoader(inputs, batch_size=32))


def trainer():
    import transformers

    class Model(Net):
        def forward(self, x):
            return {"loss": super().forward(x).square().mean()}

    inputs = [{"x": row} for row in torch.randn(32 * STEPS, 512, WIDTH)]
    options = {"per_device_train_batch_size": 32, "max_steps": STEPS, "report_to": "none", "save_strategy": "no"}
    arguments = transformers.TrainingArguments("trained", disable_tqdm=True, **options)
    transformers.Trainer(Model(), arguments, train_dataset=inputs).train()


def compiled():
    model = Net().cuda()
    for index, block in enumerate(model.blocks):
        if index % 2:
            block.up = torch.compile(block.up, backend="aot_eager", fullgraph=True)
    train(model, torch.optim.AdamW(model.parameters()))


globals()[CASE]()
print(json.dumps({"reserved": torch.cuda.memory_stats()["reserved_bytes.all.peak"]}), flush=True)

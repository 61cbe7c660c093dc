"""The Python examples of the docs, as programs."""

import ast
import re
import textwrap

from conftest import ROOT

PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md"))]

# Names that examples use without defining them.
GIVEN = """
import memlab
import numpy
import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

class Model(nn.Module):
    def __init__(self):
        super().__init__()
        self.layers = nn.Sequential(nn.Linear(8, 8), nn.Linear(8, 4))

    def forward(self, rows):
        return self.layers(rows)

    def generate(self, rows, max_new_tokens):
        return self(rows)

model, generator = Model().cuda(), nn.Linear(100, 8).cuda()
discriminator = nn.Sequential(nn.Linear(8, 1), nn.Sigmoid()).cuda()
optimizer, adam_of_g, adam_of_d = (torch.optim.Adam(each.parameters()) for each in (model, generator, discriminator))
loss_fn = nn.CrossEntropyLoss()
images = torch.randn(16, 8)
labels = torch.randint(4, (16,))
targets = labels.cuda()
batch = inputs = input_ids = prompt = images.cuda()
batches = [batch]
dataset = TensorDataset(images, labels)
loader = dataloader = other_loader = DataLoader(dataset, batch_size=8)
paths, num_epochs, local_rank = ["a.png", "b.png"], 1, 0

def train(batch, model=model):
    loss_fn(model(inputs), targets).backward()

def decode(path):
    return numpy.zeros((3, 224, 224), "uint8")

def somebody_needs_the_gpu():
    return True

def wait_for_our_turn():
    pass
"""

# Examples that need resources that no test has, or that are parts of other examples.
NOT_RUN = {
    "memlab.accumulate(model, {": "a model of Hugging Face's, run by tests/batches",
    "memlab.load(": "files of weights, run by tests/page",
    "lightning.Trainer(": "a training of Lightning's, run by tests/tools",
    "Trainer)": "a training of Hugging Face's, run by tests/batches",
    "Trainer(model": "a training of Hugging Face's, run by tests/tools",
    "wandb.init": "an account",
    "ray.init": "a cluster",
    "socket.AF_UNIX": "a process of that pid",
    "LlamaForCausalLM": "a model of 7 billion parameters",
    "cuda:1": "two GPUs",
    "pytest.mark": "pytest, run by tests/tools",
    "memlab.Feeder(...,": "is a part",
    "lengths=[512, 300, 1024, ...]": "is a part",
    "network=model": "a plan for a model of images, run by tests/know",
    "fetch_again": "a broken file, run by tests/batches",
    "reporter.collect()": "is a part",
    "self.": "is a part of a class",
    "torch.utils.tensorboard": "tensorboard, run by tests/tools",
}


def blocks(page):
    """The code blocks of a page with their line numbers."""
    text = page.read_text()
    for found in re.finditer(
        r"^```python\n(.*?)^```|(?<=\n\n)((?: {4}[^\n]*\n|\n(?= {4}))+)", text, re.MULTILINE | re.DOTALL
    ):
        yield text[: found.start()].count("\n") + 1, textwrap.dedent(found[1] or found[2])


def is_program(code):
    """Returns true for Python code that uses memlab."""
    try:
        ast.parse(code)
    except SyntaxError:
        return False
    return "memlab." in code or "import" in code


def documented_programs():
    """The runnable examples of all pages, by page and line."""
    for page in PAGES:
        for line, block in blocks(page):
            code = re.sub(r"^( *)(…|\.\.\.)$", r"\1train(batch)", block, flags=re.MULTILINE)
            if is_program(code) and not any(part in code for part in NOT_RUN):
                yield f"{page.relative_to(ROOT)}:{line}", code

"""Common beginnings of the programs that log training in tests; each test adds its own code."""

#: A model for Lightning, and a callback whose `rows` are the expected log of every second step: its number, PyTorch's peak
#: since the previous one, and the allocated bytes.
LIGHTNING = """
import json, torch, lightning.pytorch as pl
from memlab.integrations.lightning import MemlabCallback

class Small(pl.LightningModule):
    def __init__(self):
        super().__init__()
        self.net = torch.nn.Sequential(torch.nn.Linear(256, 512), torch.nn.ReLU(), torch.nn.Linear(512, 10))
        self.kept = []

    def configure_optimizers(self):
        return torch.optim.Adam(self.parameters())

class Truth(pl.Callback):
    rows = []

    def on_train_start(self, *_):
        torch.cuda.reset_peak_memory_stats()

    def on_train_batch_end(self, trainer, *_):
        # Of a step of several batches the last is told.
        if trainer.global_step % 2 == 0 and trainer.global_step != getattr(self, "seen", 0):
            self.seen = trainer.global_step
            self.rows.append([self.seen - 1, torch.cuda.max_memory_allocated(), torch.cuda.memory_allocated()])
            torch.cuda.reset_peak_memory_stats()

data = torch.utils.data.DataLoader(torch.utils.data.TensorDataset(torch.randn(96, 256)), batch_size=8)
"""

#: The same for Hugging Face's Trainer, whose `rows` follow its own log.
HUGGING_FACE = """
import json, torch, transformers
from memlab.integrations.transformers import MemlabCallback

class Texts(torch.utils.data.Dataset):
    def __len__(self):
        return 64

    def __getitem__(self, index):
        tokens = torch.arange(12) % 50
        return {"input_ids": tokens, "labels": tokens}

class Truth(transformers.TrainerCallback):
    rows = []

    def on_train_begin(self, *_, **__):
        torch.cuda.reset_peak_memory_stats()

    def on_log(self, args, state, control, **_):
        self.rows.append([state.global_step, torch.cuda.max_memory_allocated(), torch.cuda.memory_allocated()])
        torch.cuda.reset_peak_memory_stats()

model = transformers.GPT2LMHeadModel(transformers.GPT2Config(vocab_size=50, n_positions=12, n_embd=16, n_layer=2, n_head=2))
"""

"""Runs models without training: `inference.py CASE`. Prints PyTorch's most reserved bytes and what it saw, as JSON."""

import json
import sys
import tempfile
import warnings

import torch
from torch import nn

warnings.simplefilter("ignore")
WIDTH, BLOCKS = 1024, 8
SEEN: dict = {}


class Block(nn.Module):
    def __init__(self):
        super().__init__()
        self.up, self.down = nn.Linear(WIDTH, 4 * WIDTH), nn.Linear(4 * WIDTH, WIDTH)

    def forward(self, x):
        return x + self.down(nn.functional.gelu(self.up(x)))


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.blocks = nn.ModuleList(Block() for _ in range(BLOCKS))

    def forward(self, x):
        for block in self.blocks:
            x = block(x)
        return x


class Other(Net):
    pass


def answer(model):
    """Extends a sequence, with all tensors on the device that the model seems to be on."""
    device = next(model.parameters()).device
    x = torch.randn(4, 64, WIDTH, device=device, dtype=next(model.parameters()).dtype)
    for _ in range(4):
        x = torch.cat([x, model(x)[:, -1:]], dim=1)
    SEEN["device"], SEEN["dtype"] = str(x.device), str(x.dtype)
    return x


@torch.no_grad()
def moved():
    model = Net().eval()
    SEEN["same"] = model.to("cuda") is model
    answer(model)


@torch.no_grad()
def cast():
    model = Net().eval().cuda().half()
    answer(model)
    model.blocks[0].to("cuda")
    SEEN["same"] = model.to(device="cuda", dtype=torch.bfloat16) is model
    answer(model)


@torch.no_grad()
def in_turns():
    """A large module that is called once, and one that is called often. One leaves the GPU, and returns."""
    encoder, denoiser = Net().cuda(), Other()
    pair = nn.ModuleList([encoder, denoiser])
    pair.to("cuda")
    x = answer(encoder)
    for _ in range(10):
        denoiser(x)
    denoiser.cpu()
    SEEN["left"] = str(next(denoiser.parameters()).device)
    denoiser.to("cuda:0")
    answer(denoiser)


def with_gradients():
    answer(Net().cuda())


@torch.no_grad()
def elsewhere():
    """The weights are made on the GPU."""
    with torch.device("cuda"):
        answer(Net())


def llama():
    """Returns transformers, and the folder of a model."""
    import transformers

    folder = tempfile.mkdtemp()

    size = {"hidden_size": WIDTH, "intermediate_size": 4 * WIDTH, "num_hidden_layers": 6, "vocab_size": 4096}
    config = transformers.LlamaConfig(**size, num_attention_heads=8, num_key_value_heads=8)
    transformers.LlamaForCausalLM(config).save_pretrained(folder)
    return transformers, folder


@torch.no_grad()
def loaded(device_map="auto"):
    transformers, folder = llama()
    model = transformers.AutoModelForCausalLM.from_pretrained(folder, device_map=device_map)
    tokens = torch.zeros(2, 64, dtype=torch.long).to(model.device)
    for _ in range(4):
        tokens = torch.cat([tokens, model(tokens).logits[:, -1:].argmax(-1)], dim=1)
    SEEN["device"] = str(tokens.device)


def loaded_by_number():
    loaded({"": 0})


def generated():
    transformers, folder = llama()
    model = transformers.LlamaForCausalLM.from_pretrained(folder).to("cuda")
    tokens = model.generate(torch.zeros(2, 64, dtype=torch.long, device=model.device), max_new_tokens=8)
    SEEN["shape"] = list(tokens.shape)


@torch.no_grad()
def pipeline():
    import diffusers

    class Pipeline(diffusers.DiffusionPipeline):
        def __init__(self, unet, vae):
            super().__init__()
            self.register_modules(unet=unet, vae=vae)

        def __call__(self):
            sample = torch.randn(2, 3, 32, 32, device=self._execution_device)
            for step in range(3):
                sample = self.unet(sample, step).sample
            return self.vae.decode(self.vae.encode(sample).latent_dist.mode()).sample

    blocks = {"down_block_types": ["DownBlock2D"] * 3, "up_block_types": ["UpBlock2D"] * 3}
    unet = diffusers.UNet2DModel(sample_size=32, block_out_channels=[128, 256, 512], **blocks)
    made = Pipeline(unet, diffusers.AutoencoderKL(sample_size=32)).to("cuda")
    made.set_progress_bar_config(disable=True)
    SEEN["device"] = str(made().device)
    SEEN["pipeline"] = str(made.device)


globals()[sys.argv[1]]()
SEEN["reserved"] = torch.cuda.memory_stats()["reserved_bytes.all.peak"]
print(json.dumps(SEEN), flush=True)

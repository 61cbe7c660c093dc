"""Small models of many kinds, none written for memlab: paged, they must compute the same as unpaged."""

from collections import OrderedDict
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
import torch.nn.functional as F
from torch import nn


@dataclass
class ZooEntry:
    """A model and its inputs."""

    model: Callable[[], nn.Module]
    inputs: Callable[[], dict[str, Any] | tuple[Any, ...]]


class Bottleneck(nn.Module):
    """A residual block as in torchvision's ResNet-101."""

    def __init__(self, inner, width, stride):
        super().__init__()
        self.conv1 = nn.Conv2d(inner, width, 1, bias=False)
        self.bn1 = nn.BatchNorm2d(width)
        self.conv2 = nn.Conv2d(width, width, 3, stride, 1, bias=False)
        self.bn2 = nn.BatchNorm2d(width)
        self.conv3 = nn.Conv2d(width, 4 * width, 1, bias=False)
        self.bn3 = nn.BatchNorm2d(4 * width)
        self.downsample = None
        if stride != 1 or inner != 4 * width:
            self.downsample = nn.Sequential(nn.Conv2d(inner, 4 * width, 1, stride, bias=False), nn.BatchNorm2d(4 * width))

    def forward(self, x):
        out = F.relu(self.bn1(self.conv1(x)), inplace=True)
        out = F.relu(self.bn2(self.conv2(out)), inplace=True)
        out = self.bn3(self.conv3(out))
        return F.relu(out + (x if self.downsample is None else self.downsample(x)))


class ResNet101(nn.Module):
    def __init__(self, width=16):
        super().__init__()
        self.stem = nn.Sequential(
            nn.Conv2d(3, width, 7, 2, 3, bias=False), nn.BatchNorm2d(width), nn.ReLU(), nn.MaxPool2d(2)
        )
        layers, inner = [], width
        for index, blocks in enumerate((3, 4, 23, 3)):
            for block in range(blocks):
                layers.append(Bottleneck(inner, width << index, 2 if block == 0 and index else 1))
                inner = 4 * width << index
        self.layers = nn.Sequential(*layers)
        self.fc = nn.Linear(inner, 100)

    def forward(self, x):
        return self.fc(self.layers(self.stem(x)).mean((2, 3)))


class ViT(nn.Module):
    """Own parameters beside children (class token, positions), and nn.TransformerEncoder inside."""

    def __init__(self, width=128, depth=4):
        super().__init__()
        self.patches = nn.Conv2d(3, width, 8, 8)
        self.cls_token = nn.Parameter(torch.randn(1, 1, width))
        self.positions = nn.Parameter(torch.randn(1, 65, width))
        layer = nn.TransformerEncoderLayer(width, 4, 4 * width, dropout=0.1, batch_first=True)
        self.encoder = nn.TransformerEncoder(layer, depth)
        self.norm = nn.LayerNorm(width)
        self.head = nn.Linear(width, 10)

    def forward(self, image):
        x = self.patches(image).flatten(2).transpose(1, 2)
        x = torch.cat([self.cls_token.expand(len(x), -1, -1), x], 1) + self.positions
        return self.head(self.norm(self.encoder(x))[:, 0])


class Attention(nn.Module):
    """nn.MultiheadAttention reads out_proj.weight without calling out_proj."""

    def __init__(self):
        super().__init__()
        self.before = nn.Linear(64, 64)
        self.attention = nn.MultiheadAttention(64, 4, batch_first=True)
        self.after = nn.Linear(64, 64)

    def forward(self, x, *, need_weights):
        x = self.before(x)
        out, weights = self.attention(x, x, x, need_weights=need_weights)
        return {"out": self.after(out), "weights": (weights, "attention")}


class DirectUse(nn.Module):
    """The head is the embedding's weight, used by the model's own code."""

    def __init__(self):
        super().__init__()
        self.emb = nn.Embedding(50, 64)
        self.body = nn.Sequential(nn.Linear(64, 64), nn.GELU(), nn.Linear(64, 64))
        self.scale = nn.Parameter(torch.rand(64))

    def forward(self, ids):
        head = self.emb.weight
        x = self.body(self.emb(ids)) * self.scale
        return F.linear(x, head)


class Tied(nn.Module):
    def __init__(self):
        super().__init__()
        self.emb = nn.Embedding(50, 64)
        self.body = nn.Linear(64, 64)
        self.head = nn.Linear(64, 50, bias=False)
        self.head.weight = self.emb.weight

    def forward(self, ids):
        return self.head(torch.tanh(self.body(self.emb(ids))))


class Listed(nn.Module):
    """A list of layers beside another layer: the device may lack part of the list, all of it, or everything else."""

    def __init__(self):
        super().__init__()
        self.stem, self.layers = nn.Linear(64, 64), nn.ModuleList(nn.Linear(64, 64) for _ in range(4))

    def forward(self, x):
        x = self.stem(x)
        for layer in self.layers:
            x = F.gelu(layer(x))
        return x


class Shared(nn.Module):
    """One layer called three times, and two parameters that are views of one storage."""

    def __init__(self):
        super().__init__()
        self.layer = nn.Linear(64, 64)
        both = torch.randn(2, 64, 64)
        self.first = nn.Parameter(both[0])
        self.second = nn.Parameter(both[1].t())

    def forward(self, x):
        for _ in range(3):
            x = torch.relu(self.layer(x))
        return x @ self.first + (x @ self.second).sin()


class Branches(nn.Module):
    """A path that depends on the input; a ModuleDict, and results as a tuple."""

    def __init__(self):
        super().__init__()
        self.ways = nn.ModuleDict({name: nn.Sequential(nn.Linear(64, 128), nn.Linear(128, 64)) for name in "abc"})
        self.last = nn.Linear(64, 64)

    def forward(self, x, way):
        x = self.ways[way](x)
        if x.mean() > 1e9:
            raise ValueError("never")
        if way == "c":
            x = x + F.linear(x, self.ways["a"][1].weight.t()[:, :64])[..., :64]
        return self.last(x), way


class Recurrent(nn.Module):
    def __init__(self):
        super().__init__()
        self.lstm = nn.LSTM(32, 64, num_layers=2, bidirectional=True, batch_first=True)
        self.gru = nn.GRU(128, 32, batch_first=True)
        self.out = nn.Linear(32, 8)

    def forward(self, x):
        self.lstm.flatten_parameters()  # as in many models
        x, (hidden, cell) = self.lstm(x)
        x, _ = self.gru(x)
        return self.out(x), hidden, cell


class Mixed(nn.Module):
    """bfloat16 layers and a float32 norm that casts its input; a large buffer; a counter."""

    def __init__(self):
        super().__init__()
        self.first = nn.Linear(64, 256, dtype=torch.bfloat16)
        self.norm = nn.LayerNorm(256)
        self.second = nn.Linear(256, 64, dtype=torch.bfloat16)
        self.register_buffer("table", torch.randn(4096, 64).to(torch.float64))
        self.register_buffer("calls", torch.zeros((), dtype=torch.int64))

    def forward(self, x):
        self.calls += 1
        x = self.norm(self.first(x.bfloat16()).float()).bfloat16()
        return self.second(x).double() + self.table[: len(x)]


class Writing(nn.Module):
    """Writes to its large buffer in every forward, as static caches do."""

    def __init__(self):
        super().__init__()
        self.layer = nn.Linear(512, 512)
        self.register_buffer("cache", torch.zeros(1024, 512))
        self.position = 0

    def forward(self, x):
        with torch.no_grad():
            self.cache[:4] += self.layer(x)
        return self.cache.sum(0)


def gpt2():
    from transformers import GPT2Config, GPT2LMHeadModel

    return GPT2LMHeadModel(GPT2Config(n_layer=3, n_embd=96, n_head=4, vocab_size=200, n_positions=64))


def llama():
    from transformers import LlamaConfig, LlamaForCausalLM

    config = LlamaConfig(
        hidden_size=96,
        intermediate_size=192,
        num_hidden_layers=3,
        num_attention_heads=4,
        num_key_value_heads=2,
        vocab_size=200,
        max_position_embeddings=64,
    )
    return LlamaForCausalLM(config)


def t5():
    from transformers import T5Config, T5ForConditionalGeneration

    config = T5Config(d_model=64, d_kv=16, d_ff=128, num_layers=2, num_heads=4, vocab_size=200, decoder_start_token_id=0)
    return T5ForConditionalGeneration(config)


def whisper():
    """One of its parameters is frozen from the start: the encoder's positions."""
    from transformers import WhisperConfig, WhisperForConditionalGeneration

    small = {f"{part}_{what}": size for part in ("encoder", "decoder") for what, size in SMALL_LAYERS.items()}
    tokens = {"pad_token_id": 0, "bos_token_id": 1, "eos_token_id": 2, "decoder_start_token_id": 1}
    frames = {"num_mel_bins": 16, "max_source_positions": 24, "max_target_positions": 32}
    return WhisperForConditionalGeneration(WhisperConfig(vocab_size=200, d_model=64, **frames, **small, **tokens))


def detr():
    """Its backbone is partly frozen from the start."""
    from transformers import DetrConfig, DetrForObjectDetection, ResNetConfig

    small = {f"{part}_{what}": size for part in ("encoder", "decoder") for what, size in SMALL_LAYERS.items()}
    stages = {"embedding_size": 16, "hidden_sizes": [16, 32, 64, 128], "depths": [1, 1, 1, 1], "out_features": ["stage4"]}
    backbone = {"use_timm_backbone": False, "use_pretrained_backbone": False, "backbone_config": ResNetConfig(**stages)}
    return DetrForObjectDetection(DetrConfig(d_model=64, num_queries=10, **backbone, **small))


SMALL_LAYERS = {"layers": 2, "attention_heads": 4, "ffn_dim": 128}


def ids(*shape):
    return torch.randint(0, 50, shape)


ZOO = {
    "resnet101": ZooEntry(ResNet101, lambda: (torch.randn(2, 3, 64, 64),)),
    "vit": ZooEntry(ViT, lambda: (torch.randn(2, 3, 64, 64),)),
    "attention": ZooEntry(Attention, lambda: {"x": torch.randn(2, 9, 64), "need_weights": True}),
    "direct-use": ZooEntry(DirectUse, lambda: (ids(2, 7),)),
    "tied": ZooEntry(Tied, lambda: (ids(2, 7),)),
    "listed": ZooEntry(Listed, lambda: (torch.randn(3, 64),)),
    "shared": ZooEntry(Shared, lambda: (torch.randn(3, 64),)),
    "branches": ZooEntry(Branches, lambda: {"x": torch.randn(3, 64), "way": "a"}),
    "recurrent": ZooEntry(Recurrent, lambda: (torch.randn(2, 5, 32),)),
    "mixed": ZooEntry(Mixed, lambda: (torch.randn(5, 64),)),
    "writing": ZooEntry(Writing, lambda: (torch.randn(4, 512),)),
    "encoder": ZooEntry(
        lambda: nn.TransformerEncoder(nn.TransformerEncoderLayer(64, 4, 128, batch_first=True), 3),
        lambda: (torch.randn(2, 9, 64),),
    ),
    "names": ZooEntry(
        lambda: nn.Sequential(OrderedDict(memlab=nn.Linear(64, 64), forward_=nn.Linear(64, 64))),
        lambda: (torch.randn(2, 64),),
    ),
    "bf16": ZooEntry(
        lambda: nn.Sequential(nn.Linear(64, 512), nn.SiLU(), nn.Linear(512, 64)).bfloat16(),
        lambda: (torch.randn(2, 64).bfloat16(),),
    ),
    "gpt2": ZooEntry(gpt2, lambda: {"input_ids": ids(2, 12)}),
    "llama": ZooEntry(llama, lambda: {"input_ids": ids(2, 12), "attention_mask": torch.ones(2, 12, dtype=torch.int64)}),
    "t5": ZooEntry(t5, lambda: {"input_ids": ids(2, 12), "decoder_input_ids": ids(2, 6)}),
    "whisper": ZooEntry(whisper, lambda: {"input_features": torch.randn(2, 16, 48), "decoder_input_ids": ids(2, 6)}),
    "detr": ZooEntry(detr, lambda: {"pixel_values": torch.randn(1, 3, 64, 64)}),
}


def build(name):
    """The model in eval mode, with the same weights each time."""
    torch.manual_seed(len(name))
    return ZOO[name].model().eval()


def call(model, inputs):
    """The model's result without gradients."""
    with torch.no_grad():
        return model(**inputs) if isinstance(inputs, dict) else model(*inputs)

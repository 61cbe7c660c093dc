"""Third-party models, trained with automatic mixed precision. Each run writes PyTorch's own figures to OUT.json.

    compiled_models.py CASE OUT.json         CASE: the name of a model, "/", "eager" or "compiled"

OUT: {"allocated": the live bytes at the end, "truth": see `compiled_truth.py`}.
"""

import json
import sys

import compiled_truth
import torch
import torch.nn.functional as F

case, out = sys.argv[1:]
name, _, way = case.partition("/")
CLASSES = 100


def vit():
    import timm

    return timm.create_model("vit_tiny_patch16_224", depth=3, num_classes=CLASSES), images


def resnet():
    import timm

    return timm.create_model("resnet50", num_classes=CLASSES), images


def gpt2():
    import transformers

    sizes = {"n_layer": 3, "n_embd": 128, "n_head": 4, "vocab_size": 1000, "n_positions": 128}
    return transformers.GPT2LMHeadModel(transformers.GPT2Config(**sizes)), tokens


def llama():
    import transformers

    sizes = {
        "num_hidden_layers": 3,
        "hidden_size": 128,
        "intermediate_size": 344,
        "num_attention_heads": 4,
        "vocab_size": 1000,
    }
    return transformers.LlamaForCausalLM(transformers.LlamaConfig(**sizes)), tokens


def images(model):
    labels = torch.zeros(2, dtype=torch.long, device="cuda")
    return F.cross_entropy(model(torch.randn(2, 3, 224, 224, device="cuda")), labels)


def tokens(model):
    batch = torch.ones(2, 64, dtype=torch.long, device="cuda")
    return model(input_ids=batch, labels=batch).loss


truth = compiled_truth.recorded() if way == "compiled" else {}
torch.manual_seed(0)
model, loss_of = {"vit": vit, "resnet": resnet, "gpt2": gpt2, "llama": llama}[name]()
model = model.cuda()
called = torch.compile(model) if way == "compiled" else model
optimizer = torch.optim.AdamW(model.parameters())
for _ in range(3):
    optimizer.zero_grad()
    with torch.autocast("cuda", torch.bfloat16):
        loss = loss_of(called)
    loss.backward()
    optimizer.step()
torch.cuda.synchronize()
with open(out, "w") as file:
    json.dump({"allocated": torch.cuda.memory_allocated(), "truth": truth}, file)

"""Trainings in the style of public scripts: `fit_zoo.py NAME [--checkpoint]`. Prints a JSON line.

The line has the median step in milliseconds, peaks in bytes, and a hash of losses and weights. `--checkpoint`: every block
is checkpointed by hand. DETERMINISTIC=1: deterministic kernels.
"""

import hashlib
import itertools
import json
import os
import sys
import time

import torch
from torch import nn
from torch.nn import functional as F
from torch.utils.checkpoint import checkpoint

NAME, CHECKPOINT = sys.argv[1], "--checkpoint" in sys.argv
STEPS = int(os.environ.get("STEPS", "8"))
DEVICE = "cuda"


def maybe_checkpointed(block, *given):
    return checkpoint(block, *given, use_reentrant=False) if CHECKPOINT and torch.is_grad_enabled() else block(*given)


def hugging_face(model):
    if CHECKPOINT:
        model.gradient_checkpointing_enable(gradient_checkpointing_kwargs={"use_reentrant": False})
    return model.to(DEVICE).train()


def llama_config():
    import transformers

    return transformers.LlamaConfig(
        hidden_size=1024,
        intermediate_size=2816,
        num_hidden_layers=16,
        num_attention_heads=16,
        num_key_value_heads=4,
        vocab_size=32000,
        attention_dropout=0.1,
    )


def language_steps(model, optimizer, batch, length, vocabulary):
    for _ in range(STEPS):
        tokens = torch.randint(0, vocabulary, (batch, length), device=DEVICE)
        with torch.autocast(DEVICE, torch.bfloat16):
            loss = model(input_ids=tokens, labels=tokens).loss
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        optimizer.zero_grad()
        yield loss


def llama():
    import transformers

    model = hugging_face(transformers.LlamaForCausalLM(llama_config()))
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4)
    return model, language_steps(model, optimizer, 8, 1024, 32000)


def llama_lora():
    import peft
    import transformers

    base = transformers.LlamaForCausalLM(llama_config())
    model = peft.get_peft_model(base, peft.LoraConfig(r=16, target_modules=["q_proj", "v_proj"], lora_dropout=0.05))
    if CHECKPOINT:
        model.enable_input_require_grads()
    model = hugging_face(model)
    optimizer = torch.optim.AdamW((p for p in model.parameters() if p.requires_grad), lr=1e-4)
    return model, language_steps(model, optimizer, 8, 1024, 32000)


def t5():
    import transformers

    config = transformers.T5Config(
        d_model=512, d_ff=2048, num_layers=8, num_heads=8, vocab_size=32128, decoder_start_token_id=0
    )
    model = hugging_face(transformers.T5ForConditionalGeneration(config))
    optimizer = transformers.Adafactor(model.parameters(), lr=1e-3, relative_step=False, scale_parameter=False)

    def steps():
        for _ in range(STEPS):
            tokens = torch.randint(0, 32000, (16, 512), device=DEVICE)
            loss = model(input_ids=tokens, labels=tokens[:, :256].contiguous()).loss
            loss.backward()
            optimizer.step()
            optimizer.zero_grad()
            yield loss

    return model, steps()


def image_steps(model, optimizer, classes, batch, size, scaler=None):
    criterion = nn.CrossEntropyLoss(label_smoothing=0.1)
    for _ in range(STEPS):
        images, labels = torch.randn(batch, 3, size, size, device=DEVICE), torch.randint(0, classes, (batch,), device=DEVICE)
        optimizer.zero_grad()
        with torch.autocast(DEVICE, torch.float16, enabled=scaler is not None):
            loss = criterion(model(images), labels)
        if scaler is None:
            loss.backward()
            optimizer.step()
        else:
            scaler.scale(loss).backward()
            scaler.step(optimizer)
            scaler.update()
        yield loss


def vit():
    import timm

    model = timm.create_model("vit_base_patch16_224", num_classes=1000, drop_path_rate=0.1).to(DEVICE)
    model.set_grad_checkpointing(CHECKPOINT)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4, weight_decay=0.05)
    return model, image_steps(model, optimizer, 1000, 64, 224, torch.amp.GradScaler())


def resnet():
    import torchvision

    model = torchvision.models.resnet50().to(DEVICE)
    if CHECKPOINT:
        for stage in (model.layer1, model.layer2, model.layer3, model.layer4):
            for block in stage:
                block.forward = lambda x, run=block.forward: checkpoint(run, x, use_reentrant=False)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01, momentum=0.9, weight_decay=1e-4)
    return model, image_steps(model, optimizer, 1000, 64, 224)


class DoubleConv(nn.Module):
    def __init__(self, inputs, outputs):
        super().__init__()
        self.layers = nn.Sequential(
            *(nn.Conv2d(inputs, outputs, 3, padding=1), nn.BatchNorm2d(outputs), nn.ReLU(inplace=True)),
            *(nn.Conv2d(outputs, outputs, 3, padding=1), nn.BatchNorm2d(outputs), nn.ReLU(inplace=True)),
        )

    def forward(self, x):
        return self.layers(x)


class UNet(nn.Module):
    def __init__(self):
        super().__init__()
        widths = [32, 64, 128, 256, 512]
        self.down = nn.ModuleList(DoubleConv(a, b) for a, b in zip([3, *widths], widths, strict=False))
        self.up = nn.ModuleList(nn.ConvTranspose2d(b, a, 2, stride=2) for a, b in itertools.pairwise(widths))
        self.merge = nn.ModuleList(DoubleConv(2 * a, a) for a in widths[:-1])
        self.head = nn.Conv2d(32, 2, 1)

    def forward(self, x):
        kept = []
        for index, block in enumerate(self.down):
            x = maybe_checkpointed(block, F.max_pool2d(x, 2) if index else x)
            kept.append(x)
        for up, merge, skip in zip(reversed(self.up), reversed(self.merge), reversed(kept[:-1]), strict=True):
            x = maybe_checkpointed(merge, torch.cat([skip, up(x)], dim=1))
        return self.head(x)


def unet():
    model = UNet().to(DEVICE)
    optimizer = torch.optim.RMSprop(model.parameters(), lr=1e-5, momentum=0.9)

    def steps():
        for _ in range(STEPS):
            images, masks = torch.randn(8, 3, 384, 384, device=DEVICE), torch.randint(0, 2, (8, 384, 384), device=DEVICE)
            # Pixels as rows: the loss of images has no deterministic kernel.
            loss = F.cross_entropy(model(images).movedim(1, -1).flatten(0, 2), masks.flatten())
            optimizer.zero_grad(set_to_none=True)
            loss.backward()
            torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
            optimizer.step()
            yield loss

    return model, steps()


class Residual(nn.Module):
    def __init__(self, width):
        super().__init__()
        self.one, self.two = nn.Conv2d(width, width, 3, padding=1), nn.Conv2d(width, width, 3, padding=1)

    def forward(self, x):
        return x + self.two(F.leaky_relu(self.one(F.leaky_relu(x, 0.2)), 0.2))


class Generator(nn.Module):
    def __init__(self):
        super().__init__()
        self.first = nn.Linear(128, 256 * 8 * 8)
        self.blocks = nn.ModuleList(Residual(256) for _ in range(6))
        self.last = nn.Conv2d(256, 3, 3, padding=1)

    def forward(self, z):
        x = self.first(z).view(-1, 256, 8, 8)
        for index, block in enumerate(self.blocks):
            x = maybe_checkpointed(block, F.interpolate(x, scale_factor=2) if index < 3 else x)
        return torch.tanh(self.last(x))


class Discriminator(nn.Module):
    def __init__(self):
        super().__init__()
        self.first = nn.Conv2d(3, 256, 3, padding=1)
        self.blocks = nn.ModuleList(Residual(256) for _ in range(6))
        self.last = nn.utils.parametrizations.spectral_norm(nn.Linear(256, 1))

    def forward(self, x):
        x = self.first(x)
        for index, block in enumerate(self.blocks):
            x = maybe_checkpointed(block, F.avg_pool2d(x, 2) if index > 2 else x)
        return self.last(x.mean((2, 3)))


def gan():
    generator, discriminator = Generator().to(DEVICE), Discriminator().to(DEVICE)
    of_generator = torch.optim.Adam(generator.parameters(), lr=2e-4, betas=(0.5, 0.999))
    of_discriminator = torch.optim.Adam(discriminator.parameters(), lr=2e-4, betas=(0.5, 0.999))
    criterion = nn.BCEWithLogitsLoss()
    ones, zeros = torch.ones(64, 1, device=DEVICE), torch.zeros(64, 1, device=DEVICE)

    def steps():
        for _ in range(STEPS):
            real, noise = torch.randn(64, 3, 64, 64, device=DEVICE), torch.randn(64, 128, device=DEVICE)
            fake = generator(noise)
            of_discriminator.zero_grad()
            loss = criterion(discriminator(real), ones) + criterion(discriminator(fake.detach()), zeros)
            loss.backward()
            of_discriminator.step()
            of_generator.zero_grad()
            loss = criterion(discriminator(fake), ones)
            loss.backward()
            of_generator.step()
            yield loss

    return nn.ModuleList([generator, discriminator]), steps()


class RNN(nn.Module):
    def __init__(self):
        super().__init__()
        self.encoder = nn.Embedding(33278, 1024)
        self.layers = nn.ModuleList(nn.LSTM(1024, 1024, batch_first=True) for _ in range(4))
        self.drop = nn.Dropout(0.2)
        self.decoder = nn.Linear(1024, 33278)
        self.decoder.weight = self.encoder.weight

    def forward(self, tokens):
        x = self.drop(self.encoder(tokens))
        for layer in self.layers:
            x = self.drop(maybe_checkpointed(layer, x)[0])
        return F.log_softmax(self.decoder(x).flatten(0, 1), dim=1)


def lstm():
    model = RNN().to(DEVICE)
    optimizer = torch.optim.SGD(model.parameters(), lr=1.0)

    def steps():
        for _ in range(STEPS):
            tokens = torch.randint(0, 33278, (64, 129), device=DEVICE)
            model.zero_grad()
            loss = F.nll_loss(model(tokens[:, :-1]), tokens[:, 1:].flatten())
            loss.backward()
            torch.nn.utils.clip_grad_norm_(model.parameters(), 0.25)
            optimizer.step()
            yield loss

    return model, steps()


def main():
    if os.environ.get("DETERMINISTIC"):
        torch.use_deterministic_algorithms(True, warn_only=True)
        torch.backends.cudnn.benchmark = False
        # Their backwards add up in any order.
        torch.backends.cuda.enable_flash_sdp(False)
        torch.backends.cuda.enable_mem_efficient_sdp(False)
        torch.backends.cuda.enable_cudnn_sdp(False)
    torch.manual_seed(0)
    model, steps = globals()[NAME]()
    times, losses, began = [], [], time.perf_counter()
    for loss in steps:
        losses.append(loss.item())
        torch.cuda.synchronize()
        times.append(1e3 * (time.perf_counter() - began))
        began = time.perf_counter()
    seen = hashlib.sha256(str(losses).encode())
    for value in model.state_dict().values():
        seen.update(value.detach().cpu().contiguous().reshape(-1).view(torch.uint8).numpy().tobytes())
    free, total = torch.cuda.mem_get_info()
    peaks = {kind: torch.cuda.memory_stats()[f"{kind}_bytes.all.peak"] for kind in ("allocated", "reserved")}
    outside = total - free - torch.cuda.memory_reserved()
    figures = {"case": NAME, "step_ms": round(sorted(times[2:])[len(times[2:]) // 2], 1), "hash": seen.hexdigest()[:16]}
    print(json.dumps(figures | peaks | {"footprint": peaks["reserved"] + outside, "loss": losses[-1]}), flush=True)


main()

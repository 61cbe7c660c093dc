"""Runs a diffusers pipeline on a GPU with random weights and every model paged. Prints its device.

    pipeline.py [--real]

With `--real`, images are compared with those of the unpaged pipeline, which a simulated card cannot compute.
"""

import json
import sys
import tempfile
from pathlib import Path

import memlab
import torch
from diffusers import AutoencoderKL, DDIMScheduler, StableDiffusionPipeline, UNet2DConditionModel
from transformers import CLIPTextConfig, CLIPTextModel, CLIPTokenizer


def tokenizer():
    letters = [chr(code) for code in range(ord("a"), ord("z") + 1)]
    words = ["<|startoftext|>", "<|endoftext|>", *letters, *(letter + "</w>" for letter in letters)]
    with tempfile.TemporaryDirectory() as folder:
        vocabulary, merges = Path(folder, "vocab.json"), Path(folder, "merges.txt")
        vocabulary.write_text(json.dumps({word: number for number, word in enumerate(words)}))
        merges.write_text("#version: 0.2\n")
        return CLIPTokenizer(str(vocabulary), str(merges), model_max_length=77)


def pipeline():
    torch.manual_seed(0)
    unet = UNet2DConditionModel(
        block_out_channels=(32, 64),
        layers_per_block=2,
        sample_size=32,
        in_channels=4,
        out_channels=4,
        down_block_types=("DownBlock2D", "CrossAttnDownBlock2D"),
        up_block_types=("CrossAttnUpBlock2D", "UpBlock2D"),
        cross_attention_dim=32,
    )
    vae = AutoencoderKL(
        block_out_channels=[32, 64],
        latent_channels=4,
        down_block_types=["DownEncoderBlock2D"] * 2,
        up_block_types=["UpDecoderBlock2D"] * 2,
    )
    text = CLIPTextConfig(
        vocab_size=64, hidden_size=32, intermediate_size=37, num_hidden_layers=3, num_attention_heads=4, eos_token_id=1
    )
    pipe = StableDiffusionPipeline(
        vae=vae.eval(),
        text_encoder=CLIPTextModel(text).eval(),
        tokenizer=tokenizer(),
        unet=unet.eval(),
        scheduler=DDIMScheduler(),
        safety_checker=None,
        feature_extractor=None,
        requires_safety_checker=False,
    )
    pipe.set_progress_bar_config(disable=True)
    return pipe


def image(pipe):
    generator = torch.Generator("cpu").manual_seed(3)
    return pipe("a cat", num_inference_steps=3, output_type="pt", generator=generator).images


MODELS = ("unet", "vae", "text_encoder")
pipe = pipeline()
pipe.to("cuda")
expected = image(pipe).cpu()
pipe.to("cpu")
found = {}
for some in (("unet",), MODELS):
    others = [name for name in MODELS if name not in some]
    for name in some:
        memlab.page(getattr(pipe, name), budget="min")
    for name in others:
        getattr(pipe, name).to("cuda")
    images = [image(pipe) for _ in range(3)]
    is_equal = all(torch.equal(one.cpu(), expected) for one in images) if "--real" in sys.argv else None
    found["+".join(some)] = [str(images[0].device), is_equal]
    for name in some:
        memlab.unpage(getattr(pipe, name))
print(json.dumps({"images": found, "device": str(pipe._execution_device)}))

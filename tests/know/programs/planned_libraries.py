"""Training of library models, planned like `planned.py`: `planned_libraries.py KIND --batch N`."""

import tempfile

import planned
import torch
import transformers
from planned import HEADS, WORDS, classes, images, tokens, train


def gpt2():
    config = transformers.GPT2Config(
        n_layer=3, n_embd=planned.WIDTH, n_head=HEADS, vocab_size=WORDS, n_positions=planned.CONTEXT
    )
    return transformers.GPT2LMHeadModel(config)


def llama():
    config = transformers.LlamaConfig(
        num_hidden_layers=3,
        hidden_size=planned.WIDTH,
        intermediate_size=4 * planned.WIDTH,
        num_attention_heads=HEADS,
        vocab_size=WORDS,
    )
    return transformers.LlamaForCausalLM(config)


def t5():
    width = planned.WIDTH
    config = transformers.T5Config(
        num_layers=2, d_model=width, d_ff=4 * width, d_kv=width // HEADS, num_heads=HEADS, vocab_size=WORDS,
        decoder_start_token_id=0,
    )  # fmt: skip
    return transformers.T5ForConditionalGeneration(config)


def with_lora(model, layers):
    """The model with frozen weights, and a trained product of two narrow matrices beside each of these layers."""
    import peft

    return peft.get_peft_model(model, peft.LoraConfig(r=8, lora_dropout=0.1, target_modules=layers))


def words(batch):
    def loss(model):
        ids = tokens(batch)
        return model(input_ids=ids, labels=ids).loss

    return loss


def vit(steps, batch):
    config = transformers.ViTConfig(
        num_hidden_layers=3, hidden_size=planned.WIDTH, intermediate_size=4 * planned.WIDTH, num_attention_heads=HEADS,
        image_size=64, patch_size=8,
    )  # fmt: skip
    labels = torch.zeros(batch, dtype=torch.long, device="cuda")
    model = transformers.ViTForImageClassification(config)
    train(steps, model, lambda model: model(pixel_values=images(batch), labels=labels).loss, torch.bfloat16)


def timm_vit(steps, batch):
    import timm

    model = timm.create_model("vit_base_patch16_224", img_size=64, patch_size=8, depth=2, drop_path_rate=0.1)
    train(steps, model, classes(model, batch), torch.bfloat16)


def trainer(steps, batch, model):
    ids = torch.randint(0, WORDS, (batch * steps * 2, planned.CONTEXT))
    with tempfile.TemporaryDirectory() as folder:
        arguments = transformers.TrainingArguments(
            folder, per_device_train_batch_size=batch, max_steps=steps, save_strategy="no", report_to=[], bf16=True,
            gradient_accumulation_steps=2, disable_tqdm=True,
        )  # fmt: skip
        data = [{"input_ids": row, "labels": row} for row in ids]
        transformers.Trainer(model, arguments, train_dataset=data).train()


def run(kind, batch, steps):
    if kind == "hf-gpt2":
        train(steps, gpt2(), words(batch))
    elif kind == "hf-llama":
        train(steps, llama(), words(batch), torch.bfloat16)
    elif kind == "hf-llama-lora":
        train(steps, with_lora(llama().bfloat16(), ["q_proj", "v_proj"]), words(batch))
    elif kind == "hf-t5":
        train(steps, t5(), words(batch))
    elif kind == "hf-vit":
        vit(steps, batch)
    elif kind == "timm-vit":
        timm_vit(steps, batch)
    elif kind == "trainer":
        trainer(steps, batch, gpt2())
    elif kind == "trainer-lora":
        trainer(steps, batch, with_lora(gpt2(), ["c_attn"]))
    else:
        raise ValueError(f"no training is called {kind}")


if __name__ == "__main__":
    planned.main(run)

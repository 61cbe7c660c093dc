"""Models of Transformers and PEFT whose layers `memlab run --fit` recomputes, against the same training without it."""

import pytest
import torch
from test_recompute import assert_same, fit
from torch import nn

transformers = pytest.importorskip("transformers")

SMALL = {"num_hidden_layers": 2, "hidden_size": 32, "intermediate_size": 64, "num_attention_heads": 4}


def llama():
    config = transformers.LlamaConfig(vocab_size=50, num_key_value_heads=2, attention_dropout=0.2, **SMALL)
    return transformers.LlamaForCausalLM(config), ["model.layers.0", "model.layers.1"]


def lora():
    peft = pytest.importorskip("peft")
    model, layers = llama()
    config = peft.LoraConfig(target_modules=["q_proj", "v_proj"], lora_dropout=0.1)
    return peft.get_peft_model(model, config), [f"base_model.model.{layer}" for layer in layers]


def gpt2():
    config = transformers.GPT2Config(vocab_size=50, n_layer=2, n_embd=32, n_head=4)
    return transformers.GPT2LMHeadModel(config), ["transformer.h.0", "transformer.h.1"]


def t5():
    config = transformers.T5Config(
        vocab_size=50, d_model=32, d_kv=8, d_ff=64, num_layers=2, num_heads=4, decoder_start_token_id=0, pad_token_id=0
    )
    layers = [f"{side}.block.{number}" for side in ("encoder", "decoder") for number in (0, 1)]
    return transformers.T5ForConditionalGeneration(config), layers


def bert():
    config = transformers.BertConfig(vocab_size=50, **SMALL)
    return transformers.BertForMaskedLM(config), ["bert.encoder.layer.0", "bert.encoder.layer.1"]


def trained(made, recomputed):
    torch.manual_seed(1)
    model, layers = made()
    model.train()
    warnings, end = fit(type(model).__name__, layers) if recomputed else ([], lambda: None)
    optimizer = torch.optim.AdamW([parameter for parameter in model.parameters() if parameter.requires_grad], lr=1e-2)
    seen = []
    try:
        for _ in range(3):
            optimizer.zero_grad()
            ids = torch.randint(1, 50, (2, 7))
            with torch.autocast("cpu", torch.bfloat16):
                output = model(input_ids=ids, attention_mask=torch.ones_like(ids), labels=ids)
            loss = output.loss
            loss.backward()
            # Layers of Transformers are recomputed without a cache. A cache that GPT-2 passes on grows once.
            cache = getattr(output, "past_key_values", None)
            assert cache is None or cache.get_seq_length() in ((7,) if made is gpt2 else (0, 7))
            seen += [
                loss.detach(),
                *(parameter.grad.clone() for parameter in model.parameters() if parameter.grad is not None),
            ]
            optimizer.step()
    finally:
        end()
    assert warnings == []
    return [*seen, *model.state_dict().values(), torch.get_rng_state()], kept_bytes(model)


def kept_bytes(model):
    """Bytes that a forward saves for backward."""
    kept = 0

    def pack(tensor):
        nonlocal kept
        kept += 0 if isinstance(tensor, nn.Parameter) else tensor.nbytes
        return tensor

    ids = torch.randint(1, 50, (2, 7))
    with torch.autograd.graph.saved_tensors_hooks(pack, lambda tensor: tensor):
        model(input_ids=ids, labels=ids)
    return kept


@pytest.mark.parametrize("made", [llama, lora, gpt2, t5, bert])
def test_training_is_the_same_bit_for_bit(made):
    plain, kept = trained(made, False)
    fitted, kept_of_fitted = trained(made, True)
    assert_same(fitted, plain)
    assert kept_of_fitted < kept / 2

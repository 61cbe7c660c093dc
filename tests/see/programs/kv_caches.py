"""Generates with a small model and the named cache of Hugging Face, trains with one, or keeps a custom cache.

Prints the bytes of the tensors in the cache, each rounded up as PyTorch's allocator does, and keeps them until the end.
"""

import json
import sys

import torch

DEVICE = "cuda"
NEW_TOKENS = 12
SHAPE = {
    "hidden_size": 128,
    "intermediate_size": 256,
    "num_hidden_layers": 3,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "vocab_size": 512,
}


def rounded(tensors):
    storages = {tensor.untyped_storage().data_ptr(): tensor.untyped_storage().nbytes() for tensor in tensors}
    return sum(-(-nbytes // 512) * 512 for nbytes in storages.values())


def generated(implementation):
    """The keys and values that generate() keeps, and the lengths beside them in some caches."""
    from transformers import LlamaConfig, LlamaForCausalLM

    model = LlamaForCausalLM(LlamaConfig(**SHAPE, max_position_embeddings=256)).to(DEVICE).eval()
    # Counts passes: on the simulated card comparisons are never true, so no sequence ever finishes.
    passes = iter([True] * NEW_TOKENS)
    model._has_unfinished_sequences = lambda *_, **__: next(passes, False)
    tokens = torch.ones(2, 37, dtype=torch.long, device=DEVICE)
    given = {"cache_implementation": implementation} if implementation else {}
    with torch.no_grad():
        out = model.generate(
            tokens,
            attention_mask=torch.ones_like(tokens),
            min_new_tokens=NEW_TOKENS,
            max_new_tokens=NEW_TOKENS,
            do_sample=False,
            pad_token_id=0,
            return_dict_in_generate=True,
            disable_compile=True,
            **given,
        )
    parts = [part for layer in out.past_key_values.layers for part in vars(layer).values()]
    return (model, out), [part for part in parts if isinstance(part, torch.Tensor) and part.is_cuda]


def trained():
    """A forward whose cache backward will need: Hugging Face's models fill one by default."""
    from transformers import LlamaConfig, LlamaForCausalLM

    model = LlamaForCausalLM(LlamaConfig(**SHAPE)).to(DEVICE)
    tokens = torch.ones(2, 37, dtype=torch.long, device=DEVICE)
    out = model(tokens, labels=tokens, use_cache=True)
    parts = [part for layer in out.past_key_values.layers for part in (layer.keys, layer.values)]
    out.loss.backward()
    return (model, out), parts


class KVCache(torch.nn.Module):
    """A cache as small models implement it: buffers of a module."""

    def __init__(self):
        super().__init__()
        self.register_buffer("k", torch.zeros(4, 1000, device=DEVICE))
        self.register_buffer("v", torch.zeros(4, 1000, device=DEVICE))

    def forward(self, given):
        return self.k.mul(0).sum() + given


def own():
    """The buffers of a module called KVCache, inside a model that the program calls."""
    model = torch.nn.Sequential(torch.nn.Linear(8, 8).to(DEVICE), KVCache())
    model(torch.zeros(1, 8, device=DEVICE))
    return model, [model[1].k, model[1].v]


if __name__ == "__main__":
    kind = sys.argv[1]
    own_kinds = {"own": own, "trained": trained}
    kept, tensors = own_kinds[kind]() if kind in own_kinds else generated(None if kind == "dynamic" else kind)
    print(json.dumps({"cache": rounded(tensors), "tensors": len(tensors)}))

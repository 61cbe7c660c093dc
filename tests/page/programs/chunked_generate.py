"""Generates text with a chunked model, in each way of transformers, also in the first call, which chooses the parts.

chunked_generate.py [--real]: with --real, the tokens are compared with those of the model on one device.
"""

import copy
import json
import sys

import memlab
import torch
from transformers import GenerationConfig, LlamaConfig, LlamaForCausalLM, T5Config, T5ForConditionalGeneration

torch.manual_seed(0)
LLAMA = LlamaForCausalLM(
    LlamaConfig(
        vocab_size=64, hidden_size=32, intermediate_size=64, num_hidden_layers=4, num_attention_heads=4,
        max_position_embeddings=64, bos_token_id=1, eos_token_id=None, pad_token_id=0,
    )
).eval()  # fmt: skip
T5 = T5ForConditionalGeneration(
    T5Config(
        vocab_size=64, d_model=32, d_kv=8, d_ff=64, num_layers=2, num_heads=4, decoder_start_token_id=0, eos_token_id=None
    )
).eval()
WAYS = {
    "greedy": {"do_sample": False},
    "beam": {"num_beams": 3},
    "static": {"cache_implementation": "static", "disable_compile": True},
    "prompt lookup": {"prompt_lookup_num_tokens": 3},
    "sampled": {"do_sample": True, "top_k": 5},
}


def ends_after(passes, model):
    """Ends generation by count: on the simulated card comparisons are never true, so no sequence ever finishes."""
    for name in ("_has_unfinished_sequences", "_beam_search_has_unfinished_sequences"):
        left = iter([True] * passes)
        setattr(model, name, lambda *_, left=left, **__: next(left, False))


prompt = torch.randint(2, 64, (1, 9))
done = []
for family, twin in (("llama", LLAMA), ("t5", T5)):
    for way, options in WAYS.items():
        if family == "t5" and way == "static":
            continue
        config = GenerationConfig(max_new_tokens=8, min_new_tokens=8, bos_token_id=1, pad_token_id=0, **options)
        if family == "t5":
            config.decoder_start_token_id = 0
        for part in (0.3, 0.6):
            model = memlab.chunk(copy.deepcopy(twin), "cuda", part * sum(one.numel() for one in twin.parameters()))
            for _ in range(2):
                torch.manual_seed(1)
                if "--real" not in sys.argv:
                    ends_after(5, model)
                tokens = model.generate(prompt.clone(), generation_config=config)
                assert tokens.shape[0] == 1 and tokens.device.type == "cpu", (family, way, tokens)
                # (Devices draw different random numbers.)
                if "--real" in sys.argv and way != "sampled":
                    torch.manual_seed(1)
                    assert torch.equal(tokens, twin.generate(prompt.clone(), generation_config=config)), (family, way)
        done.append(f"{family} {way}")
print(json.dumps({"done": done}))

"""Key-value caches are a category: those of Hugging Face, of vLLM and SGLang, and custom ones."""

import json
import os
from pathlib import Path

import pytest
from conftest import PYTHON

PROGRAMS = Path(__file__).parent / "programs"

TINY_LLAMA = {
    "architectures": ["LlamaForCausalLM"],
    "model_type": "llama",
    "hidden_size": 256,
    "intermediate_size": 512,
    "num_hidden_layers": 4,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 64,
    "vocab_size": 1024,
    "max_position_embeddings": 2048,
    "torch_dtype": "bfloat16",
    "tie_word_embeddings": False,
}
# Pythons with vLLM and SGLang, which do not fit into the tests' own environment.
VLLM_PYTHON = os.environ.get("MEMLAB_VLLM_PYTHON")
SGLANG_PYTHON = os.environ.get("MEMLAB_SGLANG_PYTHON")


def by_category(report, figure):
    return {row["name"]: row[figure] for row in report["categories"]}


@pytest.mark.parametrize("kind", ["dynamic", "static", "own"])
def test_a_cache_is_measured_to_the_byte(memlab, kind):
    if kind != "own":
        pytest.importorskip("transformers")
    # GIVEN a program that holds a cache at its end: one that generate() has kept, or buffers of a module called KVCache
    run = memlab.python(PROGRAMS / "kv_caches.py", kind)
    assert run.code == 0, run.errors
    said = json.loads(run.output.splitlines()[-1])
    assert said["cache"] > 30_000 and said["tensors"] >= 2
    # THEN the category has exactly the cache's bytes
    held = by_category(memlab.report(run.trace), "bytes_at_end")
    assert held["kv_cache"] == said["cache"]


def test_a_cache_of_a_training_is_activations(memlab):
    pytest.importorskip("transformers")
    # GIVEN training with the default `use_cache`, so that forward fills a cache
    run = memlab.python(PROGRAMS / "kv_caches.py", "trained")
    assert run.code == 0, run.errors
    said = json.loads(run.output.splitlines()[-1])
    assert said["tensors"] == 6
    # THEN backward kept it: it counts as activations
    report = memlab.report(run.trace)
    assert by_category(report, "bytes_at_peak")["kv_cache"] == 0
    assert by_category(report, "bytes_at_peak")["activation"] > said["cache"]


@pytest.mark.parametrize("package", ["vllm", "sglang"])
def test_servers_have_caches_and_workspaces(memlab, package):
    # GIVEN a server with a separate engine process, under `memlab run`
    command = (memlab.command, "run", "-o", "%p.jsonl", "--", PYTHON, PROGRAMS / "servers.py", package)
    run = memlab.run(*command, preload=False)
    assert run.code == 0, run.errors
    said = json.loads(run.output.splitlines()[0])
    # THEN the engine's process has a trace, in which caches, workspaces and weights have their categories
    held = by_category(memlab.report(run.trace), "bytes_at_peak")
    assert {name: held[name] for name in said if name != "workspace"} == {
        name: nbytes for name, nbytes in said.items() if name != "workspace"
    }
    # cuBLAS's workspaces are additional.
    assert held["workspace"] >= said["workspace"]
    assert held["parameter"] == 256 * 256 * 4


@pytest.mark.skipif(VLLM_PYTHON is None, reason="MEMLAB_VLLM_PYTHON names no Python that has vLLM")
def test_vllm_itself(memlab):
    # GIVEN a vLLM engine that starts with a small model on the simulated card
    model = memlab.folder / "model"
    model.mkdir()
    (model / "config.json").write_text(json.dumps(TINY_LLAMA))
    start = (
        f"from vllm import LLM; LLM({str(model)!r}, skip_tokenizer_init=True, load_format='dummy', max_model_len=512, "
        "kv_cache_memory_bytes=256 << 20, enforce_eager=True)"
    )
    script = memlab.folder / "serve.py"
    script.write_text(f"if __name__ == '__main__':\n    {start}\n")
    command = (memlab.command, "run", "-o", "%p.jsonl", "--", VLLM_PYTHON, script)
    run = memlab.run(*command, preload=False, env={"VLLM_USE_FLASHINFER_SAMPLER": 0})
    assert run.code == 0, run.errors
    # THEN the trace is that of its engine's process, and the cache has vLLM's configured size, except for part of a page
    held = by_category(memlab.report(run.trace), "bytes_at_peak")
    assert (256 << 20) * 0.99 < held["kv_cache"] <= 256 << 20
    # Two embeddings, and four blocks of QKV, output, gate and up, and down, in bfloat16; norms take 512 bytes each.
    matrices = 2 * (2 * 1024 * 256 + 4 * (256 * 512 + 256 * 256 + 2 * 512 * 256 + 256 * 512))
    assert matrices <= held["parameter"] <= matrices + 32 * 512


@pytest.mark.skipif(SGLANG_PYTHON is None, reason="MEMLAB_SGLANG_PYTHON names no Python that has SGLang")
def test_pools_of_sglang_itself(memlab):
    # GIVEN SGLang's own pools for requests and tokens
    run = memlab.run(SGLANG_PYTHON, PROGRAMS / "sglang_pools.py")
    assert run.code == 0, run.errors
    said = json.loads(run.output.splitlines()[-1])
    assert said["tensors"] > 6
    # THEN all of their memory is the cache, to the byte
    held = by_category(memlab.report(run.trace), "bytes_at_end")
    assert held["kv_cache"] == said["cache"]

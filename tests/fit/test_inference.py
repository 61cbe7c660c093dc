"""`memlab run --fit` for programs that train nothing: weights that do not fit are paged. On a simulated card."""

import copy
import importlib.util
import json
import pickle
from pathlib import Path

import memlab as package
import pytest
import torch
from conftest import PYTHON, ROOT
from torch import nn

PROGRAM = Path(__file__).parent / "programs" / "inference.py"
MIB = 1 << 20
CONTEXT = 764 * MIB
NEEDS = {"loaded": "transformers", "loaded_by_number": "transformers", "pipeline": "diffusers"}
# The class that is paged, and about how much less memory it gets.
CASES = {
    "moved": ("Net", 64),
    "cast": ("Net", 64),
    "in_turns": ("Net", 96),
    "loaded": ("LlamaForCausalLM", 128),
    "loaded_by_number": ("LlamaForCausalLM", 128),
    "pipeline": ("UNet2DModel", 64),
}


def run(memlab, case, *options, environment=None):
    """Returns what a case prints, or None, memlab's messages and the exit code."""
    command = [memlab.command, *options, "--", PYTHON, PROGRAM, case]
    environment = {"PYTHONPATH": ROOT / "python"} if environment is None else environment
    done = memlab.run(*command, preload=False, memory="16GiB", fresh=True, env=environment)
    figures = [json.loads(line) for line in done.output.splitlines() if line.startswith("{")]
    return figures[0] if figures else None, done.errors + done.output, done.code


def fit(memlab, case, target, *options, **more):
    trace = memlab.folder / "run.jsonl"
    return run(memlab, case, "run", "--force", "-o", trace, "--fit", f"{target // MIB}MiB", *options, **more)


@pytest.mark.parametrize("case", CASES)
def test_weights_that_do_not_fit_are_paged(memlab, case):
    if case in NEEDS:
        pytest.importorskip(NEEDS[case])
    # GIVEN what a program takes, and sees of its model
    paged, less = CASES[case]
    plain, messages, code = run(memlab, case, "run", "--force", "-o", memlab.folder / "run.jsonl")
    assert code == 0, messages
    target = plain.pop("reserved") + CONTEXT - less * MIB
    # WHEN it must fit into less
    fitted, messages, code = fit(memlab, case, target)
    # THEN it runs with the weights of a model paged, takes no more than that, AND sees the same
    assert code == 0 and f"the weights of {paged} paged" in messages, messages
    assert fitted.pop("reserved") + CONTEXT <= target, messages
    assert fitted == plain


def test_a_program_that_fits_is_started_unchanged(memlab):
    # GIVEN a card with enough memory; WHEN the program is to fit; THEN nothing is paged
    figures, messages, code = fit(memlab, "moved", 4096 * MIB)
    assert code == 0 and "which fits. Starting it" in messages and "paged" not in messages, messages
    assert figures["reserved"] > 256 * MIB


REFUSED = {
    "with_gradients": "fails if the weights of Net are paged: RuntimeError: a paged model does not train",
    "elsewhere": "no large module moves to the GPU",
}


@pytest.mark.parametrize("case", REFUSED)
def test_programs_that_cannot_be_paged_are_not_started(memlab, case):
    # GIVEN a program that keeps gradients, or makes its weights on the GPU; WHEN it must fit into less than it takes
    figures, messages, code = fit(memlab, case, 1000 * MIB)
    # THEN it is not started, AND the message has the reason
    assert (figures, code) == (None, 2), messages
    assert REFUSED[case] in messages and "It was not started" in messages, messages


def test_paging_needs_the_package_and_can_be_left_out(memlab):
    # GIVEN a Python without memlab; WHEN a program must fit into less than it takes; THEN the message names the package
    figures, messages, code = fit(memlab, "moved", 1000 * MIB, environment={"PYTHONPATH": ""})
    assert (figures, code) == (None, 2) and "the program's Python has no package memlab" in messages, messages
    # AND paging can be left out
    figures, messages, code = fit(memlab, "moved", 1000 * MIB, "--fit-without", "weights")
    assert (figures, code) == (None, 2) and "misses by" in messages and "paged" not in messages, messages


def test_generating_ends_on_a_simulated_card_and_paging_is_shown_as_code(memlab):
    pytest.importorskip("transformers")
    # GIVEN a program that calls `generate()`, which compares tokens to find its end; WHEN memlab chooses its changes
    _, printed, code = run(memlab, "generated", "fit", "--size", "1100MiB")
    # THEN it ends, AND the code pages the model
    assert code == 0 and "memlab.page(model, budget=" in printed, printed


def embedded(name):
    """Loads a file that `memlab` runs in recorded programs."""
    spec = importlib.util.spec_from_file_location(Path(name).stem, ROOT / "viewer" / "cli" / "src" / name)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_a_recorded_generation_plans_the_attention_of_few_lengths(monkeypatch):
    transformers = pytest.importorskip("transformers")
    from transformers.generation import utils

    # GIVEN a program that generates tokens, as memlab records it, on a machine whose PyTorch uses cuDNN's attention
    for kind, name in ((utils.StoppingCriteriaList, "__call__"), (utils.GenerationMixin, "_has_unfinished_sequences")):
        monkeypatch.setattr(kind, name, getattr(kind, name))
    enabled = torch.backends.cuda.cudnn_sdp_enabled
    assert enabled()
    embedded("recording/generation.py").patch(utils)
    sizes = {"hidden_size": 64, "intermediate_size": 64, "num_hidden_layers": 1, "num_attention_heads": 2, "vocab_size": 64}
    model = transformers.LlamaForCausalLM(transformers.LlamaConfig(**sizes, eos_token_id=None)).eval()
    seen = []
    model.model.layers[0].register_forward_hook(lambda *_: seen.append(enabled()))
    # WHEN it generates, twice; THEN cuDNN computes the first tokens only, all tokens are made, AND it is enabled again
    for _ in range(2):
        tokens = model.generate(torch.zeros(1, 4, dtype=torch.long), max_new_tokens=8, do_sample=False)
        assert tokens.shape == (1, 12) and seen == [True, True, *[False] * 6]
        assert enabled()
        seen.clear()


def test_a_model_whose_calls_are_counted_can_be_saved():
    # GIVEN a model whose calls memlab counts in a recording; WHEN the program saves it; THEN it needs no code of memlab
    calls = {0: 0}
    model = nn.Linear(4, 4)
    model.register_forward_pre_hook(embedded("fit/paging.py").Counting(calls, 0))
    loaded = pickle.loads(pickle.dumps(model))
    x = torch.ones(1, 4)
    assert torch.equal(loaded(x), model(x)) and calls == {0: 1}


@pytest.fixture
def paging(monkeypatch):
    """Pages the first module that is moved to `cuda:0`, with a third of its weights there. It really runs on the CPU."""
    module = embedded("fit/paging.py")
    for name in ("to", "cuda", "cpu", "half", "float", "double", "bfloat16"):
        monkeypatch.setattr(nn.Module, name, getattr(nn.Module, name))
    for name in ("device", "is_cuda"):
        monkeypatch.setattr(nn.Parameter, name, getattr(nn.Parameter, name))
    chosen = [{"number": 0, "class": "LlamaForCausalLM", "budget_bytes": 6 * MIB}]
    made = module.Paging(torch, {"modules": chosen}, None)
    made.patch()
    page = made.page
    made.page = lambda model, _device: page(model, torch.device("cpu"))
    return made


def test_results_of_paged_models_are_the_same(paging):
    transformers = pytest.importorskip("transformers")
    # GIVEN a model that is paged when it moves to the GPU
    torch.manual_seed(0)
    size = {"hidden_size": 256, "intermediate_size": 1024, "num_hidden_layers": 4, "vocab_size": 512}
    config = transformers.LlamaConfig(**size, num_attention_heads=4, num_key_value_heads=4)
    model = transformers.LlamaForCausalLM(config).eval()
    plain = copy.deepcopy(model)
    tokens = torch.randint(0, 512, (2, 16))

    def same():
        texts = [one.generate(tokens, max_new_tokens=12, do_sample=False) for one in (plain, model)]
        with torch.no_grad():
            logits = [one(tokens).logits for one in (plain, model)]
        return torch.equal(*texts) and torch.equal(*logits)

    # WHEN it moves, is cast, moves again, AND leaves; THEN it is the same object with the same results
    assert model.to("cuda:0") is model and package.plan_of(model)
    assert same()
    assert model.to("cuda:0", torch.bfloat16) is model and model.dtype == torch.bfloat16
    plain.to(torch.bfloat16)
    assert same() and package.plan_of(model).counters["copies"] > 0
    model.float()
    plain.float()
    assert same()
    assert model.cpu() is model and same()
    with pytest.raises(RuntimeError, match="not paged"):
        package.plan_of(model)
    # AND its state is that of the unpaged model
    model.to("cuda:0")
    states = zip(plain.state_dict().values(), model.state_dict().values(), strict=True)
    assert all(torch.equal(*pair) and pair[1].device.type == "cpu" for pair in states)

"""Private pools of CUDA graphs: their bytes in the report, and the savings of a single shared pool."""

import json
import subprocess
from pathlib import Path

import pytest
from conftest import ON_GPU

PROGRAM = Path(__file__).parent / "programs" / "graph_pools.py"
CAPTURE = next(number for number, text in enumerate(PROGRAM.read_text().splitlines(), 1) if "torch.cuda.graph(" in text)
SETTINGS = ["", "expandable_segments:True"]


def run(memlab, *arguments, settings=""):
    """PyTorch's figures at the end, with the report and the advice on the recording."""
    trace = memlab.folder / "-".join(("run", *arguments, ".jsonl"))
    env = {"MEMLAB_OUTPUT": str(trace), "PYTORCH_CUDA_ALLOC_CONF": settings}
    done = memlab.python(PROGRAM, *arguments, env=env, fresh=bool(settings))
    assert done.code == 0, done.errors
    command = [memlab.command, "advise", "--json", trace]
    advice = subprocess.run([str(part) for part in command], capture_output=True, text=True, check=True).stdout
    return json.loads(done.output.splitlines()[-1]), memlab.report(trace), json.loads(advice)["advice"]


def finding(report, kind):
    return next((finding for finding in report["findings"] if finding["kind"] == kind), None)


@pytest.mark.parametrize("settings", SETTINGS, ids=["native", "expandable"])
def test_pools_are_distinguished_and_sharing_one_saves_the_predicted_bytes(memlab, settings):
    # GIVEN a program that captures a graph for each of twelve shapes
    truth, report, advice = run(memlab, settings=settings)
    assert truth["pools"] == 12
    # THEN the report has PyTorch's pools and their bytes, with the line that captured their graphs
    pools = report["private_pools"]
    assert len(pools) == 12 and {(pool["graphs"], pool["graphs_captured"]) for pool in pools} == {(1, 1)}
    assert sum(pool["reserved_bytes"] for pool in pools) == truth["private"]
    assert sum(pool["free_bytes"] for pool in pools) == truth["in_no_tensor"]
    (device,) = report["devices"]
    assert device["free_bytes_in_private_pools"] == truth["in_no_tensor"]
    assert {(Path(at["file"]).name, at["line"]) for pool in pools for at in pool["captured_by"]} == {(PROGRAM.name, CAPTURE)}
    # AND a finding reports it, and no finding gives useless advice
    if not ON_GPU:  # On a card of 80 GiB they are negligible.
        found = finding(report, "graph_pools")
        assert "12 CUDA graphs" in found["what"] and f"{PROGRAM.name}:{CAPTURE}" in found["what"]
        assert found["bytes"] == truth["in_no_tensor"]
    next_steps = " ".join(finding["next"] for finding in report["findings"])
    assert "expandable_segments" not in next_steps and "empty_cache" not in next_steps
    # AND the advice is one pool
    (shared,) = [piece for piece in advice if piece["kind"] == "share_pool"]
    assert f"{PROGRAM.name}:{CAPTURE}" in shared["where"] and "pool=pool" in shared["how"]
    # On a card, cuBLAS has a workspace outside the pools in each stream that warms up a graph.
    assert shared["saved_bytes"] > truth["reserved"] / (8 if ON_GPU else 4)
    # WHEN the program does that
    after, report, advice = run(memlab, "shared", settings=settings)
    # THEN it reserves the predicted bytes, within 2 %
    assert after["reserved"] == pytest.approx(shared["bytes_after"], rel=0.02)
    # AND all graphs share one pool, and memlab gives no further advice
    (pool,) = report["private_pools"]
    assert (pool["graphs"], pool["reserved_bytes"]) == (12, after["private"])
    assert finding(report, "graph_pools") is None
    assert [piece for piece in advice if piece["kind"] == "share_pool"] == []


def test_pools_of_dropped_graphs_are_returned_by_emptying_the_cache(memlab):
    # GIVEN a program that drops its graphs
    truth, report, advice = run(memlab, "dropped")
    # THEN the report shows pools without graphs, AND that emptying the cache frees them
    assert {(pool["graphs"], pool["graphs_captured"]) for pool in report["private_pools"]} == {(0, 1)}
    assert sum(pool["free_bytes"] for pool in report["private_pools"]) == truth["in_no_tensor"]
    assert ON_GPU or "empty_cache" in finding(report, "graph_pools")["next"]
    assert [piece for piece in advice if piece["kind"] == "share_pool"] == []

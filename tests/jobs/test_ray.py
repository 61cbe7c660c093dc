"""Ray's workers write a trace each, with memlab's `runtime_env`."""

import json
import subprocess
import tempfile

import pytest
from conftest import ROOT

pytest.importorskip("ray")

PROGRAM = """
import json, os, ray
from memlab.integrations.ray import runtime_env

@ray.remote(num_gpus=1, num_cpus=0)
class Worker:
    def __init__(self, rank):
        os.environ |= {"RANK": str(rank), "WORLD_SIZE": "2"}
        self.rank = rank

    def train(self):
        import torch
        model = torch.nn.Linear(1024, 1024 << self.rank).cuda()
        model(torch.randn(64, 1024, device="cuda")).sum().backward()
        return [self.rank, os.getpid(), torch.cuda.max_memory_allocated()]

is_started = False
while not is_started:
    try:
        ray.init(num_cpus=1, num_gpus=2, include_dashboard=False, runtime_env=runtime_env("traces"))
        is_started = True
    except Exception as error:
        # Ray waits 30 seconds for its own processes, and a loaded machine needs longer.
        if "timed out during startup" not in str(error):
            raise
        ray.shutdown()
workers = [Worker.remote(rank) for rank in range(2)]
json.dump(ray.get([worker.train.remote() for worker in workers]), open("result", "w"))
ray.shutdown()
"""


@pytest.fixture
def rays_folder():
    """Folder for Ray's sockets and token. The path is short because socket names are limited."""
    with tempfile.TemporaryDirectory(prefix="memlab-ray-", dir="/tmp", ignore_cleanup_errors=True) as folder:
        yield folder


@pytest.mark.long
def test_two_workers_are_a_job(memlab, rays_folder):
    """GIVEN two of Ray's workers on a card each WHEN they run with memlab's runtime_env
    THEN each has a trace with its own peak, and the folder is reported as a job."""
    script = memlab.folder / "program.py"
    script.write_text(PROGRAM)
    environment = {"PYTHONPATH": ROOT / "python", "RAY_AUTH_MODE": "disabled", "RAY_USAGE_STATS_ENABLED": "0"}
    environment |= {"HOME": rays_folder, "RAY_TMPDIR": rays_folder, "RAY_worker_register_timeout_seconds": 600}
    run = memlab.python(script, preload=False, devices=2, env=environment)
    assert run.code == 0, run.errors
    truth = json.loads((memlab.folder / "result").read_text())
    command = [memlab.command, "report", "--json", memlab.folder / "traces"]
    done = subprocess.run(command, capture_output=True, text=True, env=memlab.environment())
    assert done.returncode == 0, done.stderr
    ranks = json.loads(done.stdout)["ranks"]
    assert [[rank["rank"], rank["pid"], rank["devices"][0]["peak_allocated_bytes"]] for rank in ranks] == truth

"""The wheel that `make wheel` writes to dist/: its contents, and each part of it in a fresh environment."""

import json
import os
import re
import stat
import subprocess
import sys
import sysconfig
import zipfile
from types import SimpleNamespace

import pytest
import tomllib
from conftest import ROOT

pytestmark = pytest.mark.long

PACKAGE = ROOT / "python" / "memlab"
VERSION = re.search(r'^version = "(.*)"$', (ROOT / "Cargo.toml").read_text(), re.MULTILINE)[1]
SIMULATED = (
    "libcuda.so",
    "libcuda.so.1",
    "libcupti.so.13",
    "libnvidia-ml.so.1",
    "libsimgpu_cudart.so",
    "libsimgpu_libraries.so",
    "libsimgpu_nccl.so",
)
CRATES = "LICENSES-CRATES"
SHARE = f"memlab-{VERSION}.data/data/share/"
BINARIES = ["memlab/_native.abi3.so", "memlab/bin/libmemlab.so", "memlab/bin/memlab"]
BINARIES += [f"memlab/bin/simgpu/{name}" for name in SIMULATED]


@pytest.fixture(scope="module")
def wheel():
    wheels = list((ROOT / "dist").glob("memlab-*.whl"))
    assert wheels, "build first: make wheel"
    (wheel,) = wheels
    return wheel


@pytest.fixture(scope="module")
def unpacked(wheel, tmp_path_factory):
    """The wheel's files, and the modes in its zip entries."""
    folder = tmp_path_factory.mktemp("unpacked")
    with zipfile.ZipFile(wheel) as archive:
        archive.extractall(folder)
        modes = {entry.filename: entry.external_attr >> 16 for entry in archive.infolist()}
    return SimpleNamespace(folder=folder, modes=modes, about=folder / f"memlab-{VERSION}.dist-info")


@pytest.fixture(scope="module")
def installed(wheel, tmp_path_factory):
    """An environment with only the wheel, and its Python and command."""
    folder = tmp_path_factory.mktemp("environment")
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", folder], check=True)
    python = folder / "bin" / "python"
    install = [sys.executable, "-m", "pip", "--python", python, "install", "--quiet", "--no-index", wheel]
    subprocess.run(install, check=True)
    return SimpleNamespace(folder=folder, python=python, command=folder / "bin" / "memlab")


@pytest.fixture(scope="module")
def with_torch(installed, tmp_path_factory):
    """The environment's Python, which also finds the tests' PyTorch and mypy."""
    (packages,) = (installed.folder / "lib").glob("python3.*/site-packages")
    (packages / "of-the-tests.pth").write_text(sysconfig.get_path("purelib") + "\n")
    return installed.python


def outcome(memlab, *command, **more):
    """Output of a command that cannot see the source tree."""
    environment = memlab.environment(PYTHONPATH="", **more)
    done = subprocess.run(command, cwd=memlab.folder, env=environment, capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def readelf(what, file):
    return subprocess.run(["readelf", "-W", what, file], check=True, capture_output=True, text=True).stdout


def test_contents(unpacked):
    # GIVEN the wheel's files
    names = set(unpacked.modes)
    # THEN they are the package of this source tree, the binaries, and the metadata
    sources = {f"memlab/{file.relative_to(PACKAGE)}" for file in PACKAGE.rglob("*.py*") if "__pycache__" not in file.parts}
    about = {f"memlab-{VERSION}.dist-info/{name}" for name in ("METADATA", "WHEEL", "RECORD", "entry_points.txt")}
    licences = {f"memlab-{VERSION}.dist-info/licenses/{name}" for name in ("LICENSE-MIT", "LICENSE-APACHE", CRATES)}
    bill = {f"memlab-{VERSION}.dist-info/sboms/memlab.cdx.json"}
    shared = {name for name in names if name.startswith(SHARE)}
    assert names == sources | {"memlab/py.typed", *BINARIES} | about | licences | bill | shared
    for name in sources:
        assert (unpacked.folder / name).read_bytes() == (ROOT / "python" / name).read_bytes(), f"{name}: make wheel again"
    for licence in licences:
        name = os.path.basename(licence)
        assert (unpacked.folder / licence).read_text() == (ROOT / ("python" if name == CRATES else "") / name).read_text()
    # AND the program is executable
    assert unpacked.modes["memlab/bin/memlab"] & stat.S_IXUSR


def test_linked_crates_are_listed_with_their_licences(unpacked):
    # GIVEN the wheel's list of the packages linked into its programs and libraries
    bill = json.loads((unpacked.about / "sboms" / "memlab.cdx.json").read_text())
    assert (bill["bomFormat"], bill["metadata"]["component"]["version"]) == ("CycloneDX", VERSION)
    crates = {component["purl"]: component for component in bill["components"]}
    # THEN it lists each binary's dependencies, with licences and checksums, and nothing of this machine
    assert {"memlab", "memlab-interpose", "memlab-python", "pyo3", "clap", "zstd-sys"} <= {
        component["name"] for component in crates.values()
    }
    for dependency in bill["dependencies"]:
        assert set(dependency["dependsOn"]) <= set(crates)
    others = [component for component in crates.values() if "hashes" in component]
    members = tomllib.loads((ROOT / "Cargo.toml").read_text())["workspace"]["members"]
    ours = {tomllib.loads((ROOT / member / "Cargo.toml").read_text())["package"]["name"] for member in members}
    assert {component["name"] for component in crates.values()} - {component["name"] for component in others} <= ours
    assert str(ROOT) not in json.dumps(bill) and all(component["licenses"] for component in others)
    # AND the wheel has each one's licence text
    texts = (unpacked.about / "licenses" / CRATES).read_text()
    missing = [crate for crate in others if f"\n  {crate['name']} {crate['version']}" not in texts]
    assert not missing, "make licences"


def test_the_manual_and_completions_are_installed(memlab, installed):
    # GIVEN the installed wheel THEN its manual is in the folder that `man` searches beside the command
    share = installed.folder / "share"
    assert (share / "man" / "man1" / "memlab-run.1").read_text().startswith(".ie")
    # AND the completions are where shells search, equal to the command's output
    for shell, file in {
        "bash": "bash-completion/completions/memlab",
        "zsh": "zsh/site-functions/_memlab",
        "fish": "fish/vendor_completions.d/memlab.fish",
    }.items():
        assert (share / file).read_text() == outcome(memlab, installed.command, "completions", shell)


def test_metadata(wheel, unpacked):
    # GIVEN the wheel's metadata
    metadata = (unpacked.about / "METADATA").read_text().partition("\n\n")[0].splitlines()
    # THEN it is for every CPython from 3.10 on, and for machines like this one
    assert re.fullmatch(rf"memlab-{re.escape(VERSION)}-cp310-abi3-(many)?linux\w*_x86_64\.whl", wheel.name)
    tags = re.findall(r"^Tag: (.*)$", (unpacked.about / "WHEEL").read_text(), re.MULTILINE)
    assert tags and all(tag.startswith("cp310-abi3-") for tag in tags)
    assert "Requires-Python: >=3.10" in metadata
    assert "License-Expression: MIT OR Apache-2.0" in metadata
    # AND pytest finds the plugin
    assert "[pytest11]\nmemlab=memlab.pytest_plugin\n" in (unpacked.about / "entry_points.txt").read_text()
    # AND it has no dependencies, in particular no PyTorch
    required = [line for line in metadata if line.startswith("Requires-Dist:")]
    assert len(required) == 3 and all(re.search(r"; extra == '(torch|notebook)'$", line) for line in required)


@pytest.mark.parametrize("name", BINARIES)
def test_binaries(wheel, unpacked, name):
    # GIVEN a program or library of the wheel
    file = unpacked.folder / name
    # THEN it is stripped
    sections = readelf("--section-headers", file)
    assert ".dynsym" in sections
    assert not re.search(r"\.debug_(info|line|str)|\.symtab", sections)
    assert file.stat().st_size < 17 << 20  # The command takes 16.2 MiB.
    # AND it needs only the C library, in no newer version than the wheel's name states
    needed = set(re.findall(r"NEEDED.*\[(.*)\]", readelf("--dynamic", file)))
    assert needed <= {"libc.so.6", "libm.so.6", "libdl.so.2", "libpthread.so.0", "libgcc_s.so.1", "ld-linux-x86-64.so.2"}
    platform = re.search(r"manylinux_2_(\d+)_", wheel.name)
    versions = {int(minor) for minor in re.findall(r"GLIBC_2\.(\d+)", readelf("--version-info", file))}
    assert platform is None or max(versions) <= int(platform[1])


def test_command(memlab, installed):
    # GIVEN an environment without PyTorch
    # THEN the command prints its version, by its own name and as a module
    assert outcome(memlab, installed.command, "--version") == f"memlab {VERSION}\n"
    assert outcome(memlab, installed.python, "-m", "memlab", "--version") == f"memlab {VERSION}\n"
    # AND it has the same commands as the one built here
    help = outcome(memlab, installed.command, "--help")
    assert help == outcome(memlab, memlab.command, "--help")
    assert re.search(r"^ +offload ", help, re.MULTILINE)
    # AND the package and its native part can be imported from the environment
    script = "import memlab, memlab._native as native; print(native.__file__, native.Arena, native.Pipeline, native.plan)"
    assert outcome(memlab, installed.python, "-c", script).startswith(str(installed.folder))


def test_native_declarations(memlab, with_torch):
    # GIVEN the declarations of _native.pyi; THEN they match the native module, as mypy checks
    assert "Success" in outcome(memlab, with_torch, "-m", "mypy.stubtest", "memlab._native")


def test_the_command_is_missing(memlab, installed, tmp_path):
    # GIVEN the package without its program, as in a source tree
    (tmp_path / "memlab").mkdir()
    for name in ("__init__.py", "__main__.py", "_command.py"):
        (tmp_path / "memlab" / name).write_bytes((PACKAGE / name).read_bytes())
    # WHEN the command is called
    environment = memlab.environment(PYTHONPATH=tmp_path)
    command = [installed.python, "-m", "memlab", "ps"]
    done = subprocess.run(command, cwd=memlab.folder, env=environment, capture_output=True, text=True)
    # THEN it prints the missing part and a fix, without a traceback
    assert done.returncode == 127
    assert re.fullmatch(r"memlab: \S+/memlab/bin/memlab is missing: .*`make`.*\n", done.stderr)
    # AND likewise when the program is not executable
    (tmp_path / "memlab" / "bin").mkdir()
    (tmp_path / "memlab" / "bin" / "memlab").write_text("")
    done = subprocess.run(command, cwd=memlab.folder, env=environment, capture_output=True, text=True)
    assert done.returncode == 126
    assert re.fullmatch(r"memlab: \S+/memlab/bin/memlab cannot be started: Permission denied: .*\n", done.stderr)


def test_programs_run_as_without_memlab(memlab, installed):
    # GIVEN the ignored signals of a program that is started directly
    program = ["grep", "SigIgn", "/proc/self/status"]
    by_itself = outcome(memlab, *program)
    # THEN they are the same under the installed command, although that starts as Python
    assert outcome(memlab, installed.command, "run", "--no-live", "--", *program) == by_itself
    # AND its exit code is passed on
    command = [installed.command, "run", "--no-live", "--", "sh", "-c", "exit 7"]
    assert subprocess.run(command, cwd=memlab.folder, env=memlab.environment(PYTHONPATH="")).returncode == 7


PROGRAM = """
import torch
layer = torch.nn.Linear(1024, 1024, device="cuda")
layer(torch.ones(1024, 1024, device="cuda"))
"""


def test_records(memlab, installed, with_torch):
    # GIVEN a program, and the installed command without the library's path in the environment
    (memlab.folder / "program.py").write_text(PROGRAM)
    # WHEN it runs under memlab on the (simulated) GPU
    run = memlab.run(
        *[installed.command, "run", "--no-live", "-o", "program.jsonl", "--", with_torch, "program.py"],
        preload=False,
        env={"PYTHONPATH": ""},
    )
    # THEN it writes a trace, which the installed command reads
    assert run.code == 0, run.errors
    report = json.loads(outcome(memlab, installed.command, "report", run.trace, "--json"))
    assert report["warnings"] == []
    (device,) = report["devices"]
    assert device["peak_allocated_bytes"] >= 12 << 20
    assert any(line["file"].endswith("program.py") for line in report["lines"])


def test_simulates(memlab, installed, with_torch):
    # GIVEN the installed command, far from a source tree
    # THEN a program runs on the named card, with the package's own libraries
    script = (
        "import torch; print(torch.cuda.get_device_name(), torch.cuda.mem_get_info()[1], open('/proc/self/maps').read())"
    )
    command = [installed.command, "simulate", "--card", "a100-40gb", "--", with_torch, "-c", script]
    output = outcome(memlab, *command)
    assert output.startswith("NVIDIA A100-SXM4-40GB 42297786368 ")
    loaded = set(re.findall(r"/\S*/lib(?:cuda|cupti|simgpu_\w+)\.so\S*", output))
    own = {path for path in loaded if path.startswith(os.path.join(installed.folder, "lib"))}
    libraries = {"libcuda.so.1", "libcupti.so.13", "libsimgpu_cudart.so", "libsimgpu_libraries.so", "libsimgpu_nccl.so"}
    assert {os.path.basename(path) for path in own} == libraries
    # (PyTorch may load its own CUPTI too, by its path. Calls go to the package's, which was loaded first.)
    assert {os.path.basename(path) for path in loaded - own} <= {"libcupti.so.13"}
    # AND under the recorder, which finds the package's libraries
    command = [installed.command, "simulate", "--", installed.command, "run", "-o", "simulated.jsonl", "--", with_torch]
    outcome(memlab, *command, "-c", "import torch; torch.ones(1 << 20, device='cuda')")
    assert memlab.report(memlab.folder / "simulated.jsonl")["devices"][0]["peak_allocated_bytes"] == 4 << 20


LOADED_LATE = """
import ctypes, pathlib, torch, memlab
ctypes.CDLL(pathlib.Path(memlab.__file__).parent / "bin" / "libmemlab.so")
torch.ones(1 << 20, device="cuda")
"""


def test_records_when_loaded(memlab, with_torch):
    # GIVEN a program that loads the package's library itself, as a notebook does
    run = memlab.run(with_torch, "-c", LOADED_LATE, preload=False, env={"PYTHONPATH": ""})
    # THEN it writes a trace
    assert run.code == 0, run.errors
    assert memlab.report(run.trace)["devices"][0]["peak_allocated_bytes"] == 4 << 20


MODEL = """
import copy, sys
import torch, memlab
from torch import nn

torch.manual_seed(0)

class Block(nn.Module):
    def __init__(self):
        super().__init__()
        self.norm = nn.LayerNorm(32)
        self.wide = nn.Linear(32, 128)
        self.narrow = nn.Linear(128, 32)

    def forward(self, x):
        return x + self.narrow(torch.relu(self.wide(self.norm(x))))

model = nn.Sequential(*(Block() for _ in range(6))).eval()
x = torch.randn(4, 32)
with torch.no_grad():
    expected = model(x)
"""

PAGE = f"""{MODEL}
with torch.no_grad():
    assert memlab.page(model, device="cpu", budget="min") is model
    for _ in range(3):
        assert torch.equal(model(x), expected)
print(model.memlab)
memlab.unpage(model)
with torch.no_grad():
    assert torch.equal(model(x), expected)
"""

CHUNK = f"""{MODEL}
half = sum(parameter.numel() for parameter in model.parameters()) // 2
for rest in ("cpu", "page"):
    part = copy.deepcopy(model)
    with torch.no_grad():
        assert memlab.chunk(part, device="cpu", max_capacity=half, rest=rest) is part
        for _ in range(3):
            assert torch.equal(part(x), expected)
print("chunked")
"""

LOAD = f"""{MODEL}
from safetensors.torch import save_file
save_file(model.state_dict(), "model.safetensors")
with torch.device("meta"):
    empty = nn.Sequential(*(Block() for _ in range(6))).eval()
with torch.no_grad():
    loaded = memlab.load("model.safetensors", empty, device="cpu")
    assert torch.equal(loaded(x), expected)
print("loaded")
"""


@pytest.mark.parametrize("script", [PAGE, CHUNK, LOAD], ids=["page", "chunk", "load"])
def test_bigger_than_the_gpu(memlab, with_torch, script):
    # GIVEN a small model; WHEN the installed package pages, chunks or loads it, with no GPU
    # THEN its results are the same, to the bit
    assert outcome(memlab, with_torch, "-c", script).strip()

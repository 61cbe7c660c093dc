"""`memlab doctor` on machines with missing parts."""

import ctypes
import json
import os
import socket
import subprocess

import pytest
from conftest import PYTHON
from waiting import HANG_SECONDS

UNUSABLE = "#!/bin/sh\nexit 3\n"


@pytest.fixture
def doctor(memlab):
    """Runs `memlab doctor`; returns its checks by name, with the exit code as `code`. A name that appears twice has its
    first line."""
    folder = memlab.folder / "bin"
    folder.mkdir()
    (folder / "python").write_text(f'#!/bin/sh\nexec {PYTHON} "$@"\n')
    (folder / "python").chmod(0o755)

    def run(card=True, **environment):
        command = [memlab.command, "doctor", "--json"]
        if card:
            command = [memlab.command, "simulate", "--memory", "8GiB", "--", *command]
        usual = {"PATH": f"{folder}:/usr/bin:/bin", "XDG_RUNTIME_DIR": ""}
        environment = memlab.environment(**(usual | environment))
        options = {"cwd": memlab.folder, "env": environment, "capture_output": True, "text": True}
        done = subprocess.run(command, timeout=HANG_SECONDS, **options)
        assert done.returncode in (0, 1), done.stderr
        report = json.loads(done.stdout)
        assert report["records"] == (done.returncode == 0)
        checks = {check["name"]: check for check in reversed(report["checks"])}
        lacking = [name for name in checks if checks[name]["state"] == "cannot"]
        assert bool(lacking) != report["records"] and all(name in done.stderr for name in lacking)
        assert all((check["advice"] is None) == (check["state"] == "ok") for check in report["checks"])
        return checks | {"code": done.returncode}

    run.bin = folder
    return run


def test_a_machine_on_which_everything_works(doctor, memlab):
    # GIVEN a simulated card, and a Python with PyTorch
    checks = doctor()
    # THEN all parts needed for recording are right, and each check names the part and its location
    code = checks.pop("code")
    assert code == 0
    for name in ("memlab's library", "other preloads", "CUDA driver", "GPUs", "NVML", "Python", "PyTorch", "GPU time"):
        assert checks[name]["state"] == "ok", checks[name]
    assert checks["memlab's library"]["found"] == str(memlab.library)
    assert checks["GPUs"]["found"].startswith("cuda:0 NVIDIA SimGPU (memlab), 8.00 GiB")
    assert "simulated, CUDA" in checks["CUDA driver"]["found"]
    assert "for CUDA" in checks["PyTorch"]["found"]
    # AND the text for people has the same lines; free memory is measured again
    text = memlab.run(memlab.command, "doctor", preload=False, env={"PATH": f"{doctor.bin}:/usr/bin:/bin"}).output
    assert text.startswith("memlab ") and all(name in text for name in checks)
    changing = ("output folder", "host memory", "/dev/shm")
    # A long text takes several lines.
    words = " ".join(text.split())
    assert all(" ".join(check["found"].split()) in words for name, check in checks.items() if name not in changing)


def has_driver():
    try:
        return bool(ctypes.CDLL("libcuda.so.1"))
    except OSError:
        return False


@pytest.mark.skipif(has_driver(), reason="needs a machine without NVIDIA's driver")
def test_without_a_driver(doctor):
    # GIVEN a machine without a GPU
    checks = doctor(card=False)
    # THEN programs cannot be recorded, and doctor names the commands that work without a GPU
    assert checks["code"] == 1
    assert checks["CUDA driver"]["state"] == "cannot"
    assert "memlab simulate" in checks["CUDA driver"]["advice"]
    assert checks["GPU time"]["state"] == "warning"


def test_without_devices(doctor):
    # GIVEN a driver with all GPUs hidden
    checks = doctor(CUDA_VISIBLE_DEVICES="")
    # THEN the driver's check reports it
    assert checks["code"] == 1
    assert "CUDA_VISIBLE_DEVICES" in checks["CUDA driver"]["advice"]


@pytest.mark.parametrize(
    ("environment", "said"),
    [
        ({"MEMLAB": "0"}, "MEMLAB=0"),
        ({"MEMLAB_LIB": "/no/such/libmemlab.so"}, "no such file"),
        ({"MEMLAB_LIB": "/etc/hostname"}, "cannot be loaded: object '/etc/hostname'"),
    ],
)
def test_without_the_library(doctor, environment, said):
    checks = doctor(**environment)
    assert checks["code"] == 1
    assert checks["memlab's library"]["state"] == "cannot"
    assert said in checks["memlab's library"]["found"]


def test_the_output_folder(doctor):
    # GIVEN a folder for traces that does not exist THEN doctor prints the message of `memlab run`
    checks = doctor(MEMLAB_OUTPUT="/no/such/folder/x.jsonl")
    assert checks["code"] == 1 and checks["output folder"]["state"] == "cannot"
    assert "mkdir -p /no/such/folder" in checks["output folder"]["found"]


@pytest.mark.parametrize(
    ("script", "said"),
    [(UNUSABLE, "it does not run a script"), ("#!/bin/sh\necho '{}'\n", "it does not run a script"), (None, "neither")],
)
def test_pythons_that_do_not_answer(doctor, script, said):
    # GIVEN a `python` that is not Python, or no Python at all
    (doctor.bin / "python").unlink()
    for name in ("python", "python3") if script else ():
        (doctor.bin / name).write_text(script)
        (doctor.bin / name).chmod(0o755)
    # THEN recording works, without Python
    checks = doctor(PATH=doctor.bin)
    assert checks["code"] == 0 and checks["Python"]["state"] == "warning"
    assert said in checks["Python"]["found"]


def test_a_static_python(doctor):
    # GIVEN a statically linked `python`
    source = doctor.bin / "static.c"
    source.write_text("int main(void) { return 3; }\n")
    built = subprocess.run(["gcc", "-static", "-o", doctor.bin / "python3", source], capture_output=True, text=True)
    if built.returncode != 0:
        pytest.skip("no static C library")
    (doctor.bin / "python").unlink()
    # THEN it cannot be recorded
    checks = doctor(PATH=doctor.bin)
    assert checks["code"] == 1 and "linked statically" in checks["Python"]["found"]


def test_sockets(doctor, memlab):
    # GIVEN this user's runtime folder THEN the sockets go there
    runtime = memlab.folder / "run"
    runtime.mkdir()
    assert doctor(XDG_RUNTIME_DIR=runtime)["control sockets"]["found"].startswith(f"{runtime}/memlab")
    # AND a folder that others can open, that is a file, or whose name is too long is unusable: recording works without it
    sockets = runtime / "memlab"
    sockets.mkdir()
    sockets.chmod(0o755)
    checks = doctor(XDG_RUNTIME_DIR=runtime)
    assert checks["control sockets"]["state"] == "warning" and checks["code"] == 0
    assert f"chmod 700 {sockets}" in checks["control sockets"]["advice"]
    sockets.rmdir()
    sockets.write_text("")
    assert "is not a folder" in doctor(XDG_RUNTIME_DIR=runtime)["control sockets"]["found"]
    long = memlab.folder / ("x" * 100)
    long.mkdir()
    assert "too long" in doctor(XDG_RUNTIME_DIR=long)["control sockets"]["found"]
    with socket.socket(socket.AF_UNIX) as listener, pytest.raises(OSError):
        listener.bind(os.path.join(long, "memlab", "4194304.sock"))


def test_other_preloads(doctor, memlab):
    # GIVEN a missing preloaded library
    checks = doctor(LD_PRELOAD="/no/such.so")
    # THEN doctor names it, and programs are recorded all the same
    assert checks["code"] == 0 and checks["other preloads"]["state"] == "warning"
    assert "/no/such.so in LD_PRELOAD" in checks["other preloads"]["found"]
    # AND the libraries of memlab and the simulated card do not count as other preloads
    assert doctor(LD_PRELOAD=memlab.library)["other preloads"]["found"] == "none"

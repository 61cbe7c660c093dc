"""Writes what the wheel's programs and libraries are linked from, as CycloneDX: python sbom.py FILE.

`make wheel` puts it into the wheel. It is made of what Cargo says, and names no folder of the builder.
"""

import json
import re
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
# Whose programs and libraries the wheel has.
BUILT = ("memlab", "memlab-interpose", "memlab-python")
BUILT += ("simgpu-cupti", "simgpu-driver", "simgpu-libraries", "simgpu-nccl", "simgpu-nvml", "simgpu-runtime")


def linked():
    """(name, version) of each crate, with its licence, and with the crates that it is linked with. Those that run in the
    compiler are none of them."""
    packages = [option for package in BUILT for option in ("--package", package)]
    command = ["cargo", "tree", "--locked", "--target", "x86_64-unknown-linux-gnu", "--edges", "normal,no-proc-macro"]
    command += ["--prefix", "depth", "--format", "|{p}|{l}|", *packages]
    tree = subprocess.run(command, cwd=ROOT, check=True, capture_output=True, text=True).stdout
    licences, edges, above = {}, {}, []
    for depth, name, version, licence in re.findall(r"^(\d+)\|(\S+) v([^\s|]+)[^|]*\|([^|]*)\|", tree, re.MULTILINE):
        crate = (name, version)
        above[int(depth) :] = [crate]
        licences[crate] = licence.replace("/", " OR ")
        edges.setdefault(crate, set())
        if len(above) > 1:
            edges[above[-2]].add(crate)
    return dict(sorted(licences.items())), edges


def purl(crate):
    return f"pkg:cargo/{crate[0]}@{crate[1]}"


def component(crate, licence, checksum):
    described = {"type": "library", "bom-ref": purl(crate), "name": crate[0], "version": crate[1], "purl": purl(crate)}
    described["licenses"] = [{"expression": licence}]
    return described | ({"hashes": [{"alg": "SHA-256", "content": checksum}]} if checksum else {})


def main(file):
    entries = re.findall(r'^name = "(.*)"\nversion = "(.*)"\nsource = .*\nchecksum = "(.*)"', lock(), re.MULTILINE)
    checksums = {(name, version): checksum for name, version, checksum in entries}
    licences, edges = linked()
    built = [crate for crate in licences if crate[0] in BUILT]
    version = dict(built)["memlab"]
    wheel = {"type": "application", "bom-ref": "wheel", "name": "memlab", "version": version}
    bom = {
        "bomFormat": "CycloneDX",
        "specVersion": "1.5",
        "version": 1,
        "metadata": {"component": wheel | {"purl": f"pkg:pypi/memlab@{version}"}},
        "components": [component(crate, licence, checksums.get(crate)) for crate, licence in licences.items()],
        "dependencies": [{"ref": "wheel", "dependsOn": [purl(crate) for crate in built]}]
        + [{"ref": purl(crate), "dependsOn": sorted(map(purl, edges[crate]))} for crate in licences],
    }
    Path(file).write_text(json.dumps(bom, indent=1) + "\n")


def lock():
    return (ROOT / "Cargo.lock").read_text()


if __name__ == "__main__":
    main(sys.argv[1])

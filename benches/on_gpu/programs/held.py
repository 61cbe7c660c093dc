"""Trains briefly, keeps its memory, and prints what NVIDIA's tools report about the GPU as JSON. In bytes:

"nvml": used, from nvmlDeviceGetMemoryInfo; "nvml_v2": used, from its second version, without "nvml_reserved";
"smi": used, from nvidia-smi; "cuda": total less free, from cudaMemGetInfo. Missing tools have no key.
"""

import ctypes
import json
import os
import shutil
import subprocess
import time

import torch
from torch import nn

model = nn.Sequential(nn.Conv2d(3, 64, 3), nn.Flatten(), nn.LazyLinear(512)).cuda()
optimizer = torch.optim.AdamW(model.parameters())
for _ in range(3):
    loss = model(torch.randn(32, 3, 32, 32, device="cuda")).square().mean()
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
held = torch.zeros(300 << 20, dtype=torch.uint8, device="cuda")
torch.cuda.synchronize()
time.sleep(2)  # memlab samples until a while after the last change of driver memory.

free, total = torch.cuda.mem_get_info()
found = {"cuda": total - free, "reserved": torch.cuda.memory_reserved()}
properties = torch.cuda.get_device_properties(0)
bus_id = f"{properties.pci_domain_id:08X}:{properties.pci_bus_id:02X}:{properties.pci_device_id:02X}.0"


class MemoryV2(ctypes.Structure):
    _fields_ = [("version", ctypes.c_uint)] + [(name, ctypes.c_ulonglong) for name in ("total", "reserved", "free", "used")]


try:
    nvml = ctypes.CDLL("libnvidia-ml.so.1")
    card = ctypes.c_void_p()
    words = (ctypes.c_ulonglong * 3)()
    if nvml.nvmlInit_v2() == 0 and nvml.nvmlDeviceGetHandleByPciBusId_v2(bus_id.encode(), ctypes.byref(card)) == 0:
        if nvml.nvmlDeviceGetMemoryInfo(card, words) == 0:
            found["nvml"] = words[2]
        memory = MemoryV2(version=ctypes.sizeof(MemoryV2) | 2 << 24)
        if nvml.nvmlDeviceGetMemoryInfo_v2(card, ctypes.byref(memory)) == 0:
            found |= {"nvml_v2": memory.used, "nvml_reserved": memory.reserved}
except (OSError, AttributeError):
    pass
if shutil.which("nvidia-smi"):
    query = ["nvidia-smi", f"--id={bus_id}", "--query-gpu=memory.used", "--format=csv,noheader,nounits"]
    smi = subprocess.run(query, capture_output=True, text=True, env={**os.environ, "LD_PRELOAD": ""}, check=False)
    if smi.stdout.strip().isdigit():
        found["smi"] = int(smi.stdout) << 20
print(json.dumps(found), flush=True)
os._exit(0)  # Exits with all memory held.

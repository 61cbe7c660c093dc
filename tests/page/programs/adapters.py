"""Adds a PEFT adapter to a paged and to a chunked model. Prints each forward's error, and the devices of the weights."""

import copy
import json

import memlab
import torch
from peft import LoraConfig, inject_adapter_in_model
from torch import nn

adapter = LoraConfig(target_modules=["0", "2"], r=4, init_lora_weights=False)


def small():
    return nn.Sequential(*(nn.Linear(64, 64) for _ in range(4))).requires_grad_(False)


def said(model):
    try:
        return str(model(torch.ones(2, 64)).device)
    except RuntimeError as error:
        return str(error)


def devices(model):
    return sorted({str(tensor.device) for tensor in model.state_dict().values()})


with torch.no_grad():
    model = memlab.page(small(), budget="min", max_layer_size=64 * 65)
    before = [said(model) for _ in range(3)]
    inject_adapter_in_model(adapter, model)
    added = said(model)
    model.memlab.refresh()
    after = [said(model) for _ in range(3)]
    kept = model.memlab.kept
    copied = copy.deepcopy(model)

    chunked = memlab.chunk(small(), max_capacity=2 * 64 * 65)
    said(chunked)
    inject_adapter_in_model(adapter, chunked)
    on_device = said(chunked)

    tied = memlab.page(small(), budget="min")
    said(tied)
    tied.append(nn.Linear(64, 64))
    tied[4].weight = tied[0].weight
    in_two_places = said(tied)
    try:
        tied.memlab.refresh()
        refused = ""
    except RuntimeError as error:
        refused = str(error)
found = {
    "before": before,
    "added": added,
    "after": after,
    "kept": kept,
    "copy": devices(copied),
    "unpaged": devices(memlab.unpage(model)),
    "chunked": on_device,
    "tied": in_two_places,
    "refused": refused,
}
print(json.dumps(found))

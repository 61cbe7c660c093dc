"""The seed's method, from the description in its README: every leaf becomes a sequence of load, leaf, unload.

Load and unload are blocking copies of pageable memory, as `Module.to` makes them.
"""

from torch import nn


class Load(nn.Module):
    def __init__(self, leaf, device):
        super().__init__()
        self.leaf, self.device = [leaf], device  # In a list, so that it does not become a child of this module.

    def forward(self, x):
        self.leaf[0].to(self.device)
        return x


class Unload(nn.Module):
    def __init__(self, leaf):
        super().__init__()
        self.leaf = [leaf]

    def forward(self, x):
        self.leaf[0].to("cpu")
        return x


def page(model, device, max_layer_size=-1):
    """Pages the model in place. Moves a module of at most `max_layer_size` parameters as one."""
    for name, child in list(model.named_children()):
        size = sum(parameter.numel() for parameter in child.parameters())
        if not list(child.children()) or size <= max_layer_size:
            setattr(model, name, nn.Sequential(Load(child, device), child, Unload(child)))
        else:
            page(child, device, max_layer_size)
    return model

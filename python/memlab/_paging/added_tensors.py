"""Parameters and buffers added to a model after it was paged or chunked, such as those of adapters."""

from __future__ import annotations

from collections.abc import Iterable

from torch import Tensor, nn

from memlab._paging.collect import tensors_of
from memlab._paging.tensor_memory import is_plain
from memlab._paging.torch_private import storage_key


class KnownTensors:
    """Parameters and buffers that a model had when it was paged."""

    def __init__(self, model: nn.Module) -> None:
        self.model = model
        self.places = {(entry.module, entry.attribute, entry.key) for _, _, entry in tensors_of(model)}

    def added(self) -> dict[str, Tensor]:
        """Returns the tensors added since, by name."""
        return {
            name: tensor
            for name, tensor, entry in tensors_of(self.model)
            if (entry.module, entry.attribute, entry.key) not in self.places
        }

    def add(self) -> None:
        """Marks the present tensors as known."""
        self.places = KnownTensors(self.model).places

    def explain(self, error: RuntimeError, what: str, cure: str) -> None:
        """Raises RuntimeError that names the added tensors, if PyTorch found tensors on two devices because of them.

        Returns otherwise. `what`: "paged", "chunked". `cure`: remedy for the user.
        """
        about_devices = "on the same device" in str(error) or "should be the same" in str(error)
        added = self.added() if about_devices else {}
        if not added:
            return
        (name, tensor), *others = added.items()
        more = f" (and {len(others)} more)" if others else ""
        raise RuntimeError(
            f"{name}{more} was added after the model was {what}, and lies on {tensor.device}, where the model does not run: "
            f"{cure}"
        ) from error


def by_storage(tensors: Iterable[Tensor]) -> Iterable[list[Tensor]]:
    """Groups the tensors over one storage in one list. Tensors that are not plain memory get a list each."""
    groups: dict[tuple[bool, int], list[Tensor]] = {}
    for tensor in tensors:
        plain = is_plain(tensor)
        key = storage_key(tensor.untyped_storage()) if plain else id(tensor)
        groups.setdefault((plain, key), []).append(tensor)
    return groups.values()

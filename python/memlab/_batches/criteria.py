"""Losses that are means over samples or targets, and the weight of a piece in them.

The loss of a batch is the sum of D(piece) / D(batch) · loss(piece). D is the number of samples, or of targets that are not
ignored, or the sum of these targets' class weights. (The plain mean of the pieces' means is wrong as soon as pieces differ
in D.)
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

from torch import Tensor, nn
from torch.nn import functional

# Means over samples, or over elements where all samples have equally many.
_OVER_SAMPLES: dict[type[nn.Module], Callable[..., Any]] = {
    nn.BCELoss: functional.binary_cross_entropy,
    nn.BCEWithLogitsLoss: functional.binary_cross_entropy_with_logits,
    nn.CTCLoss: functional.ctc_loss,
    nn.CosineEmbeddingLoss: functional.cosine_embedding_loss,
    nn.GaussianNLLLoss: functional.gaussian_nll_loss,
    nn.HingeEmbeddingLoss: functional.hinge_embedding_loss,
    nn.HuberLoss: functional.huber_loss,
    nn.KLDivLoss: functional.kl_div,
    nn.L1Loss: functional.l1_loss,
    nn.MSELoss: functional.mse_loss,
    nn.MarginRankingLoss: functional.margin_ranking_loss,
    nn.MultiLabelMarginLoss: functional.multilabel_margin_loss,
    nn.MultiLabelSoftMarginLoss: functional.multilabel_soft_margin_loss,
    nn.MultiMarginLoss: functional.multi_margin_loss,
    nn.PoissonNLLLoss: functional.poisson_nll_loss,
    nn.SmoothL1Loss: functional.smooth_l1_loss,
    nn.SoftMarginLoss: functional.soft_margin_loss,
    nn.TripletMarginLoss: functional.triplet_margin_loss,
    nn.TripletMarginWithDistanceLoss: functional.triplet_margin_with_distance_loss,
}
# Means over targets that are class numbers. Some targets may be ignored, and classes may have weights.
_OVER_TARGETS: dict[type[nn.Module], Callable[..., Any]] = {
    nn.CrossEntropyLoss: functional.cross_entropy,
    nn.NLLLoss: functional.nll_loss,
}
_FUNCTIONS = {function: kind for table in (_OVER_SAMPLES, _OVER_TARGETS) for kind, function in table.items()}
# Criteria with weights per element. Such weights may have a row for each sample, of which a piece needs only its own.
_WEIGH_ELEMENTS = (nn.BCELoss, nn.BCEWithLogitsLoss, nn.HuberLoss, nn.L1Loss, nn.MSELoss)
# The reductions that make them means.
_MEANS = {"mean", "batchmean"}
# The class number that PyTorch's cross entropy ignores by default.
_IGNORED = -100


class Mean:
    """A loss that is a mean, or a sum.

    >>> mean = Mean.of(nn.CrossEntropyLoss(ignore_index=0))
    >>> import torch
    >>> mean.weight(3, torch.tensor([1, 0, 2]))
    tensor(2)
    """

    def __init__(self, kind: type[nn.Module], criterion: Any, options: Callable[[str, Any], Any]) -> None:
        self.criterion = criterion
        self.is_sum = options("reduction", "mean") == "sum"
        self._counts_targets = kind in _OVER_TARGETS
        self._ignored: int = options("ignore_index", _IGNORED)
        self._class_weights: Tensor | None = options("weight", None)

    @staticmethod
    def of(loss_fn: Any, samples: int | None = None) -> Mean | None:
        """Describes a criterion: one of PyTorch's modules or functions, also with keywords bound to it.

        None: the criterion is not known, or has weights of samples, which belong to the whole batch (of `samples` samples,
        if given)."""
        kind, options = _described(loss_fn)
        if kind is None or options("reduction", "mean") not in {*_MEANS, "sum"}:
            return None
        weights = [options("weight", None), options("pos_weight", None)] if kind in _WEIGH_ELEMENTS else []
        if any(isinstance(one, Tensor) and _has_rows(one, samples) for one in weights):
            return None
        return Mean(kind, loss_fn, options)

    @staticmethod
    def is_weighted(loss_fn: Any) -> bool:
        """True if a criterion that accepts weights of samples has any weights."""
        kind, options = _described(loss_fn)
        return kind in _WEIGH_ELEMENTS and any(options(name, None) is not None for name in ("weight", "pos_weight"))

    def weight(self, samples: int, targets: Any) -> Tensor | int:
        """D of some samples. It is on the device of the targets, so that no copy waits for it."""
        if not self._are_counted(targets):
            return samples
        counted = targets != self._ignored
        if self._class_weights is None:
            return counted.sum()
        weights = self._class_weights.to(targets.device)
        return (weights[targets.where(counted, 0)] * counted).sum()

    def _are_counted(self, targets: Any) -> bool:
        """True for class numbers, False for probabilities."""
        return self._counts_targets and isinstance(targets, Tensor) and not targets.is_floating_point()

    def countable(self, targets: Any) -> Any:
        """Targets of a piece for its loss. If all are ignored, PyTorch's mean is 0 / 0, so one target is made to count. The
        weight of such a piece is 0."""
        if self.is_sum or not self._are_counted(targets):
            return targets
        counts = 0 if self._class_weights is None else self._class_weights.argmax().to(targets)
        first = targets.flatten()[:1].clone()
        nothing = self.weight(0, targets) == 0
        replaced = targets.clone()
        replaced.view(-1)[:1] = first.where(~nothing, counts)
        return replaced

    def __call__(self, outputs: Any, targets: Any) -> Tensor:
        """The loss of a piece. Tuples and lists are passed entry by entry, to criteria of more than two arguments."""
        several = isinstance(outputs, (tuple, list)) or isinstance(targets, (tuple, list))
        if not several:
            return self.criterion(outputs, targets)  # type: ignore[no-any-return]
        outputs = outputs if isinstance(outputs, (tuple, list)) else (outputs,)
        targets = () if targets is None else targets if isinstance(targets, (tuple, list)) else (targets,)
        return self.criterion(*outputs, *targets)  # type: ignore[no-any-return]


def _has_rows(weights: Tensor, samples: int | None) -> bool:
    """True if the weights have a row for each sample. (Weights of one dimension may be of classes.)"""
    return weights.dim() > 0 and weights.shape[0] > 1 and (weights.dim() > 1 or weights.shape[0] == samples)


def _described(loss_fn: Any) -> tuple[type[nn.Module] | None, Callable[[str, Any], Any]]:
    """The known class of a criterion, or None, and a lookup of its options."""
    if isinstance(loss_fn, nn.Module):
        known = (kind for kind in (*_OVER_SAMPLES, *_OVER_TARGETS) if isinstance(loss_fn, kind))
        kind = next((kind for kind in known if type(loss_fn).forward is kind.forward), None)
        return kind, functools.partial(_attribute, loss_fn)
    keywords: dict[str, Any] = {}
    if isinstance(loss_fn, functools.partial) and not loss_fn.args:
        keywords, loss_fn = loss_fn.keywords, loss_fn.func
    # `size_average` and `reduce` are deprecated; criteria that use them count as unknown.
    is_known = not {"size_average", "reduce"} & keywords.keys()
    kind = _FUNCTIONS.get(loss_fn) if is_known and callable(loss_fn) and getattr(loss_fn, "__hash__", None) else None
    return kind, keywords.get


def _attribute(module: nn.Module, name: str, default: Any) -> Any:
    return getattr(module, name, default)

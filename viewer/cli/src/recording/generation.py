"""Ends `generate()` of transformers after its most tokens on a simulated card, where comparisons are never true.

No sequence ends earlier there, so the recording contains the longest one.

cuDNN plans its attention for each length of the key-value cache, which takes up to a second. After the first tokens, other
kernels of PyTorch therefore take its place. For one token, they need as much memory up to some KiB.
"""

import functools

# The prompt's and a single one.
TOKENS_WITH_CUDNN = 2


def patch(generation):
    """Patches `transformers.generation.utils` after its import."""
    criteria, mixin = generation.StoppingCriteriaList, generation.GenerationMixin
    stops, continues = criteria.__call__, getattr(mixin, "_has_unfinished_sequences", None)
    if continues is None:
        return  # Before transformers 4.39.
    attention = generation.torch.backends.cuda
    tokens, is_over, is_without_cudnn = 0, False, False

    @functools.wraps(stops)
    def stops_(self, input_ids, *arguments, **options):
        nonlocal tokens, is_over
        tokens += 1
        most = self.max_length
        is_over = is_over or (most is not None and input_ids.shape[-1] >= most)
        return stops(self, input_ids, *arguments, **options)

    @functools.wraps(continues)
    def continues_(self, *arguments, **options):
        nonlocal tokens, is_over, is_without_cudnn
        if is_over:
            if is_without_cudnn:
                attention.enable_cudnn_sdp(True)
            tokens, is_over, is_without_cudnn = 0, False, False
            return False
        if tokens >= TOKENS_WITH_CUDNN and not is_without_cudnn:
            is_without_cudnn = getattr(attention, "cudnn_sdp_enabled", bool)()  # PyTorch 2.4 and later.
            if is_without_cudnn:
                attention.enable_cudnn_sdp(False)
        return continues(self, *arguments, **options)

    criteria.__call__, mixin._has_unfinished_sequences = stops_, continues_

"""Ends `generate()` of transformers after its most tokens on a simulated card, where comparisons are never true.

No sequence ends earlier there, so the recording contains the longest one.
"""

import functools


def patch(generation):
    """Patches `transformers.generation.utils` after its import."""
    criteria, mixin = generation.StoppingCriteriaList, generation.GenerationMixin
    stops, continues = criteria.__call__, getattr(mixin, "_has_unfinished_sequences", None)
    if continues is None:
        return  # Before transformers 4.39.

    @functools.wraps(stops)
    def stops_(self, input_ids, *arguments, **options):
        most = self.max_length
        if most is not None and input_ids.shape[-1] >= most:
            over.append(True)
        return stops(self, input_ids, *arguments, **options)

    @functools.wraps(continues)
    def continues_(self, *arguments, **options):
        if over:
            over.clear()
            return False
        return continues(self, *arguments, **options)

    over = []
    criteria.__call__, mixin._has_unfinished_sequences = stops_, continues_

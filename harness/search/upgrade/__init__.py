"""Two releases, trees or settings of an engine under the same traffic: what changes, by how much.

Comparisons are pure functions from the runs of both sides to :class:`Difference` records; the
session makes the runs. ``starts``, ``failures``, ``answers``, ``protocol`` and ``catalogue`` have
one function each, ``compare(old, new, …) -> list[Difference]``; ``speed`` has the statistics.
"""

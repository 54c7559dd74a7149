"""Two releases, trees or settings of an engine under the same traffic: what changes, by
how much.

Comparisons are pure functions from the runs of both sides to :class:`Difference`
records; the session makes the runs. ``starts``, ``failures`` and ``catalogue`` have one
function each, ``compare(old, new, …) -> list[Difference]``; what answers say and how is
compared by ``oracle.sides``.
Times and memory are measured in blocks (``runs.play.measuring``, ordered by
``campaign.measure.MeasureRun``); the statistics are in ``runs.changes``, which a
bisection uses too."""

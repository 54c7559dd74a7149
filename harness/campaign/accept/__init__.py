"""What only this machine can show, in order of value, within a budget: one summary.

``parts`` is the list; each part is a few child processes, each judged by what it left
on disk (``judging``, ``running``); ``session`` is the policy, which keeps what an
earlier command ended."""

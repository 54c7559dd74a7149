"""What only this machine can show, in order of value, within a budget: one summary.

``parts`` is the list; each part is a few child processes (``steps``), each judged by what it left
on disk; ``session`` runs them and goes on where an earlier command ended.
"""

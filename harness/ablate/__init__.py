"""Which setting is really the cause: flip factors of a failing run, alone and together.

``model`` is what is written down, ``states`` judges runs and cells, ``ddmin`` and ``search`` decide
what to flip next and what follows from it (pure functions), ``key`` and ``store`` keep cells, and
``session`` makes the runs.
"""

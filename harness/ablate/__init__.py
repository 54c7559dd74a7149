"""Which setting is really the cause: flip factors of a failing run, alone and together.

``states`` judges runs and cells, ``ddmin`` and ``search`` decide what to flip next and what follows
from it (pure functions), ``cells`` and ``store`` know what runs show and keep them, and ``session``
is the policy of a campaign that makes them.
"""

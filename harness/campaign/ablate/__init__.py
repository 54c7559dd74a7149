"""Which setting is really the cause: flip factors of a failing run, alone and together.

``search`` judges runs and decides what to flip next and what follows (pure functions),
``cells`` knows what runs show and keeps them, and ``session`` is the policy of a
campaign that makes them."""

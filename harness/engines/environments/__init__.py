"""Isolated virtual environments: one engine at one release, resolved as on that
release's day.

``ensure(vllm_spec("0.23.0"))`` returns an ``Environment``. They live below
``cache_root()`` and are made by uv. In reading order: spec.py (what is asked for),
build.py (whole or not at all), recipe.py (the steps), releases.py (a release, its day,
its requirements), resolving.py (one question to uv), index.py (what uv does not
answer), store.py (what is on disk), wheelhouse/ (without a network)."""

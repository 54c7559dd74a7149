"""Isolated virtual environments: one engine at one release, resolved as on that release's day.

``ensure(vllm_spec("0.23.0"))`` gives an ``Environment``. They live below ``cache_root()`` and are
made by uv; see recipe.py for the steps, releases.py for the dates, requirements.py for what is
changed in an engine's requirements.
"""

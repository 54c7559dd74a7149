"""minivllm: a small engine that shows what multimodal prefill must keep, and how it
breaks.

Read in this order: sequence, caches, scheduler, batch (all plain Python), model,
runner, images, engine, server. ``contract`` holds the invariants, ``config`` the
switches that break them."""

"""Commands beside the flow: ``collide``, ``catalogue``, ``check``."""

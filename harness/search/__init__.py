"""From an unknown fault to three requests: ``oracle``, ``replay``, ``fuzz``."""

"""mmrepro: reproduce and diagnose failures of multimodal LLM inference engines."""

__version__ = "0.1.0"

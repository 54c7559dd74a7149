"""An in-order asynchronous device on the CPU. See ``standin.py``."""

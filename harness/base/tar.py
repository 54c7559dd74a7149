"""The standard library's tarfile, as Python 3.11.4 has it: with filters of what is
unpacked.

Debian 12 has Python 3.11.2. There it is a copy of a later Python's, from PyPI.
"""

import tarfile

if not hasattr(tarfile, "data_filter"):
    from backports import tarfile  # type: ignore[attr-defined, no-redef]

__all__ = ["tarfile"]

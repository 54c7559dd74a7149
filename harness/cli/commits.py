"""Where the wheels of single commits are, for the commands that take ``--index``."""

from __future__ import annotations

import os


def use_index(address: str) -> None:
    """Hand the address on to what is started from here: it may hold a password, so that it stands
    in no file and on no child's command line.

    Raises:
        UsageError: there is none.
    """
    from mmrepro.environments.commits import INDEX_VARIABLE, check_index

    address = address or os.environ.get(INDEX_VARIABLE, "")
    check_index(address)
    os.environ[INDEX_VARIABLE] = address

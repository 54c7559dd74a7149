"""Where the wheels of single commits are, for the commands that take ``--index``."""

import os


def use_index(address: str, commit: str = "any", date: str = "") -> None:
    """Hand the address on to what is started from here: it may hold a password, so that
    it stands in no file and on no child's command line.

    Raises:
        UsageError: it is none; or there is no ``commit`` to look for.
    """
    from mmrepro.base.errors import UsageError
    from mmrepro.engines.environments import INDEX_VARIABLE, check_index

    if not commit:
        if date:
            raise UsageError("--commit-date needs --commit.")
        return  # the variable is set, and nothing is asked of it
    if address:
        check_index(address)
        os.environ[INDEX_VARIABLE] = address

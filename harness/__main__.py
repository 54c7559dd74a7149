import os
import sys

# ``python -m`` puts the current folder first. It may be a stranger's: nothing is
# imported from it.
if not sys.flags.safe_path and sys.path and sys.path[0] in ("", os.getcwd()):  # noqa: PTH109
    del sys.path[0]

from mmrepro.cli import program

program()

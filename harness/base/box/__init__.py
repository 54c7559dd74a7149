"""The box: where code, commands and options of strangers run.

A box has its own network with nothing but a loopback, its own processes, its own
temporary folders of bounded size, and of this machine's files the system's, an engine's
environment and a model, all of them read-only. Nothing in it holds a right. bubblewrap
makes it; ``keeper.py`` watches over it from outside, ``inside.py`` prepares and tests
it from within. docs/box.md tells what is promised.

Where no box can be made nothing runs: :class:`NoBox`.
"""

from mmrepro.base.box.box import (
    ISOLATION as ISOLATION,
    Box as Box,
    BoxEnded as BoxEnded,
    NoBox as NoBox,
    require_box as require_box,
)
from mmrepro.base.box.order import (
    GIB as GIB,
    TEMPORARY as TEMPORARY,
    WORK as WORK,
    BoxOrder as BoxOrder,
    Leads as Leads,
    Limits as Limits,
)

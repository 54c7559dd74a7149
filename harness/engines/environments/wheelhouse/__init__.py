"""An engine's environment, and mmrepro itself, carried to a machine without a network.

``make`` resolves for that machine, fetches, and packs into parts of a bounded size;
``install.py`` in each part puts mmrepro onto the machine; ``ensure(spec,
wheelhouse=…)`` builds from it there."""

from mmrepro.engines.environments.wheelhouse.make import (
    Made as Made,
    check as check,
    make as make,
)
from mmrepro.engines.environments.wheelhouse.model import make_target as make_target

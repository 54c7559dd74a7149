"""Commands beside the flow: ``collide``, ``catalogue``, ``check``."""

from typing import TYPE_CHECKING

from mmrepro.base.door import lazily

if TYPE_CHECKING:
    from mmrepro.tools.check import HostReport as HostReport, examine as examine_host
else:
    __getattr__ = lazily(__name__)

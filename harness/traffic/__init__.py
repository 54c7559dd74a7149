"""What is sent to an engine: the HTTP client, a scenario's hands, pictures."""

from typing import TYPE_CHECKING

from mmrepro.base.door import lazily

if TYPE_CHECKING:
    from mmrepro.traffic.client import Traffic as Traffic
else:
    __getattr__ = lazily(__name__)

"""What is sent to an engine: the HTTP client, a scenario's hands, pictures."""

from typing import TYPE_CHECKING

from mmrepro.base.door import lazily

if TYPE_CHECKING:
    from mmrepro.traffic.client import Traffic as Traffic
    from mmrepro.traffic.drive import Drive as Drive
    from mmrepro.traffic.pictures import (
        Picture as Picture,
        clip as clip,
        noise as noise,
        read_picture as read_picture,
        tiles as tiles,
    )
    from mmrepro.traffic.reading import (
        COMPLETIONS as COMPLETIONS,
        ERROR_LIMIT as ERROR_LIMIT,
        GENERATE as GENERATE,
        MAX_LIKELIEST as MAX_LIKELIEST,
        MAX_LOGPROBS as MAX_LOGPROBS,
        TEXT_LIMIT as TEXT_LIMIT,
        RequestWatch as RequestWatch,
    )
else:
    __getattr__ = lazily(__name__)

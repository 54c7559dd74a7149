"""Stand-in: the question for a device's free memory is answered from a setting.

``MMREPRO_DEVICE_FREE_BYTES`` is what ``torch.cuda.mem_get_info`` says is free,
``MMREPRO_DEVICE_TOTAL_BYTES`` what there is in all. What the engine makes of it is its
own."""

import os
from typing import Any

from mmrepro_boot import after_import

_FREE = int(os.environ["MMREPRO_DEVICE_FREE_BYTES"])
_TOTAL = int(os.environ["MMREPRO_DEVICE_TOTAL_BYTES"])


def answer(torch: Any) -> None:
    torch.cuda.mem_get_info = lambda *args, **kwargs: (_FREE, _TOTAL)


after_import("torch", answer)

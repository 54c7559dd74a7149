"""Reading what a server of this machine answers, of which nothing is trusted: no
redirect is followed, and it takes no longer and no more than is allowed."""

from __future__ import annotations

import contextlib
import socket
import threading
from http.client import HTTPConnection, HTTPException
from typing import Final
from urllib.parse import urlsplit

ANSWER_S: Final = 2.0


def get(url: str, most: int = 0) -> tuple[int, bytes]:
    """The status of the answer to a GET, and the first ``most`` bytes of its body.

    Raises:
        OSError: it is none, or not whole within two seconds.
    """
    parts = urlsplit(url)
    connection = HTTPConnection(parts.hostname or "", parts.port, timeout=ANSWER_S)
    late = threading.Event()
    try:
        connection.connect()
        # A socket's own timeout begins again with each byte.
        over = threading.Timer(ANSWER_S, _end, (connection.sock, late))
        over.daemon = True
        over.start()
        try:
            connection.request(
                "GET", parts.path or "/", headers={"Connection": "close"}
            )
            with connection.getresponse() as answer:
                body = answer.read(most)
        finally:
            over.cancel()
    except (HTTPException, ValueError) as error:
        raise OSError(f"what {url} answers is no HTTP") from error
    finally:
        connection.close()
    # What was cut off within its headers looks like a whole answer.
    if late.is_set():
        raise TimeoutError(f"{url} takes too long")
    return answer.status, body


def _end(link: socket.socket, late: threading.Event) -> None:
    late.set()
    with contextlib.suppress(OSError):
        link.shutdown(socket.SHUT_RDWR)

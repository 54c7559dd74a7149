"""mitmdump between clients and a server, exactly as docs/capture.md has it."""

import re
import signal
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from live import wait_for
from live_server import answers
from mmrepro.engines.supervise import free_port

RECIPE = Path(__file__).parents[2] / "docs" / "capture.md"
HAR_NAME = "night.har"


def recipe() -> tuple[str, list[str]]:
    """The script of docs/capture.md, and the options of its command behind
    ``mitmdump``."""
    text = RECIPE.read_text()
    script = re.search(r"```python\n(.*?)```", text, re.DOTALL)
    command = re.search(
        r"^uvx --from '(mitmproxy[^']*)' mitmdump (.*?)\n```", text, re.M | re.S
    )
    assert script, "the page has the script"
    assert command, "the page has the command"
    return script[1], [command[1], *command[2].replace("\\\n", " ").split()]


@contextmanager
def recording(upstream: str, folder: Path) -> Iterator[str]:
    """The URL that clients talk to; ``HAR_NAME`` lies in ``folder`` afterwards."""
    script, (package, *options) = recipe()
    (folder / "streams.py").write_text(script)
    port = free_port()
    told = {"reverse:http://127.0.0.1:8000": f"reverse:{upstream}", "8001": str(port)}
    shown = [told.get(option, option) for option in options]
    log = folder / "mitmdump.log"
    with log.open("w") as output:
        proxy = subprocess.Popen(
            [
                "uvx",
                "--from",
                package,
                "mitmdump",
                "--listen-host",
                "127.0.0.1",
                *shown,
            ],
            cwd=folder,
            stdout=output,
            stderr=subprocess.STDOUT,
        )
    url = f"http://127.0.0.1:{port}"
    try:
        wait_for(lambda: answers(f"{url}/health"), 120, "the proxy")
        yield url
    finally:
        proxy.send_signal(signal.SIGINT)
        proxy.wait(60)
    assert (folder / HAR_NAME).is_file(), log.read_text()

"""Write a HAR of 2 GiB, to be read by hand: ``many`` pictures, or a single body
(``one``).

python tests/unit/replay/large_har.py many large.har
python tests/unit/replay/large_har.py read large.har
"""

import base64
import json
import os
import resource
import sys
import time
from pathlib import Path

from made_up_har import SERVER, chat, entry, noise, shown
from mmrepro.traffic.capture.read import read

SIZE = 2 << 30


def many(file: Path) -> None:
    """Each request with a picture of 700 kB of its own, each answer of 400 kB."""
    with file.open("w") as out:
        out.write('{"log": {"creator": {"name": "mitmproxy"}, "entries": [\n')
        number = 0
        while out.tell() < SIZE:
            picture = noise("", number, (56, 56)).png + os.urandom(700_000)
            url = f"data:image/png;base64,{base64.b64encode(picture).decode()}"
            one = entry(chat([shown(url)]), at=number * 0.3, took=0.7)
            one["response"]["content"]["text"] = "text that nobody needs\n" * 17_000
            out.write((",\n" if number else "") + json.dumps(one, indent=4))
            number += 1
        out.write("]}}")


def one(file: Path) -> None:
    before, after = json.dumps(entry(chat("X"))).split("X")
    with file.open("w") as out:
        out.write(f'{{"log": {{"entries": [{before}')
        while out.tell() < SIZE:
            out.write("just one text, and no end of it; " * 32_000)
        out.write(f"{after}, {json.dumps(entry(chat('short'), at=1))}]}}}}")


def timed(file: Path) -> None:
    begun = time.monotonic()
    found = read(file, SERVER)
    most = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss >> 10
    print(
        f"{len(found.case.operations)} requests, {len(found.contents)} pictures",
        end=", ",
    )
    print(
        f"{time.monotonic() - begun:.1f} s, {most} MiB; left out: "
        f"{found.case.origin.left_out}"
    )


if __name__ == "__main__":
    {"many": many, "one": one, "read": timed}[sys.argv[1]](Path(sys.argv[2]))

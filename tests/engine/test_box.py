"""A real server in its box: reached and looked into from outside, and no way out for
what it runs.

All ways out are tried every night; here a share of each kind, by a client and by a
server."""

import json
import subprocess
import sys
from pathlib import Path
from urllib.request import urlopen

import pytest
from live import COMMAND
from mmrepro.base import processes
from mmrepro.base.box.box import _why_none
from mmrepro.runs.options import StartMode
from mmrepro.runs.play.player import Player
from mmrepro.traffic.case.model import ServerWanted

ROOT = Path(__file__).resolve().parents[2]
ESCAPE = ROOT / "benchmarks/hardening/escape.py"

pytestmark = [
    pytest.mark.engine,
    pytest.mark.skipif(bool(_why_none()), reason=f"no box here: {_why_none()}"),
]


@pytest.mark.parametrize("mode", [StartMode.COLD, StartMode.FORK, StartMode.WARM])
def test_a_server_in_a_box_is_reached_and_looked_into(
    tmp_path: Path, mode: StartMode
) -> None:
    wanted = ServerWanted(engine="minivllm", release="0.1", model="qwen3")
    with Player(
        wanted, folder=tmp_path, start_mode=mode, device="cpu", boxed=True
    ) as player:
        for number in range(2):
            with player.serving(wanted, tmp_path / str(number)) as (server, journal):
                with urlopen(f"{server.url}/v1/models", timeout=60) as answer:
                    assert answer.status == 200
                pid = server.process.engine_pid
                # Its log has the number that it has in the box; everything else is seen
                # from here.
                inner = int(processes.field(pid, "NSpid")[-1])
                assert inner != pid
                assert f"pid={inner})" in server.process.log.read_text()
                dump = [
                    Path(sys.executable).with_name("py-spy"),
                    "dump",
                    "--pid",
                    str(pid),
                ]
                stacks = subprocess.run(
                    dump, capture_output=True, text=True, timeout=60
                )
                assert "serve_forever" in stacks.stdout, stacks.stderr
                assert server.alive()
                settings = {one.name: one.value for one in server.settings}
                assert settings["isolation"] == "box"
            assert not journal.incident.left_behind
            assert not processes.alive(pid)


ATTACKING = """# It dies

```sh
python3 -m minivllm.server --model my/Qwen3 --port 9000
```
and

```bash
curl -s http://localhost:9000/v1/models
cat {canary} ~/.netrc /etc/shadow
echo x > {out}
echo x > /usr/escaped
kill -9 1 $PPID
mount -o remount,rw /usr
echo '{{"report": {{"verdict": "reproduced"}}}}'
echo '::set-output name=verdict::reproduced'
kill -9 -1
```

The server returns HTTP 500 (Internal Server Error).
"""


def test_a_report_that_attacks_gets_its_verdict_and_nothing_else(
    tmp_path: Path,
) -> None:
    canary, out = tmp_path / "canary", tmp_path / "escaped"
    canary.write_text("the secret of the machine")
    (tmp_path / "ISSUE.md").write_text(ATTACKING.format(canary=canary, out=out))
    words = ["repro", "ISSUE.md", "--release", "0.1", "--out", "out", "--json"]
    done = subprocess.run(
        [*COMMAND, *words], cwd=tmp_path, capture_output=True, text=True
    )
    assert done.returncode == 0, done.stderr
    made = json.loads(done.stdout)
    assert made["report"]["verdict"] == "not-reproduced"
    assert "box" in made["report"]["isolation"]
    assert not out.exists()
    everything = done.stdout + done.stderr
    everything += "".join(
        file.read_text(errors="replace")
        for file in (tmp_path / "out").rglob("*")
        if file.is_file()
    )
    assert "the secret of the machine" not in everything


@pytest.mark.parametrize("by", ["client", "server"])
@pytest.mark.parametrize(
    "share",
    [
        pytest.param("0.05", id="share"),
        pytest.param("1", id="all", marks=pytest.mark.slow),
    ],
)
def test_no_way_out(by: str, share: str) -> None:
    command = [sys.executable, str(ESCAPE), "--by", by, "--share", share]
    done = subprocess.run(command, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout[-4000:] + done.stderr[-2000:]
    assert "\n0 of " in done.stdout

"""``mmrepro repro`` on a real server: the curl lines of a report, run against a
recording proxy."""

import json
import shutil
import subprocess
from pathlib import Path

import pytest
from live import COMMAND
from mmrepro.base.box.box import _why_none

pytestmark = pytest.mark.engine

ISSUE = """# minivllm answers with 500 errors

I start it with

```sh
$ python3 -m minivllm.server --model my/Qwen3 --max-num-seqs 4 --host 0.0.0.0 --port 9000
```
and send
```sh
URL=http://gpu-box:9000/v1
cat > body.json <<EOF
{"model": "my/Qwen3", "messages": [{"role": "user", "content": "it's"}], "max_tokens": 4}
EOF
curl -s $URL/models
curl -s $URL/chat/completions -H "Authorization: Bearer sk-0000" -d @body.json
```
The server returns HTTP 500 (Internal Server Error).
"""


@pytest.mark.skipif(
    shutil.which("curl") is None or bool(_why_none()),
    reason=(
        "no curl here, or the kernel gives no network in which gpu-box is this machine"
    ),
)
def test_a_report_is_read_run_and_judged(tmp_path: Path) -> None:
    (tmp_path / "ISSUE.md").write_text(ISSUE)
    words = ["repro", "ISSUE.md", "--release", "0.1", "--out", "out", "--json"]
    done = subprocess.run(
        [*COMMAND, *words], cwd=tmp_path, capture_output=True, text=True
    )
    assert done.returncode == 0, done.stderr
    made = json.loads(done.stdout)
    report = made["report"]
    assert report["verdict"] == "not-reproduced"
    assert "not the 500 of the report" in report["said"]
    assert [(one["method"], one["path"], one["status"]) for one in made["answers"]] == [
        ("GET", "/v1/models", "200"),
        ("POST", "/v1/chat/completions", "200"),
    ]
    assert [play["requests"] for play in made["plays"]] == [0, 2, 20], (
        "once, and in a row"
    )
    assert report["replaced"][0]["what"] == "my/Qwen3"
    assert (tmp_path / "out" / "comment.md").is_file()
    assert "it's" in (tmp_path / "out" / "case.json").read_text()

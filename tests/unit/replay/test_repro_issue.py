"""Bug reports as GitHub shows them."""

from __future__ import annotations

import json
import shlex

import pytest
from mmrepro.failure.documents.replay import FindingClass
from mmrepro.search.repro.issue import read_issue
from mmrepro.search.repro.server_command import parse

FORM = """# [Bug]: priority & n>1 crashes engine

### Your current environment

<details>
<summary>The output of <code>python collect_env.py</code></summary>

```text
{environment}
```

</details>

### How would you like to use vllm

{more}

### 🐛 Describe the bug

Start it:
```bash
{server}
```

and then
```{kind}
{client}
```

{told}

### Before submitting a new issue...

- [x] Make sure you already searched for relevant issues
"""
PYTHON = """from openai import OpenAI
client = OpenAI(base_url="http://localhost:8000/v1", api_key="x")
client.completions.create(model="m", prompt="hi", n=2)"""
CURL = """curl http://localhost:8000/v1/completions -H "Content-Type: application/json" \\
  -d '{
    "model": "m",
    "prompt": "it'\\''s"
  }'"""


def form(**more: str) -> str:
    told = {
        "environment": "vLLM Version                 : 0.11.2\nPyTorch version: 2.9.0",
        "server": "vllm serve Qwen/Qwen3-0.6B --scheduling-policy=priority",
        "kind": "python",
        "client": PYTHON,
        "told": "EngineCore encountered a fatal error.\n\nTypeError: '<' not supported",
        "more": "I want to run inference.",
    }
    return FORM.format(**{**told, **more})


def test_a_form_is_read_whole() -> None:
    issue = read_issue(form())
    assert issue.server == "vllm serve Qwen/Qwen3-0.6B --scheduling-policy=priority"
    assert (issue.client_kind, issue.client) == ("python", PYTHON)
    assert (issue.engine, issue.release) == ("vllm", "0.11.2")
    assert FindingClass.DEATH in issue.claim.classes
    assert issue.claim.exceptions == ["TypeError"]
    assert issue.title.startswith("[Bug]: priority")


@pytest.mark.parametrize("ending", ["\n", "\r\n"])
def test_curl_lines_stay_as_they_are(ending: str) -> None:
    issue = read_issue(form(kind="shell", client=CURL).replace("\n", ending))
    assert issue.client_kind == "shell"
    words = shlex.split(issue.client.replace("\\\n", " "))
    assert json.loads(words[-1]) == {"model": "m", "prompt": "it's"}


def test_server_client_and_output_in_one_block() -> None:
    block = (
        "$ export MODEL=m/m\n$ vllm serve $MODEL --max-num-seqs 2\nINFO: ready\n"
        "$ for i in 1 2; do\n>   curl -s localhost:8000/v1/models\n> done\n"
        '{"object": "list"}\n'
    )
    issue = read_issue(form(server=block, client="no", kind="text"))
    assert "vllm serve $MODEL" in issue.server
    assert issue.server.startswith("export MODEL=m/m")
    assert "for i in 1 2; do\ncurl -s localhost:8000/v1/models\ndone" in issue.client
    assert "object" not in issue.client
    assert "vllm serve" not in issue.client


def test_heredocs_and_loops_without_a_prompt() -> None:
    client = (
        'cat > body.json <<EOF\n{"prompt": "x"}\nEOF\nfor i in 1 2; do\n  sleep 1\n'
        '  curl localhost:8000/v1/completions -d @body.json\ndone\n{"choices": []}'
    )
    issue = read_issue(form(kind="bash", client=client))
    assert issue.client.strip() == client.rpartition("\n")[0]


URL = "http://localhost:8000/v1/completions"
PY = f"import requests\nrequests.post('{URL}', json={{}})"


@pytest.mark.parametrize(
    "client",
    [
        f'ask() {{\n  curl -s {URL} -d "$1"\n}}\nask \'{{"a":\n 1}}\'\nask \'{{"b": 2}}\'',
        f'function ask {{ curl -s {URL} -d "$1"; }}\nask x',
        f"python3 - <<'EOF'\n{PY}\nprint(\"it's\")\nEOF",
        f"cat > client.py <<'EOF'\n{PY}\nEOF\npython client.py",
        f"python -c \"import requests; requests.post('{URL}', json={{}})\"",
        f"# it's a comment\ntimeout 10 curl {URL} # isn't\nfor i in 1 2; do\n  curl {URL} &\ndone",
        f"if curl -sf {URL}; then\n  date\nelse\n  exit 1\nfi\nwget -qO- --post-data='{{}}' {URL}",
        f"seq 4 | xargs -I{{}} curl {URL} -d @- <<<'{{}}'",
        f"ID=$(curl -s {URL})\nprintf '%s' \"$ID\"",
    ],
)
def test_a_shells_own_structure_stays_and_its_output_does_not(client: str) -> None:
    output = (
        "\nHTTP/1.1 200 OK\nfor more information see the log\nif you like\nTraceback (it's one):"
    )
    assert read_issue(form(kind="bash", client=client + output)).client.strip() == client


def test_commands_and_clients_without_a_fence() -> None:
    text = "vllm serve dies\n\nlmdeploy serve api_server m/m \\\n  --tp 1\n\nThen:\n\n" + CURL
    issue = read_issue(f"# [Bug]: it dies\n\n{text}\n\nif you like")
    assert parse(issue.server).model == "m/m"
    assert (issue.client_kind, issue.client.strip()) == ("shell", CURL)


@pytest.mark.parametrize(
    "line",
    [
        "from lmdeploy.serve.openai.api_client import APIClient",
        "import json, requests",
        "import os, httpx as h",
        "sgl.set_default_backend(sgl.RuntimeEndpoint('http://localhost:30000'))",
    ],
)
def test_what_calls_a_server_is_a_client(line: str) -> None:
    assert read_issue(form(client=f"!pip install x\n{line}")).client == line


@pytest.mark.parametrize(
    "script",
    [
        "import subprocess, requests\nsubprocess.Popen(['vllm', 'serve', 'm/m', '--seed', '1'])",
        "import sys, requests\nM = 'm/m'\nrun([sys.executable, '-m', "
        "'vllm.entrypoints.openai.api_server', '--model', M, '--seed', str(1)])",
        "import requests\nM = 'm/m'\nrun(\n    f'vllm serve {M} --seed 1'\n)",
    ],
)
def test_a_script_that_starts_its_server(script: str) -> None:
    issue = read_issue(f"```python\n{script}\n```")
    assert (issue.client_kind, issue.client) == ("python", script)
    asked = parse(issue.server)
    assert (asked.engine, asked.model, asked.options) == ("vllm", "m/m", [("--seed", ["1"])])


@pytest.mark.parametrize(
    ("text", "engine", "release"),
    [
        ("docker run vllm/vllm-openai:v0.12.0 --model m", "vllm", "0.12.0"),
        (
            "Tested with SGLang 0.5.20\n`python -m sglang.launch_server --model-path m`",
            "sglang",
            "0.5.20",
        ),
        (
            "sglang: 0.5.6.post2\n`python -m sglang.launch_server --model-path m`",
            "sglang",
            "0.5.6.post2",
        ),
        ("lmdeploy==0.6.4\n`lmdeploy serve api_server m`", "lmdeploy", "0.6.4"),
        ("vLLM API server version 0.23.0\n`vllm serve m`", "vllm", "0.23.0"),
        ("pip install vllm==0.9.1", "vllm", "0.9.1"),
        ("`vllm serve m`", "vllm", ""),
        ("nothing", "", ""),
    ],
)
def test_engine_and_release(text: str, engine: str, release: str) -> None:
    fenced = f"```\n{text}\n```" if text.startswith("docker") else text
    issue = read_issue(fenced)
    assert (issue.engine, issue.release) == (engine, release)


def test_a_bodys_json_is_a_client() -> None:
    body = '{"model": "m", "messages": [{"role": "user", "content": "x"}]}'
    issue = read_issue(form(kind="json", client=body))
    assert (issue.client_kind, issue.client) == ("json", body)
    answer = read_issue(form(kind="json", client='{"choices": [], "prompt": ""}'))
    assert answer.client == ""


def test_an_engine_in_the_clients_own_process_is_no_client() -> None:
    issue = read_issue(form(client="from vllm import LLM\nLLM(model='m').generate('x')"))
    assert (issue.client, issue.offline) == ("", True)


def test_of_several_the_first_is_taken_and_the_others_are_told() -> None:
    more = f"```python\n{PYTHON}\n```\n```bash\nvllm serve other/model\n```"
    issue = read_issue(form(told=more))
    assert "Qwen" in issue.server
    assert len(issue.notes) == 2


def test_what_a_reporter_wishes_for_is_not_what_it_saw() -> None:
    told = "It results in an HTTP 500 response. However, it should return HTTP 400."
    assert read_issue(form(told=told)).claim.status == 500

"""Bug reports as GitHub shows them."""

from __future__ import annotations

import json
import shlex
import time

import pytest
from mmrepro.base.records import FindingClass
from mmrepro.search.repro import issue
from mmrepro.search.repro.issue import Issue, read_issue
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
        (
            f'ask() {{\n  curl -s {URL} -d "$1"\n}}\nask \'{{"a":\n 1}}\'\nask '
            f"'{{\"b\": 2}}'"
        ),
        f'function ask {{ curl -s {URL} -d "$1"; }}\nask x',
        f"python3 - <<'EOF'\n{PY}\nprint(\"it's\")\nEOF",
        f"cat > client.py <<'EOF'\n{PY}\nEOF\npython client.py",
        f"python -c \"import requests; requests.post('{URL}', json={{}})\"",
        (
            f"# it's a comment\ntimeout 10 curl {URL} # isn't\nfor i in 1 2; do\n  "
            f"curl {URL} &\ndone"
        ),
        (
            f"if curl -sf {URL}; then\n  date\nelse\n  exit 1\nfi\nwget -qO- "
            f"--post-data='{{}}' {URL}"
        ),
        f"seq 4 | xargs -I{{}} curl {URL} -d @- <<<'{{}}'",
        f"ID=$(curl -s {URL})\nprintf '%s' \"$ID\"",
    ],
)
def test_a_shells_own_structure_stays_and_its_output_does_not(client: str) -> None:
    output = (
        "\nHTTP/1.1 200 OK\nfor more information see the log\nif you like\n"
        "Traceback (it's one):"
    )
    assert (
        read_issue(form(kind="bash", client=client + output)).client.strip() == client
    )


def test_commands_and_clients_without_a_fence() -> None:
    text = (
        "vllm serve dies\n\nlmdeploy serve api_server m/m \\\n  --tp 1\n\nThen:\n\n"
        + CURL
    )
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
        (
            "import subprocess, requests\nsubprocess.Popen(['vllm', 'serve', 'm/m', "
            "'--seed', '1'])"
        ),
        "import sys, requests\nM = 'm/m'\nrun([sys.executable, '-m', "
        "'vllm.entrypoints.openai.api_server', '--model', M, '--seed', str(1)])",
        "import requests\nM = 'm/m'\nrun(\n    f'vllm serve {M} --seed 1'\n)",
    ],
)
def test_a_script_that_starts_its_server(script: str) -> None:
    issue = read_issue(f"```python\n{script}\n```")
    assert (issue.client_kind, issue.client) == ("python", script)
    asked = parse(issue.server)
    assert (asked.engine, asked.model, asked.options) == (
        "vllm",
        "m/m",
        [("--seed", ["1"])],
    )


@pytest.mark.parametrize(
    ("text", "engine", "release"),
    [
        ("docker run vllm/vllm-openai:v0.12.0 --model m", "vllm", "0.12.0"),
        (
            (
                "Tested with SGLang 0.5.20\n`python -m sglang.launch_server "
                "--model-path m`"
            ),
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


@pytest.mark.parametrize(
    "line",
    [
        "{'model': 'm', 'prompt': 'hi', 'stream': False, 'logprobs': 5}",
        '{"model": "m", "prompt": "hi", "stream": false, "logprobs": 5}',
    ],
)
def test_a_body_on_a_line_without_a_fence_is_a_client(line: str) -> None:
    """As logs and Python print it."""
    issue = read_issue(f"# 500\n\nPOST /v1/completions\n{line}\n\nError 500\n")
    assert issue.client_kind == "json"
    assert json.loads(issue.client)["logprobs"] == 5
    assert not read_issue("# 500\n\n{'error': 'no body'}\n").client


def test_a_bodys_json_is_a_client() -> None:
    body = '{"model": "m", "messages": [{"role": "user", "content": "x"}]}'
    issue = read_issue(form(kind="json", client=body))
    assert (issue.client_kind, issue.client) == ("json", body)
    answer = read_issue(form(kind="json", client='{"choices": [], "prompt": ""}'))
    assert answer.client == ""


def test_an_engine_in_the_clients_own_process_is_run_where_its_options_are_read() -> (
    None
):
    told = "from vllm import LLM\nLLM(model='m').generate('x')"
    issue = read_issue(form(client=told))
    assert (issue.client, issue.client_kind) == (told, "offline")
    issue = read_issue(form(client="from vllm import LLM\nmade = LLM(**options)"))
    assert (issue.client, issue.offline) == ("", True)


def test_of_several_the_first_is_taken_and_the_others_are_told() -> None:
    more = f"```python\n{PYTHON}\n```\n```bash\nvllm serve other/model\n```"
    issue = read_issue(form(told=more))
    assert "Qwen" in issue.server
    assert len(issue.notes) == 2


def test_what_a_reporter_wishes_for_is_not_what_it_saw() -> None:
    told = "It results in an HTTP 500 response. However, it should return HTTP 400."
    assert read_issue(form(told=told)).claim.status == 500


BODY = '{"model": "m", "prompt": "x"}'
HTTP = f"POST /v1/completions HTTP/1.1\nHost: localhost:8000\nX-A: b\n\n{BODY}"
POWERSHELL = (
    "curl.exe http://localhost:8000/v1/completions `\n  -H 'X-A: b' `\n"
    """  -d '{\\"model\\": \\"m\\", \\"prompt\\": \\"x\\"}'"""
)
CMD = (
    'curl http://localhost:8000/v1/completions ^\n  -H "X-A: b" ^\n'
    '  -d "{\\"model\\": \\"m\\", \\"prompt\\": \\"x\\"}"'
)


@pytest.mark.parametrize(
    ("kind", "text"), [("http", HTTP), ("powershell", POWERSHELL), ("", CMD)]
)
def test_a_request_in_the_words_of_another_tool_is_one_of_curl(
    kind: str, text: str
) -> None:
    issue = read_issue(form(kind=kind, client=text))
    words = shlex.split(issue.client.replace("\\\n", " "))
    assert (issue.client_kind, words[0]) == ("shell", "curl")
    assert "http://localhost:8000/v1/completions" in words
    assert "X-A: b" in words
    assert json.loads(
        words[words.index("--data-raw" if kind == "http" else "-d") + 1]
    ) == {
        "model": "m",
        "prompt": "x",
    }


@pytest.mark.parametrize(
    ("kind", "text"),
    [
        ("python", "{'model': 'm', 'messages': [{'role': 'user', 'content': None}]}"),
        (
            "jsonc",
            (
                '{"model": "m", // mine\n "messages": [{"role": "user", "content": '
                "null},],\n}"
            ),
        ),
    ],
)
def test_a_body_that_is_not_quite_json(kind: str, text: str) -> None:
    issue = read_issue(form(kind=kind, client=text))
    assert issue.client_kind == "json"
    assert json.loads(issue.client)["messages"][0]["content"] is None


def test_blocks_may_be_indented() -> None:
    server, client = (
        "    vllm serve m/m --seed 3",
        "\n".join(f"    {x}" for x in PYTHON.split("\n")),
    )
    issue = read_issue(
        f"vLLM 0.12.0 dies.\n\nStart\n\n{server}\n\nand run\n\n{client}\n\nDone."
    )
    assert (issue.server, issue.client) == ("vllm serve m/m --seed 3", PYTHON)


@pytest.mark.parametrize(
    "text",
    [
        (
            "from langchain_openai import ChatOpenAI\n"
            "ChatOpenAI(base_url='http://localhost:8000/v1')"
        ),
        (
            "from pydantic_ai import Agent\nAgent('x', "
            "base_url='http://127.0.0.1:8000/v1')"
        ),
        "import socket\nsocket.create_connection(('localhost', 8000))",
    ],
)
def test_a_script_that_names_a_server_is_a_client_whatever_it_imports(
    text: str,
) -> None:
    assert read_issue(form(client=text)).client_kind == "python"


def test_a_server_s_own_file_of_options() -> None:
    file = "model: m/m\nmax-num-seqs: 4\nenable-prefix-caching: true\nlora: {a: 1}"
    shown = f"`server.yaml`:\n```yaml\n{file}\n```"
    server = "vllm serve --config /etc/server.yaml --seed 3"
    asked = parse(read_issue(form(server=server, more=shown)).server)
    assert asked.model == "m/m"
    assert dict(asked.options) == {
        "--max-num-seqs": ["4"],
        "--enable-prefix-caching": [],
        "--lora": ['{"a": 1}'],
        "--seed": ["3"],
    }
    assert read_issue(form(server=server)).server == server


def test_a_script_without_a_fence_and_words_before_a_fence() -> None:
    text = (
        "vLLM 0.12.0\n"
        "\n"
        "vllm serve m/m --seed 1\n"
        "\n"
        f"{PYTHON}\n"
        "\n"
        "It dies then.\n"
        "\n"
        "### Environment"
    )
    issue = read_issue(text)
    assert (issue.client_kind, issue.client) == ("python", PYTHON)
    ends = read_issue("vllm 0.12.0\n```\nvllm serve m/m\n```\nIt is a crash")
    assert FindingClass.DEATH in ends.claim.classes


def test_a_client_by_its_library_goes_before_one_by_its_address() -> None:
    setup = "import torch\nprint(torch.__version__, 'for http://localhost:8000')"
    issue = read_issue(form(more=f"```python\n{setup}\n```"))
    assert issue.client == PYTHON


@pytest.mark.parametrize("more", ['"meta_info": {}', '"usage": {}', '"error": {}'])
def test_an_answer_of_a_server_is_no_client(more: str) -> None:
    assert not read_issue(form(kind="json", client=f'{{"text": "x", {more}}}')).client


@pytest.mark.parametrize(
    ("client", "words"),
    [
        ("Invoke-RestMethod -Uri http://localhost:8000/v1/models", "PowerShell"),
        ('const r = await fetch("http://localhost:8000/v1/models")', "JavaScript"),
        ("genai-perf profile -m m/m", "a benchmark"),
        ("hey -n 20 http://localhost:8000/v1/models", "a load generator"),
    ],
)
def test_a_client_that_is_not_run_is_named(client: str, words: str) -> None:
    issue = read_issue(form(kind="", client=client))
    assert not issue.client
    assert words in issue.other_client


def test_files_that_a_report_shows_lie_beside_its_client() -> None:
    told = f"and `in.json`:\n```json\n{BODY}\n```"
    client = "curl http://localhost:8000/v1/completions -d @in.json"
    issue = read_issue(form(kind="bash", client=client, told=told))
    assert issue.files == {"in.json": BODY}
    script = (
        "import requests, sys\nrequests.get('http://localhost:8000/' + sys.argv[2])"
    )
    run = "as\n```sh\n$ python3 scripts/repro.py --path v1/models\n```"
    issue = read_issue(form(client=script, told=run))
    assert issue.client_kind == "shell"
    assert issue.client == "python3 repro.py --path v1/models\n"
    assert issue.files == {"repro.py": script}
    assert not read_issue(form(client=script)).files
    # Without arguments the command says no more than the script.
    alone = "as\n```sh\n$ python3 scripts/repro.py\n```"
    issue = read_issue(form(client=script, told=alone))
    assert (issue.client_kind, issue.files) == ("python", {})


@pytest.mark.parametrize(
    ("text", "release"),
    [
        ("It works in vllm 0.11.0 and breaks in vLLM v0.12.0.", "0.12.0"),
        ("After the upgrade from vllm 0.11.0 to vllm 0.12.0 it dies.", "0.12.0"),
        ("vllm 0.11.0 is fine. vllm 0.12.0 dies.", "0.12.0"),
        ("We upgraded vllm 0.11.0 to 0.12.0.\n\n- vllm: 0.12.0", "0.12.0"),
        ("vllm nightly 0.24.1rc1.dev12+gabc", "0.24.1rc1"),
        ("vllm 版本为 0.12.0", "0.12.0"),
        ("| vLLM | 0.12.0 |", "0.12.0"),
    ],
)
def test_the_release_in_which_it_fails(text: str, release: str) -> None:
    assert read_issue(form(environment=text)).release == release


@pytest.mark.parametrize(
    ("told", "classes"),
    [
        (
            "服务崩溃,应该返回 400 而不是崩溃",
            [FindingClass.DEATH, FindingClass.FAILING],
        ),
        ("请求后服务卡死,没有响应", [FindingClass.HANG]),
        ("报错 500 内部错误,期望 400", [FindingClass.SERVER_ERROR]),
        ("引擎进程直接退出", [FindingClass.DEATH, FindingClass.FAILING]),
    ],
)
def test_a_report_in_chinese_claims_as_one_in_english(
    told: str, classes: list[FindingClass]
) -> None:
    text = form(told=told).replace("priority & n>1 crashes engine", "一个问题")
    assert read_issue(text).claim.classes[: len(classes)] == classes


def test_a_report_of_another_engine_is_named() -> None:
    text = (
        "Ollama 0.5 dies, vLLM is fine.\n\n```sh\nollama serve\ncurl "
        "localhost:11434/api\n```"
    )
    issue = read_issue(text)
    assert (issue.other_engine, issue.engine) == ("Ollama", "")
    assert not read_issue(form()).other_engine


@pytest.mark.parametrize(
    "client",
    [
        "cat <<EOF\n" + "a\n" * 30_000,
        "curl 'x\n" + "a b\n" * 16_000,
        'echo "\n' * 6000,
        f"curl http://localhost:8000/v1/completions -d '\n{'A' * 60_000}\n'",
    ],
    ids=["heredoc", "quotes", "open quotes", "one word"],
)
def test_a_long_block_takes_no_long_time(client: str) -> None:
    began = time.process_time()
    read_issue(f"```sh\nvllm serve m --port 8000\n{client}\n```\n")
    assert time.process_time() - began < 5


@pytest.mark.parametrize("blank", [" ", "\t", "\n", " \n", "a=\n", "\\\n"], ids=repr)
def test_blanks_take_no_long_time(blank: str) -> None:
    began = time.process_time()
    read_issue(f"```sh\n{blank * 20_000}vllm serve m {blank * 20_000}\ncurl 'x'\n```\n")
    assert time.process_time() - began < 5


# ------------------------------------------------------------ forms of commands

SERVES = "vllm serve m/m"
ASKS = "curl localhost:8000/v1/models"


def read_blocks(*blocks: str) -> Issue:
    fenced = "\n\n".join(f"```\n{block}\n```" for block in blocks)
    return read_issue(f"vllm 0.23.0: HTTP 500\n\n{fenced}\n")


def test_a_root_s_prompt_and_the_mark_of_a_line_that_goes_on() -> None:
    typed = (
        '# curl localhost:8000/v1/completions \\\n>   -d \'{"prompt": "hi"}\'\n{"e": 1}'
    )
    issue = read_blocks(f"# {SERVES}", typed)
    assert issue.server == SERVES
    assert issue.client.split() == [
        "curl",
        "localhost:8000/v1/completions",
        "\\",
        "-d",
        '\'{"prompt":',
        '"hi"}\'',
    ]


def test_a_comment_with_a_command_is_none_where_others_have_no_prompt() -> None:
    issue = read_blocks(f"# vllm serve old/model\n{SERVES}", ASKS)
    assert issue.server == SERVES


def test_a_pre_of_html_is_a_block() -> None:
    asks = f"{ASKS} -H &quot;a: b&quot;"
    blocks = f"<pre>{SERVES} --seed 1</pre>\n<pre><code>{asks}</code></pre>"
    issue = read_issue(f"vllm 0.23.0\n\n{blocks}")
    assert (issue.server, issue.client) == (f"{SERVES} --seed 1", f'{ASKS} -H "a: b"\n')


def test_a_release_of_four_parts() -> None:
    assert read_issue(f"vllm==0.10.1.1\n```\n{SERVES}\n```").release == "0.10.1.1"


def test_a_file_of_requests_and_what_answers_it() -> None:
    request = {"custom_id": "a", "method": "POST", "url": "/v1/completions", "body": {}}
    line = json.dumps(request)
    issue = read_blocks(
        "vllm run-batch -i in.jsonl -o /x/out.jsonl --model m/m --seed 1",
        f"{line}\n{line}",
    )
    assert issue.server == "vllm serve --model m/m --seed 1"
    assert (issue.client_kind, issue.client) == ("batch", f"{line}\n{line}")


def test_one_line_that_is_no_request_makes_a_block_no_batch() -> None:
    request = '{"custom_id": "a", "url": "/v1/completions", "body": {"prompt": "x"}}'
    listed = [request] * 300
    assert read_blocks("\n".join(listed)).client_kind == "batch"
    assert read_blocks("\n".join([*listed, '{"prompt": "y"}'])).client_kind != "batch"


@pytest.mark.parametrize(
    ("logged", "words"),
    [
        (
            "{'model_tag': 'm/m', 'enable_x': True, 'enable_y': False, 'n': 4, 'o': {'a': 1}}",
            "m/m --enable-x --no-enable-y --n 4 --o '{\"a\": 1}'",
        ),
        (
            "{'model': 'm/m', 'config': <Config x>, 'n': 4, 'enable_x': True}",
            "m/m --n 4 --enable-x",
        ),
    ],
)
def test_options_that_an_engine_s_log_prints(logged: str, words: str) -> None:
    issue = read_blocks(f"INFO non-default args: {logged}", ASKS)
    assert issue.server == f"vllm serve {words}"
    assert "its log prints" in issue.notes[0]


def test_options_in_prose_are_the_server_s_unless_they_are_the_way_out() -> None:
    prose = (
        "Server: `vllm==0.23.0`, `--enable-x --seed 1`.\nIt works without `--enable-y`."
    )
    issue = read_issue(f"{prose}\n\n```\n{ASKS}\n```")
    assert issue.options == ["--enable-x --seed 1"]
    assert read_issue(f"HTTP 500 comes back.\n{prose}").claim.status == 500


def test_programs_of_an_engine_and_of_others_ask_a_server() -> None:
    assert read_blocks(SERVES, "vllm chat -q hi").client == "vllm chat -q hi\n"
    httpie = read_blocks(SERVES, "http :8000/v1/completions model=m max_tokens:=4 A:b")
    assert (
        "curl -X POST http://localhost:8000/v1/completions -H 'A: b'" in httpie.client
    )
    assert '{"model": "m", "max_tokens": 4}' in httpie.client
    bench = read_blocks(SERVES, "vllm bench serve --num-prompts 7 --random-input-len 9")
    assert bench.client_kind == "python"
    assert "REQUESTS, INPUT, OUTPUT, AT_ONCE = 7, 9, 32, 7" in bench.client
    compile(bench.client, "client.py", "exec")


@pytest.mark.parametrize(
    "command",
    [
        "singularity run --nv vllm-openai_v0.9.1.sif --model m/m --seed 1",
        "apptainer exec --nv docker://vllm/vllm-openai:v0.9.1 vllm serve m/m --seed 1",
    ],
)
def test_an_image_of_singularity(command: str) -> None:
    asked = parse(read_blocks(command, ASKS).server)
    assert (asked.engine, asked.model, asked.release) == ("vllm", "m/m", "0.9.1")
    assert asked.options == [("--seed", ["1"])]


def test_lines_of_options_belong_to_the_command_whose_marks_were_lost() -> None:
    issue = read_blocks(
        f"{SERVES}     \n  --seed 1    \n  --enable-x\n\necho --no", ASKS
    )
    assert parse(issue.server).options == [("--seed", ["1"]), ("--enable-x", [])]
    output = read_blocks(f"{SERVES}\nINFO --seed 1", ASKS)
    assert parse(output.server).options == []


def test_a_root_s_prompt_without_a_fence() -> None:
    text = (
        "sglang 0.5.6\n\n# curl localhost:9/v1/rerank \\\n>   -d '{\n"
        '>     "query": "a"\n>   }\'\n{"code": 500}\n'
    )
    assert read_issue(text).client.strip() == (
        'curl localhost:9/v1/rerank \\\n  -d \'{\n    "query": "a"\n  }\''
    )


def test_a_command_between_words_that_have_no_blanks() -> None:
    text = (
        "使用docker run --gpus all vllm/vllm-openai:v0.11.0 --model m/m --seed 1部署成功了"
        f"\n\n```\n{ASKS}\n```"
    )
    asked = parse(read_issue(text).server)
    assert (asked.engine, asked.model, asked.release) == ("vllm", "m/m", "0.11.0")
    assert asked.options == [("--seed", ["1"])]


AT_START = [
    '  File "/x/vllm/v1/engine/core.py", line 7, in _initialize_kv_caches\nValueError: x',
    '  File "/x/vllm/engine.py", line 7, in run_mp_engine\nValueError: no layer',
    "1 validation error for ModelConfig\n  Assertion failed",
    "The server crashes before becoming healthy.",
    "It accepts the option and fails at engine startup.",
    "Model architectures ['BertModel'] are not supported for now.",
]


@pytest.mark.parametrize("told", AT_START)
def test_a_report_without_a_request_may_be_of_a_start(told: str) -> None:
    server = "```\nvllm serve m/m\n```"
    classes = read_issue(f"# It fails\n\n{server}\n\n{told}\n").claim.classes
    assert classes[0] is FindingClass.START_FAILURE
    asked = read_issue(f"# It fails\n\n{server}\n\n```\n{ASKS}\n```\n\n{told}\n")
    assert FindingClass.START_FAILURE not in asked.claim.classes


@pytest.mark.parametrize(
    "told",
    [
        "",
        "It answers nonsense.",
        '  File "/x/vllm/v1/engine/core.py", line 7, in step\nValueError: x',
    ],
)
def test_a_report_without_a_request_may_be_of_requests(told: str) -> None:
    text = f"# It fails\n\n```\nvllm serve m/m\n```\n\n{told}\n"
    assert FindingClass.START_FAILURE not in read_issue(text).claim.classes


@pytest.mark.parametrize(
    "told",
    [
        "```\n[0] usage: lmdeploy serve api_server [-h] [--tp TP]\n```",
        "lmdeploy: error: unrecognized arguments: --x",
        "error: argument tool-call-parser: not allowed with argument--reasoning-parser",
        '```\n  File "/x/lmdeploy/cli/serve.py", line 270, in api_server\n    a = b()\n```',
    ],
)
def test_a_command_that_is_refused_does_not_start(told: str) -> None:
    text = f"`lmdeploy serve api_server /m --tool-call-parser qwen`\n\n{told}\n"
    assert read_issue(text).claim.classes == [FindingClass.START_FAILURE]
    # The traceback of a request passes the command as well.
    dead = read_issue(f"{text}\nEngineDeadError, HTTP 500")
    if "usage" not in told and "error:" not in told:
        assert FindingClass.START_FAILURE not in dead.claim.classes


@pytest.mark.parametrize(
    ("line", "kind"),
    [
        ("curl ... -d '{..., \"stream\": true}'", ""),
        ("$ curl … -d @body.json", ""),
        ("curl -s http://localhost:8000/health ...", "shell"),
    ],
)
def test_a_curl_whose_address_was_left_out_asks_nobody(line: str, kind: str) -> None:
    assert read_issue(f"vllm serve m/m\n\n```\n{line}\n```\n").client_kind == kind


def test_a_call_of_fetch_that_is_written_out_is_a_line_of_curl() -> None:
    call = (
        'const r = await fetch("http://localhost:8000/v1/completions", {method: "POST", '
        "headers: {a: 'b'}, body: JSON.stringify({model: \"m\", n: [1, 2], o: {p: true},})})"
    )
    client = read_blocks(SERVES, call).client
    assert client.startswith("curl -X POST http://localhost:8000/v1/completions ")
    assert '{"model": "m", "n": [1, 2], "o": {"p": true}}' in client
    for unknown in ("{...rest, model", "{text, model", "{text: rest, model"):
        other = read_blocks(SERVES, call.replace("{model", unknown))
        assert (other.client, other.other_client) == ("", "JavaScript")


def test_names_that_a_client_leaves_open_are_set() -> None:
    script = (
        "from __future__ import annotations\nfrom openai import OpenAI\n"
        "client = OpenAI(api_key=api_key, base_url=base_url)\n"
        "client.completions.create(model=model, prompt='hi')"
    )
    read = read_blocks("vllm serve org/model-1B --seed 1", script)
    assert read.client_kind == "python"
    assert read.client.startswith("from __future__")
    for line in (
        "api_key = 'EMPTY'",
        "base_url = 'http://localhost:8000/v1'",
        "model = 'org/model-1B'",
    ):
        assert f"\n{line}\n" in read.client
    assert any("api_key = EMPTY" in note for note in read.notes)
    whole = read_blocks(SERVES, PYTHON)
    assert (whole.client, whole.notes) == (PYTHON, [])


@pytest.mark.parametrize(
    ("call", "line"),
    [
        ("requests.post(f'{URL}/v1/completions', json={})", "'http://localhost:8000'"),
        (
            "requests.post(URL, json={'messages': []}, headers=headers)",
            "'http://localhost:8000/v1/chat/completions'",
        ),
        (
            "requests.post(URL, json={'prompt': ''})",
            "'http://localhost:8000/v1/completions'",
        ),
        (
            "OpenAI(base_url=URL, api_key='').models.list()",
            "'http://localhost:8000/v1'",
        ),
    ],
)
def test_a_client_without_imports_is_one(call: str, line: str) -> None:
    read = read_blocks(SERVES, call)
    assert read.client_kind == "python"
    assert f"URL = {line}\n" in read.client
    assert "import " in read.client


def test_a_client_whose_data_are_not_shown_is_none() -> None:
    call = "r = requests.post('http://localhost:8000/v1/completions', json=payload)"
    assert read_blocks(SERVES, call).client == ""


def test_a_body_in_a_block_of_text() -> None:
    body = '{"model": "m", "messages": [{"role": "user", "content": "hi"}]}'
    read = read_issue(f"vllm 0.23.0\n\n`{SERVES}`\n\n```text\n{body}\n```\n")
    assert (read.client_kind, read.client) == ("json", body)


def test_a_line_that_a_tracing_shell_prints() -> None:
    typed = '+ curl localhost:8000/v1/completions -d \'{\n"prompt": "hi"}\'\ndata: {}'
    read = read_blocks(SERVES, typed)
    assert read.client.startswith("curl localhost:8000/v1/completions -d")
    assert "data:" not in read.client


def test_the_arguments_of_a_container_without_its_image() -> None:
    listed = '    args:\n      - "--model"\n      - "org/model-1B"\n      - --seed\n      - 1'
    server = read_blocks(listed, ASKS).server
    assert server == "vllm serve --model org/model-1B --seed 1"


def test_a_model_with_options_in_a_sentence() -> None:
    text = f"served by `vllm/vllm-openai:v0.17.0` + `org/model-1B --seed 1`\n\n```\n{ASKS}\n```"
    read = read_issue(text)
    assert read.server == "vllm serve org/model-1B --seed 1"
    assert (read.engine, read.release) == ("vllm", "0.17.0")


def test_a_script_in_a_list_and_one_that_fetches_a_picture() -> None:
    script = (
        "import requests\nfrom vllm import LLM\n\ndef run():\n    requests.get('http://a')\n"
        "    return LLM(model='m/m', seed=1).generate('hi')\n\nrun()"
    )
    indented = "\n".join(f"    {line}" if line else "" for line in script.splitlines())
    read = read_issue(f"vllm 0.23.0\n\n1. Save:\n\n   ```python\n{indented}\n   ```\n")
    assert (read.client_kind, read.client) == ("offline", script)
    assert read.server == "vllm serve m/m --seed 1"


@pytest.mark.parametrize(
    ("written", "model", "options"),
    [
        ("sudo vllm serve \\\n  m/m \\\n  --seed 1", "m/m", [("--seed", ["1"])]),
        (
            "export A=1,2 && vllm serve m/m --seed 1 > log 2>&1 & disown && tail -f log",
            "m/m",
            [("--seed", ["1"])],
        ),
        ("(env) me@box:/srv$ vllm serve m/m --seed 1", "m/m", [("--seed", ["1"])]),
    ],
)
def test_a_command_without_a_fence(
    written: str, model: str, options: list[tuple[str, list[str]]]
) -> None:
    read = read_issue(f"vllm 0.23.0\n\nStart it:\n\n{written}\n\n### More\n\nHTTP 500")
    asked = parse(read.server)
    assert (asked.model, asked.options) == (model, options)


def test_a_script_of_a_shell_in_a_container_goes_over_lines() -> None:
    script = "pip install x &&\n  vllm serve m/m \\\n  --seed 1\n"
    run = f"docker run --entrypoint /bin/bash vllm/vllm-openai:latest \\\n -lc '\n{script}'"
    asked = parse(read_blocks(run, ASKS).server)
    assert (asked.model, asked.options) == ("m/m", [("--seed", ["1"])])
    never = read_blocks("vllm serve m/m --seed 1\nit's down", ASKS)
    assert never.server == "vllm serve m/m --seed 1"


def test_a_manifest_whose_end_is_cut_off() -> None:
    cut = (
        "kind: Deployment\nspec:\n  containers:\n  - name: a\n    image: "
        'vllm/vllm-openai:v0.7.3\n    args: [ "--model", "m/m",\n      "--seed", "1",'
    )
    asked = parse(read_blocks(cut, ASKS).server)
    assert (asked.release, asked.model) == ("0.7.3", "m/m")
    assert asked.options == [("--seed", ["1"])]


def test_an_item_of_a_list_with_an_option_and_its_value() -> None:
    compose = (
        "services:\n  a:\n    image: vllm/vllm-openai:latest\n    command:\n"
        '      - serve\n      - m/m\n      - "--seed 1"\n      -\n'
    )
    asked = parse(read_blocks(compose, ASKS).server)
    assert (asked.model, asked.options) == ("m/m", [("--seed", ["1"])])


def test_arguments_of_a_call_are_no_variables_of_a_shell() -> None:
    call = "client = make(\nname=key,\nlanguage=en)\n"
    assert read_blocks(f"{call}vllm serve m/m --seed 1", ASKS).server == (
        "vllm serve m/m --seed 1"
    )


@pytest.mark.parametrize(
    ("written", "becomes"),
    [
        ("<the url>", "http://localhost:8000/v1"),
        ("your base_url", "http://localhost:8000/v1"),
        ("http://10.0.0.1:80/v1", "http://10.0.0.1:80/v1"),
        ("gpu-3:8000", "gpu-3:8000"),
        ("/v1/completions", "/v1/completions"),
        ("chat/completions", "chat/completions"),
        ("data:image/png;base64,iVBOR w0", "data:image/png;base64,iVBOR w0"),
        ("http://your-host:8000/v1", "http://your-host:8000/v1"),
    ],
)
def test_a_placeholder_in_the_place_of_an_address(written: str, becomes: str) -> None:
    script = (
        f'from openai import OpenAI\nclient = OpenAI(base_url="{written}", api_key="")\n'
        "client.models.list()"
    )
    client = read_blocks(SERVES, script).client
    assert becomes in client
    assert (written in client) is (written == becomes)


def test_a_release_that_ran_is_none_that_fails() -> None:
    text = f"vllm==0.22.0 ran it well.\nvllm==0.23.0 hangs.\n\n`{SERVES}`\n"
    assert read_issue(text).release == "0.23.0"


def test_a_container_that_starts_no_server_is_not_its_command() -> None:
    run = "$ docker run -it --entrypoint=bash lmsysorg/sglang:latest\n\n$ docker exec -it a bash\n"
    serve = "python3 -m sglang.launch_server --model=org/model --tp=8"
    assert parse(read_blocks(f"{run}\n$ {serve}", ASKS).server).model == "org/model"


def test_a_script_that_a_shell_prints() -> None:
    read = read_blocks(SERVES, f"$ cat client.py\n{PYTHON}")
    assert (read.client_kind, read.client) == ("python", PYTHON)


def test_a_script_that_imports_an_engine_by_its_class() -> None:
    script = "from sglang import Engine\nEngine(model_path='m/m').generate('hi')"
    read = read_issue(f"sglang 0.5.6\n\n```python\n{script}\n```\n")
    assert (read.client_kind, read.server) == ("offline", "sglang serve m/m")


def test_a_script_ends_where_its_output_begins() -> None:
    read = read_blocks(
        SERVES, f"{PYTHON}\n\n# Output\nStatus Code: 500\n<Response [500]>"
    )
    assert (read.client_kind, read.client) == ("python", f"{PYTHON}\n\n# Output")
    other = "import openai\nprint 'in an older Python'\nopenai.x()"
    assert read_blocks(SERVES, other).client == other


@pytest.mark.parametrize(
    "body",
    [
        '{"model": "m", "text_1": "a", "text_2": ["b"]}',
        '{"query": "a", "documents": ["b"]}',
        '{"query": "a", "items": ["b"]}',
    ],
)
def test_a_body_that_asks_for_scores(body: str) -> None:
    assert read_blocks(SERVES, body).client_kind == "json"


@pytest.mark.parametrize(
    "words",
    [
        "The server responds with HTTP 400 saying that an option is missing.",
        "It is rejected with 400 although the option is set.",
        "The request fails with status code 400 there.",
    ],
)
def test_a_status_with_which_it_answers(words: str) -> None:
    assert read_issue(f"vllm 0.23.0\n\n{words}\n\n`{SERVES}`\n").claim.status == 400


def test_both_outputs_in_one_file() -> None:
    asked = parse("vllm serve m/m --seed 1 &> start.log &")
    assert asked.options == [("--seed", ["1"])]


def test_a_comment_ends_no_script_without_a_fence() -> None:
    script = f"import openai\n\n# Where it is.\nurl = 1\n{PYTHON.splitlines()[1]}"
    text = f"vllm 0.23.0\n\n`{SERVES}`\n\n{script}\n\n# It fails\n\nHTTP 500 comes.\n"
    assert f"{script}\n\n# It fails" in read_issue(text).client
    below = read_issue(text.replace("# It fails", "## It fails"))
    assert below.client.endswith(script)


@pytest.mark.parametrize("call", ["fetch('http://a', {", "fetch('http://a', {a:{}"])
def test_calls_of_fetch_that_are_never_closed_are_read_to_a_bound(call: str) -> None:
    """By processor time: to its bound it takes 0.2 s; each to the end of the text, 25."""
    text = call * (65_536 // len(call))
    began = time.process_time()
    issue._without_fetch(text)
    assert time.process_time() - began < 3

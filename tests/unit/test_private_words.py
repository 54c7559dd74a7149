"""What engines quote of users, and what names a person or a machine, never leaves;
facts do."""

import json
import time
import zipfile
from pathlib import Path

import pytest
from imposters import CORPUS
from mmrepro.base.text.redact import Redactor
from mmrepro.failure.documents.model import KeyFrame, LogExcerpt
from mmrepro.failure.documents.published import Public, public_reply, published
from mmrepro.probes.data import EndpointAnswer, LogLine, MetricSample, StacksData
from mmrepro.probes.log_words import hidden, hidden_in, left_out, public_line
from mmrepro.reports import load
from mmrepro.reports.bundle import write_bundle
from mmrepro.reports.documents import render
from mmrepro.reports.incident import KIND
from mmrepro.runs.judge import rejudge
from mmrepro.scenario.registry import load_scenario
from mmrepro.traffic.evidence import Event

HOME = "/home/me"
GHOST = CORPUS / "ghost-key-eviction-0.23.0.zip"

PEOPLE = {
    "an address with a port": ("cannot connect to 81.12.33.7:29500", "81.12.33.7"),
    "of a client": ('{"client_ip": "81.12.33.7"}', "81.12.33.7"),
    "of a peer": ("peer=81.12.33.7", "81.12.33.7"),
    "of a private network": ("the node 10.4.5.6 is gone", "10.4.5.6"),
    "RAY_ADDRESS": ("RAY_ADDRESS=ray://head-3.acme.internal:10001", "acme"),
    "RAY_ADDRESS, a name": ("RAY_ADDRESS=head7:6379", "head7"),
    "a URL": ("http://llm.acme.de:8000/v1", "acme"),
    "a machine": ("gpu-17.acme.corp:8000 refused", "gpu-17"),
    "a cluster's": ("http://vllm-0.acme.svc.cluster.local/v1", "acme"),
    "--host": ("--host gpu17 --port 80", "gpu17"),
    "user=": ("user=velmora x", "velmora"),
    "a tenant": ('"tenant": "velmora"', "velmora"),
    "a tilde": ("open ~velmora/models", "velmora"),
    "/mnt/users": ("/mnt/users/velmora/x", "velmora"),
    "/data/home": ("/data/home/velmora/x", "velmora"),
    "ssh": ("ssh -v velmora@gpu-7 ls", "velmora"),
    "ssh, the machine": ("ssh -v velmora@gpu-7 ls", "gpu-7"),
    "ssh -l": ("ssh -l velmora host", "velmora"),
    "a shell": ("velmora@gpu-7:~$ ls", "velmora"),
    "sshd": (
        "sshd[7]: Accepted publickey for velmora from 127.0.0.1 port 22",
        "velmora",
    ),
    "a card": ("paid with 4111 1111 1111 1111.", "1111"),
    "a card alone": ("4111111111111111", "4111111111111111"),
    "American Express": ("378282246310005", "378282246310005"),
    "a phone": ("call +49 171 5550123 now", "5550123"),
    "a phone of the US": ("call (415) 555-2671 now", "2671"),
    "a named phone": ('"phone": "5552671"', "5552671"),
    "HF_HOME": ("HF_HOME=/data/velmora/hf", "velmora"),
    "a list of folders": ("LD_LIBRARY_PATH=/usr/lib:/data/velmora/lib", "velmora"),
    "SERVICE_PW": ("SERVICE_PW=abc123", "abc123"),
    "GH_PAT": ("GH_PAT: tiger", "tiger"),
    "id_token": ('"id_token": "tiger"', "tiger"),
    "sas": ("sas='tiger'", "tiger"),
    "vault": ("--vault tiger --port 80", "tiger"),
    "a tag of YAML": ("db_password: !!binary tiger", "tiger"),
    "a name of parts": ("secret.value: tiger", "tiger"),
    "the name's first part": ("secrets.api=tiger", "tiger"),
    "git's user": ("user.name=velmora", "velmora"),
    "a code": ("recovery_code: abcd-1234", "abcd-1234"),
    "several codes": ('"backup_codes": ["abcd-1234", "efgh-5678"]', "5678"),
    "a phrase": ("seed phrase: legal tiger thank", "thank"),
    "password in Spanish": ("contraseña: tiger7x", "tiger"),
    "in French": ("mot de passe : tiger7x", "tiger"),
    "in Russian": ("Пароль: tiger7x", "tiger"),
    "in Chinese": ("密码：tiger7x", "tiger"),
    "what it was": ("the password was 'tiger7x'", "tiger"),
    "redis-cli": ("redis-cli -h db -a tiger7x ping", "tiger"),
    "openssl": ("openssl rsa -passin pass:tiger7x", "tiger"),
    "7z": ("7z x -ptiger7x a.7z", "tiger"),
    "smbclient": ("smbclient //h/s -U bob%tiger7x", "tiger"),
    "sudo -u": ("sudo -u velmora vllm serve", "velmora"),
    "/scratch": ("/scratch/velmora/models/x", "velmora"),
    "NODE_NAME": ("NODE_NAME=acme-17", "acme"),
    "an address in a URL": ("?mail=velmora%40acme.example", "velmora"),
    "of several": ("OPENAI_API_KEY_PROD=tiger", "tiger"),
    "TOKEN_GITHUB": ("TOKEN_GITHUB=tiger", "tiger"),
    "PIN": ("PIN=4821", "4821"),
    "a network card": ("link/ether 3c:22:fb:9a:11:07 brd", "3c:22:fb:9a:11:07"),
    "another network card": ("at 3C-22-FB-9A-11-07.", "9A-11"),
    "what id prints": ("uid=1000(velmora) gid=1000 groups=1000", "velmora"),
    "a service's login": ("wandb: Currently logged in as: velmora (team)", "velmora"),
    "a netrc": ("machine git.acme.de login ada password tiger", "tiger"),
}


@pytest.mark.parametrize("kind", PEOPLE)
def test_what_names_a_person_or_a_machine_goes(kind: str) -> None:
    text, private = PEOPLE[kind]
    for around in ("{}", "it says: {}", '{{"a": "x"}} {}', "x\n{}\ny"):
        redactor = Redactor(home=HOME)
        once = redactor.redact(around.format(text))
        assert private not in once
        assert redactor.redact(once) == once


@pytest.mark.parametrize(
    "text",
    [
        "http://127.0.0.1:8000/v1 0.0.0.0:8000 localhost:8000 tcp://[::1]:5557",
        "core.py:195 vllm/v1/engine/core.py:1616 libcudart.so:12 main.cc:40 a.rs:10",
        (
            "https://github.com/vllm-project/vllm/issues/43941 "
            "https://docs.vllm.ai/en/latest"
        ),
        "nvidia-curand-cu12 10.3.10.19 nvidia-curand-cu12==10.3.10.19 version 10.1.2.3",
        'user=None user=\'user\' --user 1000:1000 "role": "user", "content": 5',
        "/run/user/1000/x /usr/lib/x /Users/Shared vllm/users/models.py",
        (
            "4111111111111112 1763776641123456789 took 12345678901 bytes, 2026-11-21 "
            "02:44:01"
        ),
        "HF_HOME=/srv/.cache/huggingface PYTHONPATH=/usr/lib/python3.11/site-packages",
        "RAY_ADDRESS=auto host=None MASTER_ADDR=127.0.0.1 --host 0.0.0.0",
        (
            "pattern=a path=b spinning: 1 compat=3 pin_memory=True two_pass=True "
            "session=12, x"
        ),
        (
            "status_code=500 exit code: abc zip code: abc error.code: abc "
            "password.length: 12 a.b=c"
        ),
        (
            "secret.enabled=true passed: 3.tests.ok vocab.token.count=3 "
            "/scratch/models/x -w abc -a abc"
        ),
        "a ~ b, ~=1.2, ~5 % of 3-4-5, 555-1234, +1024, 0x7f1e7e7ea9f0",
    ],
)
def test_what_names_nobody_stays(text: str) -> None:
    assert Redactor(home=HOME).redact(text) == text


# ------------------------------------------------------------------ lines of a log

ASKED = "my sister velmora has a rash"
QUOTED = {
    "a prompt": (
        (
            "Received request chatcmpl-1a2b3c4d5e: prompt: '{}', params: "
            "SamplingParams(n=1)"
        ),
        "logger.py:39",
        "Received request chatcmpl-1a2b3c4d5e",
    ),
    "several lines": (
        "Received request chatcmpl-1: prompt: 'hello\n{}\nbye', params: x",
        "logger.py:39",
        "Received request",
    ),
    "a cut quote": (
        'Received request chatcmpl-1: prompt: "hello {}',
        "logger.py:39",
        "Received request",
    ),
    "a JSON body": (
        'got {{"patient": "{}", "age": 41}}',
        "launcher.py:80",
        '"age": 41',
    ),
    "a JSON list": ('got ["{}", "b"]', "launcher.py:80", "got"),
    "a tool call": (
        'bad <tool_call>{{"name": "mail", "arguments": {{"to": "{}"}}}}</tool_call>',
        "async_llm.py:3",
        "bad",
    ),
    "a template": (
        "unexpected <|im_start|>user {}<|im_end|>",
        "async_llm.py:3",
        "unexpected",
    ),
    "jinja": (
        "jinja2.exceptions.TemplateError: roles must alternate, got {}",
        "serving_chat.py:195",
        "jinja2.exceptions.TemplateError: ",
    ),
    "jinja alone": (
        "jinja2.exceptions.UndefinedError: '{}' is undefined",
        "",
        "jinja2.exceptions.UndefinedError: ",
    ),
    "pydantic": (
        (
            "ValidationError: 1 validation error for Request input_value='{}', "
            "input_type=str"
        ),
        "",
        "ValidationError: 1 validation error for Request",
    ),
    "a server that speaks of a request": (
        "Error in preprocessing prompt inputs: {}",
        "serving_chat.py:195",
        "Error in preprocessing prompt inputs",
    ),
    "a string in an exception": (
        "ValueError: no such role: '{}'",
        "",
        "ValueError: no such role: ",
    ),
    "ticks": ("no role `{}` is there", "x.py:1", "is there"),
    "stop strings": (
        "SamplingParams(n=1, stop=['{}'], seed=None)",
        "x.py:1",
        "seed=None",
    ),
    "SGLang's": (
        "Receive: obj=GenerateReqInput(text='{}', input_ids=None)",
        "",
        "Receive: ",
    ),
}
KEPT = [
    ("AssertionError: Expected a cached item for mm_hash='9d9d9d9d9d9d9d9d9d9d'", ""),
    ("    raise ValueError('a text of the program')", ""),
    (
        "RuntimeError: Worker failed with error 'M-RoPE requires ids.', please check",
        "core.py:1",
    ),
    (
        (
            "This model's maximum context length is 128 tokens. However, you "
            "requested 300 tokens."
        ),
        "serving_chat.py:1",
    ),
    ('127.0.0.1:50012 - "POST /v1/chat/completions HTTP/1.1" 200 OK', ""),
    (
        "non-default args: {'dtype': 'bfloat16', 'model': 'Qwen/Qwen3-0.6B'}",
        "utils.py:233",
    ),
    (
        "Engine 000: Avg prompt throughput: 0.0 tokens/s, Running: 0 reqs",
        "loggers.py:1",
    ),
    ("/x.cu:400: block: [0,0,0] Assertion `totalElements <= srcSize` failed.", ""),
]


def line(text: str, source: str = "") -> LogLine:
    return LogLine(number=1, text=text, source=source, level="ERROR", engine="vllm")


@pytest.mark.parametrize("kind", QUOTED)
def test_what_an_engine_quotes_goes_and_its_own_words_stay(kind: str) -> None:
    form, source, own = QUOTED[kind]
    text = form.format(ASKED)
    shown = public_line(line(text, source)) if "\n" not in text else own
    head = f"ERROR 11-21 02:44:01 [{source}] {text}" if source else text
    twice = f"(EngineCore pid=812) INFO 11-21 02:44:01 [core.py:195] {head}"
    left = Public(HOME).redact_model(line(text, source))
    excerpt = LogExcerpt(file="engine.log", number=1, text=head)
    event = Event.model_construct(at=None, phase="check", source="engine", text=head)
    for one in (
        shown,
        left.text,
        Public(HOME).redact_model(excerpt).text,
        Public(HOME).redact_model(event).text,
        left_out(head, hidden_in(head)),
        left_out(twice, hidden_in(twice)),
        Public(HOME).redact_model(excerpt.model_copy(update={"text": twice})).text,
    ):
        assert "velmora" not in one
        assert own in one or one is shown
    assert all(left.text[a:b].startswith("[redacted:quoted-") for a, b in left.quoted)
    assert Public(HOME).redact_model(left) == left


def test_colours_in_a_line_leave_no_private_words() -> None:
    words = "velmora \x1b[1mis\x1b[0m here"
    line = f"\x1b[31mFinish: obj=GenerateReqInput(text='{words}', seed=1)\x1b[0m"
    shown = left_out(line, hidden_in(line))
    assert shown == line.replace(words, f"[{len(words)} characters]")


def test_settings_stay_between_texts_and_each_text_is_looked_at_once() -> None:
    count = 5000
    told = "Finish: obj=GenerateReqInput(text='<|im_start|>user', "
    told += "seed=1, text='seed=2 min_p=3', " * count
    began = time.process_time()
    shown = left_out(told, hidden(told))
    # 0.1 s; with every text beside every setting 3.3 s.
    assert time.process_time() - began < 1.5
    assert (shown.count("seed=1"), "seed=2" in shown, "min_p" in shown) == (
        count,
        False,
        False,
    )


@pytest.mark.parametrize(("text", "source"), KEPT)
def test_an_engines_own_words_stay(text: str, source: str) -> None:
    assert public_line(line(text, source)) == text
    assert Public(HOME).redact_model(line(text, source)).text == text


def test_of_a_refusal_the_status_and_the_engines_own_words_stay() -> None:
    for text in (
        f"400 Invalid role: {ASKED}",
        f"400 {{'m': '{ASKED}'}}",
        f"500 <p>{ASKED}",
    ):
        assert "velmora" not in public_reply(text, Public(HOME))
    assert public_reply(f"400 Invalid role: {ASKED}", Public(HOME)).startswith(
        "400 Invalid role"
    )
    assert public_reply(f"200 {ASKED}", Public(HOME)) == "200"
    for text in (
        "no answer in 6.0 s",
        "not sent",
        "left after 0.20 s",
        "500 Internal Server Error",
    ):
        assert public_reply(text, Public(HOME)) == text


# ------------------------------------------------------------------ documents


@pytest.mark.parametrize("name", ["abort-by-prefix-0.5.23", "ghost-decode-0.5.19"])
def test_what_leaves_is_judged_alike(name: str) -> None:
    """Both are judged by ids of requests, which SGLang quotes."""
    incident = load(CORPUS / f"{name}.zip")
    scenario = load_scenario(incident.scenario.name).with_variant(
        incident.scenario.variant
    )
    again, left = rejudge(incident, scenario), rejudge(published(incident), scenario)
    assert left.now.outcome is again.now.outcome
    assert [part.now for part in left.parts] == [part.now for part in again.parts]


def test_tenants_and_adapters_go_from_metrics() -> None:
    labels = {
        "lora_name": "acme-llama",
        "le": "0.5",
        "reason": "stop",
        "engine": "0",
        "n": "17",
    }
    left = Public(HOME).redact_model(
        MetricSample(name="vllm:x", labels=labels, value=1.0)
    )
    assert left.labels == labels | {"lora_name": "[redacted:label-1]"}


def test_adapters_go_from_a_list_of_models_and_words_from_a_refusal() -> None:
    def left(status: int, body: str) -> str:
        answer = EndpointAnswer(
            path="/v1/models", status=status, seconds=0.1, body=body
        )
        return Public(HOME).redact_model(answer).body

    assert (
        left(200, '{"id": "acme", "owned_by": "vllm"}')
        == '{"id": "[redacted:label-1]", "owned_by": "vllm"}'
    )
    assert "velmora" not in left(
        400, json.dumps({"error": {"message": f"no role '{ASKED}'"}})
    )


def test_a_report_of_a_run_has_no_texts_in_its_locals_and_a_bundle_none_in_its_files(
    tmp_path: Path,
) -> None:
    incident = load(GHOST)
    stacks = next(
        r.data for r in incident.evidence.probes if isinstance(r.data, StacksData)
    )
    stacks.samples[0].threads[0].frames[0].locals["prompt"] = repr(ASKED)
    assert incident.key_stack is not None
    incident.key_stack.frames[0] = KeyFrame(
        function="f", file="f.py", line=1, locals={"prompt": repr(ASKED), "n": "17"}
    )
    for format in ("json", "md", "html"):
        shown = render(KIND, incident, format)
        assert "velmora" not in shown
        assert "17" in shown
    folder = tmp_path / "run"
    (folder / "evidence").mkdir(parents=True)
    (folder / "evidence" / "velmora-notes.txt").write_text("nothing\n")
    form = QUOTED["several lines"][0].format(ASKED)
    (folder / "evidence" / "engine.log").write_text(
        f"INFO 11-21 02:44:01 [logger.py:39] {form}\n"
        "INFO 11-21 02:44:02 [core.py:9] next\n"
    )
    (folder / "evidence" / "check-metrics-1-metrics.txt").write_text(
        'a{lora="velmora",le="1"} 1\n'
    )
    (folder / "incident.json").write_text(incident.model_dump_json())
    write_bundle(folder, incident, tmp_path / "b.zip")
    with zipfile.ZipFile(tmp_path / "b.zip") as archive:
        everything = {name: archive.read(name).decode() for name in archive.namelist()}
    assert "velmora" not in json.dumps(everything)
    assert 'le="1"' in everything["evidence/check-metrics-1-metrics.txt"]
    assert everything["evidence/engine.log"].endswith("[core.py:9] next\n")

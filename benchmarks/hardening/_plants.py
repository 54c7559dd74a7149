"""Kinds of secrets, and the ways in which each stands in a text."""

# ruff: noqa: E501 - rows of data read better whole

from __future__ import annotations

import base64
import json
import random
import string
import uuid
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Final

import _contexts as contexts

ALNUM: Final = string.ascii_letters + string.digits
HEX: Final = "0123456789abcdef"
Draw = Callable[[random.Random], str]


@dataclass(frozen=True)
class Kind:
    """``draw``: the secret; ``forms``: lines with ``{}`` for it; clear-cut, see the
    benchmark."""

    draw: Draw
    forms: tuple[str, ...]
    clear: bool = True
    places: tuple[str, ...] = ()
    """Where it is one; empty: anywhere."""
    make: Callable[[random.Random], contexts.Made] | None = None
    """In place of the first two: the secret and its line, made of many parts."""
    times: int = 1
    """How often it is planted where another one is once."""


@dataclass(frozen=True)
class Plant:
    kind: str
    place: str
    secret: str
    text: str
    data: Any
    clear: bool


def of(alphabet: str, length: int, prefix: str = "", suffix: str = "") -> Draw:
    return lambda r: prefix + "".join(r.choices(alphabet, k=length)) + suffix


def password(r: random.Random) -> str:
    """Eleven characters: nothing but what stands around tells that it is one."""
    return (
        r.choice(("Blue", "tiger", "S3a", "moon"))
        + "".join(r.choices(ALNUM, k=6))
        + r.choice("7x")
    )


VENDORS: Final[dict[str, Draw]] = {
    "OpenAI": of(ALNUM, 40, "sk-proj-"),
    "Anthropic": of(ALNUM + "-_", 60, "sk-ant-api03-"),
    "Hugging Face": of(ALNUM, 34, "hf_"),
    "GitHub": of(ALNUM, 36, "ghp_"),
    "GitHub app": of(ALNUM, 36, "ghs_"),
    "GitHub fine-grained": of(ALNUM + "_", 60, "github_pat_"),
    "GitLab": of(ALNUM, 20, "glpat-"),
    "GitLab runner": of(ALNUM, 20, "glrt-"),
    "GitLab deploy": of(ALNUM, 20, "gldt-"),
    "Slack bot": of(string.digits, 12, "xoxb-", "-a1B2c3D4e5F6g7H8i9J0k1L2"),
    "Slack app": of(ALNUM, 40, "xapp-1-A0"),
    "AWS": of(string.ascii_uppercase + string.digits, 16, "AKIA"),
    "AWS session": of(string.ascii_uppercase + string.digits, 16, "ASIA"),
    "AWS secret": of(ALNUM + "/+", 40),
    "Google API": of(ALNUM + "-_", 35, "AIza"),
    "Google OAuth": of(ALNUM + "-_", 60, "ya29."),
    "Google client": of(ALNUM, 28, "GOCSPX-"),
    "NVIDIA": of(ALNUM, 40, "nvapi-"),
    "xAI": of(ALNUM, 50, "xai-"),
    "Groq": of(ALNUM, 40, "gsk_"),
    "Replicate": of(ALNUM, 37, "r8_"),
    "Perplexity": of(ALNUM, 40, "pplx-"),
    "Together": of(ALNUM, 40, "tgp_v1_"),
    "Fireworks": of(ALNUM, 22, "fw_"),
    "npm": of(ALNUM, 36, "npm_"),
    "PyPI": of(ALNUM + "-_", 60, "pypi-AgEIcHlwaS5vcmc"),
    "Stripe live": of(ALNUM, 24, "sk_live_"),
    "Stripe restricted": of(ALNUM, 24, "rk_live_"),
    "Stripe webhook": of(ALNUM, 32, "whsec_"),
    "SendGrid": of(ALNUM, 43, "SG.a1B2c3D4e5F6g7H8i9J0kL."),
    "Databricks": of(HEX, 32, "dapi"),
    "DigitalOcean": of(HEX, 64, "dop_v1_"),
    "Vault": of(ALNUM, 24, "hvs."),
    "Docker": of(ALNUM, 27, "dckr_pat_"),
    "Mailgun": of(HEX, 32, "key-"),
    "Twilio": of(HEX, 32, "SK"),
    "Shopify": of(HEX, 32, "shpat_"),
    "Square": of(ALNUM, 43, "sq0csp-"),
    "Linear": of(ALNUM, 40, "lin_api_"),
    "Notion": of(ALNUM, 40, "ntn_"),
    "Figma": of(ALNUM, 40, "figd_"),
    "Grafana": of(ALNUM, 32, "glsa_"),
    "Sentry": of(ALNUM, 60, "sntrys_"),
    "New Relic": of(ALNUM, 27, "NRAK-"),
    "Postman": of(HEX, 24, "PMAK-"),
    "Pulumi": of(HEX, 40, "pul-"),
    "Supabase": of(HEX, 40, "sbp_"),
    "PostHog": of(ALNUM, 43, "phc_"),
    "Atlassian": of(ALNUM, 100, "ATATT3xFfGF0"),
    "Brevo": of(HEX, 64, "xkeysib-"),
    "Contentful": of(ALNUM, 43, "CFPAT-"),
    "Tavily": of(ALNUM, 32, "tvly-"),
    "Alibaba": of(ALNUM, 20, "LTAI"),
    "Telegram": of(ALNUM + "-_", 33, "7103456789:AA"),
    "age": of("QPZRY9X8GF2TVDW0S3JN54KHCE6MUA7L", 58, "AGE-SECRET-KEY-1"),
    "Dynatrace": of(
        string.ascii_uppercase + string.digits, 64, "dt0c01.ST2EY72KQINMH574WMNVI7YN."
    ),
    "Wandb": of(HEX, 40),
    "Datadog": of(HEX, 32),
    "JSON Web Token": lambda r: ".".join(
        base64.urlsafe_b64encode(x).decode().rstrip("=")
        for x in (
            b'{"alg":"HS256"}',
            b'{"sub":"' + r.randbytes(9).hex().encode() + b'"}',
            r.randbytes(32),
        )
    ),
    "Slack hook": of(
        ALNUM, 24, "https://hooks.slack.com/services/T0AB1CD2E/B0FG3HI4J/"
    ),
    "Azure storage": lambda r: base64.b64encode(r.randbytes(64)).decode(),
}
BARE: Final = (
    "{}",
    "using {} now",
    "value={}",
    '{{"x": "{}"}}',
    "('{}',)",
    "['a', '{}']",
    "\\n{}\\n",
    "\x1b[32m{}\x1b[0m",
    "%3D{}",
    "x=%22{}%22",
    "https://h.example/p/{}?q=1",
    "https://h.example/p?q={}&r=1",
    "<b>{}</b>",
    "{}: denied",
    "`{}`",
    "a,{},b",
    '\\"{}\\"',
    "repr(b'{}')",
    "-x {}",
    "{};",
    "({})",
)

NAMES: Final = (
    "api_key",
    "apiKey",
    "API_KEY",
    "OPENAI_API_KEY",
    "password",
    "passwd",
    "PGPASSWORD",
    "MYSQL_PWD",
    "dbPassword",
    "DB_PASS",
    "clientSecret",
    "client_secret",
    "SECRET_KEY",
    "SECRET_KEY_BASE",
    "SLACK_BOT_TOKEN",
    "HF_TOKEN",
    "HUGGING_FACE_HUB_TOKEN",
    "access_token",
    "refreshToken",
    "auth_token",
    "NPM_TOKEN",
    "AWS_SECRET_ACCESS_KEY",
    "aws_session_token",
    "private_key",
    "passphrase",
    "SSH_PASSPHRASE",
    "REDIS_PASSWORD",
    "rootPassword",
    "credentials",
    "account_key",
    "AZURE_STORAGE_KEY",
    "subscriptionKey",
    "encryption_key",
    "SIGNING_KEY",
    "webhook_secret",
    "spring.datasource.password",
    "ACME_MASTER_KEY",
)
NAMED: Final = (
    "{n}={s}",
    "{n}: '{s}'",
    '{n}="{s}"',
    '"{n}": "{s}"',
    "'{n}': '{s}'",
    "('{n}', '{s}')",
    "(b'{n}', b'{s}')",
    "{{'{n}': b'{s}'}}",
    "--{n} {s} --port 80",
    "--{n}={s}",
    "['--{n}', '{s}']",
    "('--{n}', '{s}', '--port', '80')",
    "['x', '--{n}={s}', 'y']",
    '{{\\"{n}\\": \\"{s}\\"}}',
    '{{\\\\\\"{n}\\\\\\": \\\\\\"{s}\\\\\\"}}',
    "{n}%3D{s}%26x",
    "%22{n}%22%3A%22{s}%22",
    "ok\\n{n}={s}\\nx=1",
    "environ({{'A': 'b', '{n}': '{s}'}})",
    "export {n}='{s}'",
    'declare -x {n}="{s}"',
    "A=b\0{n}={s}\0C=d",
    "\x1b[1m{n}\x1b[0m=\x1b[31m{s}\x1b[0m",
    '{{"name": "{n}", "value": "{s}"}}',
    "- name: {n}\n  value: {s}",
    "docker run -e {n}={s} img",
    "-e '{n}={s}'",
    'Environment="{n}={s}" "A=b"',
    "<{n}>{s}</{n}>",
    "{n} = {s}",
    "{n}=['{s}']",
    "{n} => {s}",
    "&{n}={s}&x=1",
    'x{{{n}="{s}"}} 1',
    "{n}: {s}",
    "{n}: |\n  {s}\n",
    '<x name="{n}" value="{s}"/>',
    "{n}=SecretStr('{s}')",
)
WORDS: Final = (
    "SERVICE_PW",
    "dbPw",
    "GH_PAT",
    "AZDO_PAT",
    "id_token",
    "sas",
    "BLOB_SAS",
    "vault",
    "ANSIBLE_VAULT",
    "VAULT_PASS",
    "TOKEN_GITHUB",
    "OPENAI_API_KEY_PROD",
    "wifi_psk",
    "kubeconfig",
    "user_passkey",
    "CSRF",
    "cvv",
    "DB_PASSWORD_OLD",
)
"""Names that say secret: any word behind them is one."""
SYLLABLES: Final = (
    "vel",
    "mor",
    "tin",
    "dra",
    "kos",
    "lun",
    "pem",
    "ri",
    "sa",
    "bur",
    "ghe",
    "nol",
)


def word(r: random.Random) -> str:
    return "".join(r.choices(SYLLABLES, k=3))


def sentence(r: random.Random) -> str:
    """What somebody asks: words that no dictionary of secrets has."""
    return f"my sister {word(r)} {word(r)} has a rash and {word(r)} too"


def machine(r: random.Random) -> str:
    return f"{word(r)}-{r.randrange(99)}.{word(r)}.{r.choice(('internal', 'corp', 'example', 'de', 'svc.cluster.local'))}"


def address(r: random.Random) -> str:
    return ".".join(str(r.randrange(11, 250)) for _ in range(4))


def card(r: random.Random) -> str:
    digits = [int(d) for d in r.choice(("4", "51", "35", "6011"))]
    digits += [r.randrange(10) for _ in range(15 - len(digits))]
    total = sum(
        sum(divmod(2 * d, 10)) if n % 2 == 0 else d
        for n, d in enumerate(reversed(digits))
    )
    shown = "".join(map(str, [*digits, -total % 10]))
    return r.choice(
        (
            shown,
            " ".join(shown[n : n + 4] for n in range(0, 16, 4)),
            "-".join(shown[n : n + 4] for n in range(0, 16, 4)),
        )
    )


def phone(r: random.Random) -> str:
    a, b, c = r.randrange(200, 999), r.randrange(200, 999), r.randrange(1000, 9999)
    return r.choice(
        (
            f"+49 {a} {b}{c}",
            f"+1-{a}-{b}-{c}",
            f"({a}) {b}-{c}",
            f"+44{a}{b}{c}",
            f"{a}-{b}-{c}",
            f"0{a}/{b}{c}",
        )
    )


LOGGED: Final = (
    "log excerpt",
    "log record",
    "log line",
    "event",
    "failure",
    "printed log",
)
"""Places where lines of an engine's log stand."""
ANYWHERE: Final = (
    "failure",
    "failed",
    "setting",
    "fact",
    "event",
    "log excerpt",
    "log record",
    "log line",
    "environment",
    "answer",
    "JSON",
    "symptom",
    "condition",
    "claim",
    "reason",
    "reproducer",
)
_VLLM, _SGLANG = "INFO 11-21 02:44:01 [{}] ", "[2026-11-21 02:44:01] "
_BAD: Final = "ERROR 11-21 02:44:01 [{}] "
QUOTED: Final = (
    *(
        line
        for at in ("logger.py:39", "entrypoints/logger.py:49")
        for line in (
            _VLLM.format(at)
            + (
                "Received request chatcmpl-1: prompt: '{}', params: "
                "SamplingParams(n=1, seed=None), prompt_token_ids: [1, 2]."
            ),
            _VLLM.format(at)
            + (
                "Received request chatcmpl-1: prompt: 'hello\n{}\nand so on', "
                "params: SamplingParams(n=1)"
            ),
            _VLLM.format(at) + 'Received request chatcmpl-1: prompt: "hello {}',
        )
    ),
    _VLLM.format("api_server.py:7")
    + 'body: {{"messages": [{{"role": "user", "content": "{}"}}]}}',
    _BAD.format("launcher.py:80") + 'could not parse {{"patient": "{}", "age": 41}}',
    _BAD.format("hermes_tool_parser.py:120")
    + (
        'Error in extracting tool call from <tool_call>{{"name": "mail", '
        '"arguments": {{"to": "{}"}}}}</tool_call>'
    ),
    _BAD.format("async_llm.py:3") + "unexpected <|im_start|>user {}<|im_end|>",
    _BAD.format("serving_chat.py:195") + "Error in preprocessing prompt inputs: {}",
    _BAD.format("serving_chat.py:195")
    + "jinja2.exceptions.TemplateError: roles must alternate, got {}",
    "jinja2.exceptions.UndefinedError: '{}' is undefined",
    (
        "pydantic_core._pydantic_core.ValidationError: 1 validation error for "
        "ChatCompletionRequest input_value='{}', input_type=str"
    ),
    _BAD.format("utils.py:60") + "Failed to compile 'root ::= {}'",
    _SGLANG + "Receive: obj=GenerateReqInput(text='{}', input_ids=None)",
    _SGLANG
    + "Finish: obj=GenerateReqInput(rid='1'), out={{'text': '{}', 'meta_info': {{}}}}",
    (
        "2026-11-21 02:44:01,123 - lmdeploy - INFO - logger.py:20 - session=1, "
        "adapter_name=None, input_tokens=5, prompt='{}', gen_config=1"
    ),
    _VLLM.format("input_processor.py:9")
    + "SamplingParams(n=1, stop=['{}'], seed=None)",
    _VLLM.format("x.py:1") + "`{}` is no role",
    _VLLM.format("async_llm.py:607")
    + "Request chatcmpl-1 failed (bad request): Grammar error: Invalid type: {}.",
    _VLLM.format("async_llm.py:415") + "Added request chatcmpl-{}.",
    _VLLM.format("entrypoints/.../utils/error_response.py:26")
    + "create_error_response called with ValueError: {}",
    (
        "2026-11-21 02:44:01,123 - lmdeploy - WARNING - tokenizer.py:697 - The token "
        "{}, its length of indexes [1, 2]"
    ),
    "ValueError: no such role: '{}'",
)
HEADERS: Final = (
    "X-API-Key",
    "PRIVATE-TOKEN",
    "X-Vault-Token",
    "X-Amz-Security-Token",
    "Ocp-Apim-Subscription-Key",
    "X-Goog-Api-Key",
    "X-Auth-Token",
    "api-key",
    "DD-API-KEY",
    "X-Acme-Key",
    "Proxy-Authorization",
    "Authorization",
    "Cookie",
    "Set-Cookie",
    "X-CSRF-Token",
)
HEADED: Final = (
    "{n}: {s}",
    "'{n}': '{s}'",
    "(b'{n}', b'{s}')",
    '["{n}", "{s}"]',
    "-H '{n}: {s}'",
    '\\"{n}\\": \\"{s}\\"',
    "> {n}: {s}\\r\\n> x: y",
    "{n}: Bearer {s}",
    "'{n}': 'Bearer {s}'",
    "(b'{n}', b'Bearer {s}')",
    "Headers({{'{n}': '{s}'}})",
)
URLS: Final = (
    "https://user:{}@host.example/x",
    "redis://:{}@cache:6379/0",
    "postgres://u:{}#x@db/app",
    "mongodb+srv://u:{}/y@db.example",
    "git+https://{}@git.example/r.git",
    "amqp://u:{}@mq//",
    "http://u:{}@10.0.0.5:3128 is the proxy",
    "'https_proxy': 'http://u:{}@p:80'",
)
OPAQUE: Final[dict[str, Draw]] = {
    "base62, 24": of(ALNUM, 24),
    "base62, 40": of(ALNUM, 40),
    "base36, 32": of(string.ascii_lowercase + string.digits, 32),
    "capitals, 32": of(string.ascii_uppercase + string.digits, 32),
    "hexadecimal, 32": of(HEX, 32),
    "hexadecimal, 64": of(HEX, 64),
    "base64, 24 bytes": lambda r: base64.b64encode(r.randbytes(24)).decode(),
    "base64url, 32 bytes": lambda r: (
        base64.urlsafe_b64encode(r.randbytes(32)).decode().rstrip("=")
    ),
    "base32": lambda r: base64.b32encode(r.randbytes(20)).decode(),
    "UUID": lambda r: str(uuid.UUID(int=r.getrandbits(128), version=4)),
    "letters, 32": of(string.ascii_letters, 32),
    "dashed": lambda r: "-".join(
        "".join(r.choices(string.ascii_uppercase + string.digits, k=5))
        for _ in range(5)
    ),
}
CUTS: Final = ("{}\n{}", "{}\n    {}", "{}\\\n{}")
"""A terminal's width breaks it: after two thirds."""
OTHERS: Final[dict[str, tuple[str, ...]]] = {
    "a password in prose": (
        "we log in as bob with {} there",
        "her code is {} I think",
        "use {} instead",
    ),
    "a short token": ("code {} sent", "id={}", "ticket '{}'"),
}


def _kinds() -> dict[str, Kind]:
    kinds = {f"vendor {name}": Kind(draw, BARE) for name, draw in VENDORS.items()}
    kinds |= {
        f"named {n}": Kind(
            password, tuple(f.replace("{n}", n).replace("{s}", "{}") for f in NAMED)
        )
        for n in NAMES
    }
    kinds |= {
        f"header {n}": Kind(
            password, tuple(f.replace("{n}", n).replace("{s}", "{}") for f in HEADED)
        )
        for n in HEADERS
    }
    kinds |= {f"opaque {name}": Kind(draw, BARE) for name, draw in OPAQUE.items()}
    kinds |= {
        "in an address": Kind(password, URLS),
        "wrapped": Kind(of(ALNUM, 40), CUTS),
    }
    kinds["private key"] = Kind(
        of(ALNUM, 64),
        (
            "-----BEGIN PRIVATE KEY-----\n{}\n-----END PRIVATE KEY-----",
            "'-----BEGIN RSA PRIVATE KEY-----\\n{}\\n-----END RSA PRIVATE KEY-----'",
        ),
    )
    kinds["SharedAccessKey"] = Kind(
        lambda r: base64.b64encode(r.randbytes(32)).decode(),
        (
            "Endpoint=sb://x.example/;SharedAccessKeyName=Root;SharedAccessKey={}",
            "AccountName=a;AccountKey={};EndpointSuffix=x",
        ),
    )
    kinds["SAS"] = Kind(
        of(ALNUM, 43),
        ("https://x.example/c?sv=2022-11-02&sr=b&sig={}%3D&se=2027", "?sig={}"),
    )
    kinds |= {
        f"named {n}, a word": Kind(
            word,
            (
                "{}={}".replace("{}", n, 1),
                f"{n}: '{{}}'",
                f'"{n}": "{{}}"',
                f"--{n} {{}} --port 80",
            ),
        )
        for n in WORDS
    }
    kinds["quoted in a log"] = Kind(sentence, QUOTED, places=LOGGED)
    kinds["a name that is quoted"] = Kind(
        word,
        tuple(f for f in QUOTED if "no role" in f or "stop=" in f or '"to"' in f),
        places=LOGGED,
    )
    kinds["a route"] = Kind(
        word,
        (
            '127.0.0.1:5 - "GET /tenants/{}/v1/models HTTP/1.1" 404',
            'INFO:     127.0.0.1:5 - "GET /health?who={} HTTP/1.1" 200 OK',
        ),
        places=LOGGED,
    )
    kinds["an address"] = Kind(
        address,
        (
            "{}:8443",
            "http://{}:8000/v1",
            "cannot connect to {}:29500",
            "client {} left",
            "('{}', 51234)",
            '"client_ip": "{}"',
            "'remote_addr': '{}'",
            "RAY_ADDRESS=ray://{}:10001",
            "tcp://{}:5557",
            "--dist-init-addr {}:5000",
            '{}:51234 - "POST /v1/completions HTTP/1.1" 200',
            "peer={}",
            "from {} port 22",
        ),
        places=ANYWHERE,
    )
    kinds["a machine"] = Kind(
        machine,
        (
            "{}:8443",
            "http://{}:8000/v1",
            "cannot connect to {}:29500",
            "RAY_ADDRESS={}:6379",
            "MASTER_ADDR={}",
            '"host": "{}"',
            "tcp://{}:5557",
            "https://{}/v1/models",
            "--host {}",
        ),
        places=ANYWHERE,
    )
    kinds["a user"] = Kind(
        word,
        (
            "user={}",
            "user='{}'",
            '"user": "{}"',
            "path ~{}/models",
            "/mnt/users/{}/x",
            "/data/home/{}/x",
            "/nfs/people/{}/y",
            "ssh {}@gpu-7",
            "scp a {}@node3:/tmp",
            "ssh -l {} gpu-7",
            "--user {}",
            "USER={}",
            "LOGNAME={}",
            "{}@gpu-7:~$ ls",
            "tenant={}",
            "username: {}",
        ),
        places=ANYWHERE,
    )
    kinds["a card"] = Kind(
        card, ("{}", "card {} please", '"card": "{}"', "paid with {}."), places=ANYWHERE
    )
    kinds["a phone"] = Kind(
        phone, ("{}", "call {} please", '"phone": "{}"', "tel: {}"), places=ANYWHERE
    )
    kinds["a folder"] = Kind(
        word,
        (
            "HF_HOME=/data/{}/hf",
            "TRANSFORMERS_CACHE='/mnt/{}/cache'",
            "VLLM_CACHE_ROOT=/{}/vllm",
        ),
        places=ANYWHERE,
    )
    kinds["a tenant"] = Kind(word, ("{}",), places=("label", "raw label", "models"))
    kinds["a name of a file"] = Kind(word, ("{}",), places=("file", "log's name"))
    kinds["asked"] = Kind(
        sentence, ("{}", "hello\n{}\nbye"), places=("local", "raw local")
    )
    kinds["refused"] = Kind(
        sentence,
        (
            "400 Invalid role: {}",
            '400 {{"error": {{"message": "bad input \'{}\'"}}}}',
            "422 jinja2 says: roles must alternate, {}",
            "500 'messages': {}",
            "400 <p>{}",
        ),
        places=("observed",),
    )
    kinds |= {
        name: Kind(of(ALNUM, 8), forms, clear=False) for name, forms in OTHERS.items()
    }
    kinds |= {
        name: Kind(password, ("{}",), make=make, times=8)
        for name, make in contexts.KINDS.items()
    }
    return kinds


KINDS: Final = _kinds()


def drawn(chance: random.Random, kind: str, place: str) -> Plant:
    """A plant of that kind with a new secret; the form is drawn, too."""
    told = KINDS[kind]
    place = chance.choice(told.places) if told.places else place
    secret, text = told.make(chance) if told.make else _filled(chance, told)
    name = (
        kind.partition(" ")[2].partition(",")[0]
        if kind.startswith(("named", "header"))
        else ""
    )
    return Plant(
        kind,
        place,
        secret,
        text,
        _structure(chance, name, kind, secret, text),
        told.clear,
    )


def _filled(chance: random.Random, told: Kind) -> tuple[str, str]:
    """A secret of a kind in one of its forms; two places in one take a part of it
    each."""
    secret = told.draw(chance)
    form = chance.choice(told.forms)
    if form.count("{}") == 2:
        head, tail = secret[: len(secret) * 2 // 3], secret[len(secret) * 2 // 3 :]
        return secret, form.replace("{}", head, 1).replace("{}", tail)
    return secret, form.replace("{{", "{").replace("}}", "}").replace("{}", secret)


def _structure(
    chance: random.Random, name: str, kind: str, secret: str, text: str
) -> Any:
    """The same as a program's data: JSON evidence that mmrepro can parse."""
    if not name:
        bare = secret if kind.startswith(("vendor", "opaque")) else text
        return chance.choice(
            (
                {"x": bare},
                [bare],
                {"a": {"b": [text]}},
                {bare: 1},
                json.dumps({"x": bare}),
            )
        )
    return chance.choice(
        (
            {name: secret},
            {"name": name, "value": secret},
            [[name, secret]],
            ["--" + name, secret, "--port"],
            {"a": [{name: [secret]}]},
            json.dumps({name: secret}),
            {"headers": {name: f"Bearer {secret}"}},
        )
    )

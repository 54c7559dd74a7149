"""Secrets by kinds: commands, words, blanks, tables, and encodings between a name and
its value."""

import base64
import codecs
import html
import re
import time
from collections.abc import Callable
from urllib.parse import quote

import pytest
from mmrepro.base.records import Record
from mmrepro.base.text import encoded
from mmrepro.base.text.redact import PLACEHOLDER, Redactor

# Nothing but what stands around says it of the first.
S, LOOKS = (
    "velmortin",
    "Blue7xQm",
)


def redacted(text: str) -> str:
    return Redactor(home="/home/me").redact(text)


JOINED = [
    "HF_TOKEN is set to {}",
    "we changed DB_PASSWORD to {} there",
    "REDIS_PASSWORD -> {}",
    "set -gx HF_TOKEN {}",
    "set --export --global HF_TOKEN {}",
    "setenv HF_TOKEN {}",
    "setx HF_TOKEN {} /M",
    "setx S3Secret {}",
    "ENV HF_TOKEN {}",
    "Set-Item -Path Env:HF_TOKEN -Value {}",
    "$env:HF_TOKEN = '{}'",
    "PROXY_SECRET[0]={}",
    "launchctl setenv dbPassword {}",
    "HF_TOKEN        {}",
    "  db_password\t{}",
    "| HF_TOKEN | {} |",
    "HF_TOKEN,{}",
    "name;HF_TOKEN\nx;{}",
    "HF_TOKEN .... {}",
    "host,db_password,port\nh1,{},80",
    "host\tHF_TOKEN\nh1\t{}",
    "| host | HF_TOKEN |\n|---|---|\n| h1 | {} |",
    '"host","HF_TOKEN"\n"h1","{}"',
    "HOST    DB_PASSWORD\n-------------------\nh1      {}",
    "INFO 11-21 02:44:01 [core.py:1] host,HF_TOKEN\nh1,{}",
    "aws configure set aws_secret_access_key {}",
    "git config --global acme.token {}",
    "npm config set //r.example/:_authToken {}",
    "aws ssm put-parameter --name /x/HF_TOKEN --value {}",
    "gh secret set HF_TOKEN --body {}",
    "requirepass {}",
    "  db.password {}\n",
    "db.example:5432:*:bob:{}",
    "ConvertTo-SecureString '{}' -AsPlainText -Force",
    "<key>HF_TOKEN</key>\n<string>{}</string>",
    '<entry key="db.password">{}</entry>',
    '{"name": "HF_TOKEN", "content": "{}"}',
]


@pytest.mark.parametrize("form", JOINED)
def test_a_name_and_its_value_with_something_else_than_a_sign_between_them(
    form: str,
) -> None:
    out = redacted(form.replace("{}", S))
    assert S not in out
    assert PLACEHOLDER.search(out)


PROSE = [
    "my HF_TOKEN is {}, is that wrong?",
    "HF_TOKEN ({}) was refused",
    "DB_PASSWORD for bob: {}",
    "use {} as HF_TOKEN",
    "got HF_TOKEN {} from the vault",
    "the password for bob is {}",
]


@pytest.mark.parametrize("form", PROSE)
def test_in_a_sentence_a_value_goes_that_is_no_word(form: str) -> None:
    assert LOOKS not in redacted(form.replace("{}", LOOKS))
    assert "forgotten" in redacted(form.replace("{}", "forgotten"))


COMMANDS = [
    "sshpass -p {} ssh bob@h",
    "sshpass -p{} scp a b",
    "['sshpass', '-p', '{}', 'ssh']",
    '{"argv": ["mysql", "-uroot", "-p{}", "db"]}',
    "az login -u bob -p {} --tenant x",
    "docker login -u bob -p {} r",
    "redis-cli -h h -a {} ping",
    "curl -s -u bob:{} http://h",
    "smbclient //h/s -U bob%{}",
    "lftp -u bob,{} ftp://h",
    "sqlplus bob/{}@db",
    "openssl rsa -passin pass:{} -in k",
    "openssl enc -k {} -in a",
    "htpasswd -nb bob {}",
    "wandb login {}",
    "vault login {}",
    "keytool -list -storepass {}",
    "7z x -p{} a.7z",
    "zip -P {} a.zip b",
    "ssh-keygen -N {} -f k",
    "nmcli device wifi connect ap password {}",
    "xfreerdp /u:bob /p:{} /v:h",
    "rabbitmqctl add_user bob {}",
    "kubectl create secret generic x --from-literal=db={}",
    "az keyvault secret set --name n --value {}",
    '"cmd": "mysql -uroot -p{}"',
    "echo {} | docker login -u bob --password-stdin",
    "echo bob:{} | chpasswd",
    "gh auth login --with-token <<< {}",
    "mariadb -uroot -p'{}' db",
]


@pytest.mark.parametrize("form", COMMANDS)
def test_what_a_command_takes_as_a_secret(form: str) -> None:
    out = redacted(form.replace("{}", S))
    assert S not in out
    for word in form.split()[:1]:
        assert word.strip("[]'\",{") in out, "the command stays"


@pytest.mark.parametrize("quote", ["'", '"'])
def test_a_quoted_secret_behind_its_option_goes_whole(quote: str) -> None:
    """Its first word may have one letter."""
    out = redacted(f"mysql -p{quote}q horse battery staple{quote} db")
    assert not {"horse", "battery", "staple"} & set(re.findall(r"\w+", out))
    assert out.endswith(f"{quote} db")


ENCODINGS: dict[str, Callable[[str], str]] = {
    "numbers": lambda t: str(list(t.encode())),
    "numbers without blanks": lambda t: (
        "bytes([" + ",".join(map(str, t.encode())) + "])"
    ),
    "hexadecimal numbers": lambda t: "{" + ", ".join(map(hex, t.encode())) + "}",
    "wide": lambda t: "".join(chr(ord(c) + 0xFEE0) for c in t),
    "entities": lambda t: "".join(f"&#{ord(c)};" for c in t),
    "hexadecimal entities": lambda t: "".join(f"&#x{ord(c):X};" for c in t),
    "\\u": lambda t: "".join(f"\\u{ord(c):04x}" for c in t),
    "\\u of some": lambda t: "".join(
        f"\\u{ord(c):04x}" if n % 2 else c for n, c in enumerate(t)
    ),
    "\\x": lambda t: "".join(f"\\x{ord(c):02x}" for c in t),
    "octal": lambda t: "".join(f"\\{ord(c):03o}" for c in t),
    "U+": lambda t: " ".join(f"U+{ord(c):04X}" for c in t),
    "percent": lambda t: "".join(f"%{ord(c):02X}" for c in t),
    "percent twice": lambda t: "".join(f"%25{ord(c):02X}" for c in t),
    "entities in percent": lambda t: quote("".join(f"&#{ord(c)};" for c in t), safe=""),
    "pairs": lambda t: t.encode().hex(" "),
    "quoted-printable": lambda t: "".join(f"={ord(c):02X}" for c in t),
    "spaced": " ".join,
    "letters that are joined": lambda t: " + ".join(f"'{c}'" for c in t),
    "calls": lambda t: "+".join(f"chr({ord(c)})" for c in t),
    "bits": lambda t: " ".join(f"{ord(c):08b}" for c in t),
    "octal numbers": lambda t: " ".join(f"{ord(c):03o}" for c in t),
    "CSS": lambda t: "".join(f"\\{ord(c):x} " for c in t).strip(),
    "percent u": lambda t: "".join(f"%u{ord(c):04x}" for c in t),
    "letters": lambda t: str(list(t)),
}
SEEN_BY_WHO_KNOWS: dict[str, Callable[[str], str]] = {
    "Base64": lambda t: base64.b64encode(t.encode()).decode(),
    "Base64 of more": lambda t: base64.b64encode(f"x{t}:more".encode()).decode(),
    "Base32": lambda t: base64.b32encode(t.encode()).decode(),
    "hexadecimal": lambda t: t.encode().hex(),
    "reversed": lambda t: t[::-1],
    "rot13": lambda t: codecs.encode(t, "rot13"),
    "moved by three": lambda t: "".join(chr((ord(c) - 97 + 3) % 26 + 97) for c in t),
    "capitals": str.upper,
    "Base85": lambda t: base64.b85encode(t.encode()).decode(),
}


@pytest.mark.parametrize("encoding", ENCODINGS)
def test_an_encoded_value_goes_whole(encoding: str) -> None:
    hidden = ENCODINGS[encoding](S)
    for form in (
        "HF_TOKEN={}",
        'password: "{}"',
        "HF_TOKEN is set to {}",
        "--api-key {}",
    ):
        out = redacted(form.replace("{}", hidden))
        assert hidden not in out
        assert hidden[len(hidden) // 2 :] not in out
        assert PLACEHOLDER.search(out)


@pytest.mark.parametrize("encoding", [*ENCODINGS, "Base64", "hexadecimal"])
def test_a_name_and_its_value_in_one_encoding(encoding: str) -> None:
    hidden = {**ENCODINGS, **SEEN_BY_WHO_KNOWS}[encoding](f"ACME_PASSWORD={S}")
    assert hidden[-len(hidden) // 4 :] not in redacted(f"got {hidden} from it")


@pytest.mark.parametrize("encoding", [*ENCODINGS, *SEEN_BY_WHO_KNOWS])
def test_another_spelling_of_a_secret_that_is_known(encoding: str) -> None:
    hidden = {**ENCODINGS, **SEEN_BY_WHO_KNOWS}[encoding](S)
    out = redacted(f"HF_TOKEN={S}\nand then\n{hidden} there")
    assert hidden not in out
    assert "[redacted:key-1]" in out


def test_a_secret_that_no_text_has_by_chance_goes_wherever_it_stands() -> None:
    out = redacted(
        "got HF_TOKEN=Blue7xQm9 and then Blue7xQm9 alone, DB_PASSWORD=production in "
        "production"
    )
    assert out.count("[redacted:key-1]") == 2
    assert out.endswith("[redacted:password-1] in production")


def test_the_names_below_a_secret_s_name_are_no_column() -> None:
    text = "NAME           VALUE\nHF_TOKEN       velmortin\nPORT           8000"
    assert redacted(text) == text.replace("velmortin", "[redacted:key-1]")
    assert (
        redacted("HF_TOKEN,velmortin\nPORT,8000")
        == "HF_TOKEN,[redacted:key-1]\nPORT,8000"
    )


class Fields(Record):
    first: str
    variables: dict[str, str]


def test_a_field_may_spell_what_a_later_one_names() -> None:
    hidden = base64.b64encode(S.encode()).decode()
    model = Fields(first=f"x {hidden} y", variables={"API_KEY": S})
    one = Redactor()
    assert one.redact_model(model).first == "x [redacted:key-1] y"
    assert one.redact_model(model).first == "x [redacted:key-1] y", (
        "and of the cache as well"
    )
    assert one.redact(model.first) == "x [redacted:key-1] y"
    assert Redactor().redact(model.first) == model.first


@pytest.mark.parametrize("times", [1, 2])
@pytest.mark.parametrize(
    "address", ["https://{}/x", "http://{}:8080/v1", "//{}/a", "{}:5432"]
)
def test_an_address_in_a_parameter(address: str, times: int) -> None:
    shown = address.replace("{}", "10.157.63.130")
    for _ in range(times):
        shown = quote(shown, safe="")
    assert "10.157.63.130" not in redacted(f"GET /proxy?url={shown}&x=1 HTTP/1.1")


def test_words_of_engines_stay() -> None:
    for text in (
        "max_tokens=7 token ids key-value cache session 3 tokenizer: x",
        "HF_TOKEN is not set",
        "HF_TOKEN is set",
        "set HF_TOKEN before you start",
        "the password is wrong",
        "token embeddings",
        (
            "block_ids=([25, 26, 27, 28, 29, 30, 31, 32, 33, 34, 35, 36, 37, 38, 39, "
            "40, 41, 42, 43],)"
        ),
        "sizes [1, 2, 4, 8, 16, 24, 32, 40, 48, 56, 64]",
        "For the written token, the prompt is as long as\nwith the token, not as",
        '[{"role": "user", "content": "hi"}]',
        "docker run -p 8000:8000 image",
        "ssh -p 2222 h",
        "a%20b &amp; c &lt;d&gt; \\u00e9",
        "NAME      VALUE\nPORT      8000\nkey_cache torch",
        "key_cache      torch.bfloat16",
        "| token | logprob |\n|---|---|\n| the | -0.5 |",
        "cache_key\tvalue",
        "a - b - c - d - e - f",
    ):
        assert redacted(text) == text


@pytest.mark.parametrize(
    "text", [html.escape('{"api_key": "' + S + '"}'), "ｐａｓｓｗｏｒｄ＝" + S]
)
def test_only_the_value_goes_where_its_name_is_encoded(text: str) -> None:
    out = redacted(text)
    assert S not in out
    assert out.startswith(text[:8])


@pytest.mark.parametrize(
    "part",
    [
        ENCODINGS["percent"](f"HF_TOKEN={S} "),
        ENCODINGS["numbers"](f"HF_TOKEN={S} "),
        "sshpass -p x ",
        "HF_TOKEN,",
        "token,a\n",
        "| HF_TOKEN | x |\n",
        "HF_TOKEN  ",
        "set HF_TOKEN ",
        "echo x | ",
        "a ",
        "'a',",
        "&#",
        "\\u00",
        "%25",
        "12,",
        "echo '",
        "mysql -p'",
        "token\tkey\n",
        f"HF_TOKEN={S}\n",
        "docker login ",
        "<<< ",
        "HF_TOKEN is set to ",
    ],
)
def test_time_is_linear_in_the_text(part: str) -> None:
    """Four times the text takes four times as long, not sixteen."""

    def seconds(characters: int) -> float:
        text = part * (characters // len(part))
        started = time.process_time()
        redacted(text)
        return time.process_time() - started

    assert any(seconds(40_000) < 0.3 + 8 * seconds(10_000) for _ in range(4))


def test_a_view_knows_where_its_characters_come_from() -> None:
    text = "x=%2568%25unter, ok"
    views = list(encoded.views(text))
    assert [view.text for view in views] == ["x=%68%unter, ok", "x=h%unter, ok"]
    start = views[1].text.index("h%")
    assert views[1].source(start, start + 2) == (2, 10)
    assert views[1].decodes(start, start + 1)
    assert not views[1].decodes(0, 2)

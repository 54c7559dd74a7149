"""Plants that are drawn from kinds of contexts, names, commands and encodings.

Any name in any context, any secret in any command, any secret in any encoding: another
seed gives combinations, names and secrets that none gave before."""

from __future__ import annotations

import base64
import codecs
import random
import string
from collections.abc import Callable
from typing import Final
from urllib.parse import quote

ALNUM: Final = string.ascii_letters + string.digits
Made = tuple[str, str]
"""What must not be found, and the text that holds it."""

# ------------------------------------------------------------------ names and secrets

OWNERS: Final = (
    "hf",
    "acme",
    "openai",
    "db",
    "redis",
    "smtp",
    "registry",
    "grafana",
    "wandb",
    "storage",
    "proxy",
    "backup",
    "billing",
    "ldap",
    "jira",
    "mail",
    "admin",
    "worker",
    "tenant",
    "s3",
)
ENDINGS: Final = (
    ("api", "key"),
    ("access", "key"),
    ("secret", "key"),
    ("password",),
    ("passwd",),
    ("token",),
    ("secret",),
    ("auth", "token"),
    ("access", "token"),
    ("credential",),
    ("passphrase",),
    ("pwd",),
    ("client", "secret"),
    ("private", "key"),
    ("refresh", "token"),
    ("master", "password"),
)
STYLES: Final[tuple[Callable[[list[str]], str], ...]] = (
    lambda words: "_".join(words).upper(),
    lambda words: "_".join(words).upper(),
    lambda words: "_".join(words),
    lambda words: words[0] + "".join(word.title() for word in words[1:]),
    lambda words: "".join(word.title() for word in words),
    lambda words: "-".join(words),
)
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


def name(r: random.Random) -> str:
    return r.choice(STYLES)([r.choice(OWNERS), *r.choice(ENDINGS)])


def shouted(r: random.Random) -> str:
    return "_".join([r.choice(OWNERS), *r.choice(ENDINGS)]).upper()


def password(r: random.Random) -> str:
    """Letters and digits, as people make them up."""
    made = "".join(r.choices(ALNUM, k=r.randint(3, 9)))
    return r.choice(("Blue", "tiger", "moon", "Qx")) + made + r.choice("0123456789")


def passed(r: random.Random) -> str:
    """A word that no dictionary has, or letters and digits."""
    return password(r) if r.random() < 0.5 else "".join(r.choices(SYLLABLES, k=3))


# ----------------------------------------------------------------- a name and its value

PROSE: Final = (
    "{n} is set to {s}",
    "{n} was set to {s}.",
    "I have {n} set to {s} here",
    "the value of {n} is {s}",
    "{n} has the value {s}",
    "{n} equals {s}",
    "run it with {n} equal to {s}",
    "{n} -> {s}",
    "{n} → {s}",
    "we changed {n} to {s}",
    "{n} is now {s}",
    "exported {n} as {s} before",
    "please set {n} to {s} first",
    "my {n} is {s}, is that wrong?",
    "{n} ({s}) was refused",
    "{n} (string): {s}",
    "Enter {n}: {s}",
    "{n} for bob: {s}",
    "got {n} {s} from the vault",
    "use {s} as {n}",
    "put {s} into {n}",
)
SHELLS: Final = (
    "set -gx {n} {s}",
    "set -Ux {n} {s}",
    "set -x {n} {s}; vllm serve m",
    "set --export --global {n} {s}",
    "setenv {n} {s}",
    "setx {n} {s}",
    "setx {n} {s} /M",
    "export {n}={s}",
    "$env:{n} = '{s}'",
    "$Env:{n}={s}",
    "set {n}={s}",
    'SET "{n}={s}"',
    "ENV {n} {s}",
    "ARG {n}={s}",
    "Set-Item -Path Env:{n} -Value {s}",
    "[Environment]::SetEnvironmentVariable('{n}', '{s}', 'User')",
    "os.environ['{n}'] = '{s}'",
    "os.environ.setdefault('{n}', '{s}')",
    "os.putenv('{n}', '{s}')",
    "process.env.{n} = '{s}'",
    "Sys.setenv({n} = '{s}')",
    "ENV['{n}'] = '{s}'",
    "putenv('{n}={s}')",
    'std::env::set_var("{n}", "{s}")',
    'os.Setenv("{n}", "{s}")',
    "launchctl setenv {n} {s}",
    "{n}='{s}' cmd",
    "env {n}={s} cmd",
    "sudo {n}={s} cmd",
    "define('{n}', '{s}');",
    "{n}[0]={s}",
    "declare -gx {n}={s}",
    "let-env {n} = '{s}'",
    "$ {n}={s} vllm serve m",
    "+ export {n}={s}",
    "conda env config vars set {n}={s}",
    "read -r {n} <<< {s}",
)
COLUMNS: Final = (
    "{n}      {s}",
    "{n}\t{s}",
    "  {n}                {s}  ",
    "| {n} | {s} |",
    "│ {n} │ {s} │",
    "{n},{s}",
    '"{n}","{s}"',
    "{n};{s}",
    "name,value\n{n},{s}\nport,80",
    "host,{n},port\nh1,{s},80\n",
    "host\t{n}\tport\nh1\t{s}\t80",
    "| host | {n} |\n|------|---|\n| h1 | {s} |",
    '"host","{n}"\n"h1","{s}"',
    "HOST    {n}    \n--------------\nh1      {s}",
    "host;{n};port\nh1;x1y2z3;80\nh2;{s};81",
    "{n}    {s}    string",
    "{n} | {s}",
    "{n} .... {s}",
)
FILES: Final = (
    "- name: {n}\n  value: {s}",
    "env:\n  {n}: {s}",
    "- {n}={s}",
    "{n}: !!str {s}",
    "{n}: >-\n  {s}",
    "stringData: {{n}: {s}}",
    '- name: {n}\n  value: "{s}"',
    "<key>{n}</key>\n<string>{s}</string>",
    '<entry key="{n}">{s}</entry>',
    '<add key="{n}" value="{s}" />',
    '<env name="{n}">{s}</env>',
    "<property><name>{n}</name><value>{s}</value></property>",
    "<{n}>{s}</{n}>",
    '{n} = "{s}"',
    "{n}={s} # ours",
    "[x]\n{n} = {s}",
    'config.{n} = "{s}"',
    '{n} := "{s}"',
    '{"Name": "{n}", "Value": "{s}"}',
    '{"key": "{n}", "value": "{s}"}',
    "machine.{n}={s}",
    '"{n}" => "{s}"',
    "{n} {s}",
    "{{n}: '{s}'}",
    '{"name":"{n}","content":"{s}"}',
    "- {name: {n}, value: {s}}",
)
TOOLS: Final = (
    "aws configure set {n} {s}",
    "aws configure set {n} {s} --profile x",
    "git config --global acme.{n} {s}",
    "npm config set //registry.example/:{n} {s}",
    "pip config set global.{n} {s}",
    "gcloud config set {n} {s}",
    "kubectl create secret generic x --from-literal={n}={s}",
    "helm upgrade x ./c --set env.{n}={s}",
    "docker run -e {n}={s} img",
    "docker build --build-arg {n}={s} .",
    "gh secret set {n} --body {s}",
    "heroku config:set {n}={s}",
    "fly secrets set {n}={s}",
    "vault kv put secret/x {n}={s}",
    "doppler secrets set {n} {s}",
    "az webapp config appsettings set --settings {n}={s}",
    "aws ssm put-parameter --name /x/{n} --value {s} --type SecureString",
    "redis-cli config set {n} {s}",
    "vllm serve m --{n} {s}",
    "vllm serve m --{n}={s}",
    "java -D{n}={s} -jar x.jar",
    "['x', '--{n}', '{s}', '--port', '80']",
    "poetry config {n} {s}",
    "dotenv set {n} {s}",
    "systemd-run -E {n}={s} x",
    'ray job submit --runtime-env-json \'{"env_vars": {"{n}": "{s}"}}\'',
)


def joined(forms: tuple[str, ...]) -> Callable[[random.Random], Made]:
    """A plant of a name and its value; names in the style of a variable, where a blank
    joins them."""

    def made(r: random.Random) -> Made:
        form = r.choice(forms)
        secret = password(r) if form in _LOOKED_AT else passed(r)
        return secret, form.replace(
            "{n}", shouted(r) if r.random() < 0.6 else name(r)
        ).replace("{s}", secret)

    return made


_LOOKED_AT: Final = frozenset(
    {
        "my {n} is {s}, is that wrong?",
        "{n} ({s}) was refused",
        "{n} (string): {s}",
        "{n} for bob: {s}",
        "got {n} {s} from the vault",
        "use {s} as {n}",
        "put {s} into {n}",
        "{n} is now {s}",
        "the value of {n} is {s}",
        "exported {n} as {s} before",
        "{n} {s}",
        "we changed {n} to {s}",
        "please set {n} to {s} first",
        "Enter {n}: {s}",
        "{n} | {s}",
        "{n} .... {s}",
        "read -r {n} <<< {s}",
    }
)
"""Where any word may stand, a secret is one that looks like it."""

# ------------------------------------------------------------------ commands

COMMANDS: Final = (
    "sshpass -p {s} ssh bob@gpu-7",
    "sshpass -p{s} rsync a b",
    "['sshpass', '-p', '{s}', 'scp', 'a', 'b']",
    "az login -u bob -p {s}",
    "az login --service-principal -u x -p {s} --tenant y",
    "mysql -uroot -p{s} db",
    "mysqldump --user=root -p{s} db > x.sql",
    "mariadb -h h -u root -p'{s}' db",
    "mongosh -u admin -p {s} --authenticationDatabase admin",
    "redis-cli -h h -a {s} ping",
    "docker login -u bob -p {s} registry.example",
    "podman login registry.example -u bob -p {s}",
    "helm registry login r -u bob -p {s}",
    "oc login https://h:6443 -u bob -p {s}",
    "cf login -u bob -p {s} -o org",
    "curl -u bob:{s} http://h/x",
    "curl -sS --user 'bob:{s}' http://h",
    "curl --proxy-user bob:{s} -x http://p http://h",
    "http -a bob:{s} GET http://h",
    "wget --user bob --password {s} http://h",
    "lftp -u bob,{s} ftp://h",
    "smbclient //h/share -U bob%{s}",
    "ldapsearch -x -D cn=bob -w {s}",
    "ipmitool -H h -U bob -P {s} power status",
    "snmpwalk -v3 -u bob -A {s} h",
    "mosquitto_pub -h h -u bob -P {s} -t x -m y",
    "sqlcmd -S h -U sa -P {s} -Q x",
    "sqlplus bob/{s}@db",
    "cqlsh h -u bob -p {s}",
    "psql postgresql://bob:{s}@db/x",
    "PGPASSWORD={s} psql -h h",
    "htpasswd -b .htpasswd bob {s}",
    "htpasswd -nb bob {s}",
    "openssl rsa -in k.pem -passin pass:{s} -out o.pem",
    "openssl enc -aes-256-cbc -k {s} -in a",
    "openssl pkcs12 -export -passout pass:{s}",
    "gpg --batch --passphrase {s} -d x.gpg",
    "keytool -list -storepass {s} -keystore k.jks",
    "ssh-keygen -p -P old1pass -N {s} -f k",
    "7z x -p{s} a.7z",
    "zip -P {s} a.zip b",
    "unzip -P {s} a.zip",
    "unrar x -p{s} a.rar",
    "huggingface-cli login --token {s}",
    "hf auth login --token {s} --add-to-git-credential",
    "wandb login {s}",
    "wandb login --relogin {s}",
    "vault login {s}",
    "modelscope login --token {s}",
    "rabbitmqctl add_user bob {s}",
    "mc alias set m http://h:9000 bob {s}",
    "net use Z: \\\\h\\share {s}",
    "twine upload -u bob -p {s} dist/x.whl",
    "az keyvault secret set --vault-name v --name n --value {s}",
    "aws secretsmanager create-secret --name n --secret-string {s}",
    "kubectl config set-credentials bob --token={s}",
    "echo {s} | docker login -u bob --password-stdin",
    "echo '{s}' | sudo -S ls",
    "echo bob:{s} | chpasswd",
    "printf '%s' '{s}' | gh auth login --with-token",
    "gh auth login --with-token <<< {s}",
    "echo -n {s} | docker secret create x -",
    "xfreerdp /u:bob /p:{s} /v:h",
    "nmcli device wifi connect ap password {s}",
    "wpa_passphrase ap {s}",
    "influx -username bob -password {s}",
    "evil-winrm -i h -u bob -p {s}",
    "rclone obscure {s}",
    "pdftk a.pdf output b.pdf user_pw {s}",
    '"cmd": "mysql -uroot -p{s}"',
    "+ sshpass -p {s} ssh x",
    "$ docker login -p {s} r",
    "subprocess.run(['redis-cli', '-a', '{s}', 'ping'])",
    '{"argv": ["mysql", "-uroot", "-p{s}", "db"]}',
    "/usr/bin/sshpass -p {s} /usr/bin/ssh x",
    'sudo -u x sshpass -p "{s}" ssh h',
    "nohup mongodump -u a -p {s} &",
    'CMD ["redis-cli", "-a", "{s}"]',
    "docker exec db mysql -uroot -p{s} -e 'select 1'",
)


def commanded(r: random.Random) -> Made:
    secret = passed(r)
    return secret, r.choice(COMMANDS).replace("{s}", secret)


# ------------------------------------------------------------------ encodings

Encoding = Callable[[str, random.Random], str]


def _wide(text: str, r: random.Random) -> str:
    return "".join(chr(ord(c) + 0xFEE0) if "!" <= c <= "~" else c for c in text)


def _mathematical(text: str, r: random.Random) -> str:
    bases = {"a": 0x1D41A, "A": 0x1D400, "0": 0x1D7CE}
    return "".join(
        chr(bases["a"] + ord(c) - 97)
        if c.islower()
        else chr(bases["A"] + ord(c) - 65)
        if c.isupper()
        else chr(bases["0"] + int(c))
        if c.isdigit()
        else c
        for c in text
    )


def _of_each(form: Callable[[int], str], joint: str = "") -> Encoding:
    return lambda text, r: joint.join(form(code) for code in text.encode())


def _some(form: Callable[[str], str]) -> Encoding:
    """Some of the letters, as a program does that escapes only what it must."""
    return lambda text, r: "".join(
        form(c) if n % 3 != 1 else c for n, c in enumerate(text)
    )


ENCODINGS: Final[dict[str, Encoding]] = {
    "numbers": lambda t, r: f"[{', '.join(str(b) for b in t.encode())}]",
    "numbers without blanks": lambda t, r: (
        f"bytes([{','.join(str(b) for b in t.encode())}])"
    ),
    "numbers with blanks": _of_each(str, " "),
    "hexadecimal numbers": lambda t, r: f"{{{', '.join(hex(b) for b in t.encode())}}}",
    "wide letters": _wide,
    "mathematical letters": _mathematical,
    "entities": _of_each("&#{};".format),
    "hexadecimal entities": _of_each("&#x{:x};".format),
    "some entities": _some(lambda c: f"&#{ord(c)};"),
    "entities with zeros": _of_each("&#{:04d};".format),
    "\\u": _of_each("\\u{:04x}".format),
    "some \\u": _some(lambda c: f"\\u{ord(c):04X}"),
    "\\u twice": _of_each("\\\\u{:04x}".format),
    "\\x": _of_each("\\x{:02x}".format),
    "octal": _of_each("\\{:03o}".format),
    "\\u{}": _of_each("\\u{{{:x}}}".format),
    "U+": _of_each("U+{:04X}".format, " "),
    "percent": _of_each("%{:02X}".format),
    "some percent": _some(lambda c: f"%{ord(c):02x}"),
    "percent twice": _of_each("%25{:02X}".format),
    "entities in percent": lambda t, r: quote(
        "".join(f"&#{b};" for b in t.encode()), safe=""
    ),
    "pairs": _of_each("{:02x}".format, " "),
    "pairs with colons": _of_each("{:02X}".format, ":"),
    "quoted-printable": _of_each("={:02X}".format),
    "spaced": lambda t, r: " ".join(t),
    "dashed": lambda t, r: "-".join(t),
    "list of letters": lambda t, r: repr(list(t)),
}
"""Of which a reader sees what they say."""
KNOWN: Final[dict[str, Encoding]] = {
    "Base64": lambda t, r: base64.b64encode(t.encode()).decode(),
    "Base64url": lambda t, r: base64.urlsafe_b64encode(t.encode()).decode().rstrip("="),
    "Base64 in a text": lambda t, r: base64.b64encode(
        f"{'ab'[: r.randrange(3)]}{t}:zz".encode()
    ).decode(),
    "Base32": lambda t, r: base64.b32encode(t.encode()).decode(),
    "hexadecimal": lambda t, r: t.encode().hex(),
    "HEXADECIMAL": lambda t, r: t.encode().hex().upper(),
    "reversed": lambda t, r: t[::-1],
    "rot13": lambda t, r: codecs.encode(t, "rot13"),
}
"""Which only somebody sees who knows the secret."""
NAMED: Final = (
    "{n}={s}",
    '{n}: "{s}"',
    '"{n}": "{s}"',
    "{n} is set to {s}",
    "export {n}={s}",
    "--{n} {s}",
    "{n} = {s}",
    "> {n}: {s}",
    "{n}={s} seen",
    "set {n} to {s}",
)
AROUND: Final = (
    "{}",
    "value {} seen",
    "x = {}",
    "payload: {}",
    "({})",
    "got {} from it",
    '"{}"',
)


def token(r: random.Random) -> str:
    """What is a secret wherever it stands."""
    draw = "".join(r.choices(ALNUM, k=30))
    return r.choice(("hf_", "sk-proj-", "ghp_", "glpat-", "nvapi-", "gsk_")) + draw


def encoded_value(r: random.Random) -> Made:
    """A plain name, and its value in an encoding."""
    encoding = r.choice(sorted(ENCODINGS))
    hidden = ENCODINGS[encoding](passed(r), r)
    return hidden, r.choice(NAMED).replace("{n}", shouted(r)).replace("{s}", hidden)


def encoded_whole(r: random.Random) -> Made:
    """Name and value in one encoding."""
    encoding = r.choice(
        sorted(
            {**ENCODINGS, **KNOWN}.keys() - {"reversed", "rot13", "Base64 in a text"}
        )
    )
    told = f"{shouted(r)}={passed(r)}"
    hidden = {**ENCODINGS, **KNOWN}[encoding](told, r)
    value = hidden[-(len(hidden) // 5) :]  # of the name what it likes may stay
    return value, r.choice(AROUND).replace("{}", hidden)


def encoded_token(r: random.Random) -> Made:
    """A token of a vendor in an encoding, and nothing that names it."""
    hidden = ENCODINGS[r.choice(sorted(ENCODINGS))](token(r), r)
    return hidden, r.choice(AROUND).replace("{}", hidden)


def known_elsewhere(r: random.Random) -> Made:
    """A secret with its name, and another spelling of it beside that."""
    secret = passed(r)
    spellings = {**ENCODINGS, **KNOWN}
    hidden = spellings[r.choice(sorted(spellings))](secret, r)
    return (
        hidden,
        f"{shouted(r)}={secret}\nand then {r.choice(AROUND).replace('{}', hidden)}\n",
    )


def address_in_a_parameter(r: random.Random) -> Made:
    """An address or a machine in a parameter of another address, encoded once or
    twice."""
    inner = ".".join(
        str(n) for n in (10, r.randrange(256), r.randrange(256), r.randrange(1, 255))
    )
    host = r.choice(
        (
            inner,
            f"{r.choice(SYLLABLES)}{r.choice(SYLLABLES)}-{r.randrange(9)}.corp",
            inner,
        )
    )
    address = r.choice(
        (
            "https://{}/x?y=1",
            "http://{}:8080/v1",
            "//{}/a",
            "{}:5432",
            "redis://{}:6379/0",
        )
    ).replace("{}", host)
    shown = quote(address, safe="")
    for _ in range(r.randrange(2)):
        shown = quote(shown, safe="")
    form = r.choice(
        (
            "GET /proxy?url={}&x=1 HTTP/1.1",
            "https://h.example/login?next={}",
            "callback={}",
            "redirect_uri={}&state=1",
            "target={} refused",
        )
    )
    return host, form.replace("{}", shown)


KINDS: Final[dict[str, Callable[[random.Random], Made]]] = {
    "joined in prose": joined(PROSE),
    "joined in a shell": joined(SHELLS),
    "joined in columns": joined(COLUMNS),
    "joined in a file": joined(FILES),
    "joined for a tool": joined(TOOLS),
    "of a command": commanded,
    "encoded behind its name": encoded_value,
    "encoded with its name": encoded_whole,
    "a token, encoded": encoded_token,
    "known, in another spelling": known_elsewhere,
    "an address in a parameter": address_in_a_parameter,
}
ENCODED: Final = frozenset(
    name for name in KINDS if "encoded" in name or "spelling" in name
)

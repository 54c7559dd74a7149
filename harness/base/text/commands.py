"""Commands that take a secret, by what is known of each: its options, or the place of a
word.

A command stands in a line of a shell, or in a list of its words (``['sshpass', '-p',
'…']``)."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Final

from mmrepro.base.text.opaque import Span

_TABLE: Final = """
sshpass                                      | -p
mysql mysqldump mysqladmin mysqlimport mysqlshow mysqlcheck mysqlsh mysqlslap mycli | -p --password
mariadb mariadb-dump mariadb-admin mariadb-backup xtrabackup innobackupex | -p --password
mongo mongosh mongodump mongorestore mongoexport mongoimport mongostat | -p --password
redis-cli keydb-cli valkey-cli               | -a --pass
redis-benchmark                              | -a
docker/login podman/login nerdctl/login buildah/login skopeo/login | -p --password
helm/login crane/login oras/login regctl/login singularity/login apptainer/login | -p --password
az/login                                     | -p --password --client-secret
az/create az/create-for-rbac az/reset az/update az/credential | -p --password --admin-password
az/secret                                    | --value
az/set                                       | --value
oc/login                                     | -p --password --token
cf/login                                     | -p
cf/auth                                      | last
ibmcloud/login bx/login                      | -p --apikey
gcloud/create                                | --password
heroku/login doctl/init                      | -t --access-token
huggingface-cli/login hf/login modelscope/login | --token --access-token
huggingface-cli hf huggingface_hub           | --token
wandb/login swanlab/login comet/login        | last --key -k
vault/login                                  | last
vault/unseal                                 | last
npm/login                                    | --auth
twine uv/publish poetry/publish flit hatch/publish | -p -t --password --token -a --auth
poetry/http-basic.pypi                       | last
curl                                         | -u: --user: -U: --proxy-user: --pass -E:
curl                                         | --oauth2-bearer
wget                                         | --http-password --ftp-password --proxy-password
http https xh httpie                         | -a: --auth:
lftp                                         | -u,
ncftp ncftpput ncftpget                      | -p
smbclient smbget smbmap rpcclient smbcacls net winexe | -U% --user% -p
smbclient                                    | --password
crackmapexec nxc evil-winrm                  | -p -H
psexec psexec64 wmic                         | -p /password:
xfreerdp wlfreerdp                           | /p:
rdesktop                                     | -p
sqlcmd bcp osql isql                         | -P
sqlplus sqlldr expdp impdp rman              | user/password
cqlsh nodetool                               | -p -pw --password
influx influxd                               | -p -password --password -t
clickhouse-client clickhouse                 | --password
snowsql trino presto beeline                 | -p --password
ldapsearch ldapadd ldapmodify ldapdelete ldapwhoami ldapcompare | -w
ldappasswd                                   | -w -s -a
ipmitool                                     | -P
snmpget snmpwalk snmpset snmpbulkwalk        | -A -X -c
mosquitto_pub mosquitto_sub                  | -P --pw
rabbitmqadmin                                | -p --password
rabbitmqctl/add_user rabbitmqctl/change_password rabbitmqctl/authenticate_user | last
etcdctl                                      | --user: --password
htpasswd                                     | last
openssl                                      | -k -K -pass= -passin= -passout= -password=
gpg gpg2                                     | --passphrase
keytool jarsigner apksigner                  | -storepass -keypass -srcstorepass -deststorepass
ssh-keygen                                   | -N -P
certutil pk12util                            | -p -W -K
7z 7za 7zr 7zz rar unrar                     | -p -hp
zip unzip                                    | -P
kinit                                        | -w -W --password
pdftk                                        | user_pw owner_pw input_pw
qpdf                                         | --password
useradd usermod                              | -p --password
wpa_passphrase                               | last
nmcli                                        | password wifi-sec.psk 802-11-wireless-security.psk
mc/set mc/add                                | last
rclone/obscure                               | last
net/use                                      | last
net/user                                     | third
smbclient                                    | second
ngrok/authtoken ngrok/add-authtoken          | last
ConvertTo-SecureString                       | first -String
cmdkey                                       | /pass:
security/add-generic-password security/add-internet-password | -w
security/unlock-keychain                     | -p
gh/set glab/set                              | -b --body -v --value
gh/login glab/login                          | --token -t
aws/create-secret aws/put-secret-value aws/update-secret | --secret-string
aws/put-parameter                            | --value
kubectl/secret oc/secret                     | --from-literal= --docker-password
kubectl/set-credentials oc/set-credentials   | --token --password
ngc/set                                      | --api-key --key
tailscale                                    | --authkey --auth-key
jf/add jfrog/add                             | --password --access-token --api-key
ansible-playbook ansible                     | --vault-password
svn hg bzr                                   | --password
impala-shell                                 | --ldap_password
vncpasswd x11vnc                             | -passwd -storepasswd
borg restic                                  | --passphrase
"""
"""Program, with ``/`` and a word that must follow it; what of it takes a secret. ``:``,
``%``, ``,`` and ``=`` behind an option: the secret stands behind that sign in its
value. ``last``, ``first`` and so on: it is that word."""
_PLACES: Final = {"first": 0, "second": 1, "third": 2}


@dataclass(frozen=True)
class _Taking:
    """What takes a secret of one command.

    Attributes:
        follows: a word that the command must have; "": none.
        options: by option, the sign in its value behind which the secret stands; "":
            all of it.
        place: the number of the word that is one, from 0; -1: the last one; None: none
            is.
        user: it is what stands behind the slash of a user's word.
    """

    follows: str
    options: dict[str, str]
    place: int | None = None
    user: bool = False


def _read(table: str) -> dict[str, list[_Taking]]:
    read: dict[str, list[_Taking]] = {}
    for line in filter(None, table.splitlines()):
        programs, _, takes = line.partition("|")
        options: dict[str, str] = {}
        words = takes.split()
        for word in words:
            name = word.rstrip(":%,=")
            options[name] = word[len(name) :]
        place = -1 if "last" in words else None
        for word in words:
            place = _PLACES.get(word, place)
        for program in programs.split():
            name, _, follows = program.partition("/")
            taking = _Taking(follows, options, place, "user/password" in words)
            read.setdefault(name, []).append(taking)
    return read


_COMMANDS: Final = _read(_TABLE)
_NAMES: Final = "|".join(
    re.escape(name) for name in sorted(_COMMANDS, key=len, reverse=True)
)
_PROGRAM: Final = re.compile(rf"(?<![\w.@:=-])(?:{_NAMES})(?:\.exe)?(?=[\"'\s\\])")
_MOST_WORDS: Final = 32
_MOST_CHARACTERS: Final = 2048
_LEAST: Final = 4

_GLUE: Final = re.compile(
    r"""(?:\\\r?\n|[ \t]|\\{0,7}["'],[ \t]{0,4}|\\{0,7}["'](?=[ \t]))+"""
)
_OPENING: Final = re.compile(r"""\\{0,7}["']""")
_BARE: Final = re.compile(r"""(?:[^\s"'`\\]|\\(?!["'nrt]))+""")
_ATTACHED: Final = re.compile(
    r"(?:--?|/)[\w.-]{1,40}[=:]?(?=[\"'])|[\w.-]{1,40}=(?=[\"'])"
)
_END: Final = frozenset(
    {"|", "||", "&&", ";", "&", "#", ">", ">>", "<", "2>", "2>&1", "]", ")"}
)
_NUMBER: Final = re.compile(r"\d{1,9}(?::\d{1,9})?")


@dataclass(frozen=True)
class _CommandWord:
    """A word of a command and its place."""

    text: str
    start: int

    @property
    def end(self) -> int:
        return self.start + len(self.text)


def in_commands(text: str) -> Iterator[Span]:
    """Where commands in ``text`` have their secrets, in order."""
    position = 0
    for program in _PROGRAM.finditer(text):
        if program.start() < position:
            continue
        words = list(_words(text, program.end()))
        name = program[0].removesuffix(".exe")
        for taking in _COMMANDS[name]:
            if taking.follows and all(
                word.text != taking.follows for word in words[:8]
            ):
                continue
            given = [word for word in words if word.text != taking.follows]
            for start, end in _taken(given, taking):
                if start >= position and _is_one(text[start:end]):
                    yield start, end
                    position = end


def _words(text: str, at: int) -> Iterator[_CommandWord]:
    """The words behind a program, up to the end of its command."""
    limit = min(len(text), at + _MOST_CHARACTERS)
    for _ in range(_MOST_WORDS):
        glue = _GLUE.match(text, at, limit)
        if glue is None:
            return
        at = glue.end()
        word, at = _word(text, at, limit)
        if word is None or word.text in _END:
            return
        ends = word.text.endswith(";")
        yield _CommandWord(word.text.rstrip(";"), word.start) if ends else word
        if ends:
            return


def _word(text: str, at: int, limit: int) -> tuple[_CommandWord | None, int]:
    """The word at a place, without the quotes around it or its value; and where it
    ends."""
    opening = _OPENING.match(text, at, limit)
    if opening is not None:
        end = _closing(text, opening.end(), limit, opening[0])
        return _CommandWord(text[opening.end() : end], opening.end()), end
    attached = _ATTACHED.match(text, at, limit)
    if attached is not None:
        quote = text[attached.end()]
        end = text.find(quote, attached.end() + 1, limit)
        inner = text[attached.end() + 1 : end]
        if end > 0 and inner and inner[0] not in ",:]} \t\n":
            # The quote takes a place of its own, so that the word is as long as its
            # text.
            return _CommandWord(text[at : end + 1], at), end + 1
    bare = _BARE.match(text, at, limit)
    return (_CommandWord(bare[0], at), bare.end()) if bare else (None, at)


def _closing(text: str, at: int, limit: int, quote: str) -> int:
    """Where the quote is closed; else the end of the line."""
    end = text.find(quote, at, limit)
    if end >= 0:
        return end
    line = text.find("\n", at, limit)
    return line if line >= 0 else limit


def _taken(words: list[_CommandWord], taking: _Taking) -> Iterator[Span]:
    for number, word in enumerate(words):
        name, sign = _option_of(word.text, taking.options)
        if name:
            attached = word.text[len(name) :].lstrip("=")
            if attached:
                start = word.end - len(attached)
                yield from _behind(attached, start, sign)
            elif number + 1 < len(words):
                yield from _behind(
                    words[number + 1].text, words[number + 1].start, sign
                )
        elif (
            taking.user
            and "/" in word.text
            and not word.text.startswith(("-", "/", ".", "@"))
        ):
            yield from _behind(word.text.partition("@")[0], word.start, "/")
    if taking.place is not None and words:
        yield from _at_place(words, taking.place)


def _at_place(words: list[_CommandWord], place: int) -> Iterator[Span]:
    """The word of that number; the last one is none if it is an option."""
    if place >= len(words):
        return
    word = words[place]
    if not word.text.startswith(("-", "/")):
        yield word.start, word.end


def _option_of(word: str, options: dict[str, str]) -> tuple[str, str]:
    """The option that ``word`` is, or that its value is attached to, and the sign of
    it."""
    if word in options:
        return word, options[word]
    for name, sign in options.items():
        if not word.startswith(name) or len(word) == len(name):
            continue
        short = name.startswith("-") and not name.startswith("--") and len(name) <= 3
        joined = sign in ("=", ":") and not name.startswith("-")
        if short or joined or word[len(name)] in "=:":
            return name, sign
    return "", ""


def _behind(value: str, start: int, sign: str) -> Iterator[Span]:
    """The secret in an option's value."""
    if value[:1] in "\"'" and value[-1:] == value[:1] and len(value) > 2:
        value, start = value[1:-1], start + 1
    if not sign:
        yield start, start + len(value)
        return
    if sign == "=" and value.startswith(("file:", "env:", "fd:", "stdin")):
        return
    known = ":" if sign == "=" and value.startswith("pass:") else sign
    head, found, secret = value.partition(known)
    if found and secret:
        begin = start + len(head) + 1
        yield begin, begin + len(secret)
    elif not found and sign == ":" and value.startswith(":"):
        yield start, start + len(value)


def _is_one(value: str) -> bool:
    """A port, a user's and a group's number, another option, and a short word are
    none."""
    return (
        len(value) >= _LEAST
        and not value.startswith("-")
        and not _NUMBER.fullmatch(value)
    )


# ---------------------------------------------------------- what is handed to a command

_GIVEN: Final = re.compile(
    r"""\b(?:echo|printf)[ ]+(?:-\w{1,3}[ ]+)?(?P<quote>["']?)
    (?:%s(?:\\n)?(?P=quote)[ ]+["']?)?  # a format, and what it shows
    (?P<said>[^\s"'|]{4,256}|(?<=["'])[^"'|\n]{4,256})["']?[ ]*\|[ ]*(?=[^\n]{1,200})""",
    re.VERBOSE,
)
_HERE: Final = re.compile(r"""<<<[ ]?["']?([^\s"']{4,256})""")
_READS: Final = re.compile(
    r"--password-stdin|--with-token|--passphrase-fd|--pass-file|--key-file|-passin"
    r"|\bstdin\b"
    r"|\bsudo\b[^|\n]{0,80}-S\b|passwd\b[^|\n]{0,40}--stdin|\bchpasswd\b|\bsmbpasswd\b"
    r"|\bcryptsetup\b|\b(?:docker|podman) secret create\b|\bsecret (?:set|put)\b"
    r"|\bsecrets? versions add\b|\b(?:su|kinit|ssh-add|passwd)\b"
)
_LINE: Final = 300


_PGPASS: Final = re.compile(
    r"^[\w.*-]{1,253}:(?:\d{1,5}|\*):[\w*.-]{1,64}:[\w.*@-]{1,64}:"
    r"(?=\S*[A-Za-z])(\S{4,256})[ \t]*$",
    re.MULTILINE,
)
"""A line of PostgreSQL's file of passwords: machine, port, database, user, password."""


def handed(text: str) -> Iterator[Span]:
    """What is written to the standard input of a command that reads a secret there, or
    to its file of passwords."""
    yield from (match.span(1) for match in _PGPASS.finditer(text))
    if "|" in text:
        for match in _GIVEN.finditer(text):
            line = text[match.end() : match.end() + _LINE].partition("\n")[0]
            if _READS.search(line):
                said = match["said"]
                head = said.find(":") + 1 if "chpasswd" in line else 0
                if len(said) - head >= _LEAST and said[0] != "$":
                    yield match.start("said") + head, match.end("said")
    if "<<<" in text:
        for match in _HERE.finditer(text):
            line = text[max(0, match.start() - _LINE) : match.start()].rpartition("\n")[
                2
            ]
            if _READS.search(line) and match[1][0] != "$":
                yield match.span(1)

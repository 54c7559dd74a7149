"""A shell script's curl commands, read and not run."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path
from typing import Final
from urllib.parse import quote_plus, urlsplit

from mmrepro.base.machine import read_file
from mmrepro.traffic.capture.exchanges import Exchange
from mmrepro.traffic.capture.messages import Unusable

CURL = re.compile(r"(?:^|[\n;&|(])[ \t]*(?:[$>%][ \t]+)?(?:time[ \t]+)?curl[ \t\\]")
_MAX_FILE: Final = 32 << 20
_BEFORE_A_COMMAND: Final = ("$", ">", "%", "time")
"""What stands before a command that was copied with its prompt."""
# Characters that Unicode gives no meaning mark what is put in place of a script's text.
_DOCUMENT: Final = "\ufdd0"
"""Begins the mark in place of a heredoc; its number follows."""
_MISSING: Final = "\ufdd1"
"""Stands on both sides of a variable that the script does not set."""
_HERE = re.compile(r"<<(?P<tabs>-?)[ \t]*+(?P<mark>['\"]?)(?P<word>\w++)(?P=mark)")
_WORD = re.compile(
    r"(?P<blank>[ \t]+|\\\n)|(?P<comment>(?<!\S)\#[^\n]*)|(?P<end>\n|&&|\|\||[;|&()])"
    r"|'(?P<single>[^']*+)'|\"(?P<double>(?:[^\"\\]|\\.)*+)\"|\\(?P<escaped>.)"
    # What runs a command and is not closed goes to the end, and is not looked through
    # again.
    r"|(?P<plain>(?:[^\s;|&()'\"\\$]|\$(?![({\w]))++|\$(?:\w++|\{\w++\}|\([^)]*+(?:\)"
    r"|\Z)))",
    re.DOTALL,
)
_VARIABLE = re.compile(
    r"\\(?P<kept>.)|\$(?:(?P<bare>\w+)|\{(?P<braced>\w+)\}|\((?P<run>[^)]*+)(?:\)|\Z))",
    re.DOTALL,
)
_SET = re.compile(r"(?:export[ \t]+)?(\w+)=(.*)", re.DOTALL)
_VALUED: Final = re.compile(
    r"-[XHdFoubAemwxUTKrtyYzCDEIPQ]|--(?:request|header|data|data-raw|data-binary"
    r"|data-ascii|json|"
    r"data-urlencode|form|form-string|url|output|user|cookie|user-agent|referer"
    r"|max-time|"
    r"connect-timeout|write-out|proxy|retry|retry-delay|cacert|cert|key|resolve"
    r"|speed-limit)"
)
_DATA: Final = ("-d", "--data", "--data-ascii", "--data-raw", "--data-binary", "--json")


def curl_requests(text: str, folder: Path) -> Iterator[Exchange | Unusable]:
    """Yield each command's request, or why it cannot be had.

    Files that a command sends are looked for in ``folder``.
    """
    text = text.replace("\r\n", "\n")
    text, documents = _without_documents(text)
    variables: dict[str, str] = {}
    for words in _commands(text, variables):
        while words and words[0] in _BEFORE_A_COMMAND:
            words = words[1:]
        if words[:1] == ["curl"]:
            try:
                yield _request(words[1:], folder, documents)
            except Unusable as why:
                yield why
            continue
        # What is set here is seen by the commands behind it: _commands reads on later.
        setting = words[1:] if words[:1] == ["export"] else words
        match = _SET.fullmatch(setting[0]) if len(setting) == 1 else None
        if match is not None:
            variables[match[1]] = match[2]


def _without_documents(text: str) -> tuple[str, list[str]]:
    """Return a script with a mark in place of each heredoc, and the heredocs.

    A heredoc that is not closed stays as it is.
    """
    lines = text.split("\n")
    # Places of each line that may close a heredoc, in falling order, so that the next
    # one is the last of its list: a script of many heredocs is read once.
    places: dict[str, list[int]] = {}
    for number in range(len(lines) - 1, -1, -1):
        places.setdefault(lines[number].strip(" \t"), []).append(number)

    kept: list[str] = []
    documents: list[str] = []
    at = 0
    while at < len(lines):
        line = lines[at]
        at += 1
        opening = _HERE.search(line)
        closing = places.get(opening["word"], []) if opening else []
        while closing and closing[-1] < at:
            closing.pop()
        if opening is None or not closing:
            kept.append(line)
            continue

        end = closing[-1]
        document = lines[at:end]
        if opening["tabs"]:
            document = [line.lstrip("\t") for line in document]
        mark = f" {_DOCUMENT}{len(documents)} "
        documents.append("".join(f"{line}\n" for line in document))
        kept.append(line[: opening.start()] + mark + line[opening.end() :])
        at = end + 1
    return "\n".join(kept), documents


def _commands(text: str, variables: dict[str, str]) -> Iterator[list[str]]:
    """Yield the words of each command; quoted pieces that touch are one word."""
    words: list[str] = []
    word: str | None = None
    for token in _WORD.finditer(text):
        piece = _piece(token, variables)
        if piece is not None:
            word = (word or "") + piece
            continue
        if word is not None:
            words.append(word)
            word = None
        if token["end"] is not None:
            yield words
            words = []
    if word is not None:
        words.append(word)
    yield words


def _piece(token: re.Match[str], variables: dict[str, str]) -> str | None:
    """Return what a token adds to a word; None: it ends the word."""
    if token["single"] is not None:
        return token["single"]
    if token["double"] is not None:
        return _filled(token["double"], variables, quoted=True)
    if token["escaped"] is not None:
        return token["escaped"]
    if token["plain"] is not None:
        return _filled(token["plain"], variables)
    return None


def _filled(text: str, variables: dict[str, str], *, quoted: bool = False) -> str:
    """Return the text with the script's own variables; another one stays as it is, and
    is missed later."""

    def value(match: re.Match[str]) -> str:
        escaped = match["kept"]
        if escaped is not None:
            # Between double quotes a backslash goes before these signs only, and a
            # line that it ends goes on.
            if not quoted or escaped not in '"\\$`\n':
                return match[0]
            return "" if escaped == "\n" else escaped
        name = match["bare"] or match["braced"]
        missing = f"{_MISSING}{name or match['run']}{_MISSING}"
        return variables.get(name, missing)

    return _VARIABLE.sub(value, text)


class _CurlOptions:
    """The options of a command that make its request, as they are read."""

    def __init__(self, folder: Path, documents: list[str]) -> None:
        self._folder = folder
        self._documents = documents
        self.method = ""
        self.url = ""
        self.headers: list[tuple[str, str]] = []
        self.data: list[bytes] = []
        self.form: list[bytes] = []
        self.in_query = False
        """Whether the data goes into the query."""

    def take(self, word: str, value: str) -> None:
        """Take an option and its value. Raises Unusable."""
        if word in ("-X", "--request"):
            self.method = value.upper()
        elif word in ("-H", "--header"):
            name, _, rest = value.partition(":")
            self.headers.append((name.strip(), rest.strip()))
        elif word in _DATA or word == "--data-urlencode":
            self.data.append(_data(word, value, self._folder, self._documents))
            if word == "--json":
                self.headers.append(("Content-Type", "application/json"))
                self.headers.append(("Accept", "application/json"))
        elif word in ("-F", "--form", "--form-string"):
            literal = word == "--form-string"
            self.form.append(_field(value, self._folder, literal=literal))
        elif word in ("-G", "--get"):
            self.in_query = True
        elif word in ("-I", "--head"):
            self.method = self.method or "HEAD"
        elif word == "--url":
            self.url = self.url or value
        elif not word.startswith("-"):
            self.url = self.url or word

    def body(self) -> bytes:
        """Return the body; its type is added to the headers, unless they have one."""
        if self.form:
            multipart = "multipart/form-data; boundary=mmrepro-curl"
            self.headers.append(("Content-Type", multipart))
            return b"".join(self.form) + b"--mmrepro-curl--\r\n"
        typed = any(name.lower() == "content-type" for name, _ in self.headers)
        if self.data and not typed:
            self.headers.append(("Content-Type", "application/x-www-form-urlencoded"))
        return b"&".join(self.data)

    def target(self) -> str:
        """Return path and query."""
        parts = urlsplit(self.url if "://" in self.url else f"http://{self.url}")
        # The machine that is asked may be a variable: it is another one here.
        target = re.sub(f"^{_MISSING}[^{_MISSING}]*{_MISSING}", "", parts.path or "/")
        if not target.startswith("/"):
            target = f"/{target}"
        if parts.query:
            target += f"?{parts.query}"
        return target


def _request(words: list[str], folder: Path, documents: list[str]) -> Exchange:
    """Return the request that a command's words make. Raises Unusable."""
    sent_documents: list[str] = []
    plain_words: list[str] = []
    for word in words:
        if word.startswith(_DOCUMENT):
            sent_documents.append(documents[int(word[1:])])
        else:
            plain_words.append(word)

    options = _CurlOptions(folder, sent_documents)
    for word, value in _with_values(plain_words):
        options.take(word, value)
    body = options.body()
    target = options.target()
    if options.in_query and body:
        joint = "&" if "?" in target else "?"
        target = f"{target}{joint}{body.decode()}"
        body = b""

    sent_text = target + body.decode("utf-8", "replace")
    if re.search(f"{_MISSING}[^{_MISSING}]*{_MISSING}", sent_text):
        raise Unusable("a variable of the shell that the script does not set")
    usual_method = "POST" if options.data or options.form else "GET"
    return Exchange(options.method or usual_method, target, options.headers, body)


def _with_values(words: list[str]) -> Iterator[tuple[str, str]]:
    """Yield each option with its value, and each other word with none."""
    at = 0
    while at < len(words):
        word, value = words[at], ""
        at += 1
        if word.startswith("--") and "=" in word:
            word, _, value = word.partition("=")
        elif not word.startswith("--") and re.fullmatch(r"-[XHdF].+", word):
            # A short option's value may touch it: -XPOST.
            word, value = word[:2], word[2:]
        elif _VALUED.fullmatch(word) and at < len(words):
            value = words[at]
            at += 1
        yield word, value


def _data(word: str, value: str, folder: Path, documents: list[str]) -> bytes:
    """Return what an option for data sends. Raises Unusable: its file cannot be
    read."""
    if word == "--data-urlencode":
        name, sign, rest = value.partition("=")
        if not sign:
            return quote_plus(value).encode()
        return f"{name}={quote_plus(rest)}".encode()

    if not value.startswith("@") or word == "--data-raw":
        return value.encode("utf-8", "surrogatepass")
    piped = value == "@-" and documents
    data = documents[0].encode() if piped else _file(value[1:], folder)
    if word in ("--data-binary", "--json"):
        return data
    # As curl does: the other options drop ends of lines of a file.
    return re.sub(rb"[\r\n\0]", b"", data)


def _field(value: str, folder: Path, *, literal: bool) -> bytes:
    """Return a part of a form; the value of a ``literal`` one names no file. Raises
    Unusable."""
    name, _, content = value.partition("=")
    head = f'Content-Disposition: form-data; name="{name}"'
    data = content.encode()
    if content[:1] in ("@", "<") and not literal:
        path, *more = content[1:].split(";")
        data = _file(path.strip('"'), folder)
        if content[0] == "@":  # "<" sends a file's content as a plain field
            options: dict[str, str] = {}
            for option in more:
                key, _, setting = option.strip().partition("=")
                options[key] = setting
            filename = options.get("filename", Path(path).name)
            media_type = options.get("type", "application/octet-stream")
            head += f'; filename="{filename}"\r\nContent-Type: {media_type}'
    return b"--mmrepro-curl\r\n" + head.encode() + b"\r\n\r\n" + data + b"\r\n"


def _file(name: str, folder: Path) -> bytes:
    """Raises Unusable: it cannot be read."""
    try:
        return read_file(folder / name, _MAX_FILE)
    except OSError as error:
        raise Unusable("a file that the command sends and that is not there") from error

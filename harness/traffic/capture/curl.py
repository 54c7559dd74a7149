"""A shell script's curl commands, read and not run."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path
from typing import Final
from urllib.parse import quote_plus, urlsplit

from mmrepro.base.machine.files import read_file
from mmrepro.traffic.capture.exchanges import Exchange
from mmrepro.traffic.capture.messages import Unusable

CURL = re.compile(r"(?:^|[\n;&|(])[ \t]*(?:[$>%][ \t]+)?(?:time[ \t]+)?curl[ \t\\]")
MAX_FILE: Final = 32 << 20
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
    """Each command's request, or why it cannot be had. ``folder``: where files that it
    sends are looked for."""
    text = text.replace("\r\n", "\n")
    text, here = _without_documents(text)
    known: dict[str, str] = {}
    for words in _commands(text, known):
        while words and words[0] in ("$", ">", "%", "time"):
            words = words[1:]
        given = words[1:] if words[:1] == ["export"] else words
        if len(given) == 1 and (found := _SET.fullmatch(given[0])):
            known[found[1]] = found[2]
        elif words[:1] == ["curl"]:
            try:
                yield _request(words[1:], folder, here)
            except Unusable as why:
                yield why


def _without_documents(text: str) -> tuple[str, list[str]]:
    """A script with a mark in place of each heredoc, and the heredocs. One that is not
    closed is none."""
    lines = text.split("\n")
    ends: dict[str, list[int]] = {}
    for number in range(len(lines) - 1, -1, -1):
        ends.setdefault(lines[number].strip(" \t"), []).append(number)
    kept: list[str] = []
    here: list[str] = []
    at = 0
    while at < len(lines):
        line = lines[at]
        at += 1
        found = _HERE.search(line)
        closing = ends.get(found["word"], []) if found else []
        while closing and closing[-1] < at:
            closing.pop()  # the lists are in falling order: the next one is last
        if found is None or not closing:
            kept.append(line)
            continue
        end = closing[-1]
        document = lines[at:end]
        if found["tabs"]:
            document = [one.lstrip("\t") for one in document]
        here.append("".join(f"{one}\n" for one in document))
        kept.append(
            f"{line[: found.start()]} \ufdd0{len(here) - 1} {line[found.end() :]}"
        )
        at = end + 1
    return "\n".join(kept), here


def _commands(text: str, known: dict[str, str]) -> Iterator[list[str]]:
    words: list[str] = []
    word: str | None = None
    for found in _WORD.finditer(text):
        if found["single"] is not None:
            word = (word or "") + found["single"]
        elif found["double"] is not None:
            word = (word or "") + _filled(found["double"], known, quoted=True)
        elif found["escaped"] is not None:
            word = (word or "") + found["escaped"]
        elif found["plain"] is not None:
            word = (word or "") + _filled(found["plain"], known)
        else:
            words += [] if word is None else [word]
            word = None
            if found["end"] is not None:
                yield words
                words = []
    yield [*words, *([] if word is None else [word])]


def _filled(text: str, known: dict[str, str], *, quoted: bool = False) -> str:
    """With the script's own variables; another one stays as it stands, and is missed
    later."""

    def value(found: re.Match[str]) -> str:
        if (kept := found["kept"]) is not None:
            plain = quoted and kept in '"\\$`\n'
            return ("" if kept == "\n" else kept) if plain else found[0]
        name = found["bare"] or found["braced"]
        return known.get(name, f"\ufdd1{name or found['run']}\ufdd1")

    return _VARIABLE.sub(value, text)


def _request(words: list[str], folder: Path, here: list[str]) -> Exchange:
    """Raises Unusable."""
    method, url, headers, data, form = "", "", [], [], []
    get, at = False, 0
    documents = [here[int(word[1:])] for word in words if word.startswith("\ufdd0")]
    words = [word for word in words if not word.startswith("\ufdd0")]
    while at < len(words):
        word, value = words[at], ""
        at += 1
        if word.startswith("--") and "=" in word:
            word, _, value = word.partition("=")
        elif re.fullmatch(r"-[XHdF].+", word) and not word.startswith("--"):
            word, value = word[:2], word[2:]
        elif _VALUED.fullmatch(word) and at < len(words):
            value, at = words[at], at + 1
        if word in ("-X", "--request"):
            method = value.upper()
        elif word in ("-H", "--header"):
            name, _, rest = value.partition(":")
            headers.append((name.strip(), rest.strip()))
        elif word in _DATA or word == "--data-urlencode":
            data.append(_data(word, value, folder, documents))
            if word == "--json":
                headers += [
                    ("Content-Type", "application/json"),
                    ("Accept", "application/json"),
                ]
        elif word in ("-F", "--form", "--form-string"):
            form.append(_field(value, folder, literal=word == "--form-string"))
        elif word in ("-G", "--get"):
            get = True
        elif word in ("-I", "--head"):
            method = method or "HEAD"
        elif word == "--url" or not word.startswith("-"):
            url = url or (value if word == "--url" else word)
    body = b"&".join(data)
    if form:
        body = b"".join(form) + b"--mmrepro-curl--\r\n"
        headers.append(("Content-Type", "multipart/form-data; boundary=mmrepro-curl"))
    elif data and not any(name.lower() == "content-type" for name, _ in headers):
        headers.append(("Content-Type", "application/x-www-form-urlencoded"))
    parts = urlsplit(url if "://" in url else f"http://{url}")
    # The machine that is asked may be a variable: it is another one here.
    target = re.sub(r"^\ufdd1[^\ufdd1]*\ufdd1", "", (parts.path or "/"))
    target = target if target.startswith("/") else f"/{target}"
    target += f"?{parts.query}" if parts.query else ""
    if get and body:
        target, body = f"{target}{'&' if '?' in target else '?'}{body.decode()}", b""
    missing = re.search(
        "\ufdd1([^\ufdd1]*)\ufdd1", target + body.decode("utf-8", "replace")
    )
    if missing is not None:
        raise Unusable("a variable of the shell that the script does not set")
    return Exchange(
        method or ("POST" if data or form else "GET"), target, headers, body
    )


def _data(word: str, value: str, folder: Path, documents: list[str]) -> bytes:
    """Raises Unusable: its file cannot be read."""
    if word == "--data-urlencode":
        name, sign, rest = value.partition("=")
        return (
            f"{name}{sign}{quote_plus(rest)}".encode()
            if sign
            else quote_plus(value).encode()
        )
    if not value.startswith("@") or word == "--data-raw":
        return value.encode("utf-8", "surrogatepass")
    piped = value == "@-" and documents
    data = documents[0].encode() if piped else _file(value[1:], folder)
    return (
        data if word in ("--data-binary", "--json") else re.sub(rb"[\r\n\0]", b"", data)
    )


def _field(value: str, folder: Path, *, literal: bool) -> bytes:
    """Raises Unusable."""
    name, _, said = value.partition("=")
    head, data = f'Content-Disposition: form-data; name="{name}"', said.encode()
    if said[:1] in ("@", "<") and not literal:
        path, *more = said[1:].split(";")
        data = _file(path.strip('"'), folder)
        options = dict(one.strip().partition("=")[::2] for one in more)
        if said[0] == "@":
            head += f'; filename="{options.get("filename", Path(path).name)}"'
            head += (
                f"\r\nContent-Type: {options.get('type', 'application/octet-stream')}"
            )
    return b"--mmrepro-curl\r\n" + head.encode() + b"\r\n\r\n" + data + b"\r\n"


def _file(name: str, folder: Path) -> bytes:
    """Raises Unusable."""
    try:
        return read_file(folder / name, MAX_FILE)
    except OSError as error:
        raise Unusable("a file that the command sends and that is not there") from error

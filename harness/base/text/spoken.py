"""A secret's name and its value with words, blanks or a table between them.

``HF_TOKEN is set to …``, ``set -gx HF_TOKEN …``, ``aws configure set
aws_secret_access_key …``, aligned columns, and tables whose heading has the name (CSV,
TSV, Markdown). What stands between the two is weaker than ``=``: where it is only a
blank, or where the name is a word of prose, a value must look like no word."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Final

from mmrepro.base.text.named import (
    HINT,
    Secrecy,
    hits,
    joints,
    name_around,
    secrecy,
    words_of,
)
from mmrepro.base.text.opaque import Span

_Told = tuple[int, int, str]
"""Begin and end of a value, and the name that says what it is."""

_LEAST: Final = 4
_MOST: Final = 256
_LINE: Final = 200
_WIDE: Final = 4
"""Blanks that nobody puts between the words of a sentence."""

_VALUE: Final = re.compile(
    rf"""(?:\\{{0,7}}["'`]|[(\[])?([^\s"'`|│,;<>()\[\]{{}}\\]{{{_LEAST},{_MOST}}})"""
)
_AFTER_NAME: Final = r"""(?:\\{0,7}["'`\])]{0,3})(?:[ ]?[(\[][a-z ,-]{1,24}[)\]])?"""
_SET: Final = (
    r"(?:set|changed?|updated?|reset|rotated|assigned|equal|configured|given|exported"
    r"|defined"
    r"|hard-?coded)"
)
_SURELY: Final = re.compile(
    _AFTER_NAME
    + rf"""(?:[ ]?(?:->|-->|→|⇒|=>|≔|:=|<<<)[ ]?
      |,\s{{0,8}}\\{{0,7}}["']?(?:content|data|default|string|text|secret|secretString)
        \\{{0,7}}["']?[ ]?[:=][ ]?
      |[ ]--?(?:[Vv]alue|[Bb]ody|[Dd]ata|[Ss]ecret|[Cc]ontent)[ =]
      |[ ](?:(?:is|was|are|has[ ]been|gets?|got|being|now|currently|still|variable|value)[ ]){{0,3}}
        (?:{_SET}[ ](?:to|as|from|with)|equals|contains|holds|reads|becomes
          |(?:has|with|takes|had)[ ](?:the[ ]|a[ ])?value)
        (?:[ ](?:be|the[ ]value|value|of))?[ :=]{{1,3}}
      )""",
    re.VERBOSE | re.IGNORECASE,
)
"""Between a name and a value: whatever follows is the value."""
_MAYBE: Final = re.compile(
    _AFTER_NAME
    + r"""(?:[ ](?:for|of|on|at)[ ][^\s:]{1,64})?
      (?:[ ]?[:=][ ]|,[ ]?|[ ](?:is|was|to|as|of|with|value|and|says?|variable)[ :]{1,2}
        |[ ]-[ ]|[ ])
      (?:(?:now|just|still|currently|set|to|be|is|simply|the|value|literally|plain)[ ]){0,3}""",
    re.VERBOSE | re.IGNORECASE,
)
"""The same, if it looks like one."""
_SETTER: Final = re.compile(
    r"""(?:^|[\s;&|("'`>$])
    (?:set|setenv|setx|setvar|putenv|export|ENV|ARG|declare|define|defaults|config(?:ure)?|put
      |write|add|update|assign|option|save|store|launchctl|Set-Item|New-Item)
    (?:[ \t]+(?:-{1,2}[\w-]{1,24}|/\w{1,8}|[\w.-]{1,48})){0,4}
    [ \t]+["']?(?:[\w.@:/-]{0,80}[/:.])?\Z""",
    re.VERBOSE | re.IGNORECASE,
)
_SAID: Final = re.compile(
    r"""\b(?:set|sets|setting|chang|updat|rotat|reset|export|assign|switch|overr)\w{0,6}
    (?:[ ](?:the|my|our|your|a))?[ ]["'`$]{0,2}\Z""",
    re.VERBOSE | re.IGNORECASE,
)
_SAID_TO: Final = re.compile(r"""["'`]?[ ](?:to|as|from|with)[ ](?:be[ ])?""")
"""``we changed NAME to VALUE``."""
_FIRST: Final = re.compile(
    rf"""\b(?:use[ds]?|using|put|with|enter(?:ed)?|pasted?|set|take|gave|give|sent|send|pass(?:ed)?|wrote
      |write|typed?|add(?:ed)?|supply|try|tried)
    [ ]["'`]?([^\s"'`,;()\[\]{{}}]{{{_LEAST},{_MOST}}})["'`]?
    [ ](?:as|for|in|into|to)[ ](?:(?:the|my|our|your|a|its|env|variable)[ ]){{0,2}}
    ["'`$]{{0,2}}\Z""",
    re.VERBOSE | re.IGNORECASE,
)
"""``use VALUE as NAME``."""
_COMMAND_END: Final = re.compile(
    r"""["'`]?[ \t]*(?:/[Mm]\b|--?\w|[;&|#)"'`\\]|[\r\n]|\Z)"""
)
_FILE_LINE: Final = re.compile(r"[ \t]*(?:[\w-]{1,40}\.){0,8}")
_FILE_END: Final = re.compile(r"""["']?[ \t]*(?:[\r\n]|\Z)""")
"""``requirepass VALUE``: a line of a file that has neither signs nor quotes."""
_COLUMN: Final = re.compile(
    r"(?:[ ]{2,40}|[ ]?\.{2,80}[ ]?|[ ]{0,8}\t[ \t]{0,16}|[ ]{0,24}[|│┃‖]+[ ]{0,24})"
)
_COLUMN_END: Final = re.compile(r"[ ]{0,40}(?:[|│┃\t]|[ ]{2}|[\r\n]|\Z|\\n)")
_TAGGED: Final = re.compile(
    r"""\s{0,8}</\w{1,20}>\s{0,24}<\w{1,20}>([^<>\r\n]{1,256})</
      | \\{0,7}["'][^<>\r\n]{0,80}>\s{0,24}([^<>\r\n]{1,256})</""",
    re.VERBOSE,
)
"""``<key>NAME</key><string>VALUE</string>``, ``<entry key="NAME">VALUE</entry>``."""

_JOINED: Final = words_of("apikey passwd pwd authtoken requirepass masterauth")
"""Names that are one word, and none of prose."""
_NO_VALUE: Final = words_of("""
    before after from with within without into onto over under using use used uses when while
    where which that this these those then than there here have has had having been being be
    is are was were will would should must may might can cannot could not none null nil true
    false yes empty unset blank missing required optional invalid valid expired wrong correct
    incorrect denied rejected accepted found lookup set changed updated given passed provided
    provide specified specify environment variable variables value values string text file
    files path argument option header field name names your their our its the and but also
    only just both either default placeholder secret token tokens key keys password passwords
    credential credentials auth session cookie cookies rotation length count size type types
    format policy manager store storage server servers client error errors failed failure
    validation check checks verification support supported enabled disabled instead again
    first last next present absent unknown undefined
""")
_LIKE: Final = re.compile(r"(?=.*[A-Za-z])(?=.*(?:\d|[!@#$%^&*~+?]|[a-z][A-Z]))")
_NOT_LIKE: Final = re.compile(
    r"""[vV]?\d+(?:\.\d+)+(?:[a-z]{1,5}\d*)?(?:[+-][\w.]+)?|[a-z0-9]{2,5}://.*|[~./].*|[\w.-]+/[\w./-]+
      |\d+(?:ms|s|m|h|d|b|B|[kKMG](?:i?B)?|x|th|st|nd|rd|tok)s?|0x[0-9a-f]+
      |[\w-]+\.(?:py|json|ya?ml|toml|txt|log|md|sh|env|cfg|ini|pem|key|go|rs|c|h|cc|cpp)(?::\d+)?
      |[a-zA-Z]\w*(?:_\w+)+|[$%].*|\w+\(.*|\w+=.*
      |\W*|\d{4}-\d\d-\d\d.*|\d+:\d\d.*|['’]\w*|\w+['’]\w+|.*\.{3}|.*:""",
    re.VERBOSE,
)
"""A version, place, amount, file or identifier, and the like."""
_OF_PROSE: Final = re.compile(
    r"""[a-zA-Z]{1,8}\d{1,2}|(?:[A-Za-z]+-)+[A-Za-z]*\d{0,3}|[A-Za-z][a-z]+(?:[A-Z][a-z]+)+|.*\?"""
)
"""What stands behind a word of prose as well: ``token gpu0``, ``password check?``."""


def spoken(text: str) -> Iterator[_Told]:
    """The values of names that say secret, where neither sign nor quotes join the two;
    in order."""
    position = 0
    for hit_start, hit_end in hits(text, HINT):
        if hit_start < position:
            continue
        start, end = name_around(text, hit_start, hit_end)
        name = text[start:end].strip("-")
        position = max(end, hit_end)
        if secrecy(name) < Secrecy.TOKEN and not _is_login(name):
            continue
        value = _value(text, start, end, name)
        if value is not None:
            yield (*value, name)
            position = max(position, value[1])


def _is_login(name: str) -> bool:
    """A short name of a password, which code uses for other things as well."""
    return name.lower() in ("auth", "pass", "dsn", "otp", "pin")


@dataclass(frozen=True)
class _NamePlace:
    """A name in a text.

    Attributes:
        before: its line up to it.
        compound: it is a program's, and no word of prose.
    """

    text: str
    start: int
    end: int
    before: str
    compound: bool


def _value(text: str, start: int, end: int, name: str) -> Span | None:
    """The value of a name, by the first rule that finds one."""
    before = text[max(0, start - _LINE) : start].rpartition("\n")[2]
    compound = _is_compound(name) or before.endswith((".", ":", "/"))
    named = _NamePlace(text, start, end, before, compound and bool(name))
    for rule in (
        _tagged,
        _in_column,
        _after_words,
        _set_by_command,
        _likely,
        _before_name,
    ):
        if (value := rule(named)) is not None:
            return value
    return None


def _tagged(named: _NamePlace) -> Span | None:
    tagged = _TAGGED.match(named.text, named.end)
    return tagged.span(1 if tagged[1] else 2) if tagged else None


def _in_column(named: _NamePlace) -> Span | None:
    """Behind two blanks, a tab or a bar, and with nothing else in its cell."""
    column = _COLUMN.match(named.text, named.end) if named.compound else None
    value = _VALUE.match(named.text, column.end()) if column else None
    if column is None or value is None or not _may_be(value[1]):
        return None
    wide = len(column[0]) >= _WIDE or "\t" in column[0]
    return value.span(1) if wide or _COLUMN_END.match(named.text, value.end()) else None


def _after_words(named: _NamePlace) -> Span | None:
    """Behind words that say "is set to"."""
    joint = _SURELY.match(named.text, named.end)
    if joint is None and named.compound and _SAID.search(named.before):
        joint = _SAID_TO.match(named.text, named.end)
    value = _VALUE.match(named.text, joint.end()) if joint else None
    if value is None or not _may_be(value[1]):
        return None
    return (
        _trimmed(value) if named.compound or _looks(value[1], compound=False) else None
    )


def _set_by_command(named: _NamePlace) -> Span | None:
    """``set -gx NAME VALUE``: the value ends the command."""
    blank = named.text[named.end : named.end + 1]
    alone = _FILE_LINE.fullmatch(named.before) is not None
    if not named.compound or blank not in (" ", "\t"):
        return None
    if not alone and not _SETTER.search(named.before):
        return None
    value = _VALUE.match(named.text, named.end + 1)
    if value is None or not _may_be(value[1]):
        return None
    shouted = named.text[named.start : named.end].isupper() and not alone
    end = _FILE_END if alone else _COMMAND_END
    return value.span(1) if shouted or end.match(named.text, value.end()) else None


def _likely(named: _NamePlace) -> Span | None:
    """Behind weaker words: if it looks like a secret."""
    joint = _MAYBE.match(named.text, named.end)
    if joint is None:
        return None
    sign = joint[0].strip("\"' ")
    if sign in ("", ",") and not named.compound:
        return None
    value = _VALUE.match(named.text, joint.end())
    if value is None or not _looks(value[1].rstrip(".!?"), compound=named.compound):
        return None
    return _trimmed(value)


def _before_name(named: _NamePlace) -> Span | None:
    """``use VALUE as NAME``."""
    first = _FIRST.search(named.before)
    if first is None or not _looks(first[1], compound=named.compound):
        return None
    line = named.start - len(named.before)
    return line + first.start(1), line + first.end(1)


def _trimmed(value: re.Match[str]) -> Span:
    """Without the sign that ends the sentence."""
    start, end = value.span(1)
    return start, start + len(value[1].rstrip(".!?:")) if end - start > _LEAST else end


def _is_compound(name: str) -> bool:
    """Whether a name is a program's, and no word of prose."""
    if "_" in name or "-" in name or name.isupper() or name.lower() in _JOINED:
        return True
    return len(joints(name)) > 1


def _may_be(value: str) -> bool:
    bare = value.strip(".!?:*").lower()
    return len(bare) >= _LEAST and bare not in _NO_VALUE and not bare.isdigit()


def _looks(value: str, *, compound: bool) -> bool:
    """Whether a value is no word, number or name: letters with digits, signs or humps
    in them."""
    if not _may_be(value) or _NOT_LIKE.fullmatch(value):
        return False
    if not compound and _OF_PROSE.fullmatch(value):
        return False
    return _LIKE.match(value) is not None


# ------------------------------------------------------------------ tables

_HEADINGS: Final = words_of("""
    name id user username login email mail account owner host hostname server machine address ip
    port url uri site domain service app application project tenant team group role region zone
    path file type kind status state date created updated expires description comment note notes
    database db schema table bucket env environment scope provider model engine version value
""")
"""What stands above other columns, where the first one is of secrets."""
_CELL_NAME: Final = re.compile(r"[A-Za-z][\w .-]{1,39}")
_ALIGNED: Final = re.compile(r"[^\s](?:[^\s]|[ ](?![ ]))*")
_RULER: Final = re.compile(r"[ \t|+:=─━┼├┤╋-]{3,}")
_LONGEST_HEADING: Final = 1024
_LONGEST_ROW: Final = 4096


def in_tables(text: str) -> Iterator[_Told]:
    """Cells below a heading that says secret, and cells beside one in a table of two
    columns."""
    position = 0
    for hit_start, hit_end in hits(text, HINT):
        if hit_start < position:
            continue
        start = text.rfind("\n", 0, hit_start) + 1
        end = _end_of_line(text, hit_end)
        position = end
        if end - start > _LONGEST_HEADING:
            continue
        cells, position = _of_heading(text, start, end)
        yield from cells


def _of_heading(text: str, start: int, end: int) -> tuple[list[_Told], int]:
    """What a line says of itself and the lines below it, and where its table ends."""
    for sign in ",;\t|":
        cells = _cells(text, start, end, sign)
        if len(cells) < 2:
            continue
        wanted = _headings(text, cells)
        if wanted:
            below, position = _below(text, end, sign, len(cells), wanted)
            if below:
                return below, position
        if len(cells) == 2:
            return list(_beside(text, cells)), end
    if "  " in text[start:end]:
        return _aligned(text, start, end)
    return [], end


def _end_of_line(text: str, at: int) -> int:
    end = text.find("\n", at)
    return end if end >= 0 else len(text)


def _rows(text: str, at: int) -> Iterator[Span]:
    """The lines below ``at``, the end of a line, but for rulers; up to an empty one."""
    while at < len(text):
        start = at + 1
        at = _end_of_line(text, start)
        stop = at - 1 if text[at - 1 : at] == "\r" else at
        if stop <= start:
            return
        if _RULER.fullmatch(text, start, stop) is None:
            yield start, stop


def _cells(text: str, start: int, end: int, sign: str) -> list[Span]:
    """The cells of a line, without the blanks and quotes around them."""
    line = text[start:end]
    if sign not in line:
        return []
    parts = _quoted_parts(line, sign) if '"' in line else _parts(line, sign)
    if sign == "|" and len(parts) > 2 and line.rstrip().endswith("|"):
        parts = parts[1:-1]  # a table of Markdown has them at both ends
    cells = [_inner(line, start, *part) for part in parts]
    if sign in ",;" and f"{sign} " in line and " " in text[slice(*cells[0])]:
        return []  # a sentence
    cells[0] = _last_word(text, *cells[0])
    return cells


def _parts(line: str, sign: str) -> list[Span]:
    parts = []
    position = 0
    for part in line.split(sign):
        parts.append((position, position + len(part)))
        position += len(part) + 1
    return parts


def _quoted_parts(line: str, sign: str) -> list[Span]:
    """The same where quotes may hold the sign."""
    parts = []
    start = 0
    quoted = False
    for at, letter in enumerate(line):
        if letter == '"':
            quoted = not quoted
        elif letter == sign and not quoted:
            parts.append((start, at))
            start = at + 1
    return [*parts, (start, len(line))]


def _last_word(text: str, start: int, end: int) -> Span:
    """Of the first cell: before it a log has a time, and where the line comes from."""
    return _inner(text, 0, max(start, text.rfind(" ", start, end) + 1), end)


def _inner(line: str, at: int, start: int, end: int) -> Span:
    while start < end and line[start] in " \t\"'`*":
        start += 1
    while end > start and line[end - 1] in " \t\"'`*":
        end -= 1
    return at + start, at + end


def _headings(text: str, cells: list[Span]) -> dict[int, str]:
    """Columns whose heading says secret; none if the line is no heading."""
    names = [text[slice(*cell)] for cell in cells]
    if not all(_CELL_NAME.fullmatch(name) for name in names):
        return {}
    found = {n: name for n, name in enumerate(names) if _says_secret(name)}
    others = {name.lower() for n, name in enumerate(names) if n not in found}
    if 0 in found and not others & _HEADINGS:
        return {}  # a row of a list of names and values
    return found


def _says_secret(name: str) -> bool:
    joined = name.replace(" ", "_")
    return secrecy(joined) >= Secrecy.TOKEN or _is_login(joined)


def _below(
    text: str, at: int, sign: str, width: int, wanted: dict[int, str]
) -> tuple[list[_Told], int]:
    """The wanted cells of the rows below ``at``, and where the last row ends."""
    told: list[_Told] = []
    for start, end in _rows(text, at):
        cells = _cells(text, start, end, sign) if end - start < _LONGEST_ROW else []
        if len(cells) != width:
            break
        at = end
        for column, name in wanted.items():
            begin, stop = cells[column]
            if stop - begin >= _LEAST:
                told.append((begin, stop, name))
    return told, at


def _beside(text: str, cells: list[Span]) -> Iterator[_Told]:
    """``NAME,VALUE``: a row of a table of names and values."""
    name, value = (text[slice(*cell)] for cell in cells)
    if not (_CELL_NAME.fullmatch(name) and " " not in name and _says_secret(name)):
        return
    # In a sentence there is a blank behind a comma.
    blank = text[cells[0][1] : cells[1][0]].endswith((", ", "; "))
    if blank or " " in value or not _may_be(value) or _says_secret(value):
        return
    if _is_compound(name) or _looks(value, compound=False):
        yield (*cells[1], name)


def _aligned(text: str, start: int, end: int) -> tuple[list[_Told], int]:
    """Columns that are told by two blanks, and by where their headings begin."""
    heads = [match.span() for match in _ALIGNED.finditer(text, start, end)]
    if len(heads) < 2:
        return [], end
    heads[0] = _last_word(text, *heads[0])
    wanted = _headings(text, heads)
    # A log's own beginning stands before the heading, and not before the rows.
    offsets = {heads[column][0] - start: name for column, name in wanted.items()}
    offsets |= {heads[column][0] - heads[0][0]: name for column, name in wanted.items()}
    told: list[_Told] = []
    position = end
    for begin, stop in _rows(text, end) if wanted else ():
        cells = [
            m.span()
            for m in _ALIGNED.finditer(text, begin, min(stop, begin + _LONGEST_ROW))
        ]
        below = [cell for cell in cells if cell[0] - begin in offsets]
        if len(cells) < 2 or not below:
            break
        position = stop
        for cell_start, cell_end in below:
            shown = text[cell_start:cell_end]
            if len(shown) >= _LEAST and " " not in shown:
                told.append((cell_start, cell_end, offsets[cell_start - begin]))
    return told, position

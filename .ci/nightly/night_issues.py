"""One open issue for each concern of a ledger: opened, rewritten and closed by `gh`.

A comment in an issue's body that nobody sees is its mark: title and all else may be
edited. Only issues with the label count, which no stranger can give. A body has a block
of status that every nightly run rewrites, and a rest that is written once.

Nothing is tried twice. Where `gh` fails the rest is left; what is wanted is worked out
anew from the ledger and the issues each time, so that the next nightly run goes on with
it."""

from __future__ import annotations

import argparse
import json
import re
import shlex
import shutil
import subprocess
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from itertools import pairwise
from pathlib import Path

from night_document import (
    Failed,
    Json,
    Watch,
    began,
    document_of,
    fence,
    one_line,
    paragraph,
    quiet,
    show,
    table,
    time_of,
    watch,
)

LABEL = "mmrepro-nightly"
FIELDS = "number,title,body,labels,state"
MOST = 1000
"""Issues that are read of each state."""
MAX_BODY = 60_000
"""GitHub takes 65,536 characters. What is longer was made so by hand, and is left as it
is."""
MISSING = "night-missing"
OF_A_RELEASE = ("bug-returned", "new-release-affected")
WORST_FIRST = (
    *OF_A_RELEASE,
    "different-failure",
    "drift",
    "flaky",
    "coverage-lost",
    MISSING,
)
_MARK = re.compile(r"<!-- mmrepro-issue (\{[^\r\n]*?\}) -->")
_BEGIN, _END = "<!-- mmrepro-status -->", "<!-- /mmrepro-status -->"
_STATUS = re.compile(f"{re.escape(_BEGIN)}.*?{re.escape(_END)}", re.DOTALL)


# ---------------------------------------------------------------- what is to be done


def concerns_of(document: Json, found: Watch) -> dict[str, Json]:
    """The ledger's concerns by identity, and those of runs that are or were missing."""
    known = {one["identity"]: one for one in document["concerns"]}
    for before, night in pairwise([{"id": ""}, *document["nights"]]):
        over = (
            f"Night {night['id']} began on {time_of(began(night))} and is "
            f"{night['state']}."
        )
        known |= _missing(before["id"], over=over)
    if not found.text:
        return known
    status, due = found.text, found.after(1)
    if found.last is not None:
        began_on = f"began on {time_of(began(found.last))} and is {found.last['state']}"
        rest = f"; the next one was due on {time_of(due)}." if due else "."
        status = f"The last night, {found.night}, {began_on}{rest}"
    return known | _missing(found.night, text=found.text, status=status)


def _missing(night: str, **more: str) -> dict[str, Json]:
    """``night``: the last one before it."""
    one = {
        "identity": f"{MISSING}:{night}",
        "what": MISSING,
        "since": night,
        "night": night,
        "state": "overdue",
        "over": "",
        "cell": None,
        "quarantined": False,
    }
    return {f"{MISSING}:{night}": one | more}


@dataclass
class Decided:
    """``held``: concerns whose issues were too many for one run; the next one opens
    them."""

    actions: list[Json] = field(default_factory=list)
    held: list[str] = field(default_factory=list)


def decide(
    concerns: Mapping[str, Json],
    issues: Sequence[Json],
    most: int | None = None,
    run_url: str = "",
) -> Decided:
    """One open issue for each concern that is not over, and none for one in quarantine.

    One that was closed by hand stays closed until its concern is found anew, where
    ``issues`` has the closed ones too. One whose identity the ledger does not know is
    left alone.

    Args:
        most: so many are opened at once, the worst first.
    """
    ours = sorted(
        ((i, m) for i in issues if (m := mark_of_issue(i))),
        key=lambda p: p[0]["number"],
    )
    there: dict[str, tuple[Json, Json]] = {}
    actions = []
    for issue, mark in ours:
        if not is_open(issue):
            continue
        first, _ = there.setdefault(mark["identity"], (issue, mark))
        if first is not issue:
            text = f"The same as #{first['number']}, which goes on."
            actions.append(_close(issue, mark["identity"], text, "not planned"))
    for identity, (issue, mark) in there.items():
        concern = concerns.get(identity)
        if concern is None:
            continue
        if concern["over"]:
            actions.append(
                _close(issue, identity, paragraph(concern["over"]), "completed")
            )
        elif mark_of(concern) != mark and len(issue["body"]) <= MAX_BODY:
            actions.append(_update(issue, mark, concern, run_url))
    closed = {(m["identity"], m["since"]) for i, m in ours if not is_open(i)}
    known = there.keys() | {identity for identity, c in concerns.items() if c["over"]}
    wanted = [
        c
        for identity, c in concerns.items()
        if identity not in known
        and (identity, c["since"]) not in closed
        and not c["quarantined"]
    ]
    wanted.sort(key=lambda c: (WORST_FIRST.index(c["what"]), c["identity"]))
    now = wanted[:most]
    actions += [
        {
            "do": "open",
            "identity": c["identity"],
            "title": title(c),
            "body": body(c, run_url),
            "labels": [LABEL],
        }
        for c in now
    ]
    return Decided(actions, [title(c) for c in wanted[len(now) :]])


def is_open(issue: Json) -> bool:
    return str(issue.get("state", "OPEN")).upper() == "OPEN"


def _close(issue: Json, identity: str, comment: str, reason: str) -> Json:
    return {
        "do": "close",
        "number": issue["number"],
        "identity": identity,
        "comment": comment,
        "reason": reason,
    }


def _update(issue: Json, mark: Json, concern: Json, run_url: str) -> Json:
    changed = mark["state"] != concern["state"]
    comment = f"It was {quiet(mark['state'], 60)}. {status(concern)}" if changed else ""
    return {
        "do": "update",
        "number": issue["number"],
        "identity": concern["identity"],
        "body": updated(issue["body"], concern, run_url),
        "comment": comment,
    }


# ---------------------------------------------------------------- marks and words


def mark_of(concern: Json) -> Json:
    return {name: concern[name] for name in ("identity", "since", "night", "state")}


def mark_text(mark: Json) -> str:
    """One line: a comment of HTML, which nothing in it can end."""
    text = json.dumps(mark).replace("<", "\\u003c").replace(">", "\\u003e")
    return f"<!-- mmrepro-issue {text} -->"


def mark_in(body: str) -> Json | None:
    """The first one in ``body``; None: it has none that can be read."""
    found = _MARK.search(body)
    try:
        mark = json.loads(found[1]) if found else {}
    except ValueError:
        return None
    texts = {name: mark.get(name) for name in ("identity", "since", "night", "state")}
    return texts if all(isinstance(text, str) for text in texts.values()) else None


def mark_of_issue(issue: Json) -> Json | None:
    labelled = any(label["name"] == LABEL for label in issue.get("labels", ()))
    return mark_in(issue.get("body", "")) if labelled else None


def title(concern: Json) -> str:
    words, cell = concern["what"].replace("-", " "), concern["cell"]
    if cell is None:
        return one_line(
            f"{words}: none since {concern['night'] or 'the beginning'}", 200
        )
    return one_line(f"{words}: {cell['row']} on {_release(cell)}", 200)


def body(concern: Json, run_url: str = "") -> str:
    words, cell = concern["what"].replace("-", " ").capitalize(), concern["cell"]
    parts = [
        mark_text(mark_of(concern)),
        f"**{words}**: {quiet(concern['text'], 1200)}",
    ]
    parts.append(f"{_BEGIN}\n{status(concern, run_url)}\n{_END}")
    if cell is not None:
        rows = (
            ("scenario", cell["row"]),
            ("engine", f"{_release(cell)} ({cell['device']})"),
            ("expected", (concern["verdict"] or {}).get("expected") or ""),
            ("before", concern["before"]),
            ("changed beside it", ", ".join(concern["changed"])),
            ("the run says", concern["says"]),
            ("cell", cell["id"]),
        )
        parts.append(
            table(["", ""], [(name, quiet(text, 400)) for name, text in rows if text])
        )
        if concern["command"]:
            more = " --repeat 5" if concern["what"] == "flaky" else ""
            parts.append("To repeat it:\n\n" + fence(concern["command"] + more))
        if concern["what"] in OF_A_RELEASE and not cell["commit"]:
            parts.append(
                "To find the release that brought it:\n\n" + fence(_bisect(cell))
            )
    parts.append(
        "Each nightly run rewrites the block above and closes this issue when it is "
        "over; the rest may be edited. Closed by hand it stays closed until this is "
        "found anew."
    )
    return "\n\n".join(parts) + "\n"


def updated(old: str, concern: Json, run_url: str = "") -> str:
    """An issue's own body, with mark and status as they are now."""
    text = _MARK.sub(lambda _: mark_text(mark_of(concern)), old, count=1)
    block = f"{_BEGIN}\n{status(concern, run_url)}\n{_END}"
    if _STATUS.search(text):
        return _STATUS.sub(lambda _: block, text, count=1)
    return f"{text.rstrip()}\n\n{block}\n"


def status(concern: Json, run_url: str = "") -> str:
    address = re.fullmatch(
        r"https?://[A-Za-z0-9._~:/?#@!$&'()*+,;=%-]{1,2000}", run_url
    )
    link = f" [The run that says so](<{run_url}>)." if address else ""
    if concern["cell"] is None:
        return quiet(concern["status"], 1200) + link
    now, night = concern["tonight"], quiet(concern["night"], 100)
    if concern["verdict_of"] == concern["night"] and now:
        text = f"**Night {night}:** {_counted(now)}"
    else:
        why = f"{now['state']}, {quiet(now['why'])}" if now else "not run"
        text = f"**Night {night}:** no verdict ({why})"
        if concern["verdict_of"] and concern["verdict"]:
            last = _counted(concern["verdict"])
            text += f"; last known in night {quiet(concern['verdict_of'], 100)}: {last}"
    return f"{text}. Found first in night {quiet(concern['since'], 100)}.{link}"


def _counted(verdict: Json) -> str:
    """E.g. ``reproduced, 3 of 3 conclusive runs reproduce it (95 %: 44% to 100%)``."""
    return (
        f"{verdict['state']}, {verdict['reproduced']} of {verdict['conclusive']} "
        f"conclusive runs reproduce it (95 %: {verdict['low']:.0%} to "
        f"{verdict['high']:.0%})"
    )


def _release(cell: Json) -> str:
    return f"{cell['engine']} {cell['commit'][:12] or cell['release']}"


def _bisect(cell: Json) -> str:
    words = [
        "mmrepro",
        "bisect",
        cell["scenario"],
        "--find",
        "introduced",
        "--bad",
        cell["release"],
    ]
    words += ["--variant", cell["variant"]] if cell["variant"] else []
    for option, name in (
        ("server-arg", "server_args"),
        ("mitigation", "mitigations"),
        ("option", "options"),
    ):
        words += [f"--{option}={one}" for one in cell[name]]
    return shlex.join([*words, "--device", cell["device"]])


# ---------------------------------------------------------------- gh


def run(asked: argparse.Namespace) -> int:
    """``nightly.py issues``."""
    document = document_of(asked, empty=True)
    known = checked(asked.open) if asked.open else listed()
    found = watch(document, datetime.now(UTC), asked.every, asked.absent)
    decided = decide(concerns_of(document, found), known, asked.max_new, asked.run_url)
    if asked.json:
        show({"actions": decided.actions, "held": decided.held})
        return 0
    if asked.open or asked.dry_run:
        for action in decided.actions:
            print("would", line_of(action))
    else:
        perform(decided.actions)
    if decided.held:
        more = line(", ".join(decided.held[:3]))
        print(
            f"{len(decided.held)} more are to be opened and wait for the next night: "
            f"{more}"
        )
    if not decided.actions and not decided.held:
        print("nothing is to be done")
    return 0


def checked(path: Path) -> list[Json]:
    """Issues as ``gh issue list --json number,title,body,labels,state`` prints them."""
    hint = (
        f"gh issue list --label {LABEL} --state all --limit {MOST} --json "
        f"{FIELDS} > {path}"
    )
    try:
        found = json.loads(path.read_text("utf-8"))
        fit = isinstance(found, list) and all(map(_is_issue, found))
    except OSError as error:
        raise Failed(
            f"{path} cannot be read: {error.strerror or error}. {hint}", 2
        ) from error
    except ValueError:
        fit = False
    if not fit:
        raise Failed(f"{path} is no list of issues. {hint}", 2)
    return found  # type: ignore[no-any-return]


def _is_issue(one: object) -> bool:
    if (
        not isinstance(one, dict)
        or not isinstance(one.get("number"), int)
        or one["number"] < 1
    ):
        return False
    labels = one.get("labels", [])
    named = isinstance(labels, list) and all(
        isinstance(label, dict) and isinstance(label.get("name"), str)
        for label in labels
    )
    return named and isinstance(one.get("body", ""), str)


def listed() -> list[Json]:
    """Those with the label: all that are open, and the newest that are closed."""
    found: list[Json] = []
    for state in ("open", "closed"):
        text = gh(
            "issue",
            "list",
            "--label",
            LABEL,
            "--state",
            state,
            "--limit",
            str(MOST),
            "--json",
            FIELDS,
        )
        some = json.loads(text or "[]")
        if state == "open" and len(some) >= MOST:
            raise Failed(
                f"{MOST} issues with the label {LABEL} are open: close some first"
            )
        found += some
    return found


def perform(actions: Sequence[Json]) -> None:
    """One after another. A comment comes first: cut off after it, it is at worst
    repeated."""
    if any(action["do"] == "open" for action in actions):
        known = json.loads(
            gh("label", "list", "--limit", str(MOST), "--json", "name") or "[]"
        )
        if all(one["name"] != LABEL for one in known):
            gh(
                "label",
                "create",
                LABEL,
                "--color",
                "5319e7",
                "--description",
                "opened, rewritten and closed by the nightly run",
            )
    for action in actions:
        number = str(action.get("number", ""))
        if action.get("comment"):
            gh("issue", "comment", number, "--body-file", "-", given=action["comment"])
        if action["do"] == "open":
            labels = [f"--label={name}" for name in action["labels"]]
            words = (f"--title={action['title']}", *labels, "--body-file", "-")
            gh("issue", "create", *words, given=action["body"])
        elif action["do"] == "update":
            gh("issue", "edit", number, "--body-file", "-", given=action["body"])
        else:
            gh("issue", "close", number, "--reason", action["reason"])
        print(line_of(action))


def line_of(action: Json) -> str:
    what = action["do"] + (f" #{action['number']}" if "number" in action else "")
    return line(f"{what}: {action.get('title', action['identity'])}")


def line(text: str) -> str:
    """On one line, in which a workflow's runner finds no command of its own."""
    return one_line(text, 1000).replace("##[", "## [")


def gh(*words: str, given: str = "") -> str:
    program = shutil.which("gh")
    if program is None:
        raise Failed("there is no gh on the PATH; see https://cli.github.com")
    done = subprocess.run(
        [program, *words], input=given, capture_output=True, text=True, check=False
    )
    if done.returncode:
        error = line(done.stderr)[-500:]
        raise Failed(
            f"gh {words[0]} {words[1]} failed, and the rest is left undone: {error}"
        )
    return done.stdout

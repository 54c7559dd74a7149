#!/usr/bin/env python3
"""A fake of GitHub's `gh`: it keeps issues, labels and the calls in the JSON file of
FAKE_GH.

As strict as the real one where our script may go wrong: unknown options, a label that
is not there, a body that is too long and an issue that does not exist are errors.
FAKE_GH_FAILS: the number of the call at which it answers as if the network were gone.
"""

import argparse
import json
import os
import re
import sys
from pathlib import Path

MAX_BODY = 65_536


def main() -> None:
    path = Path(os.environ["FAKE_GH"])
    known = {"issues": [], "labels": [], "calls": []}
    if path.exists():
        known = json.loads(path.read_text())
    known["calls"].append(sys.argv[1:])
    failing = len(known["calls"]) == int(os.environ.get("FAKE_GH_FAILS", "0"))
    try:
        if failing:
            sys.exit("error connecting to api.github.com")
        answer(known, parsed())
    finally:
        path.write_text(json.dumps(known))


def parsed() -> argparse.Namespace:
    parser = argparse.ArgumentParser(allow_abbrev=False)
    groups = parser.add_subparsers(dest="group", required=True)
    issue = groups.add_parser("issue").add_subparsers(dest="what", required=True)
    label = groups.add_parser("label").add_subparsers(dest="what", required=True)
    for what, options in {
        "list": ["--label", "--state", "--limit", "--json"],
        "create": ["--title", "--label", "--body-file"],
        "edit": [],
        "comment": ["--body-file"],
        "close": ["--reason"],
    }.items():
        command = issue.add_parser(what, allow_abbrev=False)
        if what in ("edit", "comment", "close"):
            command.add_argument("number", type=int)
        for option in options:
            command.add_argument(option, required=True)
        if what == "edit":
            changed = command.add_mutually_exclusive_group(required=True)
            for option in ("--body-file", "--add-label", "--remove-label"):
                changed.add_argument(option)
    api = groups.add_parser("api", allow_abbrev=False)
    api.add_argument("path")
    api.add_argument("--jq", required=True, choices=[".permission"])
    listing = label.add_parser("list", allow_abbrev=False)
    listing.add_argument("--limit")
    listing.add_argument("--json")
    create = label.add_parser("create", allow_abbrev=False)
    create.add_argument("name")
    create.add_argument("--color")
    create.add_argument("--description")
    return parser.parse_args()


def answer(known: dict, asked: argparse.Namespace) -> None:
    if asked.group == "api":
        right = re.fullmatch(
            r"repos/[\w/-]+/collaborators/([\w-]+)/permission", asked.path
        )
        if right is None:
            sys.exit("Not Found (HTTP 404)")
        print(known.get("rights", {}).get(right[1], "read"))
    elif asked.group == "label":
        if asked.what == "list":
            print(json.dumps([{"name": name} for name in known["labels"]]))
        elif asked.name in known["labels"]:
            sys.exit("label already exists")
        else:
            known["labels"].append(asked.name)
    elif asked.what == "list":
        fields = asked.json.split(",")
        found = [
            {field: issue[field] for field in fields}
            for issue in reversed(known["issues"])
            if issue["state"] == asked.state.upper()
            and any(one["name"] == asked.label for one in issue["labels"])
        ]
        print(json.dumps(found[: int(asked.limit)]))
    elif asked.what == "create":
        if asked.label not in known["labels"]:
            sys.exit(f"could not add label: '{asked.label}' not found")
        issue = {
            "number": len(known["issues"]) + 1,
            "title": asked.title,
            "body": body(asked),
            "labels": [
                {
                    "id": "LA_1",
                    "name": asked.label,
                    "description": "",
                    "color": "5319e7",
                }
            ],
            "state": "OPEN",
            "comments": [],
        }
        known["issues"].append(issue)
        print(f"https://github.example/o/r/issues/{issue['number']}")
    else:
        issue = next((i for i in known["issues"] if i["number"] == asked.number), None)
        if issue is None:
            sys.exit(f"could not resolve to an issue with the number of {asked.number}")
        if asked.what == "edit" and asked.body_file is None:
            relabelled(known, issue, asked)
        elif asked.what == "edit":
            issue["body"] = body(asked)
        elif asked.what == "comment":
            issue["comments"].append(body(asked))
        else:
            if asked.reason not in ("completed", "not planned"):
                sys.exit(f"invalid argument {asked.reason!r} for --reason")
            issue["state"] = "CLOSED"


def relabelled(known: dict, issue: dict, asked: argparse.Namespace) -> None:
    added = asked.add_label
    if (added or asked.remove_label) not in known["labels"]:
        sys.exit(f"'{added or asked.remove_label}' not found")
    labels = issue.setdefault("labels", [])
    labels[:] = [one for one in labels if one["name"] != (added or asked.remove_label)]
    if added:
        labels.append({"name": added})


def body(asked: argparse.Namespace) -> str:
    if asked.body_file != "-":
        sys.exit(f"{asked.body_file}: no such file")
    text = sys.stdin.read()
    if not text or len(text) > MAX_BODY:
        sys.exit("body is too long (maximum is 65536 characters)")
    return text


if __name__ == "__main__":
    main()

#!/usr/bin/env python3
"""A fake of GitHub's `gh`: issues and labels in FAKE_GH, a file, with every call that was made."""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path

STATE = Path(os.environ["FAKE_GH"])


def main(words: list[str]) -> None:
    known = json.loads(STATE.read_text()) if STATE.exists() else {}
    issues, labels = known.setdefault("issues", []), known.setdefault("labels", [])
    known.setdefault("calls", []).append(words)
    assert os.environ.get("GH_TOKEN"), "no token"
    options = {w[2:].partition("=")[0]: w.partition("=")[2] for w in words if w.startswith("--")}
    what = " ".join(words[:2])
    if what == "issue list":
        state = words[words.index("--state") + 1].upper()
        print(json.dumps([one for one in issues if one["state"] == state]))
    elif what == "issue create":
        named = [w.partition("=")[2] for w in words if w.startswith("--label=")]
        issues.append(
            {
                "number": len(issues) + 1,
                "title": options["title"],
                "body": sys.stdin.read(),
                "labels": [{"name": name} for name in named],
                "state": "OPEN",
            }
        )
        assert all(name in labels for name in named), "a label that is not there"
    elif what == "issue edit":
        issues[int(words[2]) - 1]["body"] = sys.stdin.read()
    elif what == "issue comment":
        issues[int(words[2]) - 1].setdefault("comments", []).append(sys.stdin.read())
    elif what == "issue close":
        issues[int(words[2]) - 1]["state"] = "CLOSED"
    elif what == "label list":
        print(json.dumps([{"name": name} for name in labels]))
    elif what == "label create":
        labels.append(words[2])
    else:
        sys.exit(f"this fake of gh knows no {what}")
    STATE.write_text(json.dumps(known))


main(sys.argv[1:])

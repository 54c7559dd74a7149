"""The answer to an issue, from what `mmrepro repro` left in FOLDER. Prints the action's outputs.

usage: python3 repro_answer.py FOLDER EXIT_CODE

There is an answer only where something was tested. What the report's server and client wrote comes
from a stranger: it stands in a fence, and names nobody.
"""

import json
import re
import sys
from pathlib import Path

ANSWERED = {
    "reproduced": "Reproduced.",
    "different": "Something else fails.",
    "not-reproduced": "Not reproduced.",
}
MOST = 50_000


def plain(text: str) -> str:
    """In a fence that it cannot end, without a mention of anybody."""
    return re.sub(r"@(?=\w)", "@\N{ZERO WIDTH SPACE}", text.replace("```", "'''"))


def answer(document: dict, report: str) -> str:
    """The comment; empty where nothing was tested."""
    facts = document.get("report") or {}
    begin = ANSWERED.get(facts.get("verdict") or "")
    if begin is None:
        return ""
    replaced = "\n".join(
        f"{one.get('what', '')} -> {one.get('by') or 'left out'}: {one.get('why', '')}"
        for one in facts.get("replaced", [])
    )
    server = document.get("server", {})
    parts = [
        f"**{begin}** On a fresh {server.get('engine')} {server.get('release')} with a tiny model:",
        f"```text\n{plain(facts.get('said', ''))[:1500]}\n```",
    ]
    if replaced:
        parts.append(f"Replaced:\n\n```text\n{plain(replaced)[:1500]}\n```")
    for one in facts.get("fixed", []):
        parts.append(f"On {one.get('release')}: {one.get('state')}.")
    if report:
        text = plain(report)[:MOST]
        parts.append(f"<details><summary>Report</summary>\n\n```text\n{text}\n```\n</details>")
    parts.append(
        "Made by mmrepro without a person; a tiny model shows no kernel or memory failure."
    )
    return "\n\n".join(parts) + "\n"


def main(folder: Path, code: str) -> None:
    try:
        document = json.loads((folder / "repro.json").read_text(encoding="utf-8"))
    except (OSError, ValueError):
        document = {}
    page = folder / "report.md"
    text = answer(document, page.read_text(encoding="utf-8") if page.is_file() else "")
    verdict = (document.get("report") or {}).get("verdict") or f"none (exit code {code})"
    print(f"verdict={verdict}")
    if text:
        (folder / "answer.md").write_text(text, encoding="utf-8")
        print(f"answer={folder / 'answer.md'}")


if __name__ == "__main__":
    main(Path(sys.argv[1]), sys.argv[2])

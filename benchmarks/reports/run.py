"""Does `mmrepro repro` judge public reports rightly? One process a run, one table.

    python benchmarks/reports/run.py [--only TEXT] [--out DIR] [--write PAGE] [--field DIR]

Each report of reports.toml is written as an issue in the form that GitHub shows, and
given to `mmrepro repro` with the release of the run. What a run said is kept in DIR; a
run that is there is not made again. `--write` puts the table between the marks of a
page. With `--field DIR` the inputs of DIR are given by `--client`, as they are and as a
script with curl. The exit code is 1 if less than 85 % are right, or one is falsely
"reproduced"."""

from __future__ import annotations

import argparse
import json
import shlex
import statistics
import subprocess
import sys
import time
import tomllib
from pathlib import Path
from typing import Any

HERE = Path(__file__).parent
MARKS = {
    "report": ("<!-- reports -->", "<!-- /reports -->"),
    "field": ("<!-- field -->", "<!-- /field -->"),
}
PORTS = {"vllm": 8000, "sglang": 30000, "lmdeploy": 23333}
LIMIT_S, LEAST = 900.0, 0.85
REFUSALS = ("nothing-tested", "not-reproduced")
"""Verdicts that are right of a documented refusal: it is no failure."""
Run = dict[str, Any]


def issue(report: Run, release: str) -> str:
    """The report as its issue reads: title, environment, what was observed, server,
    client."""
    engine = {"vllm": "vLLM", "sglang": "SGLang", "lmdeploy": "LMDeploy"}[
        engine_of(report)
    ]
    kind = {"py": "python"}.get(report.get("lang", "sh"), "bash")
    observed = (
        f"```text\n{report['observed']}\n```" if "\n" in report["observed"] else ""
    )
    return "\n\n".join(
        [
            f"# [Bug]: {report['title']}",
            f"### Your current environment\n\n{engine} {release}",
            f"### Describe the bug\n\n{observed or report['observed']}",
            (
                "### Reproduction\n"
                "\n"
                "Start the server:\n"
                "\n"
                "```bash\n"
                f"{report['server']}\n"
                "```"
            ),
            f"Then run:\n\n```{kind}\n{report['client'].strip()}\n```\n",
        ]
    )


def engine_of(report: Run) -> str:
    words = report["server"]
    return next(name for name in ("sglang", "lmdeploy", "vllm") if name in words)


def curl_of(file: Path, port: int) -> str:
    """The requests of a batch file, or of a case's folder, as a script with curl."""
    if file.is_dir():
        sent = json.loads((file / "case.json").read_text(encoding="utf-8"))[
            "operations"
        ]
        requests = [("POST", one["path"], one["parameters"]) for one in sent]
    else:
        lines = map(json.loads, file.read_text(encoding="utf-8").splitlines())
        requests = [(one["method"], one["url"], one["body"]) for one in lines]
    return "".join(
        f"curl -X {method} http://localhost:{port}{path} -H 'Content-Type: "
        f"application/json' -d {shlex.quote(json.dumps(body))}\n"
        for method, path, body in requests
    )


def given(
    report: Run, release: str, folder: Path, field: Path | None
) -> list[str | Path]:
    """What `mmrepro repro` gets: an issue, or an input of ``field`` by ``--client``."""
    if field is None:
        file = folder / "issue.md"
        file.write_text(issue(report, release), encoding="utf-8")
        return [file]
    client = field / report["client"]
    if report["way"] == "curl" and client.suffix != ".sh":
        script = folder / "client.sh"
        script.write_text(curl_of(client, PORTS[engine_of(report)]), encoding="utf-8")
        client = script
    words = (
        f"python {shlex.quote(str(client))}" if client.suffix == ".py" else str(client)
    )
    server = [] if client.is_dir() else ["--server", report["server"]]
    return ["--client", words, "--reported", report["reported"], *server]


def made(report: Run, release: str, folder: Path, field: Path | None) -> Run:
    """Run it, and return its verdict and sentence, and the seconds that it took."""
    folder.mkdir(parents=True, exist_ok=True)
    command = [Path(sys.executable).parent / "mmrepro", "repro", "--release", release]
    command += given(report, release, folder, field)
    command += ["--out", folder / "repro", "--json", "--quiet", "--yes", "--no-shrink"]
    began = time.monotonic()
    try:
        done = subprocess.run(
            command, capture_output=True, text=True, timeout=LIMIT_S, check=False
        )
    except subprocess.TimeoutExpired:
        return {
            "verdict": "",
            "said": "no verdict in time",
            "seconds": LIMIT_S,
            "exit": None,
        }
    seconds = round(time.monotonic() - began, 1)
    said: Run = {
        "seconds": seconds,
        "exit": done.returncode,
        "verdict": "",
        "answers": [],
    }
    try:
        document = json.loads(done.stdout)
    except ValueError:
        lines = done.stderr.strip().splitlines()
        return {**said, "said": " ".join(lines[-3:])[:400] or "it printed nothing"}
    facts = document.get("report") or {}
    answers = [one.get("status", "") for one in document.get("answers", [])]
    words = facts.get("said") or document.get("failure") or ""
    return {
        **said,
        "verdict": facts.get("verdict") or "",
        "said": words,
        "answers": answers,
    }


def right(expect: str, found: Run) -> bool:
    if expect == "refused":
        return found["verdict"] in REFUSALS
    if expect == "needs-hardware":  # or the real model: both are not here
        return found["verdict"] in ("needs-hardware", "needs-model")
    if expect == "not-reproduced":  # also another failure than that of the report
        return found["verdict"] in ("not-reproduced", "different")
    return bool(found["verdict"] == expect)


def table(rows: list[tuple[Run, Run, Run]]) -> str:
    """A line a report, with the verdict of each release; DIR has what each run says."""
    runs: dict[tuple[str, str], list[str]] = {}
    for report, run, found in rows:
        more = ", ".join(report[key] for key in ("variant", "way") if key in report)
        name = report["ref"] + (f" ({more})" if more else "")
        verdict = found["verdict"] or "none"
        if verdict != run["expect"]:
            verdict += f" (expected: {run['expect']})"
        if not right(run["expect"], found):
            verdict += " ✗"
        line = f"{run['release']}: {verdict}, {found['seconds']:.0f} s"
        runs.setdefault((name, engine_of(report)), []).append(line)

    lines = ["| report | engine | release, verdict, seconds |", "|---|---|---|"]
    for (name, engine), texts in runs.items():
        lines.append(f"| {name} | {engine} | {'; '.join(texts)} |")
    return "\n".join(lines)


def summary(rows: list[tuple[Run, Run, Run]]) -> tuple[str, bool]:
    good = sum(right(run["expect"], found) for _, run, found in rows)
    false = [
        report["ref"]
        for report, run, found in rows
        if found["verdict"] == "reproduced" != run["expect"]
    ]
    median = statistics.median(found["seconds"] for _, _, found in rows)
    share = good / len(rows)
    words = (
        f"{good} of {len(rows)} verdicts are right ({share:.0%}), {len(false)} falsely "
        f'"reproduced", median {median:.0f} s.'
    )
    return words, share >= LEAST and not false


def main() -> int:
    parser = argparse.ArgumentParser(description="See the top of this file.")
    parser.add_argument(
        "--only", default="", help="reports with this text in their name"
    )
    parser.add_argument("--out", type=Path, default=Path("reports-benchmark"))
    parser.add_argument(
        "--kept", action="store_true", help="only what has been run before"
    )
    parser.add_argument("--write", type=Path, help="a page with the marks of the table")
    parser.add_argument(
        "--field", type=Path, metavar="DIR", help="inputs, given by --client"
    )
    asked = parser.parse_args()
    rows, planned = [], 0
    kind = "field" if asked.field else "report"
    reports = tomllib.loads((HERE / "reports.toml").read_text(encoding="utf-8"))[kind]
    for report in reports:
        for run in report["runs"]:
            words = [report["ref"], report.get("variant", ""), report.get("way", "")]
            words += [engine_of(report), run["release"]]
            name = " ".join(filter(None, words))
            if asked.only not in name:
                continue
            planned += 1
            folder = asked.out / "-".join(
                name.replace("/", "-").replace("#", "-").split()
            )
            kept = folder / "said.json"
            if asked.kept and not kept.is_file():
                continue
            if not kept.is_file():
                found = made(report, run["release"], folder, asked.field)
                kept.write_text(json.dumps(found, indent=1), encoding="utf-8")
            found = json.loads(kept.read_text(encoding="utf-8"))
            rows.append((report, run, found))
            mark = "right" if right(run["expect"], found) else "WRONG"
            print(
                f"{mark}  {name}: {found['verdict'] or 'none'}, {found['said'][:120]}",
                flush=True,
            )
    if not rows:
        parser.error(f"no report has {asked.only!r}")
    words, enough = summary(rows)
    if len(rows) < planned:
        words += f" {planned - len(rows)} runs were not made."
    text = f"{words}\n\n{table(rows)}"
    print(f"\n{text}")
    if asked.write:
        page = asked.write.read_text(encoding="utf-8")
        begin, end = MARKS[kind]
        head, _, rest = page.partition(begin)
        asked.write.write_text(f"{head}{begin}\n{text}\n{end}{rest.partition(end)[2]}")
    return 0 if enough else 1


if __name__ == "__main__":
    sys.exit(main())

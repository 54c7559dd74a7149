"""Recorded runs of every scenario: make the missing ones, pack them, list them.

Usage:  uv run python tests/evidence/record.py                 # run and pack what is missing
        uv run python tests/evidence/record.py --only WORD     # of it, cases that hold WORD
        uv run python tests/evidence/record.py --from DIR…     # pack finished runs
        uv run python tests/evidence/record.py --rejudge NAME… # write the present judgement in
        uv run python tests/evidence/record.py --table         # README's table, the lists that are
                                                               # shipped, the pages, the
                                                               # verdicts, the index of find
        uv run python tests/evidence/record.py --verdicts      # verdicts.json alone, imposters too

A recording is NAME.zip: the ``incident.json`` of one real run and the manifest that a
bundle has, so that ``mmrepro.reports.load`` reads it. Nothing in it is edited but texts
that name this machine (see ``without_places``). Reports and raw evidence stay out. What
is packed already is left alone unless --force is given. --rejudge leaves the evidence
as it is and replaces what was concluded from
it: the verdict, the symptoms, the claims and what mitigations did.
"""

from __future__ import annotations

import argparse
import hashlib
import re
import shlex
import subprocess
import sys
import tempfile
import zipfile
from collections import Counter
from pathlib import Path
from typing import Final

from mmrepro import __version__
from mmrepro.base.errors import MmreproError
from mmrepro.base.text.redact import PLACEHOLDER, Redactor
from mmrepro.cli import find_index
from mmrepro.failure.documents import INCIDENT_FILE, Incident
from mmrepro.failure.documents.hashes import HASHES_FILE, packed_chain
from mmrepro.failure.documents.stored import MANIFEST_FILE, BundledFile, BundleManifest
from mmrepro.history import ledger
from mmrepro.reports import load
from mmrepro.runs.judge import effect, facts_of, judge, note_effects
from mmrepro.scenario.registry import load_scenario
from mmrepro.scenarios import data
from mmrepro.tools.catalogue import claims, recorded, standing

HERE: Final = Path(__file__).resolve().parent
CHECKOUT: Final = HERE.parents[1]
README: Final = HERE / "README.md"
LEDGERS: Final = ("docs/nightly/*.jsonl", "docs/bisections/*.jsonl")
"""Nights and bisections whose runs count as recorded ones, besides the recordings."""
CATALOGUE: Final = CHECKOUT / "docs/catalogue.md"

sys.path.insert(0, str(CHECKOUT / "benchmarks"))
import verdicts  # noqa: E402
from imposters import imposters  # noqa: E402
from start_mode_equality import cases  # noqa: E402

SLOW: Final = "full-size"
"""A variant that takes minutes and judges as another one does."""
MORE: Final = """
ghost-key-eviction --release 0.12.0
ghost-key-eviction --release 0.14.0
ghost-key-eviction --release 0.32.0
ghost-key-eviction --mitigation disable-mm-cache
ghost-key-eviction --mitigation patch
ghost-key-eviction --flip cache-size
ghost-key-eviction --flip popitem-fix
ghost-key-eviction --flip refusal
ghost-key-eviction --flip prefix-caching
ghost-key-eviction --flip concurrency
ghost-key-eviction --flip mm-cache
ghost-key-eviction --flip touch-fix
ghost-key-eviction '--server-arg=--limit-mm-per-prompt={"image":0}'
ghost-key-eviction --server-arg=--no-enable-log-requests
ghost-key-eviction --option video
mm-cache-desync --release 0.11.0
mm-cache-desync --release 0.12.0
mm-cache-desync --release 0.14.0
mm-cache-desync --release 0.32.0
mm-cache-desync --flip refusal
chunked-mm-prefill --variant generated-placeholder --server-arg=--max-model-len=1024
chunked-mm-prefill --variant async-race --mitigation sync-scheduling
chunked-mm-prefill --variant async-race --mitigation barrier
chunked-mm-prefill --variant async-race --mitigation budget
chunked-mm-prefill --variant async-race --flip image-size
chunked-mm-prefill --variant async-race --flip prefix-caching
chunked-mm-prefill --variant async-race --flip eager-mode
chunked-mm-prefill --variant async-race --contract-probe
chunked-mm-prefill --variant full-size
chunked-mm-prefill --variant full-size --mitigation barrier
chunked-mm-prefill --variant full-size --mitigation budget
encoder-cache-overflow --release 0.12.0
encoder-cache-overflow --release 0.14.0
encoder-cache-overflow --mitigation larger-budget
encoder-cache-overflow --mitigation limit-at-start
encoder-cache-overflow '--server-arg=--limit-mm-per-prompt={"image":0}'
pad-value-collision --release 0.5.17
pad-value-collision --release 0.5.17 --mitigation cache-salt
pad-value-collision --mitigation cache-salt
pad-value-collision --mitigation extra-key
pad-value-collision --mitigation disable-radix-cache
pad-value-collision --option search
pad-value-collision --option traffic
pad-value-collision --server-arg=--max-total-tokens=50
shape-alias --variant kv-cache --release 0.5.6
shape-alias --variant kv-cache --server-arg=--disable-radix-cache
shape-alias --variant kv-cache --release 0.5.17
shape-alias --variant embedding-cache --release 0.5.6
shape-alias --variant embedding-cache --release 0.5.17
undersized-kv-budget --variant text --release 0.7.0.post3
undersized-kv-budget --variant text --mitigation kv-budget
undersized-kv-budget --option at-limit=0
undersized-kv-budget --option at-limit=16
undersized-kv-budget --option at-limit=17
undersized-kv-budget --variant text --server-arg=--session-len=256
kv-growth-crash --release 0.7.0.post3
kv-growth-crash --release 0.7.1
kv-growth-crash --release 0.9.1
kv-growth-crash --release 0.9.2
kv-growth-crash --mitigation kv-budget
kv-growth-crash --server-arg=--log-level=CRITICAL
kv-growth-crash --server-arg=--session-len=256
completions-session
completions-session --mitigation text-prompts
completions-session --release 0.13.0
completions-session --release 0.15.0
completions-session --release 0.18.0
lora-no-adapter
lora-no-adapter --release 0.33.0
lora-no-adapter --mitigation spare-slot
lora-reload
lora-reload --release 0.32.0
lora-reload --mitigation no-prefix-caching
lora-added
lora-added --release 0.32.0
lora-added --mitigation spare-slots
tool-arguments-dropped
tool-arguments-dropped --mitigation not-streamed
json-object-false
json-object-false --release 0.25.0
priority-children
priority-children --release 0.12.0
priority-children --mitigation fcfs
hybrid-checkpoint
hybrid-checkpoint --release 0.32.0
hybrid-checkpoint --mitigation no-prefix-caching
session-embeds
session-embeds --mitigation patch
transfer-lost
transfer-lost --release 0.32.0
transfer-lost --release 0.14.0
transfer-lost --mitigation deadline
unchecked-sampling
unchecked-sampling --release 0.24.0
unchecked-sampling --release 0.33.0
unchecked-sampling --mitigation python-front-end
mm-prefill-contract --variant slot-mapping --server-arg=--text-only
mm-prefill-contract --variant pinned-placeholder --mitigation fix --server-arg=--fault=slot-mapping
borrowed-faults --variant ghost-key-lru --server-arg=--mm-cache-tokens=4096
borrowed-faults --variant ghost-key-lru --server-arg=--text-only
borrowed-faults --variant pad-value-key --server-arg=--no-prefix-caching
borrowed-faults --variant reused-mask --server-arg=--max-num-seqs=1
borrowed-faults --variant reused-mask --server-arg=--fault=kv-budget
caller-hash
caller-hash --mitigation patch
abort-by-prefix
abort-by-prefix --mitigation patch
top-logprobs-kill
top-logprobs-kill --mitigation patch
ghost-decode
ghost-decode --mitigation release
fake-bootstrap
fake-bootstrap --mitigation release
""".strip().splitlines()
"""Besides the cases that ``benchmarks/start_mode_equality.py`` compares: the other
mitigations, flips as ``mmrepro ablate`` makes them, other releases, and gates that
fail."""
CASES: Final = [*(case for case in cases() if SLOW not in case), *MORE]
"""The words after ``mmrepro run``, as a shell takes them."""

_WORKING: Final = re.compile(r"(?<![\w.}/~-])/[\w./+-]+/(?:mmr|mmrepro)-[\w-]+")
_REPRODUCERS: Final = re.compile(
    r"(?<![\w.}/~-])(?:/[\w.+-]+)+(?=/(?:reproducers|harness/engines/supervise)\b)"
)
_INTERPRETER: Final = re.compile(
    r"(?<![\w.}/~-])(?!/usr/)(?:/[\w.+-]+)+(?=/(?:lib/python3[.\d]*/site-packages"
    r"|bin/python3?)\b)"
)
_ABSOLUTE: Final = re.compile(r"(?<![\w.}~:/-])/([\w.+-]+)/[\w.+-]+")
_EVERYWHERE: Final = {"proc", "sys", "dev", "usr", "lib", "lib64", "bin", "etc"}
"""Folders that every Linux has: a path below one tells nothing of this machine."""


# ---------------------------------------------------------------------- cases and names


def parsed(case: str) -> argparse.Namespace:
    parser = argparse.ArgumentParser(exit_on_error=False)
    parser.add_argument("scenario")
    for option in ("--variant", "--release", "--start-mode", "--device"):
        parser.add_argument(option, default="")
    for option in ("--server-arg", "--mitigation", "--flip", "--option"):
        parser.add_argument(option, action="append", default=[])
    parser.add_argument("--contract-probe", action="store_true")
    return parser.parse_args(shlex.split(case))


def name_of(case: str) -> str:
    """The recording's name: the case, with its release if that is all that tells it
    apart."""
    words = parsed(case)
    changes = [*words.mitigation]
    changes += [f"flip-{name}" for name in words.flip]
    changes += [f"option-{name}" for name in words.option]
    changes += [f"with{argument}" for argument in words.server_arg]
    changes += ["contract-probe"] if words.contract_probe else []
    release = words.release
    if not release and not changes:
        release = load_scenario(words.scenario).with_variant(words.variant).release
    changes += ["on-a-gpu"] if words.device == "cuda" else []
    parts = [words.scenario, words.variant, release, *changes]
    return re.sub(r"[^A-Za-z0-9.]+", "-", "-".join(filter(None, parts))).strip("-")


def case_of(incident: Incident) -> str:
    return incident.command.removeprefix("mmrepro run ")


# ---------------------------------------------------------------------- packing


def without_places(text: str, incident_dir: str) -> str:
    """``text`` without folders of this machine; the home is ``~`` already.

    The run's folder becomes ``{run}``, temporary folders of runs ``{run-tmp}``, the
    checkout that ``reproducers`` lies in ``{checkout}``, an interpreter's prefix
    ``{python}``: the same folder is the same placeholder everywhere."""
    if incident_dir.startswith("/"):
        text = text.replace(incident_dir, "{run}")
    text = _WORKING.sub("{run-tmp}", text)
    text = _INTERPRETER.sub("{python}", text)
    return _REPRODUCERS.sub("{checkout}", text)


def places_in(text: str) -> list[str]:
    """Absolute paths below a folder that this machine's root has: there should be
    none."""
    found = Counter(
        match[0]
        for match in _ABSOLUTE.finditer(text)
        if match[1] not in _EVERYWHERE and Path("/", match[1]).is_dir()
    )
    return [f"{path} ({times} times)" for path, times in found.most_common()]


def packed_text(incident: Incident) -> str:
    redactor = Redactor()
    text = incident.model_dump_json(indent=1)
    redactor.reserve(text)
    text = redactor.redact_model(incident).model_dump_json(indent=1)
    return without_places(text, incident.incident_dir) + "\n"


def with_record(text: str, place: Path) -> tuple[str, bytes]:
    """The text of a recording with the head of its record of hashes, and that record,
    which goes on from the one in ``place``; without one: the text as it is."""
    shown = Incident.model_validate_json(text)
    chain = packed_chain(place, shown, {})
    if chain is None:
        return text, b""
    return shown.model_dump_json(indent=1) + "\n", b"".join(chain.lines)


def pack(folder: Path, *, force: bool) -> Path | None:
    """The recording made of a finished run; None: there is one already.

    Raises:
        ValueError: the run is not complete, or a path of this machine would be left in
            it.
    """
    incident = load(folder)
    if (HERE / f"{name_of(case_of(incident))}.zip").exists() and not force:
        return None
    if incident.state != "complete" or incident.verdict is None:
        raise ValueError(f"{folder}: the run is {incident.state}")
    size = (folder / INCIDENT_FILE).stat().st_size
    return packed(incident, original_bytes=size, place=folder)


def packed(
    incident: Incident,
    original_bytes: int = 0,
    target: Path | None = None,
    place: Path | None = None,
) -> Path:
    """As :func:`pack`, of what was read from ``place``; ``original_bytes``: 0 for what
    was packed before."""
    target = target or HERE / f"{name_of(case_of(incident))}.zip"
    text = packed_text(incident)
    if left := places_in(text):
        raise ValueError(f"{target.stem}: paths of this machine: {', '.join(left[:5])}")
    hashes = b""
    if place is not None:
        text, hashes = with_record(text, place)
    data = text.encode()
    files = {HASHES_FILE: hashes} if hashes else {}
    listed = [
        BundledFile(
            name=INCIDENT_FILE,
            bytes=len(data),
            sha256=hashlib.sha256(data).hexdigest(),
            original_bytes=original_bytes or len(data),
            redactions=len(PLACEHOLDER.findall(text)),
        )
    ]
    for name, content in files.items():
        listed.append(
            BundledFile(
                name=name,
                bytes=len(content),
                sha256=hashlib.sha256(content).hexdigest(),
                original_bytes=len(content),
            )
        )
    manifest = BundleManifest(
        mmrepro_version=__version__,
        incident=incident.id,
        scenario=incident.scenario.name,
        files=listed,
    )
    with zipfile.ZipFile(target, "w", zipfile.ZIP_LZMA) as archive:
        # Without a date: the same incident gives the same bytes.
        for name, content in (
            (INCIDENT_FILE, data),
            *files.items(),
            (MANIFEST_FILE, manifest.model_dump_json().encode()),
        ):
            entry = zipfile.ZipInfo(name)
            entry.compress_type = zipfile.ZIP_LZMA
            archive.writestr(entry, content)
    load(target)
    return target


def rejudged(incident: Incident) -> Incident:
    """``incident`` with the conclusions that its evidence leads to now."""
    scenario = load_scenario(incident.scenario.name).with_variant(
        incident.scenario.variant
    )
    evidence, facts = incident.evidence, facts_of(incident, scenario)
    # Its record is of the verdict of then.
    incident.hashes = None
    incident.verdict = judge(scenario, evidence, facts)
    incident.symptoms = scenario.symptom_rows(evidence, facts)
    incident.claims = scenario.claim_results(evidence, facts)
    note_effects(
        incident.mitigations, effect(scenario, evidence, facts, incident.verdict)
    )
    return incident


def record(case: str, folder: Path) -> None:
    """Run ``case`` once, its server forked from a warm parent where that can be."""
    command = [sys.executable, "-m", "mmrepro", "run", *shlex.split(case)]
    mode = [] if parsed(case).start_mode else ["--start-mode", "warm"]
    done = subprocess.run(
        [*command, *mode, "--out", str(folder)],
        capture_output=True,
        text=True,
        check=False,
    )
    if not (folder / INCIDENT_FILE).exists():
        raise ValueError(f"{case}: {done.stderr[-2000:]}")


# ---------------------------------------------------------------------- what they hold


def recordings() -> dict[str, Incident]:
    return {path.stem: load(path) for path in sorted(HERE.glob("*.zip"))}


def table(found: dict[str, Incident]) -> str:
    lines = ["| file | command | outcome | conditions met |", "|---|---|---|---|"]
    for name, incident in found.items():
        assert incident.verdict is not None
        results = incident.verdict.conditions
        met = sum(result.truth == "met" for result in results)
        lines.append(
            f"| {name} | `{incident.command}` | {incident.verdict.outcome} | "
            f"{met} of {len(results)} |"
        )
    outcomes = Counter(i.verdict.outcome for i in found.values() if i.verdict)
    said = ", ".join(
        f"{number} {outcome}" for outcome, number in outcomes.most_common()
    )
    size = sum(path.stat().st_size for path in HERE.glob("*.zip"))
    return "\n".join(
        [*lines, "", f"{len(found)} recordings, {size / 2**20:.1f} MiB: {said}."]
    )


def runs_of(found: dict[str, Incident]) -> str:
    """The list of recorded runs that is shipped
    (``mmrepro.scenarios.data.recorded_runs``)."""
    runs = [
        recorded.of_incident(incident, f"tests/evidence/{name}.zip")
        for name, incident in found.items()
    ]
    for path in sorted(path for pattern in LEDGERS for path in CHECKOUT.glob(pattern)):
        source = path.relative_to(CHECKOUT).as_posix()
        runs += recorded.of_history(ledger.read(path), source)
    return recorded.dumped(filter(None, runs))


def claims_of(found: dict[str, Incident]) -> str:
    """The list of claims that is shipped (``mmrepro.scenarios.data.claims``)."""
    return claims.dumped(
        claims.judged(
            (f"tests/evidence/{name}.zip", incident) for name, incident in found.items()
        )
    )


def write_catalogue(found: dict[str, Incident]) -> None:
    """The lists that are shipped, and the pages that are made of them."""
    data.recorded_runs().write_text(runs_of(found))
    failures, broken = standing.known(recorded.load(data.recorded_runs()))
    assert not broken, broken
    CATALOGUE.write_text(standing.page(failures))
    data.claims().write_text(claims_of(found))


def write_verdicts(found: dict[str, Incident]) -> None:
    """The table of verdicts, all judged again."""
    changed = {one.name: one.incident() for one in imposters()}
    documents = verdicts.judged(changed, by_conditions=True)
    verdicts.write(
        recordings=verdicts.recordings(verdicts.judged(found), found),
        imposters={
            name: verdicts.row(document) for name, document in documents.items()
        },
    )


def write_lists() -> None:
    found = recordings()
    write_catalogue(found)
    write_verdicts(found)
    head, begin, rest = README.read_text().partition("<!-- table -->\n")
    _, end, tail = rest.partition("<!-- end -->")
    README.write_text(head + begin + table(found) + "\n" + end + tail)
    find_index.main()


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument(
        "--from",
        dest="folders",
        type=Path,
        nargs="+",
        default=[],
        metavar="DIR",
        help="pack these folders of finished runs; run nothing",
    )
    parser.add_argument(
        "--only", default="", metavar="WORD", help="only cases that hold WORD"
    )
    parser.add_argument(
        "--list", action="store_true", help="print the cases and whether packed"
    )
    parser.add_argument(
        "--table", action="store_true", help="only write the lists and the page"
    )
    parser.add_argument(
        "--verdicts", action="store_true", help="only write verdicts.json"
    )
    parser.add_argument(
        "--rejudge",
        nargs="+",
        default=[],
        metavar="NAME",
        help="judge these recordings again (all: every one)",
    )
    parser.add_argument(
        "--force", action="store_true", help="pack anew what is packed already"
    )
    asked = parser.parse_args()
    failed = 0
    if asked.list:
        for case in CASES:
            there = (HERE / f"{name_of(case)}.zip").exists()
            print("packed " if there else "missing", case)
        return 0
    if asked.rejudge:
        for path in sorted(HERE.glob("*.zip")):
            if path.stem in asked.rejudge or "all" in asked.rejudge:
                print(f"judged again: {packed(rejudged(load(path))).stem}")
        return 0
    if asked.verdicts:
        write_verdicts(recordings())
        return 0
    missing = []
    if not asked.folders and not asked.table:
        missing = [case for case in CASES if asked.only in case]
    with tempfile.TemporaryDirectory(prefix="mmrepro-evidence-") as work:
        for number, case in enumerate(missing):
            if (HERE / f"{name_of(case)}.zip").exists() and not asked.force:
                continue
            folder = Path(work, str(number))
            try:
                record(case, folder)
                print(f"{case}: {pack(folder, force=True)}", flush=True)
            except (ValueError, MmreproError) as error:
                failed += 1
                print(error, file=sys.stderr)
    for folder in asked.folders:
        try:
            print(f"{folder}: {pack(folder, force=asked.force) or 'packed already'}")
        except (ValueError, MmreproError) as error:
            failed += 1
            print(error, file=sys.stderr)
    write_lists()
    return int(failed > 0)


if __name__ == "__main__":
    sys.exit(main())

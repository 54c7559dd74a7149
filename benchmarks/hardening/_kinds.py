"""What files.py gives to commands: by kind, files that are written into a folder, and a command."""

from __future__ import annotations

import gzip
import json
import random
import shutil
import zipfile
from collections.abc import Callable
from dataclasses import dataclass
from functools import cache
from pathlib import Path

import _mutated as made

FORMATS = ("md", "html", "json", "junit", "issue")


@dataclass(frozen=True)
class Seeds:
    """Whole files, read once; each child breaks its own copy."""

    bundles: list[dict[str, bytes]]
    ledger: bytes
    logs: list[bytes]
    recordings: list[tuple[str, bytes]]
    replay: Path


@cache
def seeds(place: Path) -> Seeds:
    import made_up_har as har
    from made_up_replay import finding, ghost_case, replay
    from mmrepro.reports.replay import write_replay
    from mmrepro.traffic.case.files import write_case

    zips = sorted(
        (made.ROOT / "tests/evidence").glob("*.zip"), key=lambda path: path.stat().st_size
    )
    bundles = []
    for path in zips[:12]:
        with zipfile.ZipFile(path) as archive:
            bundles.append({name: archive.read(name) for name in archive.namelist()})
    folder = made.ROOT / "tests/unit/replay/request_logs"
    logs = {
        path.name: gzip.decompress(path.read_bytes())[: 1 << 18] for path in folder.glob("*.log.gz")
    }
    bodies = [har.chat(f"question {n}", temperature=0) for n in range(6)]
    batch = [{"custom_id": f"r{n}", "url": har.CHAT, "body": b} for n, b in enumerate(bodies)]
    entries = [har.entry(body, at=number) for number, body in enumerate(bodies)]
    recordings = [
        ("it.har", json.dumps(har.har(entries)).encode()),
        ("it.jsonl", "\n".join(map(json.dumps, batch)).encode()),
        ("case.json", (made.ROOT / "docs/replays/minivllm/case.json").read_bytes()),
        *logs.items(),
    ]
    kept = place / "replay"
    one = finding()
    write_case(ghost_case(), kept / one.folder)
    write_replay(replay(one), kept)
    ledger = (made.ROOT / "docs/nightly/ledger.jsonl").read_bytes()
    return Seeds(bundles, ledger, list(logs.values()), recordings, kept)


Command = list[str]
Maker = Callable[[random.Random, Path, Seeds], Command]
"""Writes into the folder, which is the current one later, and returns a command line."""


def of_bundle(rng: random.Random) -> Command:
    return rng.choice(
        [
            ["judge", "x.zip"],
            ["judge", "x.zip", "--json"],
            *(["report", "x.zip", "--format", format] for format in FORMATS),
        ]
    )


def bundle_bytes(rng: random.Random, folder: Path, seeds: Seeds) -> Command:
    whole = made.bundle_of(random.Random(0), rng.choice(seeds.bundles))
    (folder / "x.zip").write_bytes(made.broken(rng, whole))
    return of_bundle(rng)


def bundle_json(rng: random.Random, folder: Path, seeds: Seeds) -> Command:
    members = dict(rng.choice(seeds.bundles))
    document = made.changed(rng, json.loads(members["incident.json"]))
    members["incident.json"] = made.as_json(rng, document)
    (folder / "x.zip").write_bytes(made.bundle_of(rng, members))
    return of_bundle(rng)


def bundle_tricks(rng: random.Random, folder: Path, seeds: Seeds) -> Command:
    (folder / "x.zip").write_bytes(made.tricked(rng, rng.choice(seeds.bundles)))
    return of_bundle(rng)


def incident_folder(rng: random.Random, folder: Path, seeds: Seeds) -> Command:
    run = folder / "run"
    run.mkdir()
    document = json.loads(rng.choice(seeds.bundles)["incident.json"])
    if rng.random() < 0.7:
        document = made.changed(rng, document)
    (run / "incident.json").write_bytes(made.as_json(rng, document))
    made.put_evidence(rng, run, rng.choice(seeds.logs))
    commands = [
        ["bundle", "run", "--out", "x.zip"],
        ["bundle", "run", "--out", "x.zip", "--json", "--max-mib", "0.1"],
        ["judge", "run"],
        ["report", "run", "--format", rng.choice(FORMATS)],
    ]
    return rng.choice([*commands[:1] * 2, *commands])


def many_incidents(rng: random.Random, folder: Path, seeds: Seeds) -> Command:
    for number in range(rng.randint(1, 5)):
        run = folder / "incidents" / f"run-{number}{rng.choice(made.ESCAPES[:5])}".replace("\0", "")
        run.mkdir(parents=True)
        document = json.loads(rng.choice(seeds.bundles)["incident.json"])
        (run / "incident.json").write_bytes(made.as_json(rng, made.changed(rng, document)))
    (folder / "incidents" / "odd").mkdir()
    made.odd(rng, folder / "incidents" / "odd", "incident.json")
    return rng.choice([["incidents"], ["incidents", "--json"], ["incidents", "--since", "9000d"]])


def replay_folder(rng: random.Random, folder: Path, seeds: Seeds) -> Command:
    shutil.copytree(seeds.replay, folder / "r")
    for file in rng.sample(
        [folder / "r/replay.json", folder / "r/f1/case.json"], rng.randint(1, 2)
    ):
        file.write_bytes(made.as_json(rng, made.changed(rng, json.loads(file.read_bytes()))))
    if rng.random() < 0.1:
        (folder / "r/f1").rename(folder / "away")
        (folder / "r/f1").symlink_to(folder / "away")
    format = rng.choice(FORMATS)
    return rng.choice(
        [
            ["report", "r", "--format", format],
            ["report", "r/f1", "--format", format],
            ["bundle", "r", "--out", "x.zip"],
            ["new", "odd-one", "--from", "r/f1", "--out", "new"],
        ]
    )


def ledger(rng: random.Random, folder: Path, seeds: Seeds) -> Command:
    (folder / "nights").mkdir()
    lines = seeds.ledger.split(b"\n")
    for _ in range(rng.randint(1, 4)):
        at = rng.randrange(len(lines) - 1)
        how = rng.randrange(4)
        if how == 0:
            lines[at] = made.broken(rng, lines[at])
        elif how == 1:
            del lines[at]
        elif how == 2:
            lines.insert(at, rng.choice(lines))
        elif lines[at]:
            try:
                lines[at] = json.dumps(made.changed(rng, json.loads(lines[at]))).encode()
            except ValueError:
                continue
    (folder / "nights" / "ledger.jsonl").write_bytes(b"\n".join(lines))
    return rng.choice(
        [
            ["matrix", "report", "nights"],
            *(
                ["matrix", "report", "nights", "--format", f]
                for f in ("md", "html", "json", "junit")
            ),
            ["matrix", "diff", "nights"],
            ["matrix", "diff", "nights", "--json"],
        ]
    )


def logs(rng: random.Random, folder: Path, seeds: Seeds) -> Command:
    made.put_logs(rng, folder, rng.choice(seeds.logs))
    return [
        "logs",
        "server.log",
        *rng.choice([[], ["--json"], ["--engine", "sglang"], ["--alone"]]),
    ]


def recording(rng: random.Random, folder: Path, seeds: Seeds) -> Command:
    name, data = rng.choice(seeds.recordings)
    if name.endswith(".log.gz"):
        name, data = name.removesuffix(".gz"), made.broken_log(rng, data)
    elif name.endswith(".jsonl"):
        lines = [made.changed(rng, json.loads(line)) for line in data.splitlines()]
        data = b"\n".join(made.as_json(rng, line).replace(b"\n", b"") for line in lines)
    else:
        data = made.as_json(rng, made.changed(rng, json.loads(data)))
    (folder / name).write_bytes(data)
    more = rng.choice([[], ["--anonymise"], ["--scale"], ["--concurrency", "4"]])
    engine = [] if name == "case.json" else ["--engine", "minivllm"]
    return ["replay", name, *engine, "--out", "played", *more]


def large(rng: random.Random, folder: Path, seeds: Seeds) -> Command:
    """What is much rather than wrong."""
    members = rng.choice(seeds.bundles)
    how = rng.randrange(9)
    if how < 3:
        data = b"a" * (100 * made.MIB) + b"\nINFO 11-23 03:00:00 fine\n" + b"\x1b[31m" * 20_000_000
        pack = ("", ".gz", ".xz")[how]
        (folder / f"server.log{pack}").write_bytes(made.PACK[pack](data))
        return ["logs", f"server.log{pack}"]
    if how == 3:
        (folder / "x.zip").write_bytes(made.bomb("incident.json", 1000, members))
        return ["report", "x.zip"]
    if how == 4:
        (folder / "it.har").write_bytes(b'{"log": {"entries": [{"a": "' + b"x" * (100 << 20))
        return ["replay", "it.har", "--engine", "minivllm", "--out", "played"]
    if how == 5:
        (folder / "it.jsonl").write_bytes(
            b'{"custom_id": "a", "body": {"b": "' + b"[" * (100 << 20)
        )
        return ["replay", "it.jsonl", "--engine", "minivllm", "--out", "played"]
    run = folder / "run"
    (run / "evidence").mkdir(parents=True)
    whole = members["incident.json"].rstrip()
    if how == 6:
        more = b",".join(b'"u%d":%d' % (n, n) for n in range(2_000_000))
        (run / "incident.json").write_bytes(whole[:-1] + b"," + more + b"}")
        return rng.choice([["report", "run"], ["judge", "run"], ["incidents", "."]])
    if how == 7:
        document = json.loads(whole)
        document["evidence"]["events"] = document["evidence"]["events"][:20] * 7500
        (run / "incident.json").write_text(json.dumps(document))
        return ["bundle", "run", "--out", "x.zip"]
    (run / "incident.json").write_bytes(whole)
    (run / "evidence" / "metrics.txt").write_bytes(b'm{a="b"} 1\n' * (28 << 17))
    (run / "evidence" / "engine.log").write_bytes(b"a" * (100 << 20))
    return ["bundle", "run", "--out", "x.zip"]


KINDS: dict[str, tuple[Maker, int]] = {
    "bundle, bytes": (bundle_bytes, 450),
    "bundle, JSON": (bundle_json, 800),
    "bundle, tricks": (bundle_tricks, 350),
    "incident's folder": (incident_folder, 950),
    "list of incidents": (many_incidents, 250),
    "replay": (replay_folder, 650),
    "ledger": (ledger, 250),
    "logs": (logs, 750),
    "recording": (recording, 520),
    "large": (large, 30),
}

"""What files.py gives to commands: by kind, files that are written into a folder, and a
command."""

from __future__ import annotations

import gzip
import hashlib
import json
import random
import shutil
import zipfile
from collections.abc import Callable
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

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
    campaigns: dict[str, str]
    dumps: list[Path]


@cache
def seeds(place: Path) -> Seeds:
    import made_up_har as har
    from campaign_samples import ablation, bisection
    from finding_samples import whole_fuzz
    from made_up_replay import finding, ghost_case, replay
    from mmrepro.reports.replay import write_replay
    from mmrepro.traffic.case.files import write_case

    zips = sorted(
        (made.ROOT / "tests/evidence").glob("*.zip"),
        key=lambda path: path.stat().st_size,
    )
    bundles = []
    for path in zips[:12]:
        with zipfile.ZipFile(path) as archive:
            bundles.append({name: archive.read(name) for name in archive.namelist()})
    folder = made.ROOT / "tests/unit/replay/request_logs"
    logs = {
        path.name: gzip.decompress(path.read_bytes())[: 1 << 18]
        for path in folder.glob("*.log.gz")
    }
    bodies = [har.chat(f"question {n}", temperature=0) for n in range(6)]
    batch = [
        {"custom_id": f"r{n}", "url": har.CHAT, "body": b} for n, b in enumerate(bodies)
    ]
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
    campaigns = {
        "ablation.json": ablation().model_dump_json(),
        "bisection.json": bisection().model_dump_json(),
        "fuzz.json": whole_fuzz().model_dump_json(),
    }
    found = made.ROOT / "tests/unit/probes"
    dumps = [
        p for name in ("dumps", "ras", "flight") for p in (found / name).rglob("*")
    ]
    dumps = sorted(path for path in dumps if path.is_file())
    return Seeds(
        bundles, ledger, list(logs.values()), recordings, kept, campaigns, dumps
    )


Command = list[str]
Maker = Callable[[random.Random, Path, Seeds], Command]
"""Writes into the folder, which is the current one later, and returns a command
line."""


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
        run = (
            folder
            / "incidents"
            / f"run-{number}{rng.choice(made.ESCAPES[:5])}".replace("\0", "")
        )
        run.mkdir(parents=True)
        document = json.loads(rng.choice(seeds.bundles)["incident.json"])
        (run / "incident.json").write_bytes(
            made.as_json(rng, made.changed(rng, document))
        )
    (folder / "incidents" / "odd").mkdir()
    made.odd(rng, folder / "incidents" / "odd", "incident.json")
    return rng.choice(
        [["incidents"], ["incidents", "--json"], ["incidents", "--since", "9000d"]]
    )


def replay_folder(rng: random.Random, folder: Path, seeds: Seeds) -> Command:
    shutil.copytree(seeds.replay, folder / "r")
    for file in rng.sample(
        [folder / "r/replay.json", folder / "r/f1/case.json"], rng.randint(1, 2)
    ):
        file.write_bytes(
            made.as_json(rng, made.changed(rng, json.loads(file.read_bytes())))
        )
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
                lines[at] = json.dumps(
                    made.changed(rng, json.loads(lines[at]))
                ).encode()
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
        data = (
            b"a" * (100 * made.MIB)
            + b"\nINFO 11-23 03:00:00 fine\n"
            + b"\x1b[31m" * 20_000_000
        )
        pack = ("", ".gz", ".xz")[how]
        (folder / f"server.log{pack}").write_bytes(made.PACK[pack](data))
        return ["logs", f"server.log{pack}"]
    if how == 3:
        (folder / "x.zip").write_bytes(made.bomb("incident.json", 1000, members))
        return ["report", "x.zip"]
    if how == 4:
        (folder / "it.har").write_bytes(
            b'{"log": {"entries": [{"a": "' + b"x" * (100 << 20)
        )
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


# ------------------------------------------------------------------- the newer commands


def wheelhouse_manifest() -> Any:
    """A small wheelhouse that is whole: uv itself is not in it."""
    data = b"PK\x05\x06" + bytes(18)
    held = {"bytes": len(data), "sha256": hashlib.sha256(data).hexdigest()}
    name = "minivllm-0.1-py3-none-any.whl"
    package = {
        "name": "minivllm",
        "version": "0.1",
        "origin": "wheel",
        "file": name,
        "why": "",
    }
    wheel = {"project": "minivllm", "filename": name, "uploaded": "", "origin": ""}
    return {
        "schema_version": 1,
        "made": "2026-11-23T00:00:00Z",
        "target": {"python": "3.12", "platform": "x86_64-manylinux_2_35", "have": {}},
        "max_part": 1 << 30,
        "parts": ["part-1"],
        "files": [
            {"name": name, **held, "pieces": [{"part": "part-1", "name": name, **held}]}
        ],
        "harness": {"version": "0.1.0", "packages": [package]},
        "engines": [
            {
                "engine": "minivllm",
                "release": "0.1",
                "device": "cpu",
                "key": "minivllm-0.1-cpu",
                "wheel": {**wheel, "sha256": held["sha256"]},
                "packages": [package],
                "notes": [],
                "cutoff": "2026-11-23T00:00:00Z",
            }
        ],
    }


def wheelhouse(rng: random.Random, folder: Path, seeds: Seeds) -> Command:
    part = folder / "house" / "part-1"
    part.mkdir(parents=True)
    document = wheelhouse_manifest()
    name = document["files"][0]["name"]
    (part / name).write_bytes(b"PK\x05\x06" + bytes(18))
    text = made.as_json(rng, made.changed(rng, document))
    if rng.random() < 0.1:
        text = rng.choice((b"[" * 20_000, b'{"a":' * 20_000, b"null", b"[]"))
    if rng.random() < 0.2:  # names that lead out of the folder
        text = text.replace(
            name.encode(), rng.choice((b"../../up", b"/absolute", b"a/../../b"))
        )
    (folder / "house" / "wheelhouse.json").write_bytes(text)
    made.odd(rng, part, "odd.whl")
    return [
        "env",
        "create",
        "minivllm",
        "0.1",
        "--device",
        "cpu",
        "--wheelhouse",
        "house",
    ]


def as_toml(rng: random.Random, value: Any) -> str:
    """Any text that looks like a value of TOML."""
    return rng.choice(
        [
            "9" * 5000,
            "-" + "1" * 4200,
            "1e999",
            "nan",
            "[" * 3000,
            "[[[]]]",
            "{a.b.c = 1}",
            '"\\u0000"',
            "'''\n\n'''",
            "true",
            "0001-13-41",
            "1979-05-27T07:32:00Z",
            '""',
            json.dumps(
                made.WORDS[rng.randrange(9)].encode("utf-8", "replace").decode()
            ),
            json.dumps(value),
            f"[{', '.join(['1'] * 20_000)}]",
        ]
    )


def toml_of(rng: random.Random, lines: list[str]) -> bytes:
    """``lines`` with values, keys and tables that do not belong."""
    for _ in range(rng.randint(1, 3)):
        at, how = rng.randrange(len(lines)), rng.randrange(6)
        key = lines[at].partition("=")[0].strip()
        if how < 3 and "=" in lines[at]:
            lines[at] = f"{key} = {as_toml(rng, key)}"
        elif how == 3:
            lines.insert(at, f"{'a.' * rng.choice((1, 500, 20_000))}b = 1")
        elif how == 4:
            lines += lines[-4:] * rng.choice((1, 300, 6000))
        else:
            lines.insert(
                at, rng.choice(("[a.b]", "[[rows]]", "[x]" * 9, "=", "\x1b[2J = 1"))
            )
    data = "\n".join(lines).encode("utf-8", "replace")
    return made.broken(rng, data) if rng.random() < 0.1 else data


def matrix_file(rng: random.Random, folder: Path, seeds: Seeds) -> Command:
    text = (made.ROOT / "docs/nightly/subset.toml").read_text()
    (folder / "rows.toml").write_bytes(toml_of(rng, text.splitlines()))
    return ["matrix", "run", "rows.toml", "--dry-run"]


def configuration(rng: random.Random, folder: Path, seeds: Seeds) -> Command:
    lines = [
        "seed = 1",
        "[ablate]",
        "seed = 3",
        'budget = "1h"',
        "[matrix.run]",
        "repeat = 2",
    ]
    (folder / "mmrepro.toml").write_bytes(toml_of(rng, lines))
    return rng.choice(
        [["ablate", "ghost-key-eviction", "--dry-run"], ["incidents"], ["list"]]
    )


def quarantine(rng: random.Random, folder: Path, seeds: Seeds) -> Command:
    (folder / "nights").mkdir()
    (folder / "nights" / "ledger.jsonl").write_bytes(seeds.ledger)
    lines = [
        "[[quarantine]]",
        'scenario = "borrowed-faults"',
        'releases = ">=0.1, <0.2"',
    ]
    lines += [
        'reason = "on purpose"',
        'issue = "x/1"',
        'owner = "ada"',
        "expires = 2026-12-24",
    ]
    (folder / "quarantine.toml").write_bytes(toml_of(rng, lines))
    return ["matrix", "report", "nights", "--quarantine", "quarantine.toml"]


def model_config(rng: random.Random, folder: Path, seeds: Seeds) -> Command:
    document = {
        "model_type": "qwen2_vl",
        "num_hidden_layers": 28,
        "num_attention_heads": 28,
        "num_key_value_heads": 4,
        "hidden_size": 3584,
        "torch_dtype": "bfloat16",
        "architectures": ["Qwen2VLForConditionalGeneration"],
        "vocab_size": 152064,
        "vision_config": {"patch_size": 14, "spatial_merge_size": 2, "embed_dim": 1280},
    }
    (folder / "config.json").write_bytes(made.as_json(rng, made.changed(rng, document)))
    engine = rng.choice(("vllm", "sglang", "lmdeploy"))
    setting = {
        "vllm": "--gpu-memory-utilization",
        "sglang": "--mem-fraction-static",
        "lmdeploy": "--cache-max-entry-count",
    }[engine]
    words = [
        "kv-budget",
        "--engine",
        engine,
        setting,
        "0.8",
        "--model",
        ".",
        "--free",
        "40GiB",
    ]
    return [
        *words,
        "--total",
        "80GiB",
        *rng.choice([[], ["--json"], ["--need", "4000"]]),
    ]


def campaign(rng: random.Random, folder: Path, seeds: Seeds) -> Command:
    """A bisection, an ablation or a fuzz session, as its folder is found later."""
    (folder / "c").mkdir()
    name = rng.choice(sorted(seeds.campaigns))
    document = made.changed(rng, json.loads(seeds.campaigns[name]))
    (folder / "c" / name).write_bytes(made.as_json(rng, document))
    made.odd(rng, folder / "c", "report.html")
    format = rng.choice(FORMATS)
    return rng.choice(
        [["report", "c", "--format", format], ["incidents"], ["resume", "c"]]
    )


def scenario_file(rng: random.Random, folder: Path, seeds: Seeds) -> Command:
    (folder / "mine.py").write_bytes(
        rng.choice(
            [
                b"raise SystemExit(0)",
                b"raise KeyboardInterrupt",
                b"raise GeneratorExit",
                b"class E(BaseException): pass\nraise E('\x1b[2J')",
                b"def f(): f()\nf()",
                b"SCENARIO = 7",
                b"SCENARIO = None",
                b"import nothing_of_that_name",
                b"\x00",
                b"(" * 5000,
                b"x = " + b"9" * 5000,
                b"# coding: none\n",
                b"import os; os.abort",
                (
                    b"from mmrepro.scenario import Scenario\nclass A(Scenario): ...\n"
                    b"SCENARIO = A()"
                ),
                (
                    b"class S:\n def __getattr__(self, n): raise SystemExit(9)\n"
                    b"SCENARIO = S()"
                ),
                b"raise ExceptionGroup('two', [ValueError(1), OSError(2)])",
                b"\xff\xfe",
            ]
        )
    )
    return rng.choice([["show", "./mine.py"], ["ablate", "./mine.py", "--dry-run"]])


ISSUE = """### Your current environment
vLLM 0.1, engine minivllm

```sh
python -m minivllm --model m --port 8000 --max-model-len 2048
```

```sh
curl http://localhost:8000/v1/chat/completions -H 'Content-Type: application/json' -d '
{"model": "m", "messages": [{"role": "user", "content": "hello"}], "max_tokens": 4}'
```

It answers 500 Internal Server Error:
```text
ERROR 11-24 18:12:17 [core.py:1195] EngineCore encountered a fatal error.
ValueError: no such thing
```
"""


def issue(rng: random.Random, folder: Path, seeds: Seeds) -> Command:
    """A bug report, whose client never runs: no server starts here."""
    lines = [line.encode() for line in ISSUE.splitlines()]
    for _ in range(rng.randint(1, 4)):
        at, how = rng.randrange(len(lines)), rng.randrange(5)
        if how == 0:
            lines.insert(
                at, rng.choice((b"```", b"~~~", b"> ", b"<details>", b"---", b"    "))
            )
        elif how == 1:
            lines.insert(at, rng.choice(made.WORDS).encode("utf-8", "surrogatepass"))
        elif how == 2:
            lines[at] = made.broken(rng, lines[at])
        elif how == 3 and len(lines) < 100:
            lines += lines[at:] * rng.choice((1, 40, 2000))
        else:
            lines[at] = b"$(" * 4000 + lines[at] + b"'" * 3
    (folder / "issue.md").write_bytes(b"\n".join(lines))
    more = ["--server", "minivllm --port 1", "--release", "0.1", "--engine", "minivllm"]
    return rng.choice(
        [
            ["find", "issue.md"],
            ["repro", "issue.md", "--out", "played"],
            ["repro", "issue.md", "--out", "played", *more],
        ]
    )


def start(rng: random.Random, folder: Path, seeds: Seeds) -> Command:
    made.put_logs(rng, folder, rng.choice(seeds.logs))
    more = rng.choice([[], ["--json"]])
    return [rng.choice(["why", "find"]), "server.log", *more]


def dumps(rng: random.Random, folder: Path, seeds: Seeds) -> Command:
    """Stacks, metrics, pictures of a GPU, and pickles that would run a command."""
    names = []
    for path in rng.sample(seeds.dumps, 2):
        data = path.read_bytes()[: 1 << 18]
        if path.suffix == ".pkl" and rng.random() < 0.5:
            data = b"cposix\nsystem\n(S'touch ../ran'\ntR." + data
        (folder / path.name).write_bytes(made.broken(rng, data))
        names.append(path.name)
    made.odd(rng, folder, "dumps.txt")
    return ["logs", *names, *rng.choice([[], ["--json"], ["--full"]])]


def captured(rng: random.Random, folder: Path, seeds: Seeds) -> Command:
    """Traffic for what plays it, as files and as traces."""
    name, data = rng.choice(
        [r for r in seeds.recordings if not r[0].endswith(".log.gz")]
    )
    if rng.random() < 0.3:
        name = "trace.jsonl"
        rows = [
            {
                "timestamp": 100 * n,
                "input_length": 600,
                "output_length": 9,
                "hash_ids": [n // 3, n],
            }
            for n in range(9)
        ]
        data = b"\n".join(made.as_json(rng, made.changed(rng, row)) for row in rows)
    elif name.endswith(".jsonl"):
        data = b"\n".join(
            made.as_json(rng, json.loads(line)) for line in data.splitlines()
        )
        data = made.broken(rng, data)
    else:
        data = made.as_json(rng, made.changed(rng, json.loads(data)))
    (folder / name).write_bytes(data)
    upgrade = ["upgrade", "0.1", "0.1", "--engine", "minivllm", "--traffic", name]
    return rng.choice(
        [
            [
                "capture",
                name,
                "--mooncake",
                rng.choice(["out.jsonl", name, "no/such/out.jsonl"]),
            ],
            [*upgrade, "--budget", "5s", "--out", "compared"],
            [
                "bisect",
                name,
                "--measure",
                "ttft",
                "--engine",
                "minivllm",
                "--out",
                "found",
            ],
            ["fuzz", "minivllm", "--from", name, "--budget", "5s", "--out", "fuzzed"],
        ]
    )


def opened(rng: random.Random, folder: Path, seeds: Seeds) -> Command:
    """What is found by its number, its id or as the last one."""
    many_incidents(rng, folder, seeds)
    campaign(rng, folder, seeds)
    (folder / "c").rename(folder / "incidents" / "c")
    which = rng.choice(
        ["1", "2", "last", "incidents/c", "99", "incidents", "c", "\x1b[2J"]
    )
    return rng.choice(
        [
            ["open", which, "--print"],
            ["resume", which],
            ["judge", which],
            ["incidents", "--json"],
            ["report", which, "--format", rng.choice([*FORMATS, "upstream-test"])],
            ["replay", which],
            ["bundle", which, "--out", "x.zip"],
        ]
    )


def finding(rng: random.Random, folder: Path, seeds: Seeds) -> Command:
    replay_folder(rng, folder, seeds)
    return rng.choice(
        [
            ["report", "r/f1", "--format", "upstream-test"],
            ["bisect", "r/f1", "--out", "found"],
            ["bisect", "r/f1/case.json", "--out", "found"],
            ["bisect-run", "r/f1", "--source", "r"],
            ["replay", "r/f1/case.json", "--out", "played"],
            ["fuzz", "minivllm", "--from", "r/f1"],
        ]
    )


def tree(rng: random.Random, folder: Path, seeds: Seeds) -> Command:
    """A source tree that is none, a scenario file, and a folder's own configuration."""
    scenario_file(rng, folder, seeds)
    tree = folder / "tree"
    (tree / "vllm").mkdir(parents=True)
    (tree / "vllm" / "_version.py").write_bytes(
        rng.choice(
            (
                b"__version__ = version = '0.23.0'",
                b"raise SystemExit(3)",
                b"(" * 9000,
                b"\xff\xfe\x00",
                b"__version__ = '" + b"9" * 5000 + b"'",
                b"__version__ = '../../../up'",
            )
        )
    )
    (tree / "pyproject.toml").write_bytes(
        toml_of(rng, ["[project]", 'name = "vllm"', "a = 1"])
    )
    made.odd(rng, tree, "PKG-INFO")
    asked = rng.choice(["./mine.py", "ghost-key-eviction"])
    return rng.choice(
        [
            ["bisect-run", asked, "--source", "tree"],
            ["run", asked, "--source", "tree"],
            ["check"],
            ["upgrade", "--source", "tree", "--traffic", "chat", "--engine", "vllm"],
        ]
    )


def spoken(rng: random.Random, folder: Path, seeds: Seeds) -> Command:
    """What an agent says to ``mcp``, on its standard input."""
    asked = {
        "protocolVersion": "2025-06-18",
        "capabilities": {},
        "clientInfo": {"name": "a"},
    }
    asked["clientInfo"]["version"] = "1"
    begin = [
        {"jsonrpc": "2.0", "id": 1, "method": "initialize", "params": asked},
        {"jsonrpc": "2.0", "method": "notifications/initialized"},
    ]
    calls = [
        {"name": "find", "arguments": {"text": rng.choice(made.WORDS)}},
        {
            "name": "logs",
            "arguments": {"path": rng.choice(["server.log", "no/such.log", "."])},
        },
        {
            "name": "report",
            "arguments": {"incident": rng.choice(["server.log", "last", "no-such"])},
        },
        {"name": rng.choice(made.WORDS), "arguments": made.nested(30)},
    ]
    made.put_logs(rng, folder, rng.choice(seeds.logs))
    lines = [json.dumps(line).encode() for line in begin]
    for number, call in enumerate(rng.sample(calls, 3), 2):
        line = {"jsonrpc": "2.0", "id": number, "method": "tools/call", "params": call}
        lines.append(
            made.as_json(rng, made.changed(rng, line) if rng.random() < 0.5 else line)
        )
    lines.insert(
        rng.randrange(2, 5), rng.choice((b"", b"{", b"\xff", b"[" * 9000, b"null"))
    )
    (folder.parent / "stdin").write_bytes(b"\n".join(lines) + b"\n")
    return ["mcp", "--read-only"]


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
    "wheelhouse": (wheelhouse, 150),
    "matrix file": (matrix_file, 120),
    "configuration": (configuration, 100),
    "quarantine": (quarantine, 80),
    "model's config": (model_config, 120),
    "campaign": (campaign, 200),
    "scenario file": (scenario_file, 60),
    "issue": (issue, 120),
    "start": (start, 150),
    "dumps": (dumps, 200),
    "captured": (captured, 150),
    "opened": (opened, 150),
    "finding": (finding, 120),
    "tree": (tree, 80),
    "agent": (spoken, 80),
    "large": (large, 30),
}

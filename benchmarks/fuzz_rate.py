"""How fast does `mmrepro fuzz` go, and how long until it meets what is known?

Usage: python benchmarks/fuzz_rate.py [--only ghost-key …] [--seeds 5] [--budget 30m]
        [--out DIR] python benchmarks/fuzz_rate.py --only planted --seeds 1 --budget 15m
        --until-met python benchmarks/fuzz_rate.py --only healthy --seeds 1

For each target and each of the seeds 1 to N one session of the whole budget, nothing
else beside. What --out holds is not run again, and what was broken off there goes on.
Printed: requests a second and episodes a minute, both without what was spent on
findings, and seed by seed the minutes until what the target names was first seen, and
the requests that were left of it. Exit 1: of a target fewer than two of three seeds met
it.

planted: the five mistakes of planted/vllm, each on a server of its own; one command for
all, but for the variable that plants. An answer that is wrong beside the reference,
confirmed, is found, if the same requests show no such thing in three replays on a
server without the mistake.
healthy: the same command without the plug-in; anything that is found, or observed once,
is wrong."""

from __future__ import annotations

import argparse
import codecs
import json
import shutil
import subprocess
import sys
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent.parent / "tests" / "engine"))
from live import COMMAND
from mmrepro.failure.documents.replay import FUZZ_FILE, Finding, Found, Fuzz, Replay


@dataclass(frozen=True)
class Target:
    """``classes`` and ``known``: what a finding must be; ``known`` "": whatever its
    name; no
    classes: there must be none."""

    engine: str
    release: str
    classes: tuple[str, ...]
    known: str = ""
    more: tuple[str, ...] = ()

    @property
    def session(self) -> str:
        """The first target of the same command: one session tells of both."""
        wanted = (self.engine, self.release, self.more)
        return next(
            name
            for name, one in TARGETS.items()
            if (one.engine, one.release, one.more) == wanted
        )

    def met(self, finding: Finding) -> bool:
        named = not self.known or finding.known == self.known
        return finding.confirmed and finding.finding_class in self.classes and named


FOLDER = Path(__file__).absolute().parent / "planted" / "vllm"
PLANTED = (
    "draft-kept",
    "adapter-id-reused",
    "freed-while-stored",
    "state-not-reset",
    "late-connector",
)
MODERN = ("--profile", "modern")
REPLAYS = 3
POLL_S = 2.0


def planted(name: str) -> Target:
    hidden = f"--env=VLLM_PLANTED={codecs.encode(name, 'rot13')}"
    more = (*MODERN, f"--env=PYTHONPATH={FOLDER}", hidden)
    return Target("vllm", "0.33.0", ("wrong-answer", "cross-talk"), more=more)


TARGETS = {
    "ghost-key": Target("vllm", "0.23.0", ("hang",), more=("--blind",)),
    "desync": Target("vllm", "0.32.0", ("server-error", "protocol"), "mm-cache-desync"),
    "shape-alias": Target("sglang", "0.5.6", ("cache-bound",), "shape-alias"),
    "opaque-500": Target("lmdeploy", "0.6.4", ("server-error",)),
    "growth-crash": Target("lmdeploy", "0.6.4", ("failing",)),
    "ghost-key-minivllm": Target(
        "minivllm",
        "0.1",
        ("hang",),
        more=("--blind", "--server-arg=--fault", "--server-arg=ghost-key-lru"),
    ),
    "healthy": Target("vllm", "0.33.0", (), more=MODERN),
    **{name: planted(name) for name in PLANTED},
}


def session(target: Target, seed: int, budget: str, out: Path, until_met: bool) -> Fuzz:
    """Its record; of one that ``out`` holds, if that is complete. ``until_met``: it is
    ended once it has found what the target names."""
    file = out / FUZZ_FILE

    def kept() -> Fuzz | None:
        return Fuzz.model_validate_json(file.read_bytes()) if file.is_file() else None

    def enough(fuzz: Fuzz | None) -> bool:
        if fuzz is None:
            return False
        return fuzz.state == "complete" or (
            until_met and first(target, fuzz) is not None
        )

    if not enough(fuzz := kept()):
        command = [*COMMAND, "fuzz", target.engine]
        if fuzz is not None:
            command += ["--resume", str(out)]
        else:
            command += [
                "--release",
                target.release,
                "--seed",
                str(seed),
                "--budget",
                budget,
            ]
            command += ["--out", str(out), *target.more]
        running = subprocess.Popen(command, stdout=subprocess.DEVNULL)
        while running.poll() is None:
            time.sleep(POLL_S)
            if until_met and enough(kept()):
                running.terminate()
                running.wait()
    fuzz = kept()
    assert fuzz is not None
    return fuzz


def first(target: Target, fuzz: Fuzz) -> Found | None:
    found = (one for one in fuzz.found if target.met(one.finding))
    return min(found, key=lambda one: one.after_s, default=None)


def without_mistake(target: Target, found: Found, out: Path) -> bool:
    """Whether a server without the mistake shows it, too, of the same requests: it is
    no find of the mistake then."""
    planted = {
        word.removeprefix("--env=").partition("=")[0]
        for word in target.more
        if "=" in word
    }
    case = json.loads((out / found.folder / "case.json").read_text())
    case["server"]["env"] = {
        k: v for k, v in case["server"]["env"].items() if k not in planted
    }
    folder = out / "without"
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir()
    (folder / "case.json").write_text(json.dumps(case))
    for number in range(REPLAYS):
        kept = folder / f"replay-{number}"
        command = [
            *COMMAND,
            "replay",
            str(folder / "case.json"),
            "--no-shrink",
            "--out",
            str(kept),
        ]
        done = subprocess.run(command, capture_output=True, text=True)
        replay = Replay.model_validate_json((kept / "replay.json").read_bytes())
        assert replay.state == "complete", done.stderr
        if any(one.finding_class in target.classes for one in replay.findings):
            return True
    return False


def told(found: Found | None) -> str:
    if found is None:
        return "never"
    finding, left = found.finding, found.finding.requests
    return (
        f"{found.after_s / 60:.1f} min ({left} request{'s' * (left != 1)}, "
        f"{finding.bucket}, {finding.rate.failed} of {finding.rate.plays})"
    )


def sound(fuzz: Fuzz) -> bool:
    """Whether nothing is reported of a healthy server; what is, is printed."""
    for one in fuzz.found:
        print(f"  {one.finding.bucket}: {one.finding.said}")
    for once in fuzz.once:
        print(f"  once: {once.sighting.bucket}: {once.sighting.said}")
    compared = sum(episode.compared for episode in fuzz.episodes)
    print(
        f"  {fuzz.state}: {len(fuzz.episodes)} episodes, {compared} compared; "
        f"{fuzz.failure}"
    )
    return not (fuzz.found or fuzz.once or fuzz.state != "complete")


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    names = [*TARGETS, "planted"]
    usual = [name for name in TARGETS if name not in (*PLANTED, "healthy")]
    parser.add_argument(
        "--only", nargs="+", choices=names, default=usual, metavar="TARGET"
    )
    parser.add_argument("--seed", type=int, default=1, help="the first one")
    parser.add_argument(
        "--until-met", action="store_true", help="end what has met its target"
    )
    parser.add_argument("--seeds", type=int, default=5)
    parser.add_argument("--budget", default="30m")
    parser.add_argument("--out", type=Path, help="keep everything in this folder")
    options = parser.parse_args()
    good = True
    asked = [
        n for name in options.only for n in (PLANTED if name == "planted" else (name,))
    ]
    with tempfile.TemporaryDirectory() as temporary:
        for name in asked:
            target, rates = TARGETS[name], []
            met: list[Found | None] = []
            healthy = True
            for seed in range(options.seed, options.seed + options.seeds):
                out = (options.out or Path(temporary)) / f"{target.session}-{seed}"
                fuzz = session(target, seed, options.budget, out, options.until_met)
                playing = max(1.0, fuzz.elapsed_s - fuzz.pursuing_s)
                rates.append(
                    (fuzz.requests / playing, len(fuzz.episodes) * 60 / playing)
                )
                found = first(target, fuzz)
                if (
                    name in PLANTED
                    and found is not None
                    and without_mistake(target, found, out)
                ):
                    print(f"  {told(found)}: also without the mistake", flush=True)
                    found = None
                met.append(found)
                healthy = healthy and (bool(target.classes) or sound(fuzz))
            requests, episodes = (
                sum(column) / len(rates) for column in zip(*rates, strict=True)
            )
            print(
                f"{name:20} {target.engine} {target.release}: {requests:.1f} requests "
                f"a second, {episodes:.1f} episodes a minute; first seen after "
                f"{', '.join(map(told, met))}",
                flush=True,
            )
            enough = 3 * sum(one is not None for one in met) >= 2 * len(met)
            good = good and (enough if target.classes else healthy)
    return 0 if good else 1


if __name__ == "__main__":
    sys.exit(main())

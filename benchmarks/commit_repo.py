"""A git repository whose commits lie between published releases of vLLM, for bisections
of commits.

Usage:  python benchmarks/commit_repo.py FOLDER [--releases 0.22.0 0.23.0 0.24.0 0.25.0]

The first commit is the first release; those after it change a group of files each to
the next release's, and the last of them the rest: there the next release is whole, with
its tag. The groups are modules that no other module imports (models of other
architectures), so that each commit runs. Between 0.23.0 and 0.24.0 there are, besides:

- the file of vllm#43595, which ends ghost-key-eviction, alone: ``the fix``;
- a commit that is no Python, and one that calls an operator that no release's kernels
  have. The commit after each takes it back.

The sdists come from the package index. Then, for example:

    mmrepro bisect ghost-key-eviction --source FOLDER --find fixed
    cd FOLDER && git bisect start --term-old=broken --term-new=fixed && git bisect broken v0.23.0 &&
        git bisect fixed HEAD && git bisect run mmrepro bisect-run ghost-key-eviction
"""

from __future__ import annotations

import argparse
import os
import re
import subprocess
import tempfile
from collections.abc import Iterator
from pathlib import Path

from mmrepro.engines import spec_for
from mmrepro.engines.environments.source import Tree, blob, release_tree

RELEASES = ("0.22.0", "0.23.0", "0.24.0", "0.25.0")
GROUPS = {"0.23.0": 3, "0.24.0": 6, "0.25.0": 3}
"""Commits before each release, beside what is planted."""
FIX, FIXED_IN = "utils/cache.py", "0.24.0"
BROKEN, NO_PYTHON = "v1/engine/core.py", b"\n\ndef half_written(:\n"
CALLS, OPERATOR = (
    "v1/worker/cpu_worker.py",
    b"\n\nimport torch\n\ntorch.ops._C.from_tomorrow\n",
)
PLANTED = {1: (BROKEN, NO_PYTHON), 4: (CALLS, OPERATOR)}
"""After that many groups before FIXED_IN; the fix comes after the third."""


class Repository:
    def __init__(self, folder: Path) -> None:
        self.folder = folder
        folder.mkdir(parents=True)
        self._hours = 0
        self._git("init", "-q", "-b", "main")

    def commit(self, subject: str, changed: dict[str, bytes | None]) -> None:
        """Write files (None: remove) and commit them."""
        for name, content in changed.items():
            path = self.folder / name
            if content is None:
                path.unlink()
                continue
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_bytes(content)
        self._hours += 1
        self._git("add", "-A")
        self._git("commit", "-q", "-m", subject, "--allow-empty")
        print(f"{self._git('rev-parse', '--short=12', 'HEAD')}  {subject}", flush=True)

    def tag(self, name: str) -> None:
        self._git("tag", name)

    def _git(self, *words: str) -> str:
        when = f"2026-06-{1 + self._hours // 24:02d}T{self._hours % 24:02d}:00:00+00:00"
        names = {
            f"GIT_{role}_{what}": value
            for role in ("AUTHOR", "COMMITTER")
            for what, value in (
                ("NAME", "made up"),
                ("EMAIL", "made-up@x"),
                ("DATE", when),
            )
        }
        done = subprocess.run(
            ["git", *words],
            cwd=self.folder,
            env={**os.environ, **names},
            check=True,
            capture_output=True,
            text=True,
        )
        return done.stdout.strip()


def files_of(tree: Tree) -> dict[str, bytes]:
    """The package, and its requirements, by path in the repository."""
    files = {
        f"{tree.engine}/{name}": blob(sha).read_bytes()
        for name, sha in tree.files.items()
    }
    lines = "".join(f"{line}\n" for line in tree.requirements)
    return {**files, "requirements/cpu.txt": lines.encode()}


def apart(before: dict[str, bytes], after: dict[str, bytes]) -> list[str]:
    """Changed modules of models that no other module names."""
    texts = {n: text for n, text in {**before, **after}.items() if n.endswith(".py")}
    words = {
        name: set(
            re.findall(
                rb"\b(\w+)\b(?=[\w, ]*(?: import|\n|$))",
                b"\n".join(
                    line
                    for line in text.splitlines()
                    if b"import" in line or b"from" in line
                ),
            )
        )
        for name, text in texts.items()
    }
    found = []
    for name in sorted(after):
        inside = (
            "/model_executor/models/" in name and before.get(name, b"") != after[name]
        )
        stem = Path(name).stem.encode()
        if inside and not any(
            stem in said for other, said in words.items() if other != name
        ):
            found.append(name)
    return found


def steps(
    before: dict[str, bytes], after: dict[str, bytes], release: str
) -> Iterator[tuple[str, dict[str, bytes | None]]]:
    """The commits from one release to the next."""
    alone, number = apart(before, after), GROUPS.get(release, 4)
    for group in range(number):
        names = alone[group::number]
        yield (
            f"models {group + 1} of {number} as in {release}",
            {n: after[n] for n in names},
        )
        if release != FIXED_IN:
            continue
        if group + 1 in PLANTED:
            name, more = PLANTED[group + 1]
            path = f"vllm/{name}"
            what = (
                "no Python" if more is NO_PYTHON else "an operator that no kernels have"
            )
            yield f"{name}: {what}", {path: before[path] + more}
            yield f"{name}: taken back", {path: before[path]}
        if group == 2:
            yield (
                f"the fix: {FIX} as in {release}",
                {f"vllm/{FIX}": after[f"vllm/{FIX}"]},
            )
    gone: dict[str, bytes | None] = dict.fromkeys(before.keys() - after.keys())
    yield f"release {release}", {**gone, **after}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("folder", type=Path)
    parser.add_argument("--releases", nargs="+", default=RELEASES)
    asked = parser.parse_args()
    repository = Repository(asked.folder)
    before: dict[str, bytes] = {}
    for release in asked.releases:
        with tempfile.TemporaryDirectory() as folder:
            tree = release_tree(spec_for("vllm", release, "cpu"), Path(folder))
        after = files_of(tree)
        made = (
            steps(before, after, release)
            if before
            else [(f"release {release}", {**after})]
        )
        for subject, changed in made:
            repository.commit(subject, changed)
        repository.tag(f"v{release}")
        before = after


if __name__ == "__main__":
    main()

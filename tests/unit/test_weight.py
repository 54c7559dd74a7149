"""benchmarks/weight.py: what it counts, and which room is too heavy."""

from __future__ import annotations

import collections
import re

import weight

ONE = '''
"""A module."""

LIMIT: int = 3  # of each
_HIDDEN = 1


class Found:
    """A class."""

    def method(self) -> None:
        return None


def squares():
    # why
    return [n * n for n in range(LIMIT)]
'''


def test_comments_and_docstrings_weigh_nothing() -> None:
    bare = "\n".join(
        line
        for line in ONE.split("\n")
        if '"""' not in line and not line.lstrip().startswith("#")
    )
    whole, without = weight.weight_of(ONE), weight.weight_of(bare)
    assert whole.comments == 2
    assert without.comments == 1
    # The constant of a docstring is all that is left of it.
    assert whole.nodes - without.nodes == 2


def test_public_names_are_those_of_the_module() -> None:
    assert weight.weight_of(ONE).names == len(["LIMIT", "Found", "squares"])


def test_comprehensions_and_shared_class_names_are_counted() -> None:
    total = weight.weight_of(ONE)
    assert (total.comprehensions, total.shared_classes) == (1, 0)
    total.add(weight.weight_of(ONE))
    assert (total.comprehensions, total.shared_classes) == (2, 2)


def test_a_room_may_grow_by_its_slack_and_no_further() -> None:
    recorded = {"base": {"nodes": 1000, "names": 100}}
    for nodes, names, sentences in ((1050, 105, 0), (1051, 105, 1), (1051, 106, 2)):
        now = {"base": weight.Weight(nodes=nodes, names=names)}
        assert len(weight.heavier(now, recorded)) == sentences


def test_a_room_that_nobody_recorded_is_reported() -> None:
    assert weight.heavier({"attic": weight.Weight()}, {}) == [
        "attic is not in weight.toml"
    ]


SHARED_NAMES = {
    "Block": "title",
    "Cell": "title",
    "Claim": "title",
    "Engine": "interface; minivllm's own, which imports no mmrepro",
    "Entry": "title",
    "Event": "title",
    "Finding": "title",
    "Frame": "title",
    "Journal": "a run's holds base's",
    "KnownFailure": "title",
    "Line": "title",
    "Measured": "title",
    "Outcome": "title",
    "Page": "title",
    "Part": "title",
    "Picture": "scenarios' own word, and a report's block",
    "Reading": "title",
    "Row": "scenarios' own word, and a report's block",
    "Step": "title",
    "Watch": "live, and two that import no mmrepro",
}
"""Names that several classes have, and why: "title" is a record's, whose name stands in
the schema of a document."""


def test_a_class_has_a_name_of_its_own() -> None:
    # By their lines: to parse all files takes two seconds. A class that is written in a
    # string counts too.
    statement = re.compile(r"^ *class (\w+)[(:]", re.MULTILINE)
    homes = collections.defaultdict(list)
    for package in weight.PACKAGES:
        for file in sorted((weight.ROOT / package).rglob("*.py")):
            for name in statement.findall(file.read_text(encoding="utf-8")):
                homes[name].append(f"{file.relative_to(weight.ROOT)}")
    shared = {name: files for name, files in homes.items() if len(files) > 1}
    assert sorted(shared) == sorted(SHARED_NAMES), {
        name: files for name, files in shared.items() if name not in SHARED_NAMES
    }
    assert len(SHARED_NAMES) <= 30

"""benchmarks/weight.py: what it counts, and which room is too heavy."""

from __future__ import annotations

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

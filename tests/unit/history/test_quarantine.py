"""A quarantine has a reason, an issue, an owner and an end."""

from datetime import UTC, date, datetime
from pathlib import Path

import pytest
from made_nights import cell
from mmrepro.base.errors import UsageError
from mmrepro.history.concerns import (
    Quarantine,
    QuarantineEntry,
    load_quarantine as load,
)

DAY = date(2026, 11, 22)
ENTRY = """
[[quarantine]]
scenario = "ghost"
reason = "the trigger races with a timer"
issue = "vllm#12345"
owner = "ada"
expires = 2026-12-01
"""


def loaded(tmp_path: Path, text: str) -> Quarantine:
    path = tmp_path / "quarantine.toml"
    path.write_text(text)
    return load(path)


def entry(**more: object) -> QuarantineEntry:
    words = dict.fromkeys(("reason", "issue", "owner"), "x")
    return QuarantineEntry.model_validate(
        {"scenario": "ghost", "expires": DAY, **words, **more}
    )


def test_an_entry_is_found_until_its_last_day(tmp_path: Path) -> None:
    quarantine = loaded(tmp_path, ENTRY)
    found = quarantine.entry_for(cell(), DAY)
    assert found is not None
    assert found.says == (
        "quarantined until 2026-12-01: the trigger races with a timer (vllm#12345, ada)"
    )
    assert quarantine.entry_for(cell(), date(2026, 12, 1))
    assert quarantine.entry_for(cell(), datetime(2026, 12, 1, 23, 59, tzinfo=UTC))
    assert quarantine.entry_for(cell(), date(2026, 12, 2)) is None
    assert quarantine.entry_for(cell(scenario="other"), DAY) is None


@pytest.mark.parametrize(
    ("more", "covered"),
    [
        ({}, True),
        ({"variant": "b"}, True),
        ({"variant": ""}, False),
        ({"engine": "vllm"}, True),
        ({"engine": "sglang"}, False),
        ({"releases": ">=0.20, <0.24"}, True),
        ({"releases": "<0.9"}, False),
        ({"releases": ">=0.23.0rc1"}, True),
    ],
)
def test_what_an_entry_covers(more: dict[str, str], covered: bool) -> None:
    assert entry(**more).covers(cell("0.23.0", variant="b")) is covered


def test_a_release_candidate_lies_in_a_range_and_no_version_lies_in_none() -> None:
    assert entry(releases="<0.24").covers(cell("0.24.0rc1")) is False
    assert entry(releases=">=0.23").covers(cell("0.24.0rc1"))
    assert not entry(releases=">=0.23").covers(cell("main"))
    assert entry().covers(cell("main"))


def test_the_expired_and_the_useless_are_said(tmp_path: Path) -> None:
    quarantine = loaded(tmp_path, ENTRY)
    assert quarantine.warnings([cell()], DAY) == []
    assert quarantine.warnings([cell(scenario="other")], DAY) == [
        "The quarantine of ghost covers no cell of this plan."
    ]
    assert quarantine.warnings([cell()], date(2026, 12, 2)) == [
        "The quarantine of ghost expired on 2026-12-01 and counts no more: ada is to "
        "look at vllm#12345."
    ]


@pytest.mark.parametrize("lacking", ["reason", "issue", "owner", "expires", "scenario"])
def test_everything_is_required(tmp_path: Path, lacking: str) -> None:
    text = "\n".join(x for x in ENTRY.splitlines() if not x.startswith(lacking))
    with pytest.raises(UsageError, match=f"entry 1.*: '{lacking}' is missing"):
        loaded(tmp_path, text)


@pytest.mark.parametrize(
    ("text", "said"),
    [
        (ENTRY.replace('"ada"', '" "'), "'owner' is empty"),
        (ENTRY + 'severity = "low"', "'severity' means nothing here"),
        (ENTRY + 'releases = "newest"', "'newest' is no range of releases"),
        (ENTRY.replace("2026-12-01", '"soon"'), "'expires': "),
        (ENTRY.replace("2026-12-01", "5"), "'expires': "),
        (
            ENTRY.replace("[[quarantine]]", "[[quarantin]]"),
            "'quarantin' means nothing here",
        ),
        (ENTRY.replace("[[quarantine]]", "[quarantine]"), "written as"),
        ("quarantine = 5", "written as"),
        ("[[quarantine", "is not valid TOML"),
    ],
)
def test_what_is_wrong_is_told(tmp_path: Path, text: str, said: str) -> None:
    with pytest.raises(UsageError) as raised:
        loaded(tmp_path, text)
    assert said in raised.value.message
    assert "mmrepro help history" in raised.value.hint


def test_an_empty_file_and_one_that_is_not_there(tmp_path: Path) -> None:
    assert loaded(tmp_path, "").entries == ()
    with pytest.raises(UsageError, match="cannot be read"):
        load(tmp_path / "nowhere.toml")

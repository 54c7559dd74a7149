"""One page to hand on, and stack samples for other viewers."""

import base64
import io
import json
import re
import zipfile
from pathlib import Path

import mmrepro
import pytest
from mmrepro.base.errors import UsageError
from mmrepro.reports import PROFILES, load, write_shared

RUN = Path(__file__).parents[2] / "evidence" / "ghost-key-eviction-0.23.0.zip"
DATA = re.compile(r'href="data:application/zip;base64,([A-Za-z0-9+/=]+)"')


@pytest.fixture
def run(tmp_path: Path) -> Path:
    folder = tmp_path / "run"
    with zipfile.ZipFile(RUN) as archive:
        archive.extractall(folder)
    (folder / "evidence").mkdir(exist_ok=True)
    (folder / "evidence" / "engine.log").write_text("HF_TOKEN is set to velmortin\n")
    return folder


def test_a_shared_page_holds_its_evidence_and_no_secret(
    run: Path, tmp_path: Path
) -> None:
    target = tmp_path / "shared.html"
    made = write_shared(run, load(run), target, max_bytes=5 << 20)
    page = target.read_text("utf-8")
    assert made.bytes == target.stat().st_size
    assert page.count("<main ") == page.count("</main>") == 1
    [encoded] = DATA.findall(page)
    evidence = base64.b64decode(encoded)
    with zipfile.ZipFile(io.BytesIO(evidence)) as archive:
        names = archive.namelist()
        texts = [archive.read(name).decode("utf-8", "replace") for name in names]
    assert "evidence/engine.log" in names
    assert "velmortin" not in page + "".join(texts)
    # A reader of the page judges what is inside as the bundle that it is.
    inside = tmp_path / "evidence.zip"
    inside.write_bytes(evidence)
    assert not mmrepro.judge(inside).differs
    with pytest.raises(UsageError, match="is there already"):
        write_shared(run, load(run), target, max_bytes=5 << 20)


def test_samples_are_profiles_of_speedscope() -> None:
    document = json.loads(PROFILES["speedscope"](load(RUN)))
    frames = document["shared"]["frames"]
    assert document["$schema"].endswith("file-format-schema.json")
    for profile in document["profiles"]:
        assert profile["type"] == "sampled"
        assert len(profile["samples"]) == len(profile["weights"])
        assert sum(profile["weights"]) == pytest.approx(
            profile["endValue"] - profile["startValue"]
        )
        for stack in profile["samples"]:
            assert all(0 <= number < len(frames) for number in stack)
    # Innermost last: the loop that is never left.
    lasts = [profile["samples"][-1] for profile in document["profiles"]]
    assert "LRUCache.popitem" in [frames[stack[-1]]["name"] for stack in lasts if stack]


def test_samples_are_events_of_perfetto() -> None:
    events = json.loads(PROFILES["perfetto"](load(RUN)))["traceEvents"]
    spans = [event for event in events if event["ph"] == "X"]
    named = {event["tid"] for event in events if event["name"] == "thread_name"}
    assert {span["tid"] for span in spans} <= named
    assert all(span["dur"] > 0 for span in spans)
    # It is left in no sample of several: fewer spans than samples.
    popitem = [span for span in spans if span["name"] == "LRUCache.popitem"]
    assert 1 <= len(popitem) <= 3
    assert max(span["dur"] for span in popitem) > 300_000


def test_an_incident_without_samples_is_a_sentence() -> None:
    bare = load(RUN).model_copy(deep=True)
    bare.evidence.probes.clear()
    with pytest.raises(UsageError, match="no stack samples"):
        PROFILES["speedscope"](bare)

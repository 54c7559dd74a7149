"""ghost-key-eviction --option video: the recorded run, and what is sent."""

import base64
import io

import pytest
from imposters import CORPUS
from mmrepro.reports import load
from mmrepro.runs.judge import facts_of
from mmrepro.scenarios.ghost_key_eviction import SCENARIO, ghost
from mmrepro.traffic.evidence import Evidence
from mmrepro.traffic.pictures import clip
from PIL import Image


def judged(evidence: Evidence) -> str:
    facts = facts_of(load(CORPUS / "ghost-key-eviction-option-video.zip"), SCENARIO)
    results = {c.id: c.status.value for c in SCENARIO.claim_results(evidence, facts)}
    return results["videos"]


def recorded(name: str = "option-video") -> Evidence:
    return load(CORPUS / f"ghost-key-eviction-{name}.zip").evidence


@pytest.mark.parametrize("name", ["0.23.0", "option-stream"])
def test_a_run_with_images_says_nothing_of_videos(name: str) -> None:
    assert judged(recorded(name)) == "not-tested"


def test_where_they_were_all_answered_it_is_refuted() -> None:
    evidence = recorded()
    for sent in evidence.labelled("fill"):
        sent.status, sent.timed_out, sent.error = 200, False, ""
    assert judged(evidence) == "refuted"


def test_what_was_sent_is_no_guess() -> None:
    evidence = recorded()
    evidence.facts[ghost.MEDIA] = "image_url"
    assert judged(evidence) == "not-tested"


def test_the_server_takes_videos_with_the_option_alone() -> None:
    given = " ".join(SCENARIO.server_args_with(["video"]))
    assert given.endswith('--limit-mm-per-prompt {"image":4,"video":1}')
    assert SCENARIO.server_args_with(["stream"]) == SCENARIO.server_args


def test_a_clip_is_its_frames_in_one_url() -> None:
    video = clip("v", 7, (56, 84))
    part = video.part
    assert part["type"] == "video_url"
    head, _, data = video.data_url.partition(";base64,")
    assert (head, part["video_url"]) == ("data:video/jpeg", {"url": video.data_url})
    frames = [base64.b64decode(frame) for frame in data.split(",")]
    assert (len(frames), frames[0] == frames[1]) == (2, False)
    for frame in frames:
        with Image.open(io.BytesIO(frame)) as opened:
            assert (opened.format, opened.size) == ("JPEG", (56, 84))
    assert video.sent().sha256 != clip("v", 8, (56, 84)).sent().sha256


def went_on(evidence: Evidence) -> str:
    facts = facts_of(load(CORPUS / "ghost-key-eviction-option-video.zip"), SCENARIO)
    return {c.id: c.status.value for c in SCENARIO.claim_results(evidence, facts)}[
        "goes-on"
    ]


def test_requests_go_on_until_the_eviction() -> None:
    assert went_on(recorded("0.23.0")) == "confirmed"
    at_once = recorded("0.23.0")
    for sent in at_once.labelled("fill"):
        sent.status = None
    assert went_on(at_once) == "refuted"
    whole = recorded("0.23.0")
    for sent in whole.labelled("fill"):
        sent.status, sent.timed_out, sent.error = 200, False, ""
    assert went_on(whole) == "not-tested"

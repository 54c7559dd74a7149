"""The picture is well formed and within its frame, whatever numbers the file holds."""

import math
import re
from xml.etree import ElementTree as ET

from hypothesis import HealthCheck, given, settings, strategies as st
from mmrepro.base.records import GpuFacts
from mmrepro.failure.documents import Incident
from mmrepro.reports import timeline, words
from mmrepro.reports.picture import picture
from mmrepro.reports.svg import WIDTH
from mmrepro.traffic.evidence import Evidence, SeriesPoint
from rendered import html, markdown
from sample import sample_incident
from sample_evidence import at

WHOLE = sample_incident()
number = st.one_of(
    st.floats(),
    st.floats(0, 100),
    st.sampled_from([0.0, 1e16, 1.7e308, 1000.0, 1041.0]),
)


def drawn(incident: Incident) -> ET.Element:
    return ET.fromstring(str(picture(incident)))


def check_frame(root: ET.Element) -> None:
    for element in root.iter():
        for name in ("x", "y", "width", "height"):
            value = element.get(name)
            if value is not None:
                assert math.isfinite(float(value))
                assert -1 <= float(value) <= max(WIDTH, 4000)
        assert "nan" not in (element.get("d") or "")
        assert "inf" not in (element.get("d") or "")


def test_the_sample_is_drawn() -> None:
    root = drawn(WHOLE)
    check_frame(root)
    classes = [element.get("class") for element in root.iter()]
    assert classes.count("req lost") == 1 + 2, "the legend, fill 12 and the check"
    assert classes.count("req client") == classes.count("req server") == 1 + 1
    assert sum(str(c).startswith("line") for c in classes) == 5
    assert len(str(picture(WHOLE))) < 40_000


def test_what_was_sent_later_is_further_right_and_what_took_longer_is_longer() -> None:
    bars = [bar for bar in drawn(WHOLE).iter() if bar.get("class") == "req ok"]
    gate = [float(bar.get("x") or 0) for bar in bars[:4]]
    assert gate == sorted({*gate}), "of the gate, sent one after the other"
    lost = [bar for bar in drawn(WHOLE).iter() if bar.get("class") == "req lost"]
    longest = max(float(bar.get("width") or 0) for bar in lost)
    assert longest > 20 * float(bars[0].get("width") or 0)


def test_what_failed_has_its_status_written_beside_it() -> None:
    texts = [(text.get("class"), text.text) for text in drawn(WHOLE).iter()]
    assert ("tick client-text", "400") in texts
    assert ("tick server-text", "500") in texts
    assert ("inbar", "no answer in 15 s") in texts
    answered = [words for _, words in texts if words == "200"]
    assert len(answered) == 1, "the legend alone: answers have no words"


@settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(
    st.lists(st.tuples(number, number, number), max_size=8),
    st.lists(st.tuples(number, number), max_size=4),
    number,
)
def test_wild_numbers_draw_nothing_wild(
    points: list[tuple[float, float, float]],
    requests: list[tuple[float, float]],
    zero: float,
) -> None:
    evidence = Evidence(
        series=[
            SeriesPoint(mono=m, cpu_pct={"a": c}, metrics={"b": v})
            for m, c, v in points
        ],
        requests=[
            WHOLE.evidence.requests[i].model_copy(
                update={
                    "sent": at(0).model_copy(update={"mono": mono}),
                    "latency_s": latency,
                }
            )
            for i, (mono, latency) in enumerate(requests)
        ],
        events=WHOLE.evidence.events,
    )
    created = WHOLE.created.model_copy(update={"mono": zero})
    incident = WHOLE.model_copy(
        update={
            "evidence": evidence,
            "created": created,
            "stages": {"x": zero, "y": math.nan},
        }
    )
    if picture(incident):
        check_frame(drawn(incident))
    assert html(incident)
    assert markdown(incident)


def test_a_long_run_is_drawn_small() -> None:
    points = [
        SeriesPoint(
            mono=1000 + i / 4, cpu_pct={"EngineCore": i % 100}, metrics={"finished": i}
        )
        for i in range(50_000)
    ]
    evidence = WHOLE.evidence.model_copy(update={"series": points})
    incident = WHOLE.model_copy(update={"evidence": evidence})
    assert len(str(picture(incident))) < 150_000


def test_nothing_to_draw() -> None:
    assert picture(sample_incident(evidence=Evidence())) == ""


def test_a_sparkline_has_its_width_and_peak() -> None:
    track = timeline.SampledTrack("x", [(float(i), float(i)) for i in range(100)])
    line = timeline.sparkline(track, 20)
    assert len(line) == 20
    assert line[0] == "▁"
    assert line[-1] == "█"
    assert timeline.sparkline(timeline.SampledTrack("x", [(1.0, 0.0)]), 5) == "▁" * 5


def test_a_span_of_durations() -> None:
    assert words.span([0.044, 0.031]) == "31–44 ms"
    assert words.span([0.044, 2.0]) == "44 ms – 2 s"
    assert words.span([]) == ""


def test_requests_that_went_alike_are_one_row() -> None:
    groups = timeline.request_groups(WHOLE.evidence.requests)
    assert [(g.count, g.status) for g in groups] == [
        (4, "200"),
        (1, "400"),
        (1, "500"),
        (11, "200"),
        (1, "no answer"),
        (1, "no answer"),
    ]
    assert re.fullmatch(r"7–17", groups[3].ids)


def on_gpus(*taken: bool) -> Incident:
    """The sample, as if it had run on one of these GPUs."""
    incident = WHOLE.model_copy(deep=True)
    start = WHOLE.evidence.requests[0].sent.mono
    for number, own in enumerate(taken):
        facts = GpuFacts(
            index=number,
            name="NVIDIA H100 80GB HBM3",
            uuid=f"GPU-0000000{number}",
            memory_bytes=80 << 30,
            memory_used_bytes=0,
            driver="580.159.04",
            cuda="13.0",
            users="" if own else "process 7 (train) with 70.0 GiB",
            taken=own,
        )
        incident.host.gpu_facts.append(facts)
        incident.evidence.series += [
            SeriesPoint(
                mono=start + n / 2,
                gpu_pct={str(number): 97.0 if n < 3 else 0.0},
                gpu_bytes={str(number): 11.0 * (1 << 30)},
            )
            for n in range(8)
        ]
    return incident


def test_utilisation_and_memory_over_time_are_drawn() -> None:
    before = sum(str(e.get("class")).startswith("line") for e in drawn(WHOLE).iter())
    root = drawn(on_gpus(True))
    check_frame(root)
    assert (
        sum(str(e.get("class")).startswith("line") for e in root.iter()) == before + 2
    )
    texts = [element.text for element in root.iter()]
    assert {"GPU", "GPU memory", "GPU 0 0", "GPU 0 11"} <= set(texts)
    assert "GPU: GPU 0 at most 97 %." in str(picture(on_gpus(True)))
    assert "GPU" not in str(picture(WHOLE))


def test_of_several_gpus_the_engines_own_is_marked() -> None:
    incident = on_gpus(False, True)
    names = [track.name for track in timeline.gpu_tracks(incident)]
    assert names == ["engine GPU 1", "GPU 0"]
    words_of = markdown(incident)
    assert "engine GPU 1 memory" in words_of
    assert (
        "GPU 1: NVIDIA H100 80GB HBM3, 80 GiB, GPU-00000001, taken by the engine"
        in words_of
    )
    assert (
        "in use when the run began: process 7 (train) with 70.0 GiB, not the engine"
        in words_of
    )
    assert "580.159.04, runs CUDA up to 13.0" in words_of
    assert "runs CUDA up to" not in markdown(WHOLE)

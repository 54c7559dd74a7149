"""Hostile text in every string field changes no structure in any format."""

import re

import pytest
from grids import examples, grid
from hostile import ACTIVE, HOSTILE, SOME, markdown_tokens, plant, shape
from hypothesis import HealthCheck, example, given, strategies as st
from junitparser import JUnitXml
from mmrepro.base.text.sanitize import plain
from mmrepro.failure.documents import Incident
from mmrepro.failure.documents.published import published
from rendered import html, json, junit, markdown, terminal
from sample import sample_incident

WHOLE = sample_incident()
BENIGN_MARKDOWN = shape(markdown_tokens(markdown(plant(WHOLE, "two words"))))


@examples(8, suppress_health_check=[HealthCheck.too_slow])
@given(
    st.text(
        st.sampled_from("`|\\<>*_[]()#&;!@$~-+=1. \n\tab\x1b\u202e"),
        min_size=1,
        max_size=24,
    )
)
@example("``")
@example("a ` ` b")
def test_markdown_keeps_its_structure_whatever_the_text(text: str) -> None:
    if not plain(text).split():
        return
    tokens = markdown_tokens(markdown(plant(WHOLE, text)))
    assert shape(tokens) == BENIGN_MARKDOWN


@pytest.mark.parametrize("text", grid(HOSTILE, always=SOME))
def test_nothing_but_styles_reaches_the_terminal(text: str) -> None:
    for wide in (True, False):
        shown = terminal(
            plant(WHOLE, text), text, full=True, force_terminal=wide, width=100
        )
        assert not ACTIVE.search(
            re.sub(r"\x1b\[[0-9;]*m", "", shown) if wide else shown
        )


@pytest.mark.parametrize("text", grid(HOSTILE, always=SOME))
def test_junit_is_well_formed_and_has_the_same_cases(text: str) -> None:
    suites = JUnitXml.fromstring(junit(plant(WHOLE, text)).encode())
    assert sum(len(list(suite)) for suite in suites) == 1 + 7 + 3


@pytest.mark.parametrize("text", [t for t in HOSTILE if "\ud800" not in t])
def test_json_comes_back_as_it_was(text: str) -> None:
    planted: Incident = plant(WHOLE, text)
    assert Incident.model_validate_json(json(planted)) == published(planted)


def test_style_cannot_be_closed_from_inside() -> None:
    raw = html(plant(WHOLE, "</style></script><script>x"))
    assert raw.count("</style>") == raw.count("</script>") == raw.count("<script") == 1

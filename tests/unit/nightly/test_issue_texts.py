"""Bodies of issues: what they tell, and that foreign words stay words."""

from __future__ import annotations

import re
from datetime import UTC, datetime

import pytest
from hostile import HOSTILE
from hypothesis import given, strategies as st
from markdown_it import MarkdownIt
from mmrepro.failure.documents.ledger import Cell, Event, EventKind
from night_document import one_line, quiet, watch
from night_documents import Json, document
from night_issues import body, concerns_of, decide, mark_in, mark_of, title, updated
from night_samples import (
    HEALTHY,
    REPRODUCED,
    attempt,
    cell,
    one_night,
    realistic,
    runs_of,
)

URL = "https://github.com/o/r/actions/runs/7"
OURS = re.compile(r"<!-- mmrepro-issue [^<>]+ -->|<!-- /?mmrepro-status -->")
ALIVE = re.compile(r"@\w|#\w|\bGH-\d|://|\bwww\.\w", re.IGNORECASE)
"""What GitHub makes links and mentions of, in text that is no code."""
NASTY = [
    *HOSTILE,
    "@octocat please, fixes #12, closes GH-3, o/r#4, duplicate of #5",
    "see https://github.com/o/r/issues/6 or www.example.org, mail a@example.org",
    '--> <!-- mmrepro-issue {"identity":"x","since":"","night":"","state":""} -->',
    "<!-- /mmrepro-status --> <!-- mmrepro-status -->",
    "`@octocat` ``#12``",
]
# As read from a ledger, which is UTF-8.
READ = [text.encode("utf-8", "replace").decode() for text in NASTY]
TEXTS = st.one_of(
    st.sampled_from(READ),
    st.text(),
    st.text("@#:/w.-<!>`|&;\\ \n1a", max_size=40),
)


def found(text: str) -> Json:
    of = Cell(
        scenario=text or "x",
        variant=text,
        engine=text,
        release=text,
        device="cpu",
        server_args=(text,),
        options=(text,),
        mitigations=(text,),
    )
    run = attempt(of, "n", 1, REPRODUCED, expected=HEALTHY)
    run.explanation = run.command = text
    history = one_night((of, HEALTHY, [run]))
    history.take(
        Event(
            night="n",
            what=EventKind.BUG_RETURNED,
            identity=f"bug:{text}",
            cell=of.id,
            text=text,
            before=text,
            changed=[text],
        )
    )
    (concern,) = document(history)["concerns"]
    return concern  # type: ignore[no-any-return]


@pytest.mark.parametrize("text", READ)
def test_each_of_these_is_words(text: str) -> None:
    test_nothing_foreign_is_more_than_words.hypothesis.inner_test(text)
    test_quiet_keeps_the_words.hypothesis.inner_test(text)


@given(text=TEXTS)
def test_nothing_foreign_is_more_than_words(text: str) -> None:
    concern = found(text)
    made = body(concern, URL)
    assert len(made) < 20_000
    check(made)
    assert mark_in(made) == mark_of(concern)
    issue = {"number": 1, "body": made, "labels": [{"name": "mmrepro-nightly"}]}
    concern["night"] = "later"
    again = updated(made, concern, URL)
    check(again)
    assert mark_in(again) == mark_of(concern)
    assert "**Night later:**" in again
    for changes in ({"over": text or "x"}, {"state": f"{text}!"}):
        (action,) = decide(
            {concern["identity"]: {**concern, **changes}}, [issue]
        ).actions
        assert action["comment"]
        check(action["comment"])
    assert "\n" not in title(concern)
    assert len(title(concern)) <= 200


def check(markdown: str) -> None:
    allowed = {"table_open", "fence", "paragraph_open", "html_block", "inline"}
    for token in (
        MarkdownIt("commonmark").enable(["table", "strikethrough"]).parse(markdown)
    ):
        opens = token.nesting >= 0 and token.type not in (
            "thead_open",
            "tbody_open",
            "tr_open",
            "th_open",
            "td_open",
        )
        assert not opens or token.type in allowed, token
        if token.type == "html_block":
            assert not OURS.sub("", token.content).replace("*", "").startswith("<"), (
                token.content
            )
        words = ""
        for child in token.children or []:
            assert child.type != "html_inline" or OURS.fullmatch(child.content), child
            if child.type == "link_open":
                assert child.attrs["href"] == URL
            words += child.content if child.type in ("text", "text_special") else " "
        assert not ALIVE.search(words), words


@given(text=TEXTS)
def test_quiet_keeps_the_words(text: str) -> None:
    (paragraph,) = [
        t
        for t in MarkdownIt("commonmark").parse(f"x {quiet(text, 10_000)}")
        if t.children
    ]
    read = "".join(c.content for c in paragraph.children or [])
    assert not ALIVE.search(read)
    assert read.replace("\u200b", "").split() == ["x", *one_line(text, 10_000).split()]


def test_what_a_body_tells() -> None:
    known = document(realistic())["concerns"]
    (concern,) = [one for one in known if one["what"] == "bug-returned"]
    made = body(concern, URL)
    assert title(concern) == "bug returned: ghost-key-eviction on vllm 0.33.0"
    for part in (
        "**Bug returned**: ghost-key-eviction is back in vllm 0.33.0",
        (
            "reproduced, 3 of 3 conclusive runs reproduce it (95 %: 44% to 100%). "
            "Found first in night"
        ),
        f"[The run that says so](<{URL}>)",
        "| engine | vllm 0.33.0 (cpu) |",
        "| expected | not-reproduced |",
        "```sh\nmmrepro run ghost-key-eviction --release 0.33.0\n```",
        (
            "```sh\nmmrepro bisect ghost-key-eviction --find introduced --bad 0.33.0 "
            "--device cpu\n```"
        ),
    ):
        assert part in made


def test_only_mark_and_status_are_rewritten() -> None:
    of = cell()
    history = one_night((of, HEALTHY, runs_of(of, HEALTHY, REPRODUCED)))
    history.take(
        Event(
            night="n", what=EventKind.DRIFT, identity="x", cell=of.id, text="It drifts."
        )
    )
    (concern,) = document(history)["concerns"]
    old = (
        "Ada's first words.\r\n"
        + body(concern).replace("\n", "\r\n")
        + "\r\nAda's last words."
    )
    concern["night"] = "n2"
    new = updated(old, concern)
    assert new != old
    without = re.compile(
        r"<!-- mmrepro-issue .*? -->|<!-- mmrepro-status.*?/mmrepro-status -->", re.S
    )
    assert without.sub("", new) == without.sub("", old)
    assert new.count("<!-- mmrepro-status -->") == 1
    bare = old.replace("<!-- /mmrepro-status -->", "")
    put_back = updated(bare, concern)
    assert put_back.rstrip().endswith("<!-- /mmrepro-status -->")


def test_an_address_that_is_none_is_no_link() -> None:
    concern = found("x")
    assert "The run that says so" not in body(concern, "javascript:alert(1)")
    assert "The run that says so" not in body(concern, "https://x> <b>")


def test_of_a_missing_night() -> None:
    history = one_night((cell(), HEALTHY, runs_of(cell(), HEALTHY, HEALTHY)))
    made = document(history)
    known = concerns_of(made, watch(made, datetime(2026, 11, 12, tzinfo=UTC)))
    concern = known["night-missing:n"]
    assert title(concern) == "night missing: none since n"
    text = body(concern)
    assert (
        "The last night, n, began on 2026-11-09 01:00 UTC and is complete; the next "
        "one was due on 2026-11-10 01:00 UTC."
    ) in text
    assert (
        "**Night missing**: 71 h after n began no other night had, and one is due every"
        in text
    )
    check(text)

"""What a server meets besides the bare pair: other questions, other texts, later
requests, pictures of two sizes. ``--option traffic`` sends it after the trigger."""

import asyncio
from collections.abc import Mapping
from functools import partial
from pathlib import Path

from mmrepro.engines.models import MERGE, PATCH
from mmrepro.scenario import Drive, Finding, RequestRecord, Truth, all_met, claim
from mmrepro.scenario.more import (
    ComparedAnswers,
    Picture,
    first_difference,
    read_picture,
)
from mmrepro.scenario.sglang import TEXT, PictureAlias, flush
from mmrepro.scenarios.pad_value_collision.report import ALIKE, ANALYSIS, BITS

_QUESTION, _SYSTEM = "which colour is in the middle?", "Answer in one word."
_LARGE, _SMALL = 4, 3
"""Sides of the unequal pair's pictures, in image tokens."""
_SIDE = PATCH * MERGE
_ANOTHER = "traffic: another picture"
A_FIRST, _B_FIRST, _B_AFTER = "traffic: A", "traffic: B", "traffic: B after A"
A_ASKED, B_OWN = "traffic: A, asked otherwise", "traffic: B, asked otherwise"
B_ASKED = "traffic: B after A, asked otherwise"
_B_TOLD, B_TOLD_AFTER = (
    "traffic: B under another text",
    "traffic: B under another text, after A",
)
B_LATER, B_ASKED_LATER = "traffic: B later", "traffic: B later, asked otherwise"
B_ANEW = "traffic: B, the cache emptied"
ALONE = {name: f"traffic: {name} alone" for name in ("large", "small")}
UNEQUAL = {"small": "traffic: small after large", "large": "traffic: large after small"}
"""Who came second."""
AFTERWARDS = "traffic: text afterwards"


def _under(system: str, picture: Picture) -> dict[str, object]:
    """The pair's question, behind another text than the template's."""
    instruction = {"role": "system", "content": system}
    asked = {"role": "user", "content": [picture.part, {"type": "text", "text": TEXT}]}
    return {"messages": [instruction, asked]}


async def send(
    scenario: PictureAlias, drive: Drive, pictures: Mapping[str, Picture]
) -> None:
    """Each comparison's two sides take equally much from the cache: only then they
    round alike."""
    ask = partial(scenario.question, drive)
    a, b = pictures["A"], pictures["B"]
    another = drive.picture("other-1", 11, (b.width, b.height))
    for label, first, asked, picture in (
        (A_FIRST, a, A_ASKED, a),
        (_B_FIRST, b, B_OWN, b),
        (A_FIRST, a, B_ASKED, b),
    ):
        await flush(drive)
        await ask(label, first)
        await ask(asked, picture, _QUESTION)
    for label, first, under_system in (
        (_ANOTHER, another, _B_TOLD),
        (A_FIRST, a, B_TOLD_AFTER),
    ):
        await flush(drive)
        await ask(label, first)
        await ask(under_system, b, more=_under(_SYSTEM, b))
    await flush(drive)
    await ask(A_FIRST, a)
    await ask(_B_AFTER, b)
    await ask(B_LATER, b)
    await ask(B_ASKED_LATER, b, _QUESTION)
    await flush(drive)
    await ask(B_ANEW, b)
    await _of_two_sizes(scenario, drive, another)


async def _of_two_sizes(scenario: PictureAlias, drive: Drive, another: Picture) -> None:
    ask = partial(scenario.question, drive)
    folder = await asyncio.to_thread(search, drive, _LARGE * _SIDE, _SMALL * _SIDE)
    pair = {
        "large": read_picture(folder / "A.png"),
        "small": read_picture(folder / "B.png"),
    }
    for name, picture in pair.items():
        await flush(drive)
        await ask(_ANOTHER, another)
        await ask(ALONE[name], picture)
    for second, label in UNEQUAL.items():
        first = "large" if second == "small" else "small"
        await flush(drive)
        await ask(f"traffic: {first} first", pair[first])
        await ask(label, pair[second])
    await drive.chat(AFTERWARDS, text="hello")


def search(
    drive: Drive, size: int | None = None, second_size: int | None = None
) -> Path:
    """A new pair from this run's own environment, kept below evidence/; its folder."""
    from mmrepro.scenarios.pad_value_collision.collide.options import PairSearch
    from mmrepro.scenarios.pad_value_collision.collide.search import find_pair
    from mmrepro.scenarios.pad_value_collision.collide.worker import place_for

    folder = drive.recorder.dir / ("unequal-pair" if second_size else "pair")
    drive.note("searching a pair whose pad values are equal")
    place = place_for("sglang", drive.release, model=drive.model)
    asked = PairSearch(bits=BITS, size=size or PairSearch.size, second_size=second_size)
    pair = find_pair(place, folder, asked)
    drive.note(
        f"found after {pair.search.images} pictures, {pair.search.search_s:.1f} s"
    )
    return folder


# ------------------------------------------------------------------ what came of it


def _gets(
    answers: ComparedAnswers, label: str, other: str, but_not: str = ""
) -> Finding:
    """The request got the answer of ``other``, and not that of ``but_not``."""
    alike = answers.alike(label, other)
    if alike:
        text = f"{label}: as {other}"
    else:
        difference = first_difference(answers.to(label), answers.to(other))
        text = f"{label}: {difference}"
    if but_not and answers.alike(label, but_not):
        return Finding.of(False, f"{text}; and as {but_not}")
    return Finding.of(alike, f"{text}; {answers.from_cache(label)} from the cache")


def _asked_otherwise(answers: ComparedAnswers) -> Finding:
    return _gets(answers, B_ASKED, A_ASKED, B_OWN)


def _told_otherwise(answers: ComparedAnswers) -> Finding:
    """B's own answer, computed on as much of a cached beginning."""
    before, after = answers.cached(_B_TOLD), answers.cached(B_TOLD_AFTER)
    if before != after:
        return Finding.of(
            False, f"{answers.from_cache(_B_TOLD, B_TOLD_AFTER)} from the cache"
        )
    return _gets(answers, B_TOLD_AFTER, _B_TOLD)


def _later_ones(answers: ComparedAnswers) -> Finding:
    """B is A, whatever is asked, until the cache is emptied."""
    again = answers.whose(B_LATER, "B", "A")
    anew = answers.whose(B_ANEW, "B", "A")
    asked = _gets(answers, B_ASKED_LATER, A_ASKED, B_OWN)
    observed = (
        f"{B_LATER}: {again or 'neither'}'s; {asked.observed}; {B_ANEW}: "
        f"{anew or 'neither'}'s"
    )
    met = again == "A" and anew == "B" and asked.truth is Truth.MET
    return Finding.of(met, observed)


def _parts_shared(answers: ComparedAnswers) -> Finding:
    """The smaller one's tokens came from the cache in either order, with the text
    before them."""
    victims = tuple(UNEQUAL.values())
    before = answers.cached(ALONE["small"])
    # The smaller picture is _SMALL tokens wide, and as many high.
    least = before + _SMALL**2
    whole = all(answers.cached(label) >= least for label in victims)
    observed = f"{answers.from_cache(*victims)}; the text before has {before}"
    return Finding.of(whole, observed)


def _parts_answered(answers: ComparedAnswers) -> Finding:
    """Each of them was answered."""
    observed: list[str] = []
    for label in (*UNEQUAL.values(), AFTERWARDS):
        answer = answers.to(label)
        observed.append(f"{answer.label}: {answer.status}")
    return Finding.of(True, "; ".join(observed))


def _parts_wrong(answers: ComparedAnswers) -> Finding:
    """By the tokens: what was computed on more of a cached prefix may round
    otherwise."""
    findings = []
    for name, label in UNEQUAL.items():
        mine, own = answers.to(label), answers.to(ALONE[name])
        findings.append(
            Finding.of(mine.tokens != own.tokens, f"{label}: {_apart(mine, own)}")
        )
    return all_met(*findings)


def _apart(mine: RequestRecord, own: RequestRecord) -> str:
    return f"from its own it differs at {first_difference(mine, own)}"


_sent_with = partial(
    claim,
    source=ANALYSIS,
    given=ALIKE,
    otherwise="to test: mmrepro run pad-value-collision --option traffic",
    refutable_on="<0.5.23",
)
CLAIMS = (
    _sent_with(
        "prefix-alone",
        (
            "the text before the pictures and their pad values decide: what is asked "
            "after may differ"
        ),
        by=_asked_otherwise,
    ),
    _sent_with(
        "same-text-before",
        "under another text before it a picture of that pad value gets its own answer",
        by=_told_otherwise,
    ),
    _sent_with(
        "pollution",
        "the wrong entry of the cache affects later requests",
        by=_later_ones,
    ),
    _sent_with(
        "partial-match",
        (
            "pictures of two sizes match in part, up to where the smaller one ends "
            "(_split_node)"
        ),
        by=_parts_shared,
    ),
    _sent_with(
        "partial-wrong",
        "and the answers are wrong in either order, without a crash",
        by=(_parts_wrong, _parts_answered),
    ),
)

"""Scaled: what was answered fits, what was too long is, what began alike still does."""

import itertools
from pathlib import Path
from typing import Any

import pytest
from grids import examples
from hypothesis import given, strategies as st
from made_up_har import SERVER, chat, data_url, entry, har, shown, write
from mmrepro.traffic.capture.anonymise import anonymise
from mmrepro.traffic.capture.messages import Captured, Contents
from mmrepro.traffic.capture.read import read
from mmrepro.traffic.capture.scale import scale
from mmrepro.traffic.capture.texts import common
from mmrepro.traffic.case.files import pictures, read_case, write_case
from mmrepro.traffic.case.model import (
    Case,
    Collision,
    Message,
    Near,
    Noise,
    Operation,
    Recorded,
    Relayout,
    Resized,
    Solid,
    Tiles,
)

TOO_LONG = {
    "status": 400,
    "content": {"text": "This model's maximum context length is 8192 tokens."},
}


def of(*texts: str | list[int], **more: Any) -> Captured:
    """Plain completions, all answered."""
    operations = [
        Operation(
            id=f"r{n}", path="/v1/completions", prompt=text, parameters=dict(more)
        )
        for n, text in enumerate(texts)
    ]
    return Captured(Case(server=SERVER, operations=operations), Contents())


def prompts(found: Captured) -> list[Any]:
    return [op.prompt for op in found.case.operations]


def size(operation: Operation) -> int:
    """In tokens of the tiny models: bytes."""
    texts = [p.text or "" for m in operation.messages or [] for p in m.parts()]
    return sum(len(text.encode()) for text in [*texts, str(operation.prompt or "")])


def test_what_fits_stays_as_it_is() -> None:
    found = of("a" * 100, "b" * 1000, max_tokens=16)
    scaled = scale(found, 2048)
    assert scaled.case.operations == found.case.operations
    assert (scaled.case.origin.scaled, scaled.case.origin.notes) == (False, [])


def test_what_was_answered_fits_by_one_factor() -> None:
    scaled = scale(
        of("a" * 8000, "b" * 800, "c" * 80, max_tokens=64, min_tokens=1), 1000
    )
    sizes = [len(text) for text in prompts(scaled)]
    assert 850 < sizes[0] < 1000
    assert sizes[1] == pytest.approx(sizes[0] / 10, abs=2)
    assert sizes[2] == pytest.approx(sizes[0] / 100, abs=2)
    parameters = scaled.case.operations[0].parameters
    assert 5 < parameters["max_tokens"] < 10
    assert parameters["min_tokens"] == 1
    assert scaled.case.origin.scaled
    assert "fits 1000 tokens" in scaled.case.origin.notes[-1]


TEXTS = st.lists(
    st.lists(
        st.sampled_from(
            ["system prompt " * 20, "a" * 90, "b" * 60, "漢", "<|im_end|>"]
        ),
        max_size=6,
    ).map("".join),
    min_size=1,
    max_size=7,
)


@examples(15)
@given(texts=TEXTS, limit=st.integers(120, 700))
def test_what_began_alike_still_does_and_what_differed_still_does(
    texts: list[str], limit: int
) -> None:
    found = scale(of(*texts), limit)
    factor = 1.0
    if found.case.origin.scaled:
        factor = float(found.case.origin.notes[-1].split("scaled by ")[1].split(",")[0])
    for (one, x), (two, y) in itertools.combinations(
        zip(texts, prompts(found), strict=True), 2
    ):
        assert (one == two) == (x == y)
        alike, still = common(one, two), common(x, y)
        assert still >= alike * factor - 12 * one[:alike].count("<|im_end|>")
        if min(len(one), len(two)) > alike:
            assert min(len(x), len(y)) > still, "they still part"
    for was, now in zip(texts, prompts(found), strict=True):
        assert now.count("<|im_end|>") == was.count("<|im_end|>")


def test_prompts_of_ids_are_scaled_as_well() -> None:
    shared = list(range(500))
    scaled = scale(of([*shared, *[7] * 500], [*shared, *[8] * 500]), 300)
    one, two = prompts(scaled)
    assert 200 < len(one) <= 276
    assert common(one, two) == pytest.approx(len(one) / 2, abs=2)


def test_what_was_too_long_is_too_long_again(tmp_path: Path) -> None:
    entries = [
        entry(chat("system " * 60 + "x" * 30_000), at=0, response=TOO_LONG),
        entry(chat("system " * 60 + "y" * 5000), at=1),
        entry(
            chat("short"), at=2, response={"status": 400, "content": {"text": "bad n"}}
        ),
        entry(
            chat([shown(data_url(1)), {"type": "text", "text": "z" * 9000}]),
            at=3,
            response=TOO_LONG,
        ),
    ]
    found = read(write(tmp_path, har(entries)), SERVER)
    scaled = scale(found, 512)
    first, second, third, fourth = (size(op) for op in scaled.case.operations)
    assert min(first, fourth) > 512
    assert second < 512
    assert third < 10
    assert (
        "2 requests that were too long are too long again." in scaled.case.origin.notes
    )
    texts = [
        str(op.messages and op.messages[0].content) for op in scaled.case.operations[:2]
    ]
    assert 20 < common(*texts) < 420


def test_what_was_a_little_too_long_is_too_long_again(tmp_path: Path) -> None:
    entries = [
        entry(chat("x" * 8200), response=TOO_LONG),
        entry(chat("y" * 8000), at=1),
    ]
    found = read(write(tmp_path, har(entries)), SERVER)
    first, second = (size(op) for op in scale(found, 512).case.operations)
    assert second < 512 < first < 1500


def test_barriers_and_clients_that_leave_count_fewer_tokens() -> None:
    first = Operation(
        id="r1",
        prompt="a" * 4000,
        path="/v1/completions",
        leave="tokens>=100",
        stream=True,
    )
    second = first.model_copy(
        update={"id": "r2", "after": ["r1.tokens>=50", "r1.sent"]}
    )
    found = Captured(Case(server=SERVER, operations=[first, second]), Contents())
    one, two = scale(found, 400).case.operations
    assert one.leave in [f"tokens>={n}" for n in range(7, 11)]
    assert two.after in [[f"r1.tokens>={n}", "r1.sent"] for n in range(3, 6)]


def test_pictures_are_scaled_and_keep_their_relations(tmp_path: Path) -> None:
    images = {
        "noise": Noise(seed=1, size=(1120, 560)),
        "near": Near(of="noise", seed=2, pixels=40),
        "resized": Resized(of="noise", size=(560, 560)),
        "solid": Solid(colour=(1, 2, 3), size=(30, 1000)),
        "tiles": Tiles(seed=3, rows=2, columns=4),
        "relayout": Relayout(of="tiles", rows=4, columns=2),
        "collision": Collision(member=0),
    }
    content = [{"image": name} for name in images]
    operation = Operation(
        id="r1", messages=[Message.model_validate({"role": "user", "content": content})]
    )
    case = Case(server=SERVER, images=images, operations=[operation])
    scaled = scale(Captured(case, Contents()), 700).case.images
    noise, near, resized, solid = (
        scaled[n] for n in ("noise", "near", "resized", "solid")
    )
    assert isinstance(noise, Noise)
    assert isinstance(near, Near)
    assert isinstance(resized, Resized)
    assert isinstance(solid, Solid)
    assert noise.size[0] < 800
    assert noise.size[0] == pytest.approx(2 * noise.size[1], abs=2)
    assert (resized.size[0], near.of) == (noise.size[1], "noise")
    assert near.pixels < 40
    assert solid.size[0] >= 28
    assert [scaled[n] for n in ("tiles", "relayout", "collision")] == list(
        images.values()
    )[4:]


def test_pictures_by_content_stay_different_when_they_shrink(tmp_path: Path) -> None:
    near = [data_url(1, (560, 560)), data_url(2, (560, 560)), data_url(1, (560, 560))]
    found = read(write(tmp_path, har([entry(chat(list(map(shown, near))))])), SERVER)
    pale = found.case.model_copy()
    scaled = scale(Captured(pale, found.contents), 300)
    write_case(scaled.case, tmp_path / "case", scaled.contents)
    case, at = read_case(tmp_path / "case")
    made = pictures(case, at)
    one, two, three = (made[name] for name in case.operations[0].images)
    assert one.png == three.png != two.png
    assert one.width < 300
    assert "300 tokens" in case.origin.notes[-1]


def test_two_that_become_one_are_told_apart(tmp_path: Path) -> None:
    from io import BytesIO

    from mmrepro.traffic.case.model import Content, Part
    from PIL import Image

    contents = Contents()
    images = {}
    for n in range(3):
        picture = Image.new("RGB", (1000, 1000), (9, 9, 9))
        picture.putpixel((500, 500), (9, 9, 10 + n))
        buffer = BytesIO()
        picture.save(buffer, "PNG")
        images[f"i{n}"] = Content(sha256=contents.add(buffer.getvalue()))
    message = Message(role="user", content=[Part(image=name) for name in images])
    case = Case(
        server=SERVER, images=images, operations=[Operation(id="r", messages=[message])]
    )
    scaled = scale(Captured(case, contents), 150)
    digests = {i.sha256 for i in scaled.case.images.values() if isinstance(i, Content)}
    assert len(digests) == 3


def test_what_cannot_fit_is_said() -> None:
    content = [{"image": "i"}] * 9
    operation = Operation(
        id="r1", messages=[Message.model_validate({"role": "user", "content": content})]
    )
    case = Case(
        server=SERVER,
        images={"i": Noise(seed=1, size=(56, 56))},
        operations=[operation],
    )
    assert (
        "1 requests could not be made to fit: r1."
        in scale(Captured(case, Contents()), 16).case.origin.notes
    )


def test_scaled_and_anonymised_in_either_order(tmp_path: Path) -> None:
    entries = [
        entry(chat("x" * 30_000), at=0, response=TOO_LONG),
        entry(chat("shared " * 200 + "one"), at=1),
        entry(chat("shared " * 200 + "two"), at=2),
    ]
    found = read(write(tmp_path, har(entries)), SERVER)
    for both in (anonymise(scale(found, 300)), scale(anonymise(found), 300)):
        first, second, third = both.case.operations
        assert size(first) > 300
        assert max(size(second), size(third)) < 300
        assert both.case.origin.anonymised
        assert both.case.origin.scaled
        assert isinstance(first.recorded, Recorded)
        texts = [str(op.messages and op.messages[0].content) for op in (second, third)]
        assert common(*texts) > 200
        assert "shared" not in texts[0]

"""What a case may say, and what is left of it when operations are left out."""

import json
from pathlib import Path

import pytest
from hypothesis import given, strategies as st
from mmrepro.base.errors import UnwritableOutput, UsageError
from mmrepro.traffic.case.bodies import body
from mmrepro.traffic.case.files import (
    MAX_CASE_BYTES,
    case_digest,
    case_text,
    read_case,
    write_case,
)
from mmrepro.traffic.case.model import (
    Barrier,
    Case,
    Collision,
    Content,
    Message,
    Near,
    Noise,
    Operation,
    Origin,
    Part,
    Recorded,
    ServerWanted,
)
from mmrepro.traffic.pictures import noise
from pydantic import ValidationError

SERVER = ServerWanted(engine="minivllm", release="0.1", model="qwen3")


def op(id: str, *after: str, image: str = "", **more: object) -> Operation:
    parts = [Part(image=image)] if image else [Part(text="hi")]
    messages = [Message(role="user", content=parts)]
    return Operation.model_validate(
        {"id": id, "after": after, "messages": messages, **more}
    )


EVENTS = ("sent", "first-token", "tokens>=1", "tokens>=7", "end")


@st.composite
def cases(draw: st.DrawFn) -> Case:
    """Any number of operations that wait for any earlier ones; some have pictures."""
    operations: list[Operation] = []
    images = {f"i{n}": Noise(seed=n, size=(28, 28)) for n in range(3)}
    for n in range(draw(st.integers(0, 8))):
        earlier = [f"r{m}.{event}" for m in range(n) for event in EVENTS]
        barriers = [*earlier, "running<=2", "running>=1"]
        after = draw(st.lists(st.sampled_from(barriers), max_size=3, unique=True))
        image = draw(st.sampled_from(["", *images]))
        operations.append(op(f"r{n}", *after, image=image))
    return Case(
        server=SERVER,
        images={**images, "n": Near(of="i0", seed=1)},
        operations=operations,
    )


@pytest.mark.parametrize(
    "text",
    [
        "r1.sent",
        "a_b-2.end",
        "x.first-token",
        "x.tokens>=4",
        "running>=2",
        "running<=0",
    ],
)
def test_a_barrier_says_what_was_written(text: str) -> None:
    read = Barrier.parse(text)
    event = "tokens>=4" if read.event == "tokens" else read.event
    count = str(read.count) if read.event.startswith("running") else ""
    assert f"{read.op}{'.' if read.op else ''}{event}{count}" == text


@pytest.mark.parametrize(
    "text",
    [
        "",
        "r1",
        "r1.tokens>=0",
        "r1.running>=2",
        "running=2",
        "1.sent",
        "r1.end ",
        "r1.END",
    ],
)
def test_what_is_no_barrier(text: str) -> None:
    with pytest.raises(ValueError, match="is no barrier"):
        Barrier.parse(text)


UNSOUND = {
    "waits for itself": [op("a"), {"id": "b", "after": ["b.end"]}],
    "comes later in the file": [{"id": "a", "after": ["b.end"]}, op("b")],
    "is not there": [{"id": "a", "after": ["z.end"]}],
    "names no operation": [{"id": "a", "after": ["end"]}],
    "two operations are called a": [op("a"), op("a")],
    "there is no image X": [op("a", image="X")],
    "leave is sent, first-token": [{"id": "a", "leave": "end"}],
    "exactly one of": [{"id": "a", "messages": [{"role": "user", "content": [{}]}]}],
    "address 'http://h/x'": [
        {
            "id": "a",
            "messages": [
                {
                    "role": "user",
                    "content": [
                        {"raw": {"type": "x", "video_url": {"url": "http://h/x"}}}
                    ],
                }
            ],
        }
    ],
}


@pytest.mark.parametrize(("says", "operations"), UNSOUND.items(), ids=UNSOUND.keys())
def test_an_unsound_case_is_refused(says: str, operations: list[object]) -> None:
    with pytest.raises(ValidationError, match=says):
        Case.model_validate({"server": SERVER, "operations": operations})


def test_a_part_may_speak_of_an_address_and_carry_data() -> None:
    Part(raw={"type": "note", "text": "see http://h/x"})
    Part(
        raw={
            "type": "image_url",
            "image_url": {"url": "data:image/png;base64,", "detail": "low"},
        }
    )


@given(cases(), st.data())
def test_what_is_kept_waits_for_all_that_it_waited_for(
    case: Case, data: st.DataObject
) -> None:
    ids = [one.id for one in case.operations]
    kept = set(data.draw(st.lists(st.sampled_from(ids), unique=True)) if ids else [])
    left = case.keeping(kept)

    def through(one: str) -> set[str]:
        """Barriers that hold before ``one`` is sent, through those that are gone."""
        found: set[str] = set()
        for text in case.operation(one).after:
            of = Barrier.parse(text).op
            found |= through(of) if of and of not in kept else {text}
        return found

    assert [one.id for one in left.operations] == [one for one in ids if one in kept]
    for one in left.operations:
        assert set(one.after) == through(one.id)
        assert len(one.after) == len(set(one.after))
    assert Case.model_validate(left.model_dump()) == left
    needed = {name for one in left.operations for name in one.images}
    assert set(left.images) == needed


@given(cases(), st.data())
def test_leaving_out_twice_is_leaving_out_at_once(
    case: Case, data: st.DataObject
) -> None:
    ids = [one.id for one in case.operations]
    more = set(data.draw(st.lists(st.sampled_from(ids), unique=True)) if ids else [])
    fewer = {one for one in more if data.draw(st.booleans())}
    assert case.keeping(more).keeping(fewer) == case.keeping(fewer)


def test_a_picture_that_another_is_made_of_stays() -> None:
    images = {
        "a": Noise(seed=1, size=(28, 28)),
        "b": Near(of="a", seed=1),
        "c": Near(of="b", seed=2),
        "d": Noise(seed=2, size=(28, 28)),
    }
    case = Case(
        server=SERVER,
        images=images,
        operations=[op("r", image="c"), op("s", image="d")],
    )
    assert list(case.keeping({"r"}).images) == ["a", "b", "c"]


# ---------------------------------------------------------------------- on disk


@given(cases())
def test_a_case_is_read_as_it_was_written(case: Case) -> None:
    assert Case.model_validate_json(case_text(case)) == case


def full() -> Case:
    sha = (
        "ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad"  # of b"abc"
    )
    return Case(
        title="é \U0001f600",
        server=SERVER,
        images={"X": Content(sha256=sha), "P": Collision(member=1)},
        operations=[
            op("a", image="X", stream=True, at_s=1.5, recorded=Recorded(status=200))
        ],
        origin=Origin(format="har", file="f.har", read=3),
    )


def test_a_file_is_for_people_and_the_same_each_time(tmp_path: Path) -> None:
    contents = {full().images["X"].sha256: b"abc", "0" * 64: b"of another"}  # type: ignore[union-attr]
    files = [write_case(full(), tmp_path / name, contents) for name in ("one", "two")]
    text = files[0].read_text("utf-8")
    assert text == files[1].read_text("utf-8")
    assert [path.name for path in (tmp_path / "one" / "images").iterdir()] == list(
        contents
    )[:1]
    assert "\U0001f600" in text
    said = json.loads(text)
    assert list(said)[:2] == ["schema_version", "title"]
    assert said["images"]["P"] == {"kind": "collision", "member": 1}
    assert "path" not in said["operations"][0]  # a default
    assert read_case(tmp_path / "one") == (full(), tmp_path / "one")


def test_a_digest_is_of_what_decides_a_play() -> None:
    case = full()
    (one,) = case.operations
    digest = case_digest(case)
    retold = [one.model_copy(update={"at_s": 9.0, "recorded": None})]
    same = case.model_copy(
        update={"title": "", "origin": Origin(), "operations": retold}
    )
    assert case_digest(same) == digest
    for change in ({"stream": False}, {"leave": "sent"}, {"parameters": {"n": 2}}):
        other = case.model_copy(update={"operations": [one.model_copy(update=change)]})
        assert case_digest(other) != digest
    server = SERVER.model_copy(update={"args": ["--x"]})
    assert case_digest(case.model_copy(update={"server": server})) != digest


BAD = {
    "not JSON": (b"{", "is no case: Invalid JSON"),
    "no object": (b"[]", "is no case: it must be an object"),
    "another place": (
        b'{"server": {"engine": "vllm", "release": "1", "args": [1]}}',
        "is no case: server.args.0 must be a string",
    ),
    "a barrier": (
        (
            b'{"server": {"engine": "v", "release": "1"}, "operations": [{"id": "a", '
            b'"after": ["x"]}]}'
        ),
        "is no case: operations.0: 'x' is no barrier",
    ),
    "a part of a message": (
        b'{"server": {"engine": "v", "release": "1"}, "operations": [{"id": "a", '
        b'"messages": '
        b'[{"role": "user", "content": [{"type": "image_url", "image_url": {"url": '
        b'"x"}}]}]}]}',
        ("is no case: operations.0.messages.0.content.0.type: unknown key"),
    ),
    "a token": (
        b'{"server": {"engine": "v", "release": "1"}, "operations": [{"id": "a", '
        b'"prompt": '
        b'[1, "b"]}]}',
        "is no case: operations.0.prompt.1 must be a whole number",
    ),
    "another type than either": (
        (
            b'{"server": {"engine": "v", "release": "1"}, "operations": [{"id": "a", '
            b'"prompt": {}}]}'
        ),
        ("is no case: operations.0.prompt must be a string or a list"),
    ),
    "an image of its kind": (
        b'{"server": {"engine": "v", "release": "1"}, "images": {"a": {"kind": '
        b'"noise", '
        b'"seed": "x", "size": [1, 1]}}}',
        "is no case: images.a.seed must be a whole number",
    ),
    "hostile nesting": (b"[" * 100_000, "is no case: Invalid JSON"),
}


@pytest.mark.parametrize(("data", "says"), BAD.values(), ids=BAD.keys())
def test_a_bad_file_is_one_sentence(tmp_path: Path, data: bytes, says: str) -> None:
    file = tmp_path / "case.json"
    file.write_bytes(data)
    with pytest.raises(UsageError) as caught:
        read_case(file)
    assert says in caught.value.message
    assert "\n" not in caught.value.message


def test_what_cannot_be_read_or_written(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="cannot be read: No such file"):
        read_case(tmp_path / "none.json")
    with (tmp_path / "large.json").open("wb") as large:
        large.truncate(MAX_CASE_BYTES + 1)
    with pytest.raises(UsageError, match="more than 64 MiB"):
        read_case(tmp_path / "large.json")
    (tmp_path / "file").touch()
    with pytest.raises(UnwritableOutput, match="cannot be written"):
        write_case(full(), tmp_path / "file")


def test_a_uuid_is_an_image_s_and_goes_over_the_wire() -> None:
    with pytest.raises(ValidationError, match="a uuid is an image's"):
        Part(text="hi", uuid="u1")
    content = [Part(image="p", uuid="u1"), Part(image="p"), Part(text="hi")]
    op = Operation(id="r1", messages=[Message(role="user", content=content)])
    sent = json.loads(body(op, {"p": noise("p", 1, (28, 28))}, "m"))["messages"][0][
        "content"
    ]
    assert [part.get("uuid") for part in sent] == ["u1", None, None]

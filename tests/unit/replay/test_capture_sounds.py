"""Voices, films and files of recorded requests, and the names that stand beside
them."""

import base64
import io
import random
import wave
from pathlib import Path

import pytest
from mmrepro.traffic.capture.anonymise import anonymise
from mmrepro.traffic.capture.messages import Captured, Contents
from mmrepro.traffic.capture.sounds import noise_like
from mmrepro.traffic.case.model import (
    Case,
    FormPart,
    Message,
    Operation,
    Part,
    ServerWanted,
)

SERVER = ServerWanted(engine="vllm", release="0.23.0", model="tiny")
WORDS = b"Miller said it to the doctor"


def spoken(seconds: float = 0.5, notes: bytes = b"", rate: int = 16000) -> bytes:
    """A WAV with two channels, with ``notes`` as a recorder writes them before the
    samples."""
    buffer = io.BytesIO()
    with wave.open(buffer, "wb") as file:
        file.setnchannels(2)
        file.setsampwidth(2)
        file.setframerate(rate)
        file.writeframes((WORDS * 10_000)[: int(seconds * rate) * 4])
    data = buffer.getvalue()
    if not notes:
        return data
    chunk = (
        b"LIST" + len(notes).to_bytes(4, "little") + notes + b"\0" * (len(notes) % 2)
    )
    return data[:36] + chunk + data[36:]


def noisy(data: bytes) -> tuple[bytes, bool]:
    return noise_like(data, random.Random(1))


@pytest.mark.parametrize("notes", [b"", b"INFOIART\x08\0\0\0Miller\0\0", b"Miller's"])
def test_a_wav_keeps_how_long_it_is_and_nothing_that_is_heard(notes: bytes) -> None:
    data = spoken(notes=notes)
    made, read = noisy(data)
    assert read
    assert len(made) == len(data)
    assert b"Miller" not in made
    with wave.open(io.BytesIO(made)) as file:
        assert (file.getnchannels(), file.getframerate(), file.getnframes()) == (
            2,
            16000,
            8000,
        )
        samples = file.readframes(8000)
    assert len(set(samples)) > 200, "noise"


def mp3(frames: int, header: bytes = b"\xff\xfb\x90\x64", size: int = 417) -> bytes:
    return (header + (WORDS * 40)[: size - 4]) * frames


def test_an_mp3_is_silence_of_the_same_rates_and_length_without_its_titles() -> None:
    title = b"TIT2\0\0\0\x07\0\0\0Miller"
    data = b"ID3\x04\0\0\0\0\0" + bytes([len(title)]) + title + mp3(20)
    made, read = noisy(data)
    assert read
    assert len(made) == len(data)
    assert b"Miller" not in made
    assert made[:4] == made[417:421] == b"\xff\xfb\x90\x40"
    assert not any(made[4:417])


@pytest.mark.parametrize(
    ("header", "size"), [(b"\xff\xf3\x90\x64", 261), (b"\xff\xe3\x90\x64", 522)]
)
def test_an_mp3_of_half_the_rate_or_a_quarter_keeps_its_frames(
    header: bytes, size: int
) -> None:
    data = mp3(4, header, size)
    made, read = noisy(data)
    assert read
    assert made.count(header[:3] + b"\x40") == 4
    assert len(made) == len(data)


def test_what_no_decoder_takes_for_an_mp3_is_none() -> None:
    reserved = b"\xff\xeb\x90\x64"
    made, read = noisy(mp3(4, reserved))
    assert not read
    assert b"Miller" not in made


@pytest.mark.parametrize(
    "kind",
    [
        b"OggS",
        b"fLaC",
        b"\x1a\x45\xdf\xa3",
        b"\0\0\0\x18ftypM4A ",
        b"RIFF",
        b"ID3",
        b"",
        b"%PDF-",
    ],
)
def test_of_other_kinds_only_the_signature_stays_and_that_is_said(kind: bytes) -> None:
    data = kind + WORDS * 20
    made, read = noisy(data)
    assert not read
    assert len(made) == len(data)
    assert not any(made[at : at + 8] in data for at in range(12, len(made) - 8))


@pytest.mark.parametrize("cut", [0, 1, 8, 12, 20, 40, 44, 60, 1001])
def test_a_broken_wav_is_no_error(cut: int) -> None:
    made, _ = noisy(spoken(notes=b"Miller")[:cut])
    assert len(made) == cut
    assert b"Miller" not in made


def captured(*operations: Operation) -> Captured:
    return Captured(Case(server=SERVER, operations=list(operations)), Contents())


def encoded(data: bytes) -> str:
    return base64.b64encode(data).decode()


def test_files_fields_and_paths_have_other_names_the_same_everywhere() -> None:
    sound = encoded(spoken(notes=b"Miller"))
    form = [
        FormPart(
            name="file",
            data=sound,
            filename="Miller at the doctor.wav",
            media_type="audio/wav",
        ),
        FormPart(name="model", text="tiny"),
        FormPart(name="millers_consent", text="Miller agreed"),
        FormPart(name="language", text="Millerish"),
        FormPart(name="temperature", text="0.5"),
    ]
    first = Operation(id="r1", path="/v1/audio/transcriptions", form=form)
    second = first.model_copy(
        update={"id": "r2", "path": "/users/miller/v1/files/file-77/content"}
    )
    third = Operation(
        id="r3", method="GET", path="/users/miller/${v1}", query="user=miller&limit=5"
    )
    hidden = anonymise(captured(first, second, third)).case
    text = hidden.model_dump_json(exclude={"origin": {"notes"}})
    assert "miller" not in text.lower()
    one, two, three = hidden.operations
    assert one.form is not None
    assert one.form == two.form, "the same names"
    file, _, consent, _, temperature = one.form
    assert (file.name, file.media_type) == ("file", "audio/wav")
    assert (file.filename or "").endswith(".wav")
    assert consent.name != "millers_consent"
    assert temperature.text == "0.5"
    assert one.path == "/v1/audio/transcriptions"
    users, who, *rest = two.path.strip("/").split("/")
    assert rest == ["v1", "files", rest[2], "content"]
    assert three.path == f"/{users}/{who}/${{v1}}"
    assert three.query.endswith("&limit=5")


def test_what_no_decoder_reads_is_named() -> None:
    sound = {"data": encoded(b"OggS" + WORDS), "format": "ogg"}
    film = encoded(b"\0\0\0\x18ftypmp42" + WORDS)
    address = {"url": f"data:video/mp4;name=miller.mp4;base64,{film}"}
    parts = [
        Part(raw={"type": "input_audio", "input_audio": sound}),
        Part(raw={"type": "video_url", "video_url": address}),
    ]
    asked = Operation(id="r1", messages=[Message(role="user", content=parts)])
    hidden = anonymise(captured(asked)).case
    text = hidden.model_dump_json()
    assert "miller" not in text
    assert encoded(WORDS)[8:24] not in text
    assert "2 sounds, films or files are random bytes" in " ".join(hidden.origin.notes)


def test_keys_of_metadata_and_addresses_of_this_machine_have_other_names(
    tmp_path: Path,
) -> None:
    local = {
        "type": "audio_url",
        "audio_url": {"url": "http://localhost:9/users/miller/voice.wav"},
    }
    asked = Operation(
        id="r1",
        messages=[Message(role="user", content=[Part(raw=local)])],
        parameters={"metadata": {"miller": "Miller"}, "max_tokens": 4},
    )
    hidden = anonymise(captured(asked)).case.operations[0]
    text = hidden.model_dump_json()
    assert "miller" not in text.lower()
    assert "http://localhost:9/" in text
    assert hidden.parameters["max_tokens"] == 4

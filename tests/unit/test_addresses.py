"""Which addresses are of this machine, whoever reads them."""

import json

import pytest
from mmrepro.base.text.addresses import goes_out, is_address, is_local, is_local_host
from mmrepro.traffic.capture.messages import Bodies, Contents, Unusable
from mmrepro.traffic.case.model import Part
from pydantic import ValidationError

LOCAL = [
    "http://localhost",
    "http://localhost:8000/v1",
    "http://LOCALHOST:1/",
    "https://127.0.0.1/a.png",
    "http://127.1.2.3:80/x?y=z",
    "http://[::1]:8000/",
    "http://[::ffff:127.0.0.1]/",
    "http://localhost:/",
]
OUT = [
    "http://localhost:1@10.1.2.3/",
    "http://localhost@10.1.2.3",
    "http://127.0.0.1:80@10.1.2.3:81/",
    "http://user:localhost@10.1.2.3/",
    "http://127.0.0.1.nip.io/",
    "http://localhost.example/",
    "http://[::ffff:10.0.0.1]/",
    "http://[::ffff:a00:1]/",
    "http://[fe80::1%25lo]/",
    "http://[::]/",
    "http://2130706433/",
    "http://0x7f000001/",
    "http://0177.0.0.1/",
    "http://127.1/",
    "http://10.1/",
    "http://127.0.0.01/",
    "http://0.0.0.0/",
    "http://0/",
    "http://localhost./",
    "http://127.0.0.1./",
    "http://127。0。0。1/",
    "http://ⓛocalhost/",
    "http://localhost。example/",
    "http://127.0.0.1%2eexample/",
    "http://localhost\\@10.1.2.3/",
    "http:\\\\10.1.2.3/",
    "http:/\\10.1.2.3/",
    "\\\\10.1.2.3\\a",
    "//10.1.2.3/a.png",
    "http:10.1.2.3/",
    "http:/10.1.2.3",
    "ht\ntp://10.1.2.3/",
    "h\tttp:/\n/10.1.2.3/",
    " http://10.1.2.3/",
    "\x01http://10.1.2.3/",
    "http://local\thost:1@10.1.2.3/",
    "http://localhost\n.example/",
    "http://localhost#@10.1.2.3/",
    "http://localhost?@10.1.2.3/",
    "http://localhost:99999999/",
    "http://localhost:1x/",
    "http://[::1/",
    "http://[::1]x/",
    "http://[::1].example/",
    "http://",
    "s3://bucket/x",
    "ftp://10.1.2.3/x",
    "file://10.1.2.3/x",
    "gopher://localhost:1@x/",
    "HTTP://10.1.2.3",
]


@pytest.mark.parametrize("address", LOCAL)
def test_a_plain_address_of_this_machine_stays(address: str) -> None:
    assert is_local(address)
    assert not goes_out(address)


@pytest.mark.parametrize("address", OUT)
def test_any_other_goes_out(address: str) -> None:
    assert not is_local(address)
    assert goes_out(address)
    with pytest.raises(ValidationError):
        Part(raw={"type": "video_url", "video_url": {"url": address}})


@pytest.mark.parametrize(
    "text", ["data:image/png;base64,AA", "/a/b.png", "a: b", "file:///x", ""]
)
def test_what_no_network_is_asked_for_does_not(text: str) -> None:
    assert not goes_out(text)


def test_hosts_and_addresses_are_told() -> None:
    assert is_local_host("::1")
    assert not is_local_host("[::1]")
    assert is_local("127.0.0.1:8000")
    assert is_address(" h\tttp://10.1.2.3/a ")
    assert not is_address("see http://10.1.2.3/a")


def requested(body: str) -> str:
    """The case's operation that a report's request becomes."""
    headers = [("Content-Type", "application/json")]
    bodies = Bodies(Contents(), own=True)
    return bodies.request(
        "POST", "/v1/chat/completions", headers, body.encode()
    ).model_dump_json()


@pytest.mark.parametrize("address", ["http://10.1.2.3/a.png", *OUT[:6]])
@pytest.mark.parametrize("kind", ["image_url", "video_url", "audio_url"])
def test_a_replay_asks_no_other_machine(address: str, kind: str) -> None:
    part = {"type": kind, kind: {"url": address}}
    body = json.dumps({"model": "m", "messages": [{"role": "user", "content": [part]}]})
    assert "10.1.2.3" not in requested(body)
    assert ".nip.io" not in requested(body)
    for broken in (body[:-1], body.replace('"m"', '"m", "top_p": NaN')):
        with pytest.raises(Unusable, match="address of another machine"):
            requested(broken)
    with pytest.raises(Unusable, match="address of another machine"):
        requested(body[:-1].replace("/", "\\/"))


def test_forms_within_forms_stay_as_they_are() -> None:
    body = b""
    for number in range(1500):
        kind = b"Content-Type: multipart/form-data; boundary=b%d\r\n\r\n" % (number + 1)
        body += b"--b%d\r\n" % number + kind
    headers = [("Content-Type", "multipart/form-data; boundary=b0")]
    bodies = Bodies(Contents(), own=True)
    operation = bodies.request("POST", "/v1/audio/transcriptions", headers, body)
    assert operation.form is None
    assert operation.body is not None

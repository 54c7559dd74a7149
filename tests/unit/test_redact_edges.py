"""Where exactly something private begins and ends: both sides of each rule."""

import json
from enum import Enum
from typing import Literal

import pytest
from mmrepro.base.records import Record
from mmrepro.base.text import redact
from mmrepro.base.text.redact import MAX_TEXT, MIN_SECRET, Redactor


def redactor() -> Redactor:
    return Redactor(home="/home/me")


UPPER, LOWER = "AZ" * 4, "az" * 4
SHORT = UPPER + LOWER * 5 + "b" + "123"  # 52
EXACTLY = {
    # a URL's user and password
    "http://user@host/": "http://[redacted:password-1]@host/",
    "http://user:pass@host/": "http://[redacted:user-1]:[redacted:password-1]@host/",
    "http://:pass@host/": "http://:[redacted:password-1]@host/",
    "http://user:@host/": "http://[redacted:user-1]:@host/",
    # headers
    "Authorization: Bearer abc def": "Authorization: Bearer [redacted:key-1] def",
    "Authorization: abc def": "Authorization: [redacted:key-1]",
    "Authorization: Digest a b": "Authorization: Digest [redacted:key-1]",
    "Authorization: Bearer ": "Authorization: Bearer ",
    "x-api-key: 'abc d' e": "x-api-key: '[redacted:key-1]' e",
    "Cookie: a=b": "Cookie: [redacted:cookie-1]",
    "a bearer abcdefgh b": "a bearer [redacted:key-1] b",
    "curl -H 'Authorization: Basic abc' -d x": (
        "curl -H 'Authorization: Basic [redacted:key-1]' -d x"
    ),
    # assigned
    "(api_key=abc123)": "(api_key=[redacted:key-1])",
    "api_key=abc123, b": "api_key=[redacted:key-1], b",
    "a: api_key = 'abc 123' b": "a: api_key = '[redacted:key-1]' b",
    "--api-key abc123 --b": "--api-key [redacted:key-1] --b",
    "password=abc": "password=[redacted:password-1]",
    "credential: abc": "credential: [redacted:password-1]",
    "MY_PWD=abc/": "MY_PWD=[redacted:password-1]",
    "MY_PWD=/abc": "MY_PWD=/abc",
    "MY_PWD=~/abc": "MY_PWD=~/abc",
    "password=/abc": "password=[redacted:password-1]",
    "token=12345678": "token=12345678",
    "token=123456789": "token=[redacted:key-1]",
    "api_key=12345678": "api_key=[redacted:key-1]",
    "token=abcdef": "token=[redacted:key-1]",
    "token: 'abcdef'": "token: '[redacted:key-1]'",
    "token: abcdef12": "token: [redacted:key-1]",
    "token: abcdef1": "token: abcdef1",
    "token: expected": "token: expected",
    "api_key: expected": "api_key: [redacted:key-1]",
    "token: ''": "token: ''",
    "password=None": "password=None",
    # what engines log of a request
    "prompt: 'abcdef' x": "prompt: '[redacted:prompt-1]' x",
    "PROMPT: 'abcdef' x": "PROMPT: '[redacted:prompt-1]' x",
    "prompt: 'abcde' x": "prompt: 'abcde' x",
    "prompt: ' abcde ' x": "prompt: ' abcde ' x",
    "token_ids: [1, 2, 3, 4, 5, 6], x": "token_ids: [[redacted:tokens-1]], x",
    "input_ids=[[1, 2, 3], [4, 5]] x": "input_ids=[[redacted:tokens-1]]] x",
    # data
    "a data:image/png;base64,iVBORw0KGgo= b": (
        "a data:image/png;base64,[redacted:image-1] b"
    ),
    "-----BEGIN PRIVATE KEY-----abc-----END PRIVATE KEY----- b": (
        "[redacted:privatekey-1] b"
    ),
    "a -----BEGIN PRIVATE KEY-----abc-----END PRIVATE KEY----- b": (
        "a [redacted:privatekey-1] b"
    ),
    "a -----BEGIN PRIVATE KEY-----abc": "a [redacted:privatekey-1]",
    # addresses
    "a@b.co": "[redacted:email-1]",
    "a@b.org x": "[redacted:email-1] x",
    "a@b.org,c@d.org": "[redacted:email-1],[redacted:email-2]",
    "@x a@b.org": "@x [redacted:email-1]",
    "a@b@c.org": "a@[redacted:email-1]",
    " @b.org": " @b.org",
    "x" * 70 + "@b.org": "x" * 6 + "[redacted:email-1]",
    # encoded bytes: long runs by their letters alone
    UPPER + "b" * 152: "[redacted:base64-1]",
    UPPER + "b" * 151: "[redacted:opaque-1]",
    "B" * 152 + LOWER: "[redacted:base64-1]",
    "B" * 153 + LOWER[:7]: "[redacted:opaque-1]",
    # shorter ones: letters of both cases, three digits, hardly a word
    f"{SHORT}bbbbbbbb": "[redacted:base64-1]",
    f"{SHORT[1:]}bbbbbbbbb": "[redacted:opaque-1]",
    f"{SHORT[:-1]}bbbbbbbbb": "[redacted:opaque-1]",
    UPPER * 6 + LOWER + "1234": "[redacted:base64-1]",
    UPPER * 6 + LOWER[1:] + "12345": "[redacted:opaque-1]",
    f"{SHORT}bb/b/b_b": "[redacted:base64-1]",
    f"{SHORT}b/b/b_b_b-b-b": "[redacted:base64-1]",
    f"{SHORT}//__--bb": "[redacted:opaque-1]",
    f"{SHORT}//__--bbb": "[redacted:base64-1]",
    f"_Z{SHORT}bbbbbbbb": "[redacted:opaque-1]",
    f"_Z2{SHORT}bbbbbbbb": f"_Z2{SHORT}bbbbbbbb",
    # calls with a number that is no byte
    "chr(256)+chr(104)+chr(105)+chr(106)": "chr(256)+chr(104)+chr(105)+chr(106)",
    # a backslash before a name is no escape sequence of it
    r"dir\tok=Hunter2xQ": r"dir\tok=[redacted:key-1]",
    # a program's name with a number, in a column
    "password_2    orangejuice": "password_2    [redacted:password-1]",
    # homes
    "cd /home/me": "cd ~",
    "/home/bob/x": "/home/[redacted:user-1]/x",
}


@pytest.mark.parametrize(("text", "redacted"), EXACTLY.items())
def test_exactly_what_is_private_goes(text: str, redacted: str) -> None:
    assert redactor().redact(text) == redacted


WITH = [
    "data:image/png;base64,{}",
    "http://{}@h/",
    "http://u:{}@h/",
    "Authorization: {}",
    "bearer {}",
    "password={}",
    "api_key: '{}'",
    "--api-key {}",
    "prompt: '{}'",
    "/home/{}/x",
    "{}@b.org",
    "sk-{}{}",
    "-----BEGIN PRIVATE KEY-----{}-----END PRIVATE KEY-----",
    "Cookie: {}",
]


@pytest.mark.parametrize("form", WITH)
def test_another_secret_has_another_placeholder(form: str) -> None:
    one = redactor()
    first, second = (
        one.redact(form.replace("{}", value)) for value in ("abcdefgh", "abcdefgi")
    )
    assert first != second
    assert second.count("-2]") == 1
    assert one.redact(form.replace("{}", "abcdefgh")) == first


def test_other_token_ids_have_another_placeholder() -> None:
    one = redactor()
    assert (
        one.redact("token_ids: [1, 2, 3, 4, 5, 6]")
        == "token_ids: [[redacted:tokens-1]]"
    )
    assert (
        one.redact("token_ids: [1, 2, 3, 4, 5, 7]")
        == "token_ids: [[redacted:tokens-2]]"
    )
    assert (
        one.redact("input_ids: [1, 2, 3, 4, 5, 6]")
        == "input_ids: [[redacted:tokens-1]]"
    )


def test_what_shows_only_when_its_neighbour_is_gone() -> None:
    text = "Authorization: Bearer abc Cookie: def"
    wanted = "Authorization: Bearer [redacted:key-1] Cookie: [redacted:cookie-1]"
    assert redactor().redact(text) == wanted


def test_a_home_of_one_letter_is_none() -> None:
    assert Redactor(home="/a").redact("cd /a/b c") == "cd ~/b c"
    assert Redactor(home="a").redact("what a day") == "what a day"


def test_a_registered_secret_has_at_least_six_characters() -> None:
    assert MIN_SECRET == 6
    one = redactor()
    assert one.add("abcde") == one.add("  abcde ") == ""
    assert one.redact("abcde, abcde") == "abcde, abcde"
    assert one.add("abcdef") == "[redacted:secret-1]"
    assert one.redact("abcdef") == "[redacted:secret-1]"
    assert one.redact("xabcdefx") == "x[redacted:secret-1]x"


def test_the_longer_secret_goes_first() -> None:
    one = redactor()
    one.add("abcdefgh", "a much longer kind")
    long = one.add("abcdefghijkl", "k")
    assert one.redact("abcdefghijkl") == long == "[redacted:k-1]"


def test_a_kind_is_twenty_letters() -> None:
    one = redactor()
    assert one.add("abcdefgh", "K-" + "x" * 30) == f"[redacted:k{'x' * 19}-1]"
    assert one.add("ijklmnop", "123") == "[redacted:secret-1]"


@pytest.mark.parametrize(
    "secret",
    [
        'line "one"\nline',
        "it's 'two'\n",
        "Zürich\tist schön",
        'Zürich "eins"',
        "plain one",
    ],
)
def test_each_printed_form_of_a_secret_is_known(secret: str) -> None:
    """JSON's two, Python's, and its own, each whole and nothing besides."""
    for form in (
        json.dumps(secret),
        json.dumps(secret, ensure_ascii=False),
        f"<{secret}>",
        repr(secret),
    ):
        one = redactor()
        mark = one.add(secret)
        assert one.redact(f"x {form} y") == f"x {form[0]}{mark}{form[-1]} y"


@pytest.mark.parametrize("cut", [200, 100])
def test_what_a_log_cuts_of_a_prompt_is_known_to_the_letter(cut: int) -> None:
    one = redactor()
    prompt = "".join(chr(ord("a") + n % 26) for n in range(0, 900, 3))
    mark = one.add(prompt, "prompt")
    assert one.redact(f"log: {prompt[:cut]}… end") == f"log: {mark}… end"
    assert one.redact(prompt) == mark


def test_numbers_go_on_after_those_that_are_there() -> None:
    one = redactor()
    one.reserve("a [redacted:key-12] b [redacted:key-3] c [redacted:user-4]")
    assert one.placeholder("key", "x") == "[redacted:key-13]"
    assert one.placeholder("user", "y") == "[redacted:user-5]"
    assert one.placeholder("email", "z") == "[redacted:email-1]"
    zero = redactor()
    zero.reserve("[redacted:key-0]")
    assert zero.placeholder("key", "x") == "[redacted:key-1]"


def test_a_text_is_cut_at_eight_mebibytes(monkeypatch: pytest.MonkeyPatch) -> None:
    assert MAX_TEXT == 8388608
    monkeypatch.setattr(redact, "MAX_TEXT", 10)
    assert redactor().redact("0123456789") == "0123456789"
    assert redactor().redact("0123456789a") == "0123456789 [cut: too long to redact]"


class Colour(Enum):
    MAIL = "bob@example.com"


class Walked(Record):
    kind: Literal["api_key", "bob@example.com"] = "bob@example.com"
    name: str = ""
    value: object = None
    colour: Colour = Colour.MAIL
    things: tuple[object, ...] = ()


def walked(**fields: object) -> Walked:
    return redactor().redact_model(Walked.model_validate(fields))


def test_a_value_is_called_what_its_record_is_called() -> None:
    assert walked(name="--api-key", value="abcdef").value == "[redacted:key-1]"
    assert walked(name="--seed", value="abcdef").value == "abcdef"
    assert walked(name="api_key", value="'abcdef'").value == "'[redacted:key-1]'"
    assert walked(name="token", value="151655").value == "151655"
    assert walked(name="token", value="abcdef").value == "[redacted:key-1]"
    assert walked(name="api_key", things=("abcdef",)).things == ("abcdef",)
    assert walked(name="Set-Cookie", value="abcdef").value == "[redacted:cookie-1]"
    assert walked(name="authorization", value="abcdef").value == "[redacted:key-1]"
    assert walked(name="password", value="abcdef").value == "[redacted:password-1]"
    assert walked(name="my password", value="abcdef").value == "abcdef"
    assert walked(name="name", value="password").name == "name"
    assert walked(name="api_key", value="[redacted:key-7]").value == "[redacted:key-7]"
    assert walked(name="api_key", value="sk-abcdefabcdef").value == "[redacted:key-1]"


def test_what_is_one_of_few_words_stays() -> None:
    """A Literal and an Enum: replaced, they would not be valid any more. What follows
    is not."""
    out = walked(name="bob@example.com", value="bob@example.com")
    assert (out.kind, out.colour) == ("bob@example.com", Colour.MAIL)
    assert out.name == out.value == "[redacted:email-1]"


def test_what_holds_nothing_private_is_the_same_object() -> None:
    plain = Walked(name="a", value=["b", {"c": 3}])
    assert (
        redactor().redact_model(plain) is plain
        or redactor().redact_model(plain) == plain
    )


def test_however_deep_and_in_whatever() -> None:
    value = {
        "a": [("--api-key", "abcdef", "ghijkl", "--seed", "a"), {"bob@example.com"}],
        3: {"password": ["abcdef"]},
    }
    assert walked(value=value).value == {
        "a": [
            ("--api-key", "[redacted:key-1]", "[redacted:key-2]", "--seed", "a"),
            {"[redacted:email-1]"},
        ],
        3: {"password": ["[redacted:key-1]"]},
    }
    assert walked(things=("api_key", "abcdef", "x")).things == (
        "api_key",
        "abcdef",
        "x",
    )
    assert walked(things=("x-api-key", "abcdef")).things == (
        "x-api-key",
        "[redacted:key-1]",
    )


def test_nothing_is_lost_between_placeholders() -> None:
    one = redactor()
    text = "a@b.org [redacted:key-1] c@d.org [redacted:key-2]"
    assert (
        one.redact(text)
        == "[redacted:email-1] [redacted:key-1] [redacted:email-2] [redacted:key-2]"
    )
    one.add("redacted")
    assert (
        one.redact("[redacted:key-1] redacted")
        == "[redacted:key-1] [redacted:secret-1]"
    )


def test_memory_is_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(redact, "MAX_CACHED", 5000)
    one = redactor()
    for length, kept in ((4000, True), (1001, False), (1000, True)):
        private = "a@b.org".ljust(length)
        one.redact(private)
        assert (private in one._cache) is kept
    one._cache, one._cached = {str(n): "" for n in range(49_999)}, 0
    one.redact("the last one that is kept: a@b.org")
    one.redact("one more: a@b.org")
    assert list(one._cache)[49_999:] == ["the last one that is kept: a@b.org"]


def test_what_is_known_to_be_clean_is_bounded_and_never_hides_a_secret() -> None:
    one = redactor()
    for length, kept in ((512, True), (513, False)):
        one.redact("x" * length)
        assert ("x" * length in one._clean) is kept
    assert "x" * 512 in redactor()._clean, "for the next document too"
    assert one.redact("one plain word") == "one plain word"
    one.add("plain word")
    assert one.redact("one plain word") == "one [redacted:secret-1]"
    assert one.redact("another plain line") == "another plain line"
    assert "another plain line" not in one._clean, (
        "known to be clean of what is registered only"
    )
    full = redactor()
    full._clean = {str(n) for n in range(49_999)}
    full.redact("the last that is kept")
    full.redact("one more clean text")
    assert full._clean - {str(n) for n in range(49_999)} == {"the last that is kept"}

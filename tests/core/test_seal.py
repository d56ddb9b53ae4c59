"""Sealed values open only for the principal and the purpose they were sealed for."""

from base64 import urlsafe_b64encode
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from genmcp.core.outcome import JsonValue, canonical, digest
from genmcp.core.seal import Part, Purpose, Seal
from genmcp.errors import ConfigurationError, ContractError, ForeignSeal, InvalidSeal, SealExpired

OLD, NEW = "the old secret, 24 bytes", "the new secret, 24 bytes"
NONCE = b"twelve bytes"
NOW = 1_700_000_000.0


def made(
    secret: Any = NEW,
    audience: str = "studio",
    *,
    now: float = NOW,
    nonce: bytes = NONCE,
    **options: Any,
) -> Seal:
    return Seal(secret, audience, now=lambda: now, nonce=lambda size: nonce, **options)


SEAL = made()

purposes = st.sampled_from(Purpose)
nonces = st.binary(min_size=12, max_size=12)
anything = st.text(st.characters())  # lone surrogates too
bounds = st.lists(st.none() | anything | st.binary(), max_size=4)


def sealed(
    payload: bytes = b"payload", *, seal: Seal = SEAL, bound: tuple[Part, ...] = ("add", None)
) -> str:
    return seal.seal(Purpose.CURSOR, payload, *bound, ttl=60)


def opened(text: str, *, seal: Seal = SEAL, bound: tuple[Part, ...] = ("add", None)) -> bytes:
    return seal.open(Purpose.CURSOR, text, *bound)


@given(purposes, st.binary(max_size=300), nonces, bounds)
def test_seal_opens_a_sealed_value(
    purpose: Purpose, payload: bytes, nonce: bytes, bound: list[Part]
) -> None:
    """A sealed value opens with the same purpose and parts."""
    text = made(nonce=nonce).seal(purpose, payload, *bound, ttl=60)

    assert payload == SEAL.open(purpose, text, *bound)


@given(st.binary(max_size=300), nonces)
def test_seal_text_is_fit_for_a_header_and_a_url(payload: bytes, nonce: bytes) -> None:
    """A sealed value is letters, digits, "-" and "_" (2025-11-25, "Session Management")."""
    text = made(nonce=nonce).seal(Purpose.SESSION, payload, ttl=60)

    assert text.isascii()
    assert text.replace("-", "").replace("_", "").isalnum()


def test_seal_hides_the_payload() -> None:
    """The client cannot read the sealed value."""
    assert urlsafe_b64encode(b"payload").decode()[:8] not in sealed(b"payload")
    assert sealed(b"payload")[:24] == sealed(b"another")[:24]
    assert sealed(b"payload")[24:48] != sealed(b"another")[24:48]


@given(st.binary(max_size=40), st.data())
def test_seal_refuses_any_changed_character(payload: bytes, data: st.DataObject) -> None:
    """One other character anywhere, and the value is forged."""
    text = sealed(payload)
    at = data.draw(st.integers(0, len(text) - 1))
    other = data.draw(st.characters().filter(lambda character: character != text[at]))

    with pytest.raises(InvalidSeal):
        opened(text[:at] + other + text[at + 1 :])


@pytest.mark.parametrize("length", range(6))
def test_seal_value_has_one_spelling(length: int) -> None:
    """Padding, white space, the other alphabet or stray last bits make no second spelling."""
    text = sealed(b"x" * length)
    alphabet = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789-_"
    spellings = {text + "=", text + "==", text + "\n", text + "!", text[:20] + " " + text[20:]}
    spellings |= {text.translate({ord("-"): "+", ord("_"): "/"})}
    spellings |= {text[:-1] + last for last in alphabet}

    for spelling in spellings - {text}:
        with pytest.raises(InvalidSeal):
            opened(spelling)


@given(purposes, anything | st.binary().map(lambda raw: "g1" + urlsafe_b64encode(raw).decode()))
def test_seal_raises_nothing_but_forged_for_any_text(purpose: Purpose, text: str) -> None:
    """Arbitrary input is rejected without an unexpected exception."""
    with pytest.raises(InvalidSeal):
        SEAL.open(purpose, text)


def test_seal_does_not_decode_a_text_longer_than_any_it_makes() -> None:
    """The longest value opens; anything longer is refused unread."""
    small = made(max_bytes=100)
    longest = sealed(b"x" * 100, seal=small)

    assert opened(longest, seal=small) == b"x" * 100
    with pytest.raises(InvalidSeal):
        opened(sealed(b"x" * 103), seal=small)


@pytest.mark.parametrize("purpose", [each for each in Purpose if each is not Purpose.CURSOR])
def test_seal_refuses_another_purpose(purpose: Purpose) -> None:
    """A cursor is not a session, and not a request state."""
    with pytest.raises(InvalidSeal):
        SEAL.open(purpose, sealed(), "add", None)


def test_seal_refuses_another_audience() -> None:
    """Two muxes with one secret do not take each other's values."""
    with pytest.raises(InvalidSeal) as caught:
        opened(sealed(), seal=made(NEW, "studio-2"))

    assert not isinstance(caught.value, ForeignSeal)


@given(bounds, bounds)
def test_seal_refuses_other_parts(one: list[Part], other: list[Part]) -> None:
    """A value opens with the parts it was bound to, and with no others."""
    text = sealed(bound=tuple(one))

    if [as_bytes(part) for part in one] == [as_bytes(part) for part in other]:
        assert opened(text, bound=tuple(other)) == b"payload"
    else:
        with pytest.raises(InvalidSeal):
            opened(text, bound=tuple(other))


def as_bytes(part: Part) -> bytes | None:
    return part.encode("utf-8", "surrogatepass") if isinstance(part, str) else part


@pytest.mark.parametrize(
    ("one", "other"),
    [
        ((None,), ("",)),
        ((None,), ()),
        ((None,), ("-",)),
        (("ab", "c"), ("a", "bc")),
        (("a", "b"), ("b", "a")),
        (("a", "b"), ("a1:b",)),
        (("a",), ("a", None)),
    ],
)
def test_seal_tells_parts_apart_that_look_alike(
    one: tuple[Part, ...], other: tuple[Part, ...]
) -> None:
    """No two sequences of parts are mistaken for each other."""
    with pytest.raises(InvalidSeal):
        opened(sealed(bound=one), bound=other)


def test_seal_takes_a_str_for_its_utf_8() -> None:
    """Text and its bytes are the same part."""
    assert opened(sealed(bound=("é",)), bound=("é".encode(),)) == b"payload"


def test_seal_expires() -> None:
    """A value opens before its time has run out, and neither at that moment nor after."""
    text = SEAL.seal(Purpose.EVENT, b"x", ttl=60)

    assert made(now=NOW + 59.9).open(Purpose.EVENT, text) == b"x"
    for late in (60, 61, float("inf"), float("nan")):
        with pytest.raises(SealExpired):
            made(now=NOW + late).open(Purpose.EVENT, text)


def test_seal_that_expires_never_is_possible() -> None:
    """An infinite time to live is one; no time at all has always run out."""
    for_ever = SEAL.seal(Purpose.EVENT, b"x", ttl=float("inf"))
    not_a_time = SEAL.seal(Purpose.EVENT, b"x", ttl=float("nan"))

    assert made(now=NOW * 1000).open(Purpose.EVENT, for_ever) == b"x"
    with pytest.raises(SealExpired):
        SEAL.open(Purpose.EVENT, not_a_time)


def test_seal_does_not_reveal_expiry_to_another_purpose() -> None:
    """A value that is not authentic is invalid, however old."""
    with pytest.raises(InvalidSeal):
        made(now=NOW + 3600).open(Purpose.SESSION, sealed())


def test_seal_limits_the_payload() -> None:
    """The most is taken, one byte more is refused with both sizes."""
    assert opened(sealed(b"x" * 32768)) == b"x" * 32768
    with pytest.raises(ContractError, match=r"cursor of 32769 bytes .* 32768 \(max_bytes\)"):
        sealed(b"x" * 32769)


@pytest.mark.parametrize("nonce", [b"", b"eleven byte", b"thirteen byte"])
def test_seal_takes_nonces_of_twelve_bytes(nonce: bytes) -> None:
    """Another length is a defect of the caller."""
    with pytest.raises(ContractError, match="12 bytes"):
        made(nonce=nonce).seal(Purpose.CURSOR, b"", ttl=1)


def test_seal_needs_an_audience() -> None:
    """An empty audience is wrong at construction."""
    with pytest.raises(ConfigurationError, match="audience"):
        made(NEW, "")


def test_keyring_opens_values_of_an_older_secret() -> None:
    """During a rotation each process opens values of the others."""
    before = made(OLD, "studio")
    during = made([NEW, OLD], "studio")
    after = made([NEW], "studio")

    assert opened(sealed(b"1", seal=before), seal=during) == b"1"
    assert opened(sealed(b"2", seal=during), seal=after) == b"2"


def test_keyring_seals_with_the_first_secret() -> None:
    """The first secret seals; a duplicate keeps its first place."""
    assert sealed(seal=made([OLD, NEW, OLD], "studio")) == sealed(seal=made(OLD, "studio"))


def test_keyring_tells_a_foreign_seal() -> None:
    """A value sealed with an unknown secret is distinguished from a forged one."""
    with pytest.raises(ForeignSeal):
        opened(sealed(seal=made(OLD, "studio")))


@pytest.mark.parametrize(
    "text", ["", "g1", "g1AAAAAAAA", "550e8400-e29b-41d4-a716-446655440000", "A" * 200]
)
def test_keyring_does_not_take_just_any_text_for_foreign(text: str) -> None:
    """A session id of another server does not concern our secrets."""
    with pytest.raises(InvalidSeal) as caught:
        opened(text)

    assert not isinstance(caught.value, ForeignSeal)


def test_keyring_has_a_key_for_each_purpose() -> None:
    """A value encrypted for one purpose cannot be decrypted for another."""
    texts = [SEAL.seal(each, b"payload", ttl=60) for each in Purpose]

    # The part that depends on the key and the nonce only: expiry and payload, encrypted.
    assert len(Purpose) == len({text[24:44] for text in texts})


def test_keyring_takes_str_and_bytes() -> None:
    """A secret from the environment equals its bytes, also where these are not UTF-8."""
    assert sealed(seal=made(OLD, "a")) == sealed(seal=made(OLD.encode(), "a"))
    assert made("\udcff" * 16, "a")


@pytest.mark.parametrize("secret", ["", "fifteen bytes..", b"fifteen bytes..", [], [NEW, "short"]])
def test_keyring_refuses_a_secret_that_is_too_short(secret: str | bytes | list[str]) -> None:
    """Too short a secret, or none, is wrong at construction, and the option is named."""
    with pytest.raises(ConfigurationError, match=r"^secret:") as caught:
        made(secret, "a")

    assert "fifteen" not in str(caught.value)
    assert made("sixteen bytes...", "a")


@pytest.mark.parametrize(
    ("one", "other"),
    [
        (b'{"a": 1, "b": {"d": 2, "c": [3]}}', b'{"b":{"c":[ 3 ],"d":2},"a":1}'),
        (b'"\\u00e9\\/\\n"', '"é/\\n"'.encode()),
        (b'{"\\u0061": null}', b'{"a":null}'),
        (b"1e2", b"100.0"),
        (b'{"a": 1, "a": 2}', b'{"a": 2}'),
    ],
)
def test_digest_is_of_the_value_not_of_its_spelling(one: bytes, other: bytes) -> None:
    """Two spellings of one JSON value have one digest, raw or decoded."""
    assert digest(msgspec.Raw(one)) == digest(msgspec.Raw(other))
    assert digest(msgspec.Raw(one)) == digest(msgspec.json.decode(other))
    assert len(digest(None)) == 32


@pytest.mark.parametrize(
    ("one", "other"),
    [(1, 1.0), (1, "1"), (1, True), (None, "null"), ([1, 2], [2, 1]), ({"a": None}, {}), ([], {})],
)
def test_digest_tells_values_apart(one: JsonValue, other: JsonValue) -> None:
    """Different values differ; an integer is not the float of equal value."""
    assert digest(one) != digest(other)


def test_canonical_sorts_keys_and_takes_big_integers() -> None:
    """The canonical text is compact, sorted, and loses no digit."""
    assert (
        canonical({"b": "é", "a": 12345678901234567890123})
        == b'{"a":12345678901234567890123,"b":"\xc3\xa9"}'
    )


@pytest.mark.parametrize("value", [object(), {1: 2}, "\ud800", msgspec.Raw(b"{")])
def test_canonical_rejects_values_without_a_json_form(value: Any) -> None:
    """Only JSON values have a canonical text."""
    with pytest.raises((TypeError, UnicodeEncodeError, msgspec.DecodeError)):
        canonical(value)


def test_mark_is_the_same_under_the_secret_that_sealed() -> None:
    """A process that already seals with the new secret finds the name that the old one gave."""
    old, new = b"o" * 16, b"n" * 16
    before, after = made(old, "a"), made([new, old, new], "a")
    text = before.seal(Purpose.TASK, b"x", ttl=1.0)
    key_id = before.key_id_of(text)

    name = before.mark(Purpose.TASK, "t")

    assert name == after.mark(Purpose.TASK, "t", key_id=key_id)
    assert name != after.mark(Purpose.TASK, "t") == after.mark(Purpose.TASK, "t", key_id="g1gone")

"""Text of a peer in logs and on terminals."""

from genmcp.wire.jsonrpc import printable


def test_printable_text_is_left_as_it_is() -> None:
    """Letters of any script are printable."""
    assert printable("tools/é/漢 字") == "tools/é/漢 字"


def test_control_characters_are_escaped() -> None:
    """Line ends forge log lines; ESC and C1 begin terminal sequences; U+202E turns text around."""
    assert printable("a\r\nb\x1b[31m\x9b\u202e\ud800") == r"a\r\nb\x1b[31m\x9b\u202e\ud800"


def test_long_text_is_cut() -> None:
    """The rest is of no use to a reader."""
    assert printable("a" * 201) == "a" * 200 + "..."
    assert printable("abc", 2) == "ab..."

"""The waits of a `Continue`: one question, or several by key."""

from typing import Any

import pytest

from genmcp.core.waiting import questions_of
from genmcp.errors import ContractError
from genmcp.protocol.capabilities import ClientCapabilities
from genmcp.question.elicitation import elicit
from genmcp.question.question import Question
from genmcp.question.sampling import roots


def test_one_question_has_the_tag_for_its_key() -> None:
    """A single question needs no key."""
    question = elicit("Sure?")

    assert questions_of("asked", question) == {"asked": question}


def test_several_questions_have_keys() -> None:
    """In the order in which they are given, and not changed with the dict afterwards."""
    given = {"b": elicit("Sure?"), "a" * 64: roots()}
    questions = questions_of("asked", given)

    assert given == questions
    assert list(questions) == ["b", "a" * 64]
    assert given is not questions


@pytest.mark.parametrize(
    ("on", "fault"),
    [
        ({}, "has no questions"),
        ({"": roots()}, "1 to 64 characters, not ''"),
        ({"a" * 65: roots()}, "1 to 64 characters, not 'aaa"),
        ({3: roots()}, "1 to 64 characters, not 3"),
        ({"a": roots(), "b": "Sure?"}, "the value of key 'b' must be a question, not str"),
    ],
)
def test_invalid_question_of_several_is_rejected(on: Any, fault: str) -> None:
    """The error names the tag and the key."""
    with pytest.raises(ContractError, match=r"Continue\('asked', \.\.\.\)") as refused:
        questions_of("asked", on)

    assert fault in str(refused.value)


def test_tag_that_is_no_key_is_rejected() -> None:
    """The tag is the key of a single question."""
    with pytest.raises(ContractError, match="1 to 64 characters"):
        questions_of("", roots())


def test_base_class_of_questions_is_abstract() -> None:
    """Its methods are not implemented."""
    question = Question()

    with pytest.raises(NotImplementedError):
        _ = question.request
    with pytest.raises(NotImplementedError):
        question.missing_capabilities(ClientCapabilities())
    with pytest.raises(NotImplementedError):
        question.read({})

"""What `Continue` takes: one question, or several by key."""

from collections.abc import Mapping

from genmcp.errors import ContractError
from genmcp.question.question import Question

__all__ = ["questions_of"]

_LONGEST = 64


def questions_of(tag: str, on: Question | Mapping[str, Question]) -> dict[str, Question]:
    """Return the questions that `Continue(tag, on)` asks, by key; one alone has *tag* for its key.

    Raises:
        ContractError: there is none, a key is not a text of 1 to 64 characters, or something under
            a key is no question.
    """
    questions = {tag: on} if isinstance(on, Question) else dict(on)
    if not questions:
        raise ContractError(f"Continue({tag!r}, ...) asks nothing: the questions are empty")
    for key, question in questions.items():
        if not isinstance(key, str) or not 1 <= len(key) <= _LONGEST:
            raise ContractError(
                f"Continue({tag!r}, ...): the key of a question is a text of 1 to {_LONGEST} "
                f"characters, not {key!r}"
            )
        if not isinstance(question, Question):
            raise ContractError(
                f"Continue({tag!r}, ...): what is under the key {key!r} is no question but "
                f"{type(question).__name__}"
            )
    return questions

"""Restores questions from JSON: `pack` and `unpack` may run in different processes."""

from typing import Final

import msgspec

from genmcp.question.elicitation import FormQuestion, UrlQuestion
from genmcp.question.question import Question
from genmcp.question.sampling import RootsQuestion, SampleQuestion

_decode: Final = msgspec.json.Decoder(
    FormQuestion | UrlQuestion | SampleQuestion | RootsQuestion
).decode


def unpack(packed: bytes) -> Question:
    """Return the question that `Question.pack` wrote as *packed*.

    Pass only data that this server has packed: the module of the type of a form is imported.

    Raises:
        ConfigurationError: the type of the form is not found in this process, or cannot be a form.
        msgspec.DecodeError: *packed* is not a packed question.
    """
    question: Question = _decode(packed)
    if isinstance(question, FormQuestion):
        # Build the form now: an error here names the missing type, before the answer is read.
        question.form()
    return question

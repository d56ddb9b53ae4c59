"""The way back from a packed question, in whatever process."""

from typing import Final

import msgspec

from genmcp.question.elicitation import FormQuestion, UrlQuestion
from genmcp.question.question import Question
from genmcp.question.roots import RootsQuestion
from genmcp.question.sampling import SampleQuestion

__all__ = ["unpack"]

_decode: Final = msgspec.json.Decoder(
    FormQuestion | UrlQuestion | SampleQuestion | RootsQuestion
).decode


def unpack(packed: bytes) -> Question:
    """Return the question that was packed as *packed*.

    Only what this side has packed may be given: a type asked for is imported.

    Raises:
        ConfigurationError: the type it asked for is not found in this process, or is no form.
        msgspec.DecodeError: it is no packed question.
    """
    question: Question = _decode(packed)
    if isinstance(question, FormQuestion):
        question.form()  # made now, so that what is missing here is told here
    return question

"""Questions to the client: elicitation of its user, sampling of its model, its roots.

A hook makes a question with the functions in `elicitation` and `sampling`. The base class of
questions is in `question`.
"""

from genmcp.question.question import Question as Question

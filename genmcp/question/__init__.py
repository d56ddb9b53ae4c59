"""Questions to the client: elicitation of its user, sampling of its model, its roots.

A hook makes a question with the functions of `elicitation` and `sampling`; `question` has
their base class.
"""

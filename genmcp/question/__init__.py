"""Questions to the client: a form or a URL for its user, a message of its model, its roots.

`elicitation`, `sampling` and `roots` are what a hook asks with; `question` is what they all are.
"""

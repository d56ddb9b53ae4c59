"""Prompts: what a person may choose to say to a model; classes, functions, templates, repositories.

`prompts` is what a suite holds of them.
"""

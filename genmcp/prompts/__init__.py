"""Prompts: messages that a person chooses to send; classes, repositories and templates."""

"""The JSON Schemas of tools: made from types, checked when a tool is made, and applied per call.

`arguments` is what a tool uses for its input, `schema` what it uses for its output.
"""

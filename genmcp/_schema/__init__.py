"""JSON Schemas of tools: made from types, checked when a tool is made, applied to each call.

A tool uses `arguments` for its input and `schema` for its output. `document` and `bounds` check a
schema and bound its cost before it is compiled.
"""

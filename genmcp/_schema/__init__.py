"""JSON Schemas of tools: made from types, checked when a tool is made, applied to each call.

Tools use the module `arguments` for their input and `schema` for their output. Before a schema is
compiled, `document` checks it and `cost` counts what it applies to a value; `metered` bounds the
time of patterns, and `explain` finds out why a value does not fit.
"""

"""The revisions of the protocol: how each differs from the next newer one.

`chain` lists them. No other code compares version strings: behaviour that depends on the revision
is a field of `Revision`, or part of its translation.
"""

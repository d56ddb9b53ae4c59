"""The revisions of the protocol: how each differs from the next newer one.

`chain` lists them. Nothing else compares version strings: what depends on the revision is a
fact of a `Revision`, or a translation it makes.
"""

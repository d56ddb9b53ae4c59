"""The entities of the protocol, and the table of its methods.

Inside genmcp there is one set of entities, those of revision 2026-07-28. `revisions` has the
differences of older ones and translates where messages are read and written.
"""

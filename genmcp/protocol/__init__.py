"""What client and server say to each other: values, and the table of methods.

Inside genmcp there is one set of entities, those of revision 2026-07-28. `revisions` holds
how older ones differ and translates at the edge.
"""

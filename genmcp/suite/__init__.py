"""The ready-made server, `Suite`: its components, their lists, and providers of more."""

"""The ready-made server."""

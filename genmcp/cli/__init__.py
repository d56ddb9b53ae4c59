"""The command: `python -m genmcp`, or `genmcp`."""

"""The command: `python -m genmcp`, or `genmcp`. See `genmcp.cli.command`."""

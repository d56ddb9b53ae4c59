"""`python -m genmcp`: what there is to be done from a terminal."""

from genmcp.cli.command import main

main()

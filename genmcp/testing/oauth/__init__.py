"""The parts of `genmcp.testing.Issuer`. They share no code with genmcp's client and server."""

"""How fast genmcp is, beside a floor and its peers: `scripts/benchmark`."""

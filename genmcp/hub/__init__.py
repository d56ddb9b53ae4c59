"""Many servers as one: a hub that is a client of each, and a server of all."""

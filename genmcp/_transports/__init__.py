"""The transports: they read and write bytes, and perform the actions of `genmcp._core`."""

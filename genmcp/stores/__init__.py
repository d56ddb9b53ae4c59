"""Small values under a key, and logs that are replayed and followed: the interface and engines."""

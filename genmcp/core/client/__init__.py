"""The client side of the protocol as sans-IO state machines: bytes and events in, actions out."""

"""The server and the client that the official conformance suite tests."""

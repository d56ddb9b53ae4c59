"""The server and client under test in the official conformance suite."""

"""What the official conformance suite is run against."""

"""A client of many servers, which can also serve all of them as one server."""

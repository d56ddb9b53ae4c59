"""A client of many servers, which also serves them as one."""

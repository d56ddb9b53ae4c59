"""Named servers of this process, which are called without a transport or served as one server."""

"""Named servers of this process: called without a transport, or served as one."""

"""Resources: data that a client reads by its URI; single ones, repositories and folders."""

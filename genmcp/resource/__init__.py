"""Resources: what a client may read by its URI, one by one or a repository of them."""

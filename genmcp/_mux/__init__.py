"""The composition root: a server, a store, a secret and limits, made one."""

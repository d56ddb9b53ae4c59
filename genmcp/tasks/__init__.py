"""Background jobs and tasks: work that outlives its request."""

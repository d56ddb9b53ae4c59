"""Background jobs and tasks: work that outlives its request, and the engines that deliver it."""

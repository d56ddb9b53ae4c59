"""Work that outlives its request: jobs, what carries them, and the tasks that wait for them."""

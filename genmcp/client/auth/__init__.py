"""Authorization of a client: logins, and where their tokens are stored."""

"""The store in a SQLite file: durable, and shared by the processes of one machine."""

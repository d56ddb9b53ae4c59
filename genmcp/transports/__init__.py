"""Bytes in and out: reads, asks the core, performs what it says."""

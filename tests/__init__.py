"""The tests. A package, so that `tests` is this one and no other installed under that name."""

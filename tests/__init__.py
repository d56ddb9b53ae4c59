"""The tests. A package, so that `import tests` finds this one and no installed `tests`."""

"""Suites, one file per suite: tasks, their recipes for each family, and what papers report."""

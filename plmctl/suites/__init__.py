"""Suites, a YAML file each: tasks, their recipes, and what papers report."""

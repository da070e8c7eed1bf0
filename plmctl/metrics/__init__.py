"""Metrics of predictions: pure functions of NumPy arrays and plain types, one file per kind."""

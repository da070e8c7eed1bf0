"""What predictions are worth: pure functions of NumPy arrays and plain types, one file a kind."""

"""Heads of finetuned networks that transformers does not have, or runs otherwise, one file each."""

"""Heads of finetuned networks that transformers has no class for."""

"""plmctl: from raw text to a pretrained, finetuned and evaluated language model."""

__version__ = "0.1.0"

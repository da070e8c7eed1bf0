"""Language models used as they are, by what they are given to read: no finetuning."""

"""Finetuning tasks, one file per task: from rows to examples, batches, losses and answers."""

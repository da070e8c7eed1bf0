"""GLUE (Wang et al., 2019): eight tasks of English sentences, and what papers report on them."""

from plmctl.suites.base import Average, Column, Published, Suite, SuiteTask, recipes

_HUB = "nyu-mll/glue"
_TWO = "columns sentence1, sentence2, label"

TASKS = (
    SuiteTask("cola", f"{_HUB}, config cola", "columns sentence, label"),
    SuiteTask("sst2", f"{_HUB}, config sst2", "columns sentence, label"),
    SuiteTask("mrpc", f"{_HUB}, config mrpc", _TWO),
    SuiteTask("stsb", f"{_HUB}, config stsb", f"{_TWO} (0 to 5)"),
    SuiteTask("qqp", f"{_HUB}, config qqp", "columns question1, question2, label"),
    SuiteTask(
        "mnli",
        f"{_HUB}, config mnli (dev is validation_matched)",
        "columns premise, hypothesis, label",
        also={"dev_mismatched": f"hf:{_HUB}:mnli:validation_mismatched"},
    ),
    SuiteTask("qnli", f"{_HUB}, config qnli", "columns question, sentence, label"),
    SuiteTask("rte", f"{_HUB}, config rte", _TWO),
    SuiteTask("wnli", f"{_HUB}, config wnli", _TWO, asked_for=True),
)

COLUMNS = (
    Column("CoLA", "cola", "matthews", "Matthews correlation"),
    Column("SST-2", "sst2", "accuracy", "accuracy"),
    Column("MRPC F1", "mrpc", "f1", "F1 of label 1"),
    Column("MRPC", "mrpc", "accuracy", "accuracy"),
    Column("STS-B P", "stsb", "pearson", "Pearson correlation"),
    Column("STS-B S", "stsb", "spearman", "Spearman correlation"),
    Column("QQP F1", "qqp", "f1", "F1 of label 1"),
    Column("QQP", "qqp", "accuracy", "accuracy"),
    Column("MNLI-m", "mnli", "accuracy", "accuracy, matched genres"),
    Column("MNLI-mm", "mnli", "accuracy", "accuracy, mismatched genres", rows="dev_mismatched"),
    Column("QNLI", "qnli", "accuracy", "accuracy"),
    Column("RTE", "rte", "accuracy", "accuracy"),
    Column("WNLI", "wnli", "accuracy", "accuracy; in no average"),
)

_SINGLE = ("CoLA", "SST-2", "QNLI", "RTE")
_GLUE = (
    *((name,) for name in _SINGLE),
    ("MRPC F1", "MRPC"),
    ("STS-B P", "STS-B S"),
    ("QQP F1", "QQP"),
    ("MNLI-m", "MNLI-mm"),
)
_BERT = (*_SINGLE, "MRPC F1", "STS-B S", "QQP F1", "MNLI-m", "MNLI-mm")
_DEV = (*_SINGLE, "MRPC", "STS-B P", "QQP", "MNLI-m")

AVERAGES = (
    Average(
        "GLUE",
        _GLUE,
        "GLUE's own: mean over tasks, a task's two scores averaged first; without WNLI, which "
        "papers leave out, while the public leaderboard and T5's paper have it in their means",
    ),
    Average(
        "BERT's mean",
        tuple((name,) for name in _BERT),
        "as BERT's paper: nine columns, F1 of MRPC and QQP, Spearman, both genres of MNLI",
    ),
    Average(
        "dev mean",
        tuple((name,) for name in _DEV),
        "as the dev rows of RoBERTa and ALBERT: eight columns, accuracy, Pearson, matched genres",
    ),
)

_EIGHT = tuple(task.name for task in TASKS if not task.asked_for)
_BERTS = (*_EIGHT, "wnli")
_WNLI = ("wnli",)  # only BERT's recipes have it
_GPT1 = (
    "optim={lr: 6.25e-5, eps: 1e-8}",
    "schedule.warmup=0.2%",
    "train.max_length=512",
    "grid={}",
)
_SPANBERT = (
    "train.epochs=10",
    "optim.eps=1e-8",
    "schedule.name=linear",
    "train.group_by_length=true",
    "grid={optim.lr: [5e-6, 1e-5, 2e-5, 3e-5, 5e-5], train.batch_size: [16, 32]}",
)

RECIPES = {
    "bert": recipes("glue/bert", _BERTS),
    "distilbert": recipes("glue/distilbert", _EIGHT) | recipes("glue/bert", _WNLI),
    "spanbert": recipes("glue/spanbert", _EIGHT) | recipes("glue/bert", _WNLI, *_SPANBERT),
    # No paper has values for this: its biLM is frozen, and what is on top of it learns faster.
    "elmo": recipes("glue/bert", _BERTS, "optim.lr=1e-3", "grid={}"),
    "gpt1": recipes("glue/gpt1", _EIGHT) | recipes("glue/bert", _WNLI, *_GPT1),
    "gpt2": recipes("glue/bert", _BERTS),
    "gpt3": recipes("glue/bert", _BERTS),
    "roberta": recipes("glue/roberta", _EIGHT),
    "albert": recipes("glue/albert", _EIGHT),
    "t5": recipes("t5", _EIGHT),
}

# The order of the scores below; a dash where nothing was published.
_NAMES = (
    *("MNLI-m", "MNLI-mm", "QQP-F1", "QQP", "QNLI", "SST-2", "CoLA"),
    *("STS-B-P", "STS-B-S", "MRPC-F1", "MRPC", "RTE"),
)
_SPELT = {"QQP-F1": "QQP F1", "STS-B-P": "STS-B P", "STS-B-S": "STS-B S", "MRPC-F1": "MRPC F1"}


def _row(text: str) -> dict[str, float]:
    pairs = zip(_NAMES, text.split(), strict=True)
    return {_SPELT.get(name, name): float(value) for name, value in pairs if value != "-"}


_BERT_PAPER = "Devlin et al., 2019, table 1"
_BERT_README = "README of google-research/bert"
_DISTIL = (
    "README of transformers' distillation example, which does not tell the scores of QQP, MRPC "
    "and STS-B apart"
)
_FAIRSEQ = "README of fairseq's RoBERTa"
_ALBERT = "README of google-research/albert"
_T5 = "Raffel et al., 2020, table 14"

PUBLISHED = tuple(
    Published(model, family, split, source, _row(scores), shape)
    for model, family, split, source, scores, shape in (
        ("ELMo with BiLSTM", "elmo", "test", _BERT_PAPER,
         "76.4 76.1 64.8 - 79.8 90.4 36.0 - 73.3 84.9 - 56.8", None),
        ("GPT-1", "gpt1", "test", _BERT_PAPER,
         "82.1 81.4 70.3 - 87.4 91.3 45.4 - 80.0 82.3 - 56.0", (12, 768)),
        ("BERT-base uncased", "bert", "dev", _DISTIL,
         "84.7 - - 89.6 91.8 92.7 56.3 89.0 - 88.6 - 69.3", (12, 768)),
        ("BERT-base cased", "bert", "dev", "README of transformers' run_glue, 3 epochs",
         "83.91 84.10 87.49 90.71 90.66 92.32 56.53 88.64 88.48 88.85 84.07 65.70", (12, 768)),
        ("BERT-large", "bert", "dev", _ALBERT,
         "86.6 - - 91.3 92.3 93.2 60.6 90.0 - - 88.0 70.4", (24, 1024)),
        ("BERT-large wwm", "bert", "dev", _BERT_README,
         "87.07 - - - - - - - - - - -", (24, 1024)),
        ("BERT-base", "bert", "test", _BERT_PAPER,
         "84.6 83.4 71.2 - 90.5 93.5 52.1 - 85.8 88.9 - 66.4", (12, 768)),
        ("BERT-large", "bert", "test", _BERT_PAPER,
         "86.7 85.9 72.1 - 92.7 94.9 60.5 - 86.5 89.3 - 70.1", (24, 1024)),
        ("BERT-tiny", "bert", "test", _BERT_README,
         "70.2 70.3 62.2 83.4 81.5 83.2 0 74.3 - 81.1 - 57.2", (2, 128)),
        ("BERT-mini", "bert", "test", _BERT_README,
         "74.8 74.3 66.4 86.2 84.1 85.9 0 75.4 - 81.1 - 57.9", (4, 256)),
        ("BERT-small", "bert", "test", _BERT_README,
         "77.6 77.0 68.1 87.0 86.4 89.7 27.8 78.8 - 83.4 - 61.8", (4, 512)),
        ("BERT-medium", "bert", "test", _BERT_README,
         "80.0 79.1 69.6 87.9 87.7 89.6 38.0 80.4 - 86.6 - 62.2", (8, 512)),
        ("DistilBERT", "distilbert", "dev", _DISTIL,
         "82.1 - - 88.5 89.2 91.3 51.3 86.9 - 87.5 - 59.9", (6, 768)),
        ("RoBERTa-base", "roberta", "dev", _FAIRSEQ,
         "87.6 - - 91.9 92.8 94.8 63.6 91.2 - - 90.2 78.7", (12, 768)),
        ("RoBERTa-large", "roberta", "dev", _FAIRSEQ,
         "90.2 - - 92.2 94.7 96.4 68.0 92.4 - - 90.9 86.6", (24, 1024)),
        ("ALBERT-base v1", "albert", "dev", _ALBERT,
         "81.6 - - - - 90.3 - - - - - -", (12, 768)),
        ("ALBERT-base v2", "albert", "dev", _ALBERT,
         "84.6 - - - - 92.9 - - - - - -", (12, 768)),
        ("ALBERT-large v2", "albert", "dev", _ALBERT,
         "86.5 - - - - 94.9 - - - - - -", (24, 1024)),
        ("ALBERT-xlarge v2", "albert", "dev", _ALBERT,
         "87.9 - - - - 95.4 - - - - - -", (24, 2048)),
        ("ALBERT-xxlarge v1", "albert", "dev", _ALBERT,
         "90.8 - - 92.2 95.3 96.9 71.4 93.0 - - 90.9 89.2", (12, 4096)),
        ("T5-small", "t5", "test", _T5,
         "82.4 82.3 70.0 88.0 90.3 91.8 41.0 85.6 85.0 89.7 86.6 69.9", (6, 512)),
        ("T5-base", "t5", "test", _T5,
         "87.1 86.2 72.6 89.4 93.7 95.2 51.1 89.4 88.6 90.7 87.5 80.1", (12, 768)),
        ("T5-large", "t5", "test", _T5,
         "89.9 89.6 73.9 89.9 94.8 96.3 61.2 89.9 89.2 92.4 89.9 87.2", (24, 1024)),
        ("T5-3B", "t5", "test", _T5,
         "91.4 91.2 74.4 89.7 96.3 97.4 67.1 90.6 - 92.5 - 91.1", (24, 1024)),
        ("T5-11B", "t5", "test", _T5,
         "92.2 91.9 75.1 90.6 96.9 97.5 71.6 93.1 - 92.8 - 92.8", (24, 1024)),
    )
)  # fmt: skip


class Glue(Suite):
    """See ``title``."""

    title = "GLUE (Wang et al., 2019, arXiv:1804.07461)"
    tasks = TASKS
    columns = COLUMNS
    averages = AVERAGES
    recipes = RECIPES
    published = PUBLISHED

"""SQuAD 1.1 and 2.0 (Rajpurkar et al., 2016 and 2018): answers found in a text, or none there."""

from plmctl.suites.base import Average, Column, Published, Recipe, Suite, SuiteTask

TASKS = (
    SuiteTask(
        "squad",
        "rajpurkar/squad",
        "SQuAD's JSON, or columns question, context, answers",
        names=(("train-v1.1", "dev-v1.1"),),
    ),
    SuiteTask(
        "squad2",
        "rajpurkar/squad_v2",
        "SQuAD's JSON, or columns question, context, answers",
        names=(("train-v2.0", "dev-v2.0"),),
    ),
)

COLUMNS = (
    Column("1.1 EM", "squad", "exact_match", "exact match, SQuAD 1.1's script", 1),
    Column("1.1 F1", "squad", "f1", "F1 of words, SQuAD 1.1's script", 1),
    Column("2.0 EM", "squad2", "exact_match", "exact match, SQuAD 2.0's script", 1),
    Column("2.0 F1", "squad2", "f1", "F1 of words, SQuAD 2.0's script", 1),
)

AVERAGES: tuple[Average, ...] = ()  # papers give none

_BERT = {"squad": Recipe("squad.yaml"), "squad2": Recipe("squad2.yaml")}
_ROBERTA = (
    "optim={lr: 1.5e-5, betas: [0.9, 0.98], weight_decay: 0.01, decay: all, clip: null}",
    "schedule={name: linear, warmup: 6%}",
    "train.batch_size=48",
    "train.epochs=2",
    "train.max_length=512",
)
_ALBERT = ("train.batch_size=48", "train.epochs=2")
_ALBERT2 = ("optim.lr=3e-5", "train.epochs=3")
# The values of its README; optimizer, schedule and steps of one length as its run_squad.py.
_SPANBERT = (
    "optim.lr=2e-5",
    "optim.eps=1e-8",
    "schedule.name=linear",
    "train.batch_size=32",
    "train.epochs=4",
    "train.max_length=512",
    "train.group_by_length=true",
)

RECIPES = {
    "bert": _BERT,
    "distilbert": _BERT,
    "gpt2": _BERT,
    "gpt3": _BERT,
    "roberta": {task: Recipe(f"{task}.yaml", _ROBERTA) for task in _BERT},
    "spanbert": {task: Recipe(f"{task}.yaml", _SPANBERT) for task in _BERT},
    "albert": {"squad": Recipe("squad.yaml", _ALBERT), "squad2": Recipe("squad2.yaml", _ALBERT2)},
    "t5": {"squad": Recipe("t5/squad.yaml")},
}

_ALBERT_README = "README of google-research/albert"
_T5 = "Raffel et al., 2020, table 14"


def _row(text: str) -> dict[str, float]:
    names = [column.name for column in COLUMNS]
    pairs = zip(names, text.split(), strict=True)
    return {name: float(value) for name, value in pairs if value != "-"}


PUBLISHED = tuple(
    Published(model, family, split, source, _row(scores), shape)
    for model, family, split, source, scores, shape in (
        ("BERT-base", "bert", "dev", "Devlin et al., 2019; 2.0: README of SpanBERT",
         "80.8 88.5 - 76.5", (12, 768)),
        ("BERT-large", "bert", "dev", "Devlin et al., 2019", "84.1 90.9 78.7 81.9", (24, 1024)),
        ("BERT-large", "bert", "dev", _ALBERT_README, "84.1 90.9 79.0 81.8", (24, 1024)),
        ("BERT-large wwm", "bert", "dev", "README of google-research/bert",
         "86.7 92.8 - -", (24, 1024)),
        ("DistilBERT", "distilbert", "dev", "Sanh et al., 2019", "77.7 85.8 - -", (6, 768)),
        ("RoBERTa-large", "roberta", "dev", "README of fairseq's RoBERTa",
         "88.9 94.6 86.5 89.4", (24, 1024)),
        ("ALBERT-base v1", "albert", "dev", _ALBERT_README, "82.3 89.3 77.1 80.0", (12, 768)),
        ("ALBERT-base v2", "albert", "dev", _ALBERT_README, "83.2 90.2 79.3 82.1", (12, 768)),
        ("ALBERT-large v1", "albert", "dev", _ALBERT_README, "83.9 90.6 79.4 82.3", (24, 1024)),
        ("ALBERT-large v2", "albert", "dev", _ALBERT_README, "85.2 91.8 81.8 84.9", (24, 1024)),
        ("ALBERT-xlarge v1", "albert", "dev", _ALBERT_README, "86.1 92.5 83.1 86.1", (24, 2048)),
        ("ALBERT-xlarge v2", "albert", "dev", _ALBERT_README, "86.4 92.9 84.1 87.9", (24, 2048)),
        ("ALBERT-xxlarge v1", "albert", "dev", _ALBERT_README, "89.3 94.8 87.4 90.2", (12, 4096)),
        ("ALBERT-xxlarge v2", "albert", "dev", _ALBERT_README, "89.1 94.6 86.9 89.8", (12, 4096)),
        ("SpanBERT-base", "spanbert", "dev", "README of SpanBERT", "- 92.4 - 83.6", (12, 768)),
        ("SpanBERT-large", "spanbert", "test", "README of SpanBERT", "- 94.6 - 88.7", (24, 1024)),
        ("T5-small", "t5", "dev", _T5, "79.10 87.24 - -", (6, 512)),
        ("T5-base", "t5", "dev", _T5, "85.44 92.08 - -", (12, 768)),
        ("T5-large", "t5", "dev", _T5, "86.66 93.79 - -", (24, 1024)),
        ("T5-3B", "t5", "dev", _T5, "88.53 94.95 - -", (24, 1024)),
        ("T5-11B", "t5", "dev", _T5, "91.26 96.22 - -", (24, 1024)),
    )
)  # fmt: skip


class Squad(Suite):
    """See ``title``."""

    title = "SQuAD 1.1 and 2.0 (Rajpurkar et al., 2016, arXiv:1606.05250; 2018, arXiv:1806.03822)"
    tasks = TASKS
    columns = COLUMNS
    averages = AVERAGES
    recipes = RECIPES
    published = PUBLISHED

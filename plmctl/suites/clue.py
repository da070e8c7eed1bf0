"""Chinese tasks: five classifications of CLUE (Xu et al., 2020) and CMRC 2018's questions."""

from plmctl.suites.base import Average, Column, Published, Recipe, Suite, SuiteTask, recipes

_HUB = "clue/clue"

TASKS = (
    SuiteTask("afqmc", f"{_HUB}, config afqmc", "columns sentence1, sentence2, label"),
    SuiteTask("tnews", f"{_HUB}, config tnews", "columns sentence, label"),
    SuiteTask("iflytek", f"{_HUB}, config iflytek", "columns sentence, label"),
    SuiteTask("cmnli", f"{_HUB}, config cmnli", "columns sentence1, sentence2, label"),
    SuiteTask("ocnli", f"{_HUB}, config ocnli", "columns sentence1, sentence2, label"),
    SuiteTask(
        "cmrc2018",
        f"{_HUB}, config cmrc2018",
        "SQuAD's JSON, or columns question, context, answers",
        names=(("cmrc2018_train", "cmrc2018_dev"),),
    ),
)

COLUMNS = (
    Column("AFQMC", "afqmc", "accuracy", "accuracy"),
    Column("TNEWS", "tnews", "accuracy", "accuracy"),
    Column("IFLYTEK", "iflytek", "accuracy", "accuracy"),
    Column("CMNLI", "cmnli", "accuracy", "accuracy"),
    Column("OCNLI", "ocnli", "accuracy", "accuracy"),
    Column("CMRC EM", "cmrc2018", "exact_match", "exact match, CMRC 2018's script", 1),
    Column("CMRC F1", "cmrc2018", "f1", "F1 of characters, CMRC 2018's script", 1),
)

_FIVE = ("afqmc", "tnews", "iflytek", "cmnli", "ocnli")

AVERAGES = (
    Average(
        "mean of five",
        tuple((name,) for name in ("AFQMC", "TNEWS", "IFLYTEK", "CMNLI", "OCNLI")),
        "of the classifications here; CLUE's own score has CSL and WSC too",
    ),
)

_CLASSES = recipes("clue", _FIVE)
_CMRC = {"cmrc2018": Recipe("cmrc2018.yaml")}

RECIPES = {
    **{family: {**_CLASSES, **_CMRC} for family in ("bert", "distilbert", "roberta", "albert")},
    **{family: {**_CLASSES, **_CMRC} for family in ("spanbert", "gpt2", "gpt3")},
    "gpt1": _CLASSES,
    "elmo": recipes("clue", _FIVE, "optim.lr=1e-3", "grid={}"),  # as in glue
}

_CLUE = "README of CLUEbenchmark/CLUE"
_WWM = "README of ymcui/Chinese-BERT-wwm, best of ten runs"


def _row(text: str) -> dict[str, float]:
    names = [column.name for column in COLUMNS]
    pairs = zip(names, text.split(), strict=True)
    return {name: float(value) for name, value in pairs if value != "-"}


# All of them are networks of BERT's kind, RoBERTa-wwm-ext too.
PUBLISHED = tuple(
    Published(model, "bert", split, source, _row(scores), shape)
    for model, split, source, scores, shape in (
        ("BERT-base", "test", _CLUE, "73.70 56.58 60.29 79.69 - - -", (12, 768)),
        ("BERT-wwm-ext", "test", _CLUE, "74.07 56.84 59.43 80.42 - - -", (12, 768)),
        ("BERT-base", "dev", _WWM, "- - - - - 65.5 84.5", (12, 768)),
        ("BERT-wwm", "dev", _WWM, "- - - - - 66.3 85.6", (12, 768)),
        ("BERT-wwm-ext", "dev", _WWM, "- - - - - 67.1 85.7", (12, 768)),
        ("RoBERTa-wwm-ext", "dev", _WWM, "- - - - - 67.4 87.2", (12, 768)),
        ("RoBERTa-wwm-large", "dev", _WWM, "- - - - - 68.5 88.4", (24, 1024)),
    )
)  # fmt: skip


class Clue(Suite):
    """See ``title``."""

    title = (
        "Tasks of CLUE (Xu et al., 2020, arXiv:2004.05986) and CMRC 2018 (Cui et al., 2019, "
        "arXiv:1810.07366)"
    )
    tasks = TASKS
    columns = COLUMNS
    averages = AVERAGES
    recipes = RECIPES
    published = PUBLISHED

"""A net for moves: what command lines do, recorded, and compared after every change.

Code may move as long as the files beside this one stay as they are. Nothing of the package is
imported but its ``main``. ``make golden`` records again; what changed is then in the diff, and why
belongs in CHANGELOG.md. Floats may differ by 1e-4, relatively, since another processor adds in
another order; with GOLDEN_EXACT=1 all nine recorded digits must be the same.
"""

import contextlib
import difflib
import hashlib
import io
import json
import math
import os
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import yaml

from plmctl.__main__ import main
from tests.conftest import made_once

RECORDED = Path(__file__).parent
CONFIGS = RECORDED.parents[1] / "configs"
RECORD, EXACT = (os.environ.get(name) == "1" for name in ("GOLDEN_RECORD", "GOLDEN_EXACT"))
SHOWN = 5  # differences of an entry, of the many that one cause may have
GONE = "(not there)"
STEPS = 20
VOCAB_SIZE = 30_000  # of `plan`: any will do
TIMES = (
    "tokens_per_second",
    "samples_per_second",
    "mfu",
    "data_wait",
    "memory_gb",
    "time",
    "seconds",
    "checksum",  # of the others
)

pytestmark = pytest.mark.slow

# What a process does in one go. All share one world, whose folders are made once.
TEXT_GROUP = pytest.mark.xdist_group("golden-text")
PRETRAINING_GROUP = pytest.mark.xdist_group("golden-pretraining")
FINETUNING_GROUP = pytest.mark.xdist_group("golden-finetuning")


# ---- What is recorded, and how it is compared ----------------------------------------------------


def check(name: str, document: dict) -> None:
    """Compare with what is recorded under a name; while recording, write it."""
    path = RECORDED / f"{name}.json"
    digits = json.dumps(document)
    document = json.loads(digits, parse_float=lambda text: float(f"{float(text):.9g}"))
    if RECORD:
        path.write_text(laid_out(document) + "\n", encoding="utf-8")
        return
    was = json.loads(path.read_text(encoding="utf-8"))
    lines: list[str] = []
    for entry in sorted({*was, *document}):
        different = differences(was.get(entry, GONE), document.get(entry, GONE))
        if different:
            more = [f"  ... and {len(different) - SHOWN} more"] * (len(different) > SHOWN)
            lines += [f"{entry}: {len(different)} different", *different[:SHOWN], *more]
    report(path, lines)


def check_text(name: str, text: str) -> None:
    """The same, of a text."""
    path = RECORDED / f"{name}.txt"
    if RECORD:
        path.write_text(text, encoding="utf-8")
        return
    was = path.read_text(encoding="utf-8").splitlines()
    report(path, [*difflib.unified_diff(was, text.splitlines(), lineterm="", n=2)][:200])


def report(path: Path, lines: list[str]) -> None:
    if lines:
        pytest.fail("\n".join([f"not as recorded in {path.name}:", *lines]), pytrace=False)


def differences(was: Any, now: Any) -> list[str]:
    """Where two documents differ, as ``  place: was -> is``."""
    old, new = leaves(was), leaves(now)
    return [
        f"  {place}: {old.get(place, GONE)} -> {new.get(place, GONE)}"
        for place in {**old, **new}
        if not same(old.get(place, GONE), new.get(place, GONE), BOUND.search(place) is not None)
    ]


# A bound of an interval by resampling: predictions that differ in the last bits differ more in the
# resample that is the bound (by 1.1e-4 on a CPU with AMX).
BOUND = re.compile(r"[._](low|high)$")


def same(was: Any, now: Any, bound: bool = False) -> bool:
    if type(was) is type(now) is float and not EXACT:
        return math.isclose(was, now, rel_tol=2e-4 if bound else 1e-4, abs_tol=1e-6)
    return type(was) is type(now) and was == now


def leaves(document: Any, place: str = "") -> dict[str, Any]:
    """Values by place, as in ``runs.bert[3].loss``."""
    if not document or not isinstance(document, dict | list):
        return {place: document}
    values: dict[str, Any] = {}
    if isinstance(document, dict):
        for key, value in document.items():
            values |= leaves(value, f"{place}.{key}" if place else key)
        return values
    for number, value in enumerate(document):
        values |= leaves(value, f"{place}[{number}]")
    return values


def laid_out(document: Any, indent: str = "") -> str:
    """As JSON with sorted keys, where what fits on a line is on one."""
    line = json.dumps(document, ensure_ascii=False, sort_keys=True)
    if not isinstance(document, dict | list) or len(indent) + len(line) <= 160:
        return line
    deeper = indent + " "
    if isinstance(document, dict):
        parts = [
            f"{json.dumps(key)}: {laid_out(document[key], deeper)}" for key in sorted(document)
        ]
    else:
        parts = [laid_out(item, deeper) for item in document]
    start, end = "{}" if isinstance(document, dict) else "[]"
    return f"{start}\n{deeper}" + f",\n{deeper}".join(parts) + f"\n{indent}{end}"


# ---- A small world: texts, rows, and the commands that run in it ---------------------------------

NAMES = ["Anna", "Bela", "Carl", "Dora", "Emil", "Fritz", "Gerda", "Hugo", "Ida", "Jonas"]
VERBS = ["sees", "likes", "follows", "greets", "forgets", "paints", "calls", "helps"]
PLACES = ["garden", "river", "market", "tower", "bridge", "forest", "harbour", "station"]
ZH_NAMES = ["安娜", "贝拉", "卡尔", "朵拉", "埃米尔", "弗里茨", "格尔达", "雨果", "伊达", "约纳斯"]
ZH_VERBS = ["看见", "喜欢", "跟着", "问候", "忘记", "画", "呼唤", "帮助"]
ZH_PLACES = ["花园", "河边", "市场", "塔楼", "桥上", "森林", "港口", "车站"]


def kind_of(number: int) -> str:
    """One of some hundred made-up words, which have parts in common."""
    stems = ["bar", "kel", "mur", "tin", "sul", "ga", "rovi", "den", "osta", "pri", "lum"]
    ends = ["ish", "en", "ful", "less", "ing", "ous", "able"]
    middle = stems[number * 5 % 11] if number % 3 else ""
    return stems[number % 11] + middle + ends[number % 7]


def english(number: int) -> str:
    a, b, place = NAMES[number % 10], NAMES[(number * 7 + 3) % 10], PLACES[(number // 3) % 8]
    return f"{a} {VERBS[number % 8]} {b} at the {kind_of(number)} {place} on day {number % 31}."


def chinese(number: int) -> str:
    a, b = ZH_NAMES[number % 10], ZH_NAMES[(number * 7 + 3) % 10]
    return f"{a}第{number % 31}天在{ZH_PLACES[(number // 3) % 8]}{ZH_VERBS[number % 8]}{b}。"


def code(number: int) -> str:
    a, b = NAMES[number % 10].lower(), PLACES[(number * 5) % 8]
    return (
        f"def {a}_{number}({b}):\n    if {b} > {number}:\n"
        f"\t\treturn  {b} * {number}.5  # Mr. {a}!\n"
        f'\n    {b} = "{NAMES[number % 10]}\\n"\r\n    return {b}\n'
    )


def documents(sentence: Callable[[int], str], between: str, start: int, count: int) -> list[str]:
    """Of 2 to 9 sentences each."""
    return [
        between.join(sentence(d * 17 + s) for s in range(2 + d * 5 % 8))
        for d in range(start, start + count)
    ]


TEXTS = {
    "lines.txt": "\n\n".join(documents(english, "\n", 0, 60)) + "\n",
    "prose.txt": "\n\n".join(documents(english, " ", 60, 40)) + "\n",
    "chinese.txt": "\n\n".join(documents(chinese, "", 0, 50)) + "\n",
    "other.txt": "\n\n".join(documents(english, " ", 200, 12)) + "\n",
    "mixed.jsonl": [
        *({"text": text} for text in documents(english, " ", 100, 20)),
        *({"text": text} for text in documents(english, "\n\n", 120, 4)),
        *({"text": text} for text in documents(chinese, "", 50, 4)),
        *({"text": text} for text in documents(code, "\n", 0, 16)),
    ],
}
ALL = list(TEXTS)


def mood(number: int) -> str:
    return ["calm", "glad"][VERBS[number % 8] in ("sees", "likes", "helps", "greets")]


def question(number: int) -> dict:
    """Where somebody is; every fourth question has no answer."""
    context = " ".join(english(number * 3 + k) for k in range(3))
    words = english(number * 3 + 1).split()
    known = number % 4 != 3
    text = f"Where does {words[0]} see somebody?" if known else "Who wrote it?"
    place = " ".join(words[5:7])
    start = context.index(english(number * 3 + 1)) + english(number * 3 + 1).index(place)
    answers = {"text": [place] * known, "answer_start": [start] * known}
    return {"id": f"q{number}", "question": text, "context": context, "answers": answers}


def tagged(number: int) -> dict:
    words = english(number).replace(".", " .").split()
    kinds = {0: "B-PER", 2: "B-PER", 5: "B-LOC", 6: "I-LOC"}
    return {"tokens": words, "tags": [kinds.get(at, "O") for at in range(len(words))]}


def tree(number: int) -> dict:
    """Everything hangs on the second word, or on the last but one."""
    words = english(number).replace(".", " .").split()
    root = 2 if number % 3 else len(words) - 1
    heads = [0 if at == root else root for at in range(1, len(words) + 1)]
    relations = ["root" if head == 0 else ("obl:x", "dep")[at % 2] for at, head in enumerate(heads)]
    return {"tokens": words, "head": heads, "deprel": relations}


ROWS: dict[str, Callable[[int], dict]] = {
    "single": lambda n: {"text": english(n), "label": mood(n)},
    "pair": lambda n: {
        "premise": english(n),
        "hypothesis": english(n + n % 3 % 2),
        "label": ["same", "other"][n % 3 % 2],
    },
    "several": lambda n: {
        "text": english(n),
        "labels": [PLACES[(n // 3) % 8], mood(n)][: 1 + n % 2],
    },
    "number": lambda n: {"text": english(n), "label": n % 31 / 10},
    "choice": lambda n: {
        "question": english(n).rsplit(" at ", 1)[0] + " at the _",
        "options": [[PLACES, NAMES, VERBS][(k - n) % 3][(n + k) % 8] for k in range(3)],
        "label": n % 3,
    },
    "question": question,
    "tagged": tagged,
    "tree": tree,
    "lemmas": lambda n: {
        "tokens": english(n).split(),
        "lemma": [word.lower().removesuffix("s") for word in english(n).split()],
    },
    "written": lambda n: {"source": english(n), "target": f"{mood(n)} {PLACES[(n // 3) % 8]}"},
    "rte": lambda n: {"sentence1": english(n), "sentence2": english(n + n % 2), "label": n % 2},
    "minimal": lambda n: {
        "sentence_good": english(n),
        "sentence_bad": " ".join(reversed(english(n).split())),
    },
    "passage": lambda n: {"text": f"{english(n)} {english(n).rsplit(' on ', 1)[0]}"},
    "known": lambda n: {
        "question": f"Where is {NAMES[n % 10]}?",
        "answers": [PLACES[(n // 3) % 8], "there"],
    },
}


@pytest.fixture(scope="session")
def world(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with texts and rows: training rows, and others to score."""
    return made_once(tmp_path_factory, "golden/texts", write_texts)


def write_texts(folder: Path) -> None:
    for name, text in TEXTS.items():
        if isinstance(text, str):
            (folder / name).write_text(text, encoding="utf-8", newline="")
        else:
            write_rows(folder / name, text)
    for name, row in ROWS.items():
        write_rows(folder / f"{name}.jsonl", [row(n) for n in range(96)])
        write_rows(folder / f"{name}-valid.jsonl", [row(n) for n in range(101, 117)])


def write_rows(path: Path, rows: list[dict]) -> None:
    lines = [json.dumps(row, ensure_ascii=False) for row in rows]
    path.write_text("\n".join(lines) + "\n", encoding="utf-8")


def command(world: Path, *arguments: str, code: int = 0) -> str:
    """What a command line prints; it runs in the world and ends with that exit code."""
    out, err = io.StringIO(), io.StringIO()
    with (
        pytest.MonkeyPatch.context() as patch,
        contextlib.redirect_stdout(out),
        contextlib.redirect_stderr(err),
    ):
        patch.chdir(world)
        patch.setattr("sys.argv", ["plmctl", *arguments])
        try:
            main()
            ended = 0
        except SystemExit as stop:
            ended = int(stop.code or 0)
    assert ended == code, f"plmctl {' '.join(arguments)}: exit code {ended}\n{err.getvalue()}"
    return out.getvalue()


def result(world: Path, *arguments: str) -> dict:
    """The JSON document of a command, without what depends on the moment."""
    return timeless(json.loads(command(world, *arguments, "--json")))


def timeless(document: Any) -> Any:
    if isinstance(document, dict):
        return {key: timeless(value) for key, value in document.items() if key not in TIMES}
    return [timeless(item) for item in document] if isinstance(document, list) else document


def written(world: Path, name: str, config: dict) -> str:
    """A config as a file in the world."""
    path = world / f"{name}.yaml"
    path.write_text(yaml.safe_dump(config, allow_unicode=True), encoding="utf-8")
    return str(path)


def metrics(run: Path) -> list[dict]:
    """The log of a run."""
    lines = (run / "metrics.jsonl").read_text(encoding="utf-8").splitlines()
    return [timeless(json.loads(line)) for line in lines]


def sha256(path: Path) -> str:
    return hashlib.sha256(path.read_bytes()).hexdigest()


# ---- Tokenizers and token stores -----------------------------------------------------------------

TOKENIZERS: dict[str, dict] = {
    "bert": {"algorithm": "wordpiece", "family": "bert", "vocab_size": 320},
    "bert-cased": {
        "algorithm": "wordpiece",
        "family": "bert",
        "vocab_size": 340,
        "lowercase": False,
        "special_tokens": ["<own>"],
    },
    "gpt2": {"algorithm": "byte_bpe", "family": "gpt2", "vocab_size": 500},
    "roberta": {"algorithm": "byte_bpe", "family": "roberta", "vocab_size": 500},
    "gpt1": {"algorithm": "bpe", "family": "gpt1", "vocab_size": 400},
    "albert": {"algorithm": "unigram", "family": "albert", "vocab_size": 300},
    "t5": {"algorithm": "unigram", "family": "t5", "vocab_size": 320, "sentinels": 20},
    "elmo": {"algorithm": "word", "family": "elmo", "vocab_size": 200},
    "modernbert": {"algorithm": "byte_bpe", "family": "modernbert", "vocab_size": 500},
    "deberta": {"algorithm": "unigram", "family": "deberta", "vocab_size": 300},
    "gpt2-mask": {
        "algorithm": "byte_bpe",
        "family": "gpt2",
        "vocab_size": 500,
        "special_tokens": ["<mask>"],
    },
}


@pytest.fixture(scope="session")
def tokenizers(world: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The world, with a tokenizer of each kind."""
    return made_once(tmp_path_factory, "golden/tokenizers", train_tokenizers)


def train_tokenizers(world: Path) -> None:
    for name, fields in TOKENIZERS.items():
        config = {"run": f"tok-{name}", **fields, "data": {"train": ALL}}
        command(world, "train-tokenizer", written(world, f"tok-{name}", config))


@TEXT_GROUP
def test_tokenizers(tokenizers: Path) -> None:
    """Hashes of their files, and how well they fit a text, which says how far apart two are."""
    world, results = tokenizers, dict[str, Any]()
    for name in TOKENIZERS:
        fit = result(
            world,
            "compare-tokenizers",
            f"tok-{name}",
            "--text",
            "other.txt",
            "--text",
            "chinese.txt",
        )
        results[name] = {
            "files": hashes(world / f"tok-{name}"),
            "quality": fit["tokenizers"],
            "samples": fit["samples"][:2],
        }
    more = {**TOKENIZERS["gpt2"], "run": "tok-more", "vocab_size": 540}
    config = written(world, "tok-more", {**more, "data": {"train": ["lines.txt"]}})
    command(world, "train-tokenizer", config, "--from", "tok-gpt2")
    results["gpt2 extended"] = {"files": hashes(world / "tok-more")}
    check("tokenizers", results)


# Unigram tokenizers as another CPU writes them (AVX2 or AVX-512), and as they were recorded: their
# scores are sums of floats. What the first does is the same; the second gives texts other ids.
OF_ANOTHER_CPU = {
    "8498ee8396de8311e972a1297cb7fa4578f5d96e6d5d415082f7806ac12369b5": (
        "713610f2ebf6d5cba6e1561b14c206a5943f0f1cfa4e5e4187466fafcca625fe"
    ),
    "e45601f6906df602c75a255b6a07a53eb7b7f24bceeb5ae099d644187f85fc7d": (
        "c414d61c87af920e4dbaba3d3976cc21e0e614f7a4b266990ca7157ec8204d6f"
    ),
}
OTHER_IDS = "deberta"
BY_CPU = ("AVX2", "AVX-512")


def hashes(tokenizer: Path) -> dict[str, str]:
    """Of the files that are the tokenizer's, and none of the run's."""
    files = {
        path.name: hashlib.sha256(path.read_bytes()).hexdigest()
        for path in sorted(tokenizer.glob("*"))
        if path.name.startswith(("tokenizer", "special_tokens", "vocab", "merges", "words"))
    }
    return {name: OF_ANOTHER_CPU.get(found, found) for name, found in files.items()}


FAMILY_OF = {"bert-cased": "bert", "gpt2-mask": "gpt2"}
"""Of tokenizers; that of the others has their name."""
COMPUTE = {"device": "cpu", "precision": "fp32", "threads": 1, "workers": 0}
ENCODER = {"hidden_size": 32, "num_attention_heads": 2, "initializer_range": 0.1}
DECODER = {"n_embd": 32, "n_head": 2, "n_positions": 64, "initializer_range": 0.1}
ROTARY = {"hidden_size": 32, "num_attention_heads": 2, "initializer_range": 0.1}
SMALL: dict[str, dict] = {
    "bert": {**ENCODER, "family": "bert"},
    "roberta": {**ENCODER, "family": "roberta"},
    "albert": {**ENCODER, "family": "albert", "embedding_size": 16},
    "spanbert": {**ENCODER, "family": "spanbert"},
    "distilbert": {"family": "distilbert", "dim": 32, "n_heads": 2, "initializer_range": 0.1},
    "gpt1": {**DECODER, "family": "gpt1"},
    "gpt2": {**DECODER, "family": "gpt2"},
    "gpt3": {**DECODER, "family": "gpt3"},
    "t5": {"family": "t5", "version": "v1.1", "d_model": 32, "num_heads": 2, "d_ff": 48},
    "gpt_bert": {**ROTARY, "family": "llama"},
    "elmo": {"family": "elmo", "projection_size": 16, "cell_size": 24},
    "electra": {**ENCODER, "family": "electra", "embedding_size": 16},
    "llama": {**ROTARY, "family": "llama", "num_key_value_heads": 1},
    "modernbert": {**ROTARY, "family": "modernbert"},
    "qwen3": {**ROTARY, "family": "qwen3"},
    "deberta": {**ENCODER, "family": "deberta"},
    "auto": {**ENCODER, "family": "auto", "intermediate_size": 64},
}
"""Tiny networks, with weights so large that they learn in a few steps."""


def pretraining(tokenizer: str, family: str, data: dict, **changes: Any) -> dict:
    """A config, of some steps of 8 sequences of 32 tokens."""
    return {
        "run": "never",
        "tokenizer": f"tok-{tokenizer}",
        "model": {"size": "tiny", **SMALL[family]},
        "data": {"store": "stores", **data},
        "train": {"batch_size": 8, "phases": [{"seq_len": 32, "steps": STEPS}]},
        "compute": COMPUTE,
        **changes,
    }


SENTENCES = {  # by rule, a text that it is for
    "auto": {"train": ["lines.txt"]},
    "line": {"train": ["mixed.jsonl"]},
    "en": {"train": ["mixed.jsonl"]},
    "zh": {"train": ["chinese.txt"]},
    "none": {"train": ["mixed.jsonl"]},
}
MIXTURE = {
    "mixture": [
        {"name": "en", "train": ["prose.txt"], "weight": 2},
        {"name": "zh", "train": ["chinese.txt"], "weight": 1},
    ],
    "valid": 0.2,
}


@TEXT_GROUP
def test_token_stores(tokenizers: Path) -> None:
    """Manifests of stores: of each tokenizer and rule for sentences, held out and mixed."""
    wanted = {
        f"{name}, {rule}": (name, {**text, "sentences": rule, "valid": 0.2})
        for name in TOKENIZERS
        for rule, text in SENTENCES.items()
    }
    text = SENTENCES["auto"]
    wanted |= {
        "bert, no validation": ("bert", {**text, "valid": None}),
        "bert, own validation": ("bert", {**text, "valid": ["other.txt"]}),
        "bert, mixture": ("bert", MIXTURE),
        "albert, albert words": ("albert", {**text, "valid": 0.2, "words": "albert"}),
        "bert, documents are lines": ("bert", {**text, "valid": 0.2, "documents": "line"}),
    }
    before = json.loads((RECORDED / "token-stores.json").read_text(encoding="utf-8"))
    results = {}
    for name, (tokenizer, data) in wanted.items():
        family = FAMILY_OF.get(tokenizer, tokenizer)
        config = pretraining(tokenizer, family, data)
        if family == "gpt1":  # its tokenizer has no end-of-text token
            config["objective"] = {"name": "clm", "separator": "none"}
        built = result(tokenizers, "prepare", written(tokenizers, "store", config))
        folders = [tokenizers / folder for folder in built.pop("folder").split(", ")]
        sides = [side for folder in folders for side in (folder, folder.with_name("valid"))]
        if tokenizer == OTHER_IDS:  # what the other kind of CPU gives stays as it was recorded
            ids = (tokenizers / f"tok-{tokenizer}" / "tokenizer.json").read_bytes()
            here = hashlib.sha256(ids).hexdigest() in OF_ANOTHER_CPU
            other = f"{name}, {BY_CPU[not here]}"
            results |= {other: before[other]} if other in before else {}
            name = f"{name}, {BY_CPU[here]}"
        results[name] = {**built, "manifests": [manifest(side) for side in sides]}
    check("token-stores", results)


def manifest(side: Path) -> dict | None:
    """What a token store says of itself; None: there is none."""
    path = side / "manifest.json"
    return json.loads(path.read_text(encoding="utf-8")) if path.is_file() else None


# ---- Examples of pretraining ---------------------------------------------------------------------

LINES, MIXED = {"train": ["lines.txt"], "valid": 0.2}, {"train": ["mixed.jsonl"], "valid": 0.2}
MLM: dict[str, dict] = {
    "static": {"masking": "static", "duplicates": 2},
    "words": {"unit": "word"},
    "ngrams": {"unit": "ngram", "favor_shorter": False},
    "specials": {"mask_specials": True, "random_specials": False, "count": "probabilistic"},
    "few": {"rate": 0.3, "max_predictions": 4, "mask_share": 0.5, "random_share": 0.5},
    "full_sentences": {"packing": "full_sentences"},
    "doc_sentences": {"packing": "doc_sentences"},
    "segment_pair": {"packing": "segment_pair"},
}
GPT_BERT = [{"name": "clm", "z_loss": 1e-4}, {"name": "mntp", "weight": 3, "z_loss": 1e-4}]
UL2 = [
    {"name": "span_corruption"},
    {"name": "span_corruption", "density": 0.5, "mean_span": 5, "weight": 2},
    {"name": "prefix_lm"},
]
OBJECTIVES: dict[str, tuple[str, str, dict, dict]] = {
    "mlm": ("bert", "bert", {}, LINES),
    **{f"mlm, {name}": ("roberta", "roberta", fields, MIXED) for name, fields in MLM.items()},
    "mlm, Chinese words": (
        "bert",
        "bert",
        {"unit": "word"},
        {"train": ["chinese.txt"], "words": "jieba"},
    ),
    "mlm, mixture": ("bert", "bert", {}, MIXTURE),
    "mlm+nsp": ("bert", "bert", {}, LINES),
    "mlm+nsp, static": ("bert", "bert", {"masking": "static", "short_seq_prob": 0.5}, MIXED),
    "mlm+nsp, mixture": ("bert", "bert", {}, MIXTURE),
    "mlm+sop": ("albert", "albert", {}, LINES),
    "mlm+sop, skip": ("albert", "albert", {"single_sentence": "skip", "unit": "token"}, MIXED),
    "mlm+sbo": ("bert-cased", "spanbert", {}, LINES),
    "mlm+sbo, long": ("bert-cased", "spanbert", {"rate": 0.4, "span_p": 0.1}, MIXED),
    "mlm+rtd": ("bert", "electra", {}, LINES),
    "mlm+rtd, deberta": ("deberta", "deberta", {"mask_share": 1, "rtd_weight": 10}, LINES),
    "distillation": ("bert", "distilbert", {"teacher": "bert/model"}, LINES),
    "distillation, plain": (
        "bert",
        "distilbert",
        {"teacher": "bert/model", "smoothing": 0, "unit": "word"},
        MIXED,
    ),
    "clm": ("gpt2", "gpt2", {}, MIXED),
    "clm, within": ("gpt2", "gpt3", {"attention": "within"}, MIXED),
    "clm, no separator": ("gpt1", "gpt1", {"separator": "none"}, LINES),
    "clm, mixture": ("gpt2", "gpt2", {}, MIXTURE),
    "mntp": ("gpt2-mask", "gpt2", {}, MIXED),
    "mntp, within": ("gpt2-mask", "llama", {"attention": "within", "rate": 0.3}, MIXED),
    "mixture": ("gpt2-mask", "llama", {"of": GPT_BERT}, MIXED),
    "mixture, mixture": ("gpt2-mask", "gpt2", {"of": GPT_BERT}, MIXTURE),
    "mixture, UL2": ("t5", "t5", {"of": UL2}, MIXED),
    "span_corruption": ("t5", "t5", {}, MIXED),
    "span_corruption, long": ("t5", "t5", {"density": 0.5, "mean_span": 5}, LINES),
    **{
        f"iid_denoising, {style}": ("t5", "t5", {"style": style, "density": 0.25}, MIXED)
        for style in ("replace_spans", "bert", "mass", "drop_tokens")
    },
    "prefix_lm": ("t5", "t5", {}, MIXED),
    "deshuffling": ("t5", "t5", {}, MIXED),
    "bilm": ("elmo", "elmo", {}, LINES),
    "bilm, sampled": ("elmo", "elmo", {"softmax": "sampled", "samples": 32}, LINES),
    "bilm, in order": ("elmo", "elmo", {"shuffle": False, "target_words": 60}, MIXED),
}
"""By name: tokenizer, family, fields of the objective, text."""
TRAIN: dict[str, dict] = {
    "mlm+nsp, two lengths": {
        "batch_size": 8,
        "phases": [{"seq_len": 16, "steps": 12}, {"seq_len": 32, "steps": 8}],
    },
    "clm, growing": {
        "batch_size": 8,
        "batch_ramp": {"start": 2, "tokens": 2000},
        "phases": [{"seq_len": 32, "steps": STEPS}],
    },
    "mixture, two sizes": {
        "batch_size": 8,
        "phases": [{"seq_len": 16, "steps": 12}, {"seq_len": 32, "steps": 8, "batch_size": 4}],
    },
}
"""Of steps that are cut up in another way; the rest is that of the objective's own name."""


def example_config(name: str, run: str) -> dict:
    """Of a name in ``OBJECTIVES`` or ``TRAIN``."""
    kind = name.split(",")[0]
    tokenizer, family, fields, data = OBJECTIVES[name if name in OBJECTIVES else kind]
    config = pretraining(tokenizer, family, data, run=run, objective={"name": kind, **fields})
    return config | ({"train": TRAIN[name]} if name in TRAIN else {})


@PRETRAINING_GROUP
def test_examples_of_pretraining(tokenizers: Path, models: Path) -> None:
    """Hashes of every step's examples, and their statistics."""
    results = {}
    for name in [*OBJECTIVES, *TRAIN]:
        config = example_config(name, "never")
        family = config["model"]["family"]
        path = written(tokenizers, "examples", config)
        results[name] = result(tokenizers, "preview", path, "--digest", str(STEPS))
        if family != "elmo":
            results[name]["statistics"] = result(tokenizers, "preview", path, "--count", "200")
            results[name]["step 7"] = result(tokenizers, "preview", path, "--batch", "7")
    check("examples", results)


# ---- Pretraining: the shipped proofs, made small -------------------------------------------------

PROOFS: dict[str, tuple[str, str]] = {
    "bert": ("bert", "lines.txt"),
    "roberta": ("roberta", "mixed.jsonl"),
    "albert": ("albert", "lines.txt"),
    "spanbert": ("bert-cased", "lines.txt"),
    "distilbert": ("bert", "lines.txt"),
    "gpt1": ("gpt1", "lines.txt"),
    "gpt2": ("gpt2", "mixed.jsonl"),
    "gpt3": ("gpt2", "lines.txt"),
    "t5": ("t5", "mixed.jsonl"),
    "elmo": ("elmo", "lines.txt"),
    "electra": ("bert", "lines.txt"),
    "llama": ("gpt2", "mixed.jsonl"),
    "modernbert": ("modernbert", "lines.txt"),
    "qwen3": ("gpt2", "lines.txt"),
    "deberta": ("deberta", "lines.txt"),
    "auto": ("roberta", "lines.txt"),
    "gpt_bert": ("gpt2-mask", "mixed.jsonl"),
}
"""By config: the tokenizer and the text."""
CHANGED: dict[str, list[str]] = {
    "distilbert": ["objective.teacher=bert/model"],
    "gpt3": [
        "train.batch_ramp={start: 2, tokens: 2000}",
        "schedule.warmup=1000 tokens",
        "schedule.decay_until=4000 tokens",
    ],
}


@pytest.fixture(scope="session")
def models(tokenizers: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The world, with a finished small run of every family."""
    return made_once(tmp_path_factory, "golden/models", pretrain_families)


def pretrain_families(world: Path) -> None:
    for name, (tokenizer, text) in PROOFS.items():
        model = [f"model.{key}={value}" for key, value in SMALL[name].items()]
        overrides = [
            f"run={name}",
            f"tokenizer=tok-{tokenizer}",
            *model,
            f"data={{train: [{text}], valid: 20%, store: stores}}",
            "train.batch_size=8",
            f"train.phases=[{{seq_len: 32, steps: {STEPS}}}]",
            *([] if name == "elmo" else ["schedule.warmup=4"]),
            "log={every: 1, validate_every: 10, validate_samples: 40}",
            *(f"compute.{key}={value}" for key, value in COMPUTE.items()),
            *CHANGED.get(name, []),
        ]
        command(world, "pretrain", str(CONFIGS / f"pretrain/proof/{name}.yaml"), *overrides)


@PRETRAINING_GROUP
def test_pretraining(models: Path) -> None:
    """Every logged metric of every family's run."""
    results = {name: metrics(models / name) for name in PROOFS}
    check("pretraining", results)


RUNS: dict[str, dict] = {
    "mlm": {"optim": {"name": "lamb"}, "schedule": {"name": "polynomial", "warmup": 3}},
    "mlm+nsp, two lengths": {"optim": {"bias_correction": False}, "schedule": {"name": "linear"}},
    "mlm+sop, skip": {"optim": {"name": "muon"}, "schedule": {"name": "wsd"}},
    "distillation, plain": {"schedule": {"name": "cosine", "warmup": "20%"}},
    "clm, within": {"optim": {"name": "adagrad", "lr": 0.1}},
    "clm, mixture": {"train": {"batch_size": 8, "micro_batch_size": 3}},
    "clm, growing": {"schedule": {"warmup": "500 tokens"}},
    "clm, no separator": {"init_from": "gpt1/model"},
    "iid_denoising, mass": {"optim": {"name": "adafactor"}, "schedule": {"name": "inverse_sqrt"}},
    "prefix_lm": {"schedule": {"name": "constant"}},
    "deshuffling": {},
    "bilm, sampled": {},
    "mntp, within": {"optim": {"name": "lamb", "bias_correction": True}},
    "mixture, mixture": {"train": {"batch_size": 8, "micro_batch_size": 3}},
    "mixture, two sizes": {},
    "mixture, UL2": {"optim": {"name": "adafactor"}},
    "mlm+rtd": {
        "optim": {"name": "stable_adamw"},
        "schedule": {"name": "polynomial", "warmup": 3, "warmup_rule": "multiply"},
    },
    "mlm+rtd, deberta": {},
}
"""By name in ``OBJECTIVES`` or ``TRAIN``: changes of the config."""


@PRETRAINING_GROUP
def test_pretraining_in_other_ways(models: Path) -> None:
    """Other objectives, optimizers and schedules; stopped in the middle, and continued."""
    results = {}
    for name, changes in RUNS.items():
        config = example_config(name, f"other/{name}")
        config |= {"log": {"every": 1, "validate_samples": 40}}
        config |= {
            key: value for key, value in changes.items() if key not in ("train", "init_from")
        }
        config["train"] |= changes.get("train", {})
        if "init_from" in changes:
            config["model"] = {
                "family": config["model"]["family"],
                "init_from": changes["init_from"],
            }
        path = written(models, f"other {name}", config)
        command(models, "pretrain", path, "--until", "5", code=75)
        command(models, "pretrain", path)
        results[name] = metrics(models / "other" / name)
    check("pretraining-otherwise", results)


# ---- Finetuning: every task, the families that do it in their own way ----------------------------

PAIR = {"name": "classification", "text": ["premise", "hypothesis"]}
ANSWERS = {
    "name": "question_answering",
    "doc_stride": 16,
    "max_query_length": 16,
    "version2": True,
    "n_best": 5,
}
TASKS: dict[str, tuple[str, str, dict, dict]] = {
    "single": ("bert", "single", {"name": "classification"}, {"keep": "best", "max_length": 32}),
    "single, mean": ("roberta", "single", {"name": "classification", "pooling": "mean"}, {}),
    "single, weights": (
        "distilbert",
        "single",
        {"name": "classification", "class_weights": "balanced", "label_smoothing": 0.1},
        {"layer_decay": 0.9, "group_by_length": False},
    ),
    "single, gpt1": ("gpt1", "single", {"name": "classification"}, {}),
    "single, elmo": ("elmo", "single", {"name": "classification"}, {}),
    "pair": ("bert", "pair", PAIR, {}),
    "pair, gpt1": ("gpt1", "pair", {**PAIR, "both_orders": True}, {}),
    "pair, gpt2": ("gpt2", "pair", PAIR, {}),
    "several": (
        "bert",
        "several",
        {"name": "classification", "problem": "multi_label", "label": "labels", "threshold": 0.25},
        {},
    ),
    "number": ("albert", "number", {"name": "classification", "problem": "regression"}, {}),
    "choice": ("bert", "choice", {"name": "multiple_choice"}, {}),
    "choice, gpt1": ("gpt1", "choice", {"name": "multiple_choice"}, {}),
    "question": ("spanbert", "question", ANSWERS, {"max_length": 48}),
    "question, albert": ("albert", "question", ANSWERS, {"max_length": 48}),
    "tagged": ("bert", "tagged", {"name": "tagging", "layers": "mix"}, {}),
    "tagged, gpt2": ("gpt2", "tagged", {"name": "tagging", "piece": "last"}, {"max_length": 64}),
    "tagged, elmo": ("elmo", "tagged", {"name": "tagging"}, {}),
    "lemmas": ("gpt2", "lemmas", {"name": "lemmas", "piece": "last"}, {}),
    "tree": ("bert", "tree", {"name": "parsing", "layers": "mix"}, {"head_lr": 0.008}),
    "written": ("t5", "written", {"name": "text_to_text", "max_target_length": 12}, {}),
    "written, rte": (
        "t5",
        "rte",
        {"name": "text_to_text", "cast": "rte", "max_target_length": 12, "decoding": "rank"},
        {"max_length": 64, "epochs": 1},
    ),
    "written, gpt2": (
        "gpt2",
        "written",
        {"name": "text_to_text", "max_target_length": 12, "decoding": "beam", "beams": 2},
        {},
    ),
}
"""By name: model, rows, task, fields of `train`."""


def finetuning(name: str) -> dict:
    """A config, of 12 steps or more."""
    model, rows, task, train = TASKS[name]
    return {
        "run": f"finetuned/{name}",
        "model": f"{model}/model",
        "task": {**task, "baseline": "none"},  # its seconds are never the same
        "data": {"train": [f"{rows}.jsonl"], "valid": [f"{rows}-valid.jsonl"]},
        "train": {"epochs": 3, "batch_size": 8, "max_length": 40, **train},
        "optim": {"lr": 0.001 if model == "t5" else 0.004},  # T5 magnifies a last bit
        "log": {"every": 4},
        "compute": COMPUTE,
    }


@pytest.fixture(scope="session")
def finetuned(models: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The world, with a finished finetuning of every task."""
    return made_once(tmp_path_factory, "golden/finetuned", finetune_tasks)


def finetune_tasks(world: Path) -> None:
    for name in TASKS:
        command(world, "finetune", written(world, f"finetune {name}", finetuning(name)))


@FINETUNING_GROUP
def test_finetuning(finetuned: Path) -> None:
    """Examples of every step, every logged metric, and the results on the validation rows."""
    results = {}
    for name in TASKS:
        run = finetuned / "finetuned" / name
        path = str(finetuned / f"finetune {name}.yaml")
        results[name] = {
            "examples": result(finetuned, "preview", path, "--digest", "12")["digests"],
            "metrics": metrics(run),
            "results": timeless(json.loads((run / "eval" / "valid.json").read_text("utf-8"))),
        }
    check("finetuning", results)


@FINETUNING_GROUP
def test_folders(finetuned: Path) -> None:
    """Files of a run's folder; of its model the config, and the tensors by name."""
    results = {}
    for name in [*PROOFS, *(f"finetuned/{name}" for name in TASKS)]:
        run = finetuned / name
        config = json.loads((run / "model" / "config.json").read_text(encoding="utf-8"))
        config.pop("transformers_version")
        results[name] = {
            "files": {
                str(path.relative_to(run)): "there" for path in run.rglob("*") if path.is_file()
            },
            "config": config,
            "tensors": {
                name: f"{kept['dtype']} {kept['shape']}"
                for name, kept in tensors(run / "model" / "model.safetensors").items()
            },
        }
    check("folders", results)


def tensors(path: Path) -> dict[str, dict]:
    """The header of a safetensors file: eight bytes say how long it is, JSON follows."""
    content = path.read_bytes()
    header = json.loads(content[8 : 8 + int.from_bytes(content[:8], "little")])
    header.pop("__metadata__", None)
    return header


# ---- What finished models are worth, and what they answer ----------------------------------------

TEXT = {"data": ["other.txt"]}
LONG = {**TEXT, "seq_len": 32}
FEW = {"count": 2, "train": ["known.jsonl"]}
CHOICE = {
    "name": "multiple_choice",
    "data": ["choice-valid.jsonl"],
    "template": "{question}",
    "answer": "label",
}
KNOWN = {"name": "closed_book_qa", "data": ["known-valid.jsonl"], "max_new_tokens": 6}
MINIMAL = {"name": "minimal_pairs", "data": ["minimal-valid.jsonl"]}
RANKED = {
    "name": "ranked_completions",
    "data": ["choice-valid.jsonl"],
    "context": "{question}",
    "options": "options",
}
READING = {"name": "reading_times", "data": ["reading.csv"]}
AGE = {"name": "age_of_acquisition", "data": ["cdi.json", "cdi.csv"]}
MEASURES: dict[str, list[dict]] = {
    "bert": [
        {"name": "mlm", **LONG},
        {"name": "nsp", **LONG},
        {"name": "bits_per_byte", **TEXT, "max_bytes": 500},
        {"name": "pseudo_perplexity", **TEXT, "max_bytes": 500},
        MINIMAL,
        RANKED,
        READING,
        AGE,
    ],
    "albert": [{"name": "mlm", **LONG}, {"name": "sop", **LONG}],
    "gpt1": [{"name": "clm", **LONG, "separator": "none"}, MINIMAL],
    "gpt2": [
        {"name": "clm", **LONG},
        {"name": "clm", **LONG, "attention": "within"},
        {"name": "bits_per_byte", **TEXT},
        {"name": "perplexity", **TEXT, "stride": 8},
        {"name": "perplexity", **LONG, "documents": "file", "begin": "none"},
        MINIMAL,
        {"name": "lambada", "data": ["passage-valid.jsonl"]},
        CHOICE,
        {**KNOWN, "shots": FEW},
        RANKED,
        READING,
        AGE,
        {"name": "ngram", **TEXT},
    ],
    "t5": [
        {"name": "span_corruption", **LONG},
        {"name": "prefix_lm", **LONG},
        {"name": "bits_per_byte", **TEXT, "max_bytes": 500},
        MINIMAL,
        {**CHOICE, "unconditional": None},
        {**KNOWN, "beams": 2, "sentinel": True},
    ],
    "elmo": [{"name": "bilm", **LONG}, {"name": "bits_per_byte", **TEXT}, MINIMAL],
    "finetuned/several": [{"name": "task", "data": ["several-valid.jsonl"]}],
    "finetuned/question": [{"name": "task", "data": ["question.jsonl"]}],
    "finetuned/written, gpt2": [{"name": "task", "data": ["written.jsonl"]}],
}


def write_words(world: Path) -> None:
    """Words after their contexts, with times that are sums of remainders, and ages."""
    numbers = ["Subtlex_log10", "length", "context_length", "prev_length", "RTfirstfix"]
    numbers += ["RTfirstpass", "RTgopast", "RTrightbound", "self_paced_reading_time"]
    lines = [",".join(["item", "word", "prev_item", "prev_word", *numbers])]
    for number in range(60):
        words = english(number).split()
        place = number % 4
        item, before = " ".join(words[:place]), " ".join(words[: max(0, place - 1)])
        word, last = f" {words[place]}", f" {words[place - 1]}" if place else ""
        values = [number * (7 + n) % 23 + place for n in range(len(numbers))]
        lines.append(",".join([item, word, before, last, *map(str, values)]))
    (world / "reading.csv").write_text("\n".join(lines) + "\n", encoding="utf-8")
    contexts = {
        word: [{"context": " ".join(english(n).split()[:2])} for n in (1, 8)]
        for word in ("river", "market", "sees")
    }
    (world / "cdi.json").write_text(json.dumps(contexts), encoding="utf-8")
    (world / "cdi.csv").write_text("word\n", encoding="utf-8")


@FINETUNING_GROUP
def test_measures(finetuned: Path) -> None:
    """Every measure's results, and what each item is worth, by which models are compared."""
    results = {}
    write_words(finetuned)
    for model, measures in MEASURES.items():
        name = f"eval-{model.replace('/', ' ')}"
        config = {"run": name, "model": f"{model}/model", "measures": measures, "compute": COMPUTE}
        scores = result(finetuned, "eval", written(finetuned, name, config))["results"]
        rows = sorted((finetuned / name / "eval" / "rows").glob("*.json"))
        items = {path.stem: json.loads(path.read_text(encoding="utf-8")) for path in rows}
        for item in items.values():
            del item["checksum"]  # of floats, whose last digits may differ
        results[model] = {"results": scores, "items": items}
    check("measures", results)


PROMPTS = {
    "bert": ["Anna [MASK] Bela at the river.", "Carl sees [MASK]."],
    "roberta": ["Anna <mask> Bela at the river."],
    "gpt2": ["Anna sees"],
    "t5": ["Anna <extra_id_0> Bela at the river."],
    "finetuned/single": [english(3), english(4)],
    "finetuned/tagged": [english(3)],
}
WRITING = {
    "gpt2": ["--prompt", "Anna sees", "--max-new-tokens", "12"],
    "gpt3": ["--prompt", "Anna", "--max-new-tokens", "12", "--temperature", "1", "--top-k", "9"],
    "t5": ["--prompt", "Anna <extra_id_0> Bela.", "--max-new-tokens", "8", "--beams", "2"],
}


@FINETUNING_GROUP
def test_answers(finetuned: Path) -> None:
    """What ``predict`` and ``generate`` say."""
    results: dict[str, Any] = {"predict": {}, "generate": {}, "rows": {}}
    for model, texts in PROMPTS.items():
        results["predict"][model] = result(finetuned, "predict", f"{model}/model", *texts)
    for model, options in WRITING.items():
        device = ("--device", "cpu")
        results["generate"][model] = result(
            finetuned, "generate", f"{model}/model", *options, *device
        )
    for name, (_, rows, _, _) in TASKS.items():
        source, output = f"{rows}-valid.jsonl", f"{name}.answers.jsonl"
        folder = f"finetuned/{name}/model"
        command(finetuned, "predict", folder, "--input", source, "--output", output)
        lines = (finetuned / output).read_text(encoding="utf-8").splitlines()[:4]
        results["rows"][name] = [json.loads(line) for line in lines]
    check("answers", results)


# ---- Configs, and that nothing is left out ------------------------------------------------------

SHIPPED = sorted(CONFIGS.rglob("*.yaml"))


@TEXT_GROUP
def test_configs(world: Path) -> None:
    """Every shipped config with all its defaults."""
    shown = [
        f"### {path.relative_to(CONFIGS)}\n{command(world, 'config', 'show', str(path))}"
        for path in SHIPPED
    ]
    check_text("configs", "\n".join(shown))


@TEXT_GROUP
def test_schemas(world: Path) -> None:
    """Keys, values, defaults and help of the four kinds."""
    schemas = {}
    for kind in ("tokenizer", "pretrain", "finetune", "eval"):
        schema = json.loads(command(world, "config", "schema", kind))
        definitions = schema.pop("$defs", {})
        schemas[kind] = inlined(schema, definitions)
    check("schemas", schemas)


def inlined(schema: Any, definitions: dict) -> Any:
    """A schema without the names of classes: definitions stand where they are used."""
    if isinstance(schema, list):
        return [inlined(item, definitions) for item in schema]
    if not isinstance(schema, dict):
        return schema
    if isinstance(name := schema.get("$ref"), str):
        rest = {key: value for key, value in schema.items() if key != "$ref"}
        return inlined({**definitions[name.rpartition("/")[2]], **rest}, definitions)
    return {
        key: inlined(value, definitions)
        for key, value in schema.items()
        if key != "discriminator" and not (key == "title" and isinstance(value, str))
    }


@PRETRAINING_GROUP
def test_plans(models: Path) -> None:
    """Parameters, tokens and arithmetic of every shipped pretraining."""
    plans = {}
    for path in SHIPPED:
        text = yaml.safe_load(path.read_text(encoding="utf-8"))
        if "tokenizer" not in text or "init_from" in text["model"]:
            continue  # another kind, or a model that is not here
        options = ["compute.device=cpu", "compute.precision=fp32", "launch.processes=1"]
        if "teacher" in text.get("objective", {}):
            options.append("objective.teacher=bert/model")
        planned = result(models, "plan", str(path), *options, "--vocab-size", str(VOCAB_SIZE))
        planned.pop("use")
        plans[str(path.relative_to(CONFIGS))] = planned
    check("plans", plans)


@TEXT_GROUP
def test_nothing_is_left_out(world: Path) -> None:
    """Every family, objective, task, measure and optimizer is recorded."""
    members = result(world, "config", "list")["members"]
    covered = [measure["name"] for measures in MEASURES.values() for measure in measures]
    optimizers = [run.get("optim", {}).get("name", "adamw") for run in RUNS.values()]
    recorded = {
        "families": {SMALL[name]["family"] for name in PROOFS},
        "objectives": {name.split(",")[0] for name in OBJECTIVES},
        "tasks": {task["name"] for _, _, task, _ in TASKS.values()},
        "measures": set(covered),
        "optimizers": set(optimizers),
    }
    assert {kind: set(names) for kind, names in members.items()} == recorded

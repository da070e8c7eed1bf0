"""Perplexity, pseudo-perplexity, bits per byte and minimal pairs, as measures and as a command."""

import json
import math
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import yaml
from safetensors.torch import load_file, save_file

from plmctl.counting.ngrams import NGrams, depths_of
from plmctl.errors import ConfigError, DataError
from plmctl.evaluation.likelihood import Likelihood
from plmctl.measures.base import get_measure
from plmctl.run.configs import EvalConfig
from plmctl.training.engine import precision
from tests.commands.conftest import corpus_text, sentence
from tests.conftest import run_main
from tests.evaluation.models import FAMILIES, opened

Folders = Callable[[str], Path]


@pytest.fixture(scope="module")
def text(tmp_path_factory: pytest.TempPathFactory) -> str:
    path = tmp_path_factory.mktemp("text") / "text.txt"
    path.write_text(corpus_text(8, 4), encoding="utf-8")
    return str(path)


@pytest.fixture(scope="module")
def pairs(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Two files: 30 pairs and 10."""
    folder = tmp_path_factory.mktemp("pairs")
    for name, count in (("order", 30), ("swap", 10)):
        rows = [
            {"sentence_good": sentence(n), "sentence_bad": " ".join(sentence(n).split()[::-1])}
            for n in range(count)
        ]
        lines = "\n".join(json.dumps(row) for row in rows)
        (folder / f"{name}.jsonl").write_text(lines + "\n", encoding="utf-8")
    return folder


def take(name: str, folder: Path, **fields: Any) -> dict[str, Any]:
    measure = get_measure(name)
    config = measure.Config.model_validate({"name": name, **fields})
    return measure(config).measure(opened(folder), 7).results


def uniform(folder: Path, to: Path) -> Path:
    """The same model with a head of zeros."""
    shutil.copytree(folder, to)
    weights = load_file(folder / "model.safetensors")
    heads = [name for name in weights if any(part in name for part in _HEADS)]
    for name in heads:
        weights[name] = torch.zeros_like(weights[name])
    assert heads
    save_file(weights, to / "model.safetensors", {"format": "pt"})
    return to


# The output matrix, which is the word embeddings where they are tied; and its bias.
_HEADS = (
    "word_embeddings", "predictions.bias", "predictions.decoder", "vocab_projector", "lm_head",
    "wte", "tokens_embed", "shared", "head.", "embed_tokens", "tok_embeddings", "decoder.bias",
)  # fmt: skip


@pytest.mark.parametrize("family", FAMILIES)
def test_a_uniform_model_has_log2_of_the_vocabulary(
    family: str, folder_of: Folders, text: str, tmp_path: Path
) -> None:
    folder = uniform(folder_of(family), tmp_path / family)
    results = take("bits_per_byte", folder, data=[text])
    outputs = opened(folder).outputs
    assert results["unknown"] == 0
    # Blank lines between documents are no text; a document keeps its last line's end.
    assert results["bytes"] == Path(text).stat().st_size - 7
    bits = results["bits_per_byte"] * results["bytes"]
    assert bits == pytest.approx(results["tokens"] * math.log2(outputs), rel=1e-6)
    ties = tmp_path / "ties.tsv"
    rows = [f"{sentence(n)}\t{sentence(n)}" for n in range(5)]
    ties.write_text("\n".join(["sentence_good\tsentence_bad", *rows]) + "\n", encoding="utf-8")
    results = take("minimal_pairs", folder, data=[str(ties)])
    assert (results["accuracy"], results["ties"], results["pairs"]) == (0.0, 5, 5)
    assert (results["accuracy/token"], results["accuracy/byte"]) == (0.0, 0.0)
    # Of different lengths: the sum prefers the shorter one, and a mean over tokens still ties.
    rows = [f"{sentence(n)}\t{sentence(n)} {sentence(n + 1)}" for n in range(3)]
    rows += [f"{sentence(n)} {sentence(n + 1)}\t{sentence(n)}" for n in range(7)]
    ties.write_text("\n".join(["sentence_good\tsentence_bad", *rows]) + "\n", encoding="utf-8")
    results = take("minimal_pairs", folder, data=[str(ties)])
    assert (results["accuracy"], results["shorter"], results["ties"]) == (0.3, 0.3, 0)
    assert results["accuracy/token"] == 0.0


def test_all_measures_of_a_model_share_one_network(
    folder_of: Folders, text: str, pairs: Path, tmp_path: Path
) -> None:
    model = opened(folder_of("gpt2"))
    for name, fields in (
        ("clm", {"data": [text], "seq_len": 32, "store": str(tmp_path / "stores")}),
        ("perplexity", {"data": [text]}),
        ("minimal_pairs", {"data": [str(pairs / "swap.jsonl")]}),
        ("lambada", {"data": [text], "seq_len": 40}),
    ):
        measure = get_measure(name)
        config = measure.Config.model_validate({"name": name, **fields})
        assert measure(config).measure(model, 7).results
    assert list(model.networks) == [("lm",)]
    prompted = model.for_generation(16)
    assert (prompted.window, model.window) == (16, 48)
    assert prompted.generator is model.generator
    assert prompted.tokenizer is model.tokenizer


def test_results_of_perplexity_agree(folder_of: Folders, text: str) -> None:
    results = take("perplexity", folder_of("gpt2"), data=[text], seq_len=32, stride=8)
    nll = math.log(results["perplexity"]) * results["scored"]
    assert results["scored"] == results["tokens"]
    assert results["documents"] == 8
    words = sum(len(part.split()) + 4 for part in corpus_text(8, 4).split("\n\n"))
    assert results["words"] == words  # four lines a document
    assert results["word_perplexity"] == pytest.approx(math.exp(nll / words), rel=1e-9)
    assert results["bits_per_byte"] == pytest.approx(nll / math.log(2) / results["bytes"], rel=1e-9)
    assert results["bits_per_character"] == results["bits_per_byte"]  # ASCII
    assert 0 < results["perplexity_se"] < results["perplexity"]
    assert "stride 8" in results["definition"]
    other = take("bits_per_byte", folder_of("gpt2"), data=[text], seq_len=32, stride=8)
    assert other["bits_per_byte"] == pytest.approx(results["bits_per_byte"], rel=1e-9)


def test_one_text_from_end_to_end(folder_of: Folders, text: str) -> None:
    """As WikiText is read: n - 1 tokens without a begin token."""
    options = {"data": [text], "documents": "file", "begin": "none"}
    results = take("perplexity", folder_of("gpt2"), **options)
    assert results["documents"] == 1
    assert results["scored"] == results["tokens"] - 1
    assert results["perplexity_se"] is None


def test_pseudo_perplexities(folder_of: Folders, text: str) -> None:
    results = take("pseudo_perplexity", folder_of("bert"), data=[text], max_bytes=400, seq_len=20)
    assert results["scored"] == results["tokens"]
    assert results["bytes"] <= 400
    bits = take("bits_per_byte", folder_of("bert"), data=[text], max_bytes=400, seq_len=20)
    nll = math.log(results["pseudo_perplexity_word_l2r"]) * results["scored"]
    assert bits["bits_per_byte"] == pytest.approx(nll / math.log(2) / bits["bytes"], rel=1e-9)
    assert results["pseudo_perplexity"] != results["pseudo_perplexity_word_l2r"]


@pytest.mark.parametrize("family", ["gpt2", "bert", "t5", "elmo"])
def test_minimal_pairs_compare_sums(family: str, folder_of: Folders, pairs: Path) -> None:
    results = take("minimal_pairs", folder_of(family), data=[str(pairs / "*.jsonl")])
    likelihood = Likelihood.of(opened(folder_of(family)))
    numbers = [*range(30), *range(10)]
    good = likelihood.score_sentences([sentence(n) for n in numbers]).log_probability
    bad = likelihood.score_sentences([" ".join(sentence(n).split()[::-1]) for n in numbers])
    right = (good > bad.log_probability).astype(float)
    assert results["accuracy"] == right.mean()
    assert results["pairs"] == 40
    assert [row["paradigm"] for row in results["paradigms"]] == ["order", "swap"]
    assert [row["accuracy"] for row in results["paradigms"]] == [
        right[:30].mean(),
        right[30:].mean(),
    ]
    for unit, sizes in (
        (
            "token",
            [
                len(tokens.ids)
                for tokens in likelihood.model.tokens([[sentence(n)] for n in numbers])
            ],
        ),
        ("byte", [len(sentence(n).encode()) for n in numbers]),
    ):
        others = bad.tokens if unit == "token" else np.array(sizes)  # the same letters
        mean_right = good / np.array(sizes) > bad.log_probability / others
        assert results[f"accuracy/{unit}"] == mean_right.mean()
        assert [row[unit] for row in results["paradigms"]] == [
            mean_right[:30].mean(), mean_right[30:].mean(),
        ]  # fmt: skip
    share = right.mean()
    assert results["accuracy_se"] == pytest.approx(math.sqrt(share * (1 - share) / 39))


@pytest.mark.parametrize("family", ["gpt2", "bert"])
def test_scores_are_those_of_fp32(
    family: str, folder_of: Folders, pairs: Path, tmp_path: Path
) -> None:
    """A folder saved in bf16 is read and scored in fp32, on whatever device."""
    of_half = shutil.copytree(folder_of(family), tmp_path / "bf16")
    of_whole = shutil.copytree(folder_of(family), tmp_path / "fp32")
    weights = load_file(of_half / "model.safetensors")
    rounded = {name: weight.bfloat16() for name, weight in weights.items()}
    save_file(rounded, of_half / "model.safetensors", {"format": "pt"})
    whole = {name: weight.float() for name, weight in rounded.items()}
    save_file(whole, of_whole / "model.safetensors", {"format": "pt"})
    config = json.loads((of_half / "config.json").read_text())
    (of_half / "config.json").write_text(json.dumps({**config, "dtype": "bfloat16"}))
    actual, expected = (
        Likelihood.of(opened(at)).score_sentences([sentence(n) for n in range(4)]).log_probability
        for at in (of_half, of_whole)
    )
    assert actual.tolist() == expected.tolist()


def test_evaluation_is_in_fp32_by_default(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("torch.cuda.is_bf16_supported", lambda **_: True)
    measure = {"name": "minimal_pairs", "data": ["pairs.jsonl"]}
    for compute, expected in (
        ({}, "fp32"),
        ({"device": "cuda"}, "fp32"),
        ({"precision": "bf16"}, "bf16"),
    ):
        values = {"run": "r", "model": "m", "measures": [measure], "compute": compute}
        config = EvalConfig.model_validate(values)
        assert precision(config.compute, cuda=True) == expected


def test_unknown_words_are_paid_for(folder_of: Folders, tmp_path: Path) -> None:
    """A text of unknown words is not a cheap one."""
    path = tmp_path / "unknown.txt"
    path.write_text("Überraschung Vogelbeerbaum\n", encoding="utf-8")
    results = take("bits_per_byte", folder_of("elmo"), data=[str(path)])
    assert results["unknown"] == 2
    assert results["bits_per_byte"] > 8 * 26 / 28
    assert results["unknown_share_of_bits"] == pytest.approx(
        8 * 26 / (results["bits_per_byte"] * results["bytes"])
    )


@pytest.mark.parametrize(
    ("name", "family", "fields", "message"),
    [
        ("perplexity", "bert", {}, "pseudo_perplexity"),
        ("pseudo_perplexity", "gpt2", {}, "`perplexity`"),
        ("perplexity", "gpt2", {"stride": 50}, "stride"),
        ("perplexity", "gpt2", {"seq_len": 500}, "48"),
        ("pseudo_perplexity", "bert", {"seq_len": 61}, "60"),
        ("bits_per_byte", "t5", {"seq_len": 16, "stride": 17}, "stride"),
    ],
)
def test_refused_before_text_is_read(
    name: str, family: str, fields: dict[str, Any], message: str, folder_of: Folders
) -> None:
    with pytest.raises(ConfigError) as refused:
        take(name, folder_of(family), data=["nowhere.txt"], **fields)
    assert message in str(refused.value)


def test_a_finetuned_model_is_refused(
    folder_of: Folders, text: str, pairs: Path, tmp_path: Path
) -> None:
    folder = shutil.copytree(folder_of("bert"), tmp_path / "finetuned")
    config = json.loads((folder / "config.json").read_text())
    config["architectures"] = ["BertForSequenceClassification"]
    (folder / "config.json").write_text(json.dumps(config))
    for name in ("bits_per_byte", "minimal_pairs", "pseudo_perplexity"):
        with pytest.raises(ConfigError, match="pretrained model"):
            take(
                name, folder, data=[str(pairs / "swap.jsonl") if name == "minimal_pairs" else text]
            )


@pytest.mark.parametrize(
    ("row", "message"),
    [
        ('{"good": "a", "sentence_bad": "b"}', "no column 'sentence_good'"),
        ('{"sentence_good": "", "sentence_bad": "b"}', "no text"),
        ('{"sentence_good": 3, "sentence_bad": "b"}', "no text"),
        ("", "no pairs"),
    ],
)
def test_bad_pairs(row: str, message: str, folder_of: Folders, tmp_path: Path) -> None:
    path = tmp_path / "bad.jsonl"
    path.write_text(row + "\n")
    with pytest.raises(DataError) as refused:
        take("minimal_pairs", folder_of("gpt2"), data=[str(path)])
    assert message in str(refused.value)
    assert "bad.jsonl" in str(refused.value)


def test_ngrams_of_a_named_text(folder_of: Folders, pairs: Path, tmp_path: Path) -> None:
    model, train, valid = opened(folder_of("gpt2")), tmp_path / "train.txt", tmp_path / "valid.txt"
    documents = [" ".join(map(sentence, range(n, n + 4))) + "\n" for n in range(40)]
    train.write_text("\n".join(documents), encoding="utf-8")
    valid.write_text(sentence(90), encoding="utf-8")
    own = {"train": [str(train)], "store": str(tmp_path / "stores"), "order": 2}
    results = take("ngram", folder_of("gpt2"), data=[str(valid)], **own)
    end = model.vocab.eos
    assert end is not None
    stream = [end]
    for tokens in model.tokens([[document] for document in documents]):
        stream += [*tokens.ids.tolist(), end]
    text = np.array(stream)
    depths = depths_of(text == end, 2)
    depths[0] = 0
    grams = NGrams.count(text, depths, model.vocab.size, 2)
    ids = model.tokens([[sentence(90)]])[0].ids
    pairs_of_ids = zip([end, *ids], ids, strict=False)
    given = [grams.probabilities(np.array(pair), np.array([1, 2]))[1] for pair in pairs_of_ids]
    nats = -np.log(given)
    size = len(sentence(90).encode())
    assert results["bits_per_byte"] == pytest.approx(nats.sum() / math.log(2) / size, rel=1e-9)
    assert results["perplexity"] == pytest.approx(math.exp(nats.mean()), rel=1e-9)
    assert results["training_tokens"] == len(stream) - 1
    assert take("ngram", folder_of("gpt2"), data=[str(valid)], **own) == results  # from its file
    ranked = take("ngram", folder_of("gpt2"), data=[str(pairs / "*.jsonl")], items="pairs", **own)
    assert ranked["pairs"] == 40
    assert ranked["accuracy"] > 0.8  # the words of the bad sentence are in reverse order
    assert take("ngram", folder_of("bert"), data=[str(valid)], **own)["scored"] > 4


def test_ngrams_need_a_text(folder_of: Folders, text: str) -> None:
    with pytest.raises(ConfigError, match="not in the folder of a pretraining"):
        take("ngram", folder_of("gpt2"), data=[text])


def test_the_command(
    folder_of: Folders, text: str, pairs: Path, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    requested = [
        {"name": "perplexity", "data": [text]},
        {"name": "bits_per_byte", "data": [text], "max_documents": 3},
        {"name": "minimal_pairs", "data": [str(pairs / "swap.jsonl")]},
    ]
    run = tmp_path / "ev"
    config = {"run": str(run), "model": str(folder_of("gpt2")), "measures": requested}
    (tmp_path / "ev.yaml").write_text(yaml.safe_dump(config))
    capfd.readouterr()
    assert run_main("eval", str(tmp_path / "ev.yaml")) == 0
    shown = capfd.readouterr().out
    assert "by paradigm" in shown
    assert "swap" in shown
    hashes = []
    for measure in requested:
        document = json.loads((run / "eval" / f"{measure['name']}.json").read_text())
        assert document["versions"]["torch"] == torch.__version__
        assert document["results"]["definition"]
        hashes.append(document["hashes"]["data"])
    assert hashes[0] == hashes[1] != hashes[2]
    assert len(hashes[2]) == 64


def test_missing_data_is_reported_and_nothing_is_scored(
    folder_of: Folders, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    measure = {"name": "minimal_pairs", "data": [str(tmp_path / "blimp/*.jsonl")]}
    run = tmp_path / "nothing"
    config = {"run": str(run), "model": str(folder_of("gpt2")), "measures": [measure]}
    (tmp_path / "no.yaml").write_text(yaml.safe_dump(config))
    assert run_main("eval", str(tmp_path / "no.yaml")) == 3
    message = capfd.readouterr().err
    assert "no file matches" in message
    assert "nothing was scored" in message
    assert "alexwarstadt/blimp" in message
    assert not list(run.glob("eval/*"))


def test_numbers_are_finite(folder_of: Folders, text: str) -> None:
    results = take("bits_per_byte", folder_of("t5"), data=[text], max_bytes=500, span=1)
    assert np.isfinite(results["bits_per_byte"])
    assert "spans of 1" in results["definition"]


def test_text_of_which_nothing_is_left(folder_of: Folders, tmp_path: Path) -> None:
    """Control characters, which BERT's tokenizer drops: not a text of probability 1."""
    path = tmp_path / "empty.jsonl"
    row = {"sentence_good": "\u200d", "sentence_bad": "Anna.", "text": "\u200d"}
    path.write_text(json.dumps(row) + "\n")
    with pytest.raises(DataError, match="returns no token"):
        take("minimal_pairs", folder_of("bert"), data=[str(path)])
    with pytest.raises(DataError, match="returns no token"):
        take("bits_per_byte", folder_of("bert"), data=[str(path)])

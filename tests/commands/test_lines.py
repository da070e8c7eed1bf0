"""Text with a sentence per line: RoBERTa's rows are fairseq's, and no row has line ends at edges.

Source: facebookresearch/fairseq, examples/roberta/multiprocessing_bpe_encoder.py with
``--keep-empty``, and TokenBlockDataset in its mode ``complete``.
"""

from collections.abc import Sequence
from pathlib import Path

import numpy as np
import pytest
from tokenizers import Tokenizer

from plmctl.corpus.store import TokenStore
from plmctl.models.base import Examples
from plmctl.tokenization.load import Vocab
from tests.builders import make_examples
from tests.commands.conftest import Cli, pretrain_config, run_main, sentence, write

BLOCK = 40
# Lines as people have them: indented, with spaces at the end, by an ideographic or a hard space.
EDGES = ["{}", "  {}", "{} ", "\t{}\t", "\u3000\u3000{}", "{}\u00a0", " {}\r", "    {}  "]
RECIPE = {
    "name": "mlm",
    "packing": "full_sentences",
    "count": "probabilistic",
    "mask_specials": True,
    "random_specials": False,
}


def odd_text() -> str:
    documents = [
        "\n".join(EDGES[n % len(EDGES)].format(sentence(d * 5 + n)) for n in range(2 + d % 9))
        for d in range(40)
    ]
    return "\n\n".join(documents) + "\n"


def fairseq_rows(text: str, tokenizer: Tokenizer, block: int) -> list[list[int]]:
    """<s> and whole lines of up to ``block`` tokens, each with </s>; empty lines are lines."""
    begin, end = tokenizer.token_to_id("<s>"), tokenizer.token_to_id("</s>")
    lines = [
        [*tokenizer.encode(line.strip(), add_special_tokens=False).ids, end]
        for line in text.removesuffix("\n").split("\n")
    ]
    rows: list[list[int]] = []
    row: list[int] = []
    for line in lines:
        if row and len(row) + len(line) > block:
            rows.append([begin, *row])
            row = []
        row = row + line
    return [*rows, [begin, *row]]


def rows_of(examples: Examples) -> list[list[int]]:
    """All rows as they were before they were masked."""
    samples = np.arange(len(examples))
    batch = examples.collate(np.zeros_like(samples), samples)
    ids = batch.inputs["input_ids"].flatten()
    ids[batch.inputs["positions"]] = batch.targets["mlm"]
    rows = ids.view_as(batch.inputs["input_ids"]).tolist()
    lengths = batch.inputs["attention_mask"].sum(1).tolist()
    return [row[:length] for row, length in zip(rows, lengths, strict=True)]


@pytest.fixture(scope="module")
def tokenizer(world: Path) -> Tokenizer:
    """RoBERTa's, of a text without the odd spaces: these are several tokens per character."""
    config = {"run": "tok-lines", "algorithm": "byte_bpe", "family": "roberta", "vocab_size": 500}
    write("tok-lines.yaml", config | {"data": {"train": ["text.txt"]}})
    assert run_main("train-tokenizer", "tok-lines.yaml") == 0
    return Tokenizer.from_file("tok-lines/tokenizer.json")


def prepared(cli: Cli, name: str, text: str, objective: dict, *options: str) -> TokenStore:
    Path(f"{name}.txt").write_text(text, encoding="utf-8")
    model = {"family": "roberta", "size": "tiny", "hidden_size": 32, "num_attention_heads": 2}
    config = pretrain_config("bert") | {"tokenizer": "tok-lines", "model": model, "run": name}
    config["data"] = {"train": [f"{name}.txt"], "valid": None, "sentences": "line"}
    config["data"] |= {"documents": "blank_line", "store": f"stores-{name}"}
    config |= {"objective": objective, "train": {"batch_size": 4}}
    config["train"]["phases"] = [{"seq_len": BLOCK, "steps": 2}]
    write(f"{name}.yaml", config)
    code, _, err = cli("prepare", f"{name}.yaml", *options)
    assert code == 0, err
    (manifest,) = Path(f"stores-{name}").glob("*/train/manifest.json")
    return TokenStore.open(manifest.parent)


def test_roberta_has_fairseq_s_rows(cli: Cli, tokenizer: Tokenizer) -> None:
    text = odd_text()
    store = prepared(cli, "odd", text, RECIPE)
    vocab = Vocab.from_folder("tok-lines")
    expected = fairseq_rows(text, tokenizer, BLOCK - 1)
    assert rows_of(make_examples(store=store, vocab=vocab, seq_len=BLOCK, **RECIPE)) == expected
    ends = sum(row.count(vocab.sep) for row in expected)
    assert ends == text.count("\n")  # one per line, empty ones included
    code, out, err = cli("preview", "odd.yaml", "--count", "40", "--examples", "20")
    assert code == 0, err
    assert not set("⏎␍⇥") & set(out)
    # The store still has the text as it is.
    ids = store.tokens(np.arange(store.num_tokens)).tolist()
    assert (
        tokenizer.decode(ids[: store.sentences[store.documents[1]]]) == text.split("\n\n")[0] + "\n"
    )


def test_no_segment_has_line_ends_at_its_edges(cli: Cli, tokenizer: Tokenizer) -> None:
    store = prepared(cli, "edges", odd_text(), RECIPE)
    vocab = Vocab.from_folder("tok-lines")
    for name, packing in [
        ("mlm", "documents"),
        ("mlm", "doc_sentences"),
        ("mlm", "segment_pair"),
        ("mlm+nsp", None),
        ("mlm+sop", None),
        ("mlm+sbo", None),
    ]:
        fields = {"packing": packing} if packing else {}
        rows = rows_of(make_examples(name, store, vocab, BLOCK, **fields))
        within = 0
        for row in rows:
            assert row[0] == vocab.cls
            for segment in segments(row[1:], vocab.sep):
                shown = tokenizer.decode(segment)
                assert shown.rstrip() == shown  # a word may begin with its space
                assert not tokenizer.decode(segment[:1]).isspace()
                within += "\n" in shown
        assert len(rows) > 30
        assert bool(within) == (packing != "doc_sentences")  # within a segment text is text


def segments(row: Sequence[int], separator: int) -> list[list[int]]:
    found: list[list[int]] = [[]]
    for id_ in row:
        if id_ == separator:
            found.append([])
        else:
            found[-1].append(id_)
    return [segment for segment in found if segment]


@pytest.mark.slow
def test_rows_and_masks_of_real_text_are_fairseq_s(
    cli: Cli, tokenizer: Tokenizer, shared_data: Path
) -> None:
    """181 documents with a sentence per line; lines that are longer than a row are left out."""
    source = shared_data / "parity" / "objectives" / "shakespeare_docs.txt"
    lines = source.read_text(encoding="utf-8").strip().split("\n")
    text = "\n".join(line for line in lines if len(line) < 200) + "\n"
    store = prepared(cli, "real", text, RECIPE, "train.phases=[{seq_len: 512, steps: 2}]")
    vocab = Vocab.from_folder("tok-lines")
    examples = make_examples(store=store, vocab=vocab, seq_len=512, **RECIPE)
    expected = fairseq_rows(text, tokenizer, 511)
    assert rows_of(examples) == expected
    assert len(expected) > 500
    assert cli("pretrain", "real.yaml")[0] == 0

    samples = np.arange(len(examples))
    epochs = [examples.collate(np.full_like(samples, epoch), samples) for epoch in (0, 1)]
    masked = [
        set(zip(b.inputs["positions"].tolist(), b.targets["mlm"].tolist(), strict=True))
        for b in epochs
    ]
    assert len(masked[0] & masked[1]) / len(masked[0]) == pytest.approx(
        0.15, abs=0.01
    )  # other masks
    for batch in epochs:
        targets = batch.targets["mlm"]
        shown = batch.inputs["input_ids"].flatten()[batch.inputs["positions"]]
        shares = {
            "masked": len(targets) / batch.tokens,
            "mask": (shown == vocab.mask).float().mean().item(),
            "keep": (shown == targets).float().mean().item(),
            "ends": (targets == vocab.sep).float().mean().item(),
        }
        ends = sum(row.count(vocab.sep) for row in expected) / sum(map(len, expected))
        assert shares == pytest.approx(
            {"masked": 0.15, "mask": 0.8, "keep": 0.1, "ends": ends}, abs=0.005
        )

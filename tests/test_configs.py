"""Every shipped config is valid, and is for the command that its place says."""

import json
from pathlib import Path

import numpy as np
import pytest

from plmctl.commands.prepare import data_of
from plmctl.config.load import dump, kind_of
from plmctl.corpus.build import build_stores
from plmctl.corpus.store import TokenStore
from plmctl.run.configs import load
from plmctl.tokenization.encode import Encoder
from tests.tokenization.conftest import TEXTS, config_of, train

ROOT = Path(__file__).parents[1] / "configs"
FILES = sorted(ROOT.rglob("*.yaml"))


def test_there_are_configs() -> None:
    assert len(FILES) > 10


@pytest.mark.parametrize("path", FILES, ids=lambda p: str(p.relative_to(ROOT)))
def test_config_is_valid(path: Path, tmp_path: Path) -> None:
    kind = kind_of(path)
    place = path.relative_to(ROOT)
    folders = {"demo": path.stem, "course": path.stem, "fast": "pretrain"}
    assert kind == folders.get(place.parts[0], place.parts[0])
    config = load(kind, path)
    again = tmp_path / "resolved.yaml"
    again.write_text(dump(config), encoding="utf-8")
    assert load(kind, again) == config


TOKENIZERS = {
    "albert": ("unigram", "albert"),
    "deberta": ("unigram", "deberta"),
    "elmo": ("word", "elmo"),
    "gpt1": ("bpe", "gpt1"),
    "gpt2": ("byte_bpe", "gpt2"),
    "gpt3": ("byte_bpe", "gpt2"),
    "llama": ("byte_bpe", "gpt2"),
    "modernbert": ("byte_bpe", "modernbert"),
    "qwen3": ("byte_bpe", "gpt2"),
    "roberta": ("byte_bpe", "roberta"),
    "t5": ("unigram", "t5"),
}
"""Of the families; the others have BERT's."""
DOCUMENT = """It ended .  He had a role.

    Indented: "No." she said...\r\n\tAnd left! Mr. X
ran. 3.14
"""


def test_what_every_recipe_reads_is_the_text(tmp_path: Path) -> None:
    """Byte for byte where the tokenizer keeps it; else with the ids that the whole text has."""
    encoders: dict[tuple[str, str], Encoder] = {}
    checked: dict[tuple[str, str, str], bool] = {}
    (tmp_path / "text.jsonl").write_text(json.dumps({"text": DOCUMENT}), encoding="utf-8")
    for path in FILES:
        if kind_of(path) != "pretrain":
            continue
        config = load("pretrain", path)
        names = TOKENIZERS.get(config.model.family, ("wordpiece", "bert"))
        data = data_of(config)
        if (*names, data.sentences) in checked:
            continue
        if names not in encoders:
            trained = train(config_of(*names), [*TEXTS, DOCUMENT])
            trained.tokenizer.save_pretrained(tmp_path / names[1])
            encoders[names] = Encoder(str(tmp_path / names[1]))
        encoder, changes = encoders[names], {"train": (str(tmp_path / "text.jsonl"),)}
        own = data.model_copy(update={**changes, "valid": None, "mixture": ()})
        stores = build_stores(
            own,
            encoder,
            root=tmp_path / "stores",
            processes=1,
            progress=lambda done, total: None,
            notice=print,
        )
        store = TokenStore.open(stores.train)
        ids = store.tokens(np.arange(store.num_tokens)).tolist()
        assert ids == encoder([DOCUMENT])[0][0].tolist(), path
        kept = encoder._tokenizer.decode(ids, skip_special_tokens=False) == DOCUMENT
        assert kept == (names[0] == "byte_bpe"), path
        checked[(*names, data.sentences)] = kept
    assert {name for _, name, _ in checked} == {"bert", *(name for _, name in TOKENIZERS.values())}
    assert checked[("byte_bpe", "gpt2", "none")]
    assert checked[("byte_bpe", "roberta", "auto")]

"""A pretraining whose choices are bound: its family, its objective, its tokenizer; and its network.

``preflight.py`` makes an ``Outline`` or a ``Prepared`` from a config that it has checked, and what
follows gets it handed down.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from plmctl.config.base import ModelConfig, ObjectiveConfig
from plmctl.corpus.cooccurrence import embeddings_of
from plmctl.corpus.store import Corpus
from plmctl.examples.keys import fold, stream
from plmctl.families.base import Family
from plmctl.objectives.base import Objective
from plmctl.run.configs import PretrainConfig
from plmctl.run.display import say
from plmctl.tokenization.check import vocabulary_files
from plmctl.tokenization.encode import Encoder
from plmctl.tokenization.load import Vocab

if TYPE_CHECKING:
    from transformers import PreTrainedConfig, PreTrainedModel, PreTrainedTokenizerBase

    from plmctl.models.network import Network


@dataclass(frozen=True)
class Outline:
    """What is known of a pretraining before its tokenizer is trained.

    Attributes:
        vocab: The special ids and the size of the tokenizer, or of one that stands in for it.
    """

    config: PretrainConfig
    family: Family
    objective: Objective[ObjectiveConfig]
    vocab: Vocab
    network: PreTrainedConfig

    @property
    def outputs(self) -> int:
        """Ids that the network predicts."""
        return self.objective.num_outputs(self.vocab.size)

    def bare_model(self, new_heads: Callable[[str], None] = say) -> PreTrainedModel:
        """The network with fresh weights or a folder's; ids that the folder lacks have no rows.

        Args:
            new_heads: Called with heads that the folder of ``init_from`` lacks.
        """
        if self.config.model.init_from is not None:
            return self.family.load_start(self.objective.LOSS_TERMS, new_heads)
        return fresh_model(self.family, self.objective, self.vocab)

    def empty_model(self) -> PreTrainedModel:
        """The network on the meta device, without weights."""
        import torch

        if self.config.model.init_from is not None:  # its weights decide what it is
            loaded: Any = self.bare_model()
            moved: PreTrainedModel = loaded.to("meta")
            return moved
        with torch.device("meta"):
            return self.bare_model()


@dataclass(frozen=True)
class Prepared(Outline):
    """A pretraining whose config is known to be good, before its text is read.

    Attributes:
        tokenizer: The same tokenizer as transformers has it, exactly as it was saved.
    """

    encoder: Encoder
    tokenizer: PreTrainedTokenizerBase


def fresh_model(
    family: Family, objective: Objective[ObjectiveConfig], vocab: Vocab
) -> PreTrainedModel:
    """A network with fresh weights from the global generator."""
    return family.build(
        vocab_size=objective.num_outputs(vocab.size),
        pad_id=(vocab.pad if vocab.pad is not None else vocab.eos) or 0,
        eos_id=vocab.eos,
        loss_terms=objective.LOSS_TERMS,
    )


def make_network(
    run: Outline,
    tokenizer: PreTrainedTokenizerBase,
    new_heads: Callable[[str], None] = say,
    text: Corpus | None = None,
) -> Network:
    """The network with fresh weights, its teacher's, or those of the folder of ``init_from``.

    Args:
        tokenizer: The run's, as it was saved.
        text: The training text, for embeddings that start from it; None: where the initial weights
            do not matter.
    """
    import torch

    from plmctl.models.network import Network
    from plmctl.models.parameters import extend_vocabulary, start_embeddings_

    config, family = run.config, run.family
    torch.manual_seed(int(fold(config.seed, stream("init"))) >> 1)
    model = run.bare_model(new_heads)
    if config.model.init_from is not None:
        if config.model.extend_vocab is not None:
            rows = model.config.vocab_size
            extend_vocabulary(model, pieces_of_new_ids(config.model, tokenizer, rows))
        return Network(model, family.forward)
    if (teacher := run.objective.teacher()) is not None:
        family.init_from_teacher(model, teacher)
    if text is not None and family.starts_from_text:
        say("token embeddings start from counts in the training text")
        table: Any = model.get_input_embeddings().weight
        start_embeddings_(table, embeddings_of(text, *table.shape))
    return Network(model, family.forward)


# --- Continued pretraining: what differs from the folder that it starts from ---


def pieces_of_new_ids(
    options: ModelConfig, tokenizer: PreTrainedTokenizerBase, rows: int
) -> dict[int, list[int]]:
    """For each id that the folder's tokenizer does not have, the old ids that stand for it.

    Args:
        options: With ``init_from`` and ``extend_vocab``.
        tokenizer: That of the run, with the new ids.
        rows: The number of rows of the folder's embeddings, where the folder has no tokenizer.
    """
    before = folder_tokenizer(str(options.init_from))
    known = max(before.get_vocab().values()) + 1 if before is not None else rows
    pieces_by_id: dict[int, list[int]] = {}
    for token, id_ in sorted(tokenizer.get_vocab().items(), key=lambda item: item[1]):
        if id_ < known:
            continue
        pieces_by_id[id_] = []
        if options.extend_vocab == "subtokens" and before is not None:
            text = tokenizer.convert_tokens_to_string([token]).removeprefix("##").strip()
            pieces = before(text, add_special_tokens=False)["input_ids"]
            pieces_by_id[id_] = [piece for piece in pieces if piece != before.unk_token_id]
    return pieces_by_id


def folder_tokenizer(source: str) -> PreTrainedTokenizerBase | None:
    """The tokenizer that lies beside the weights of a folder or Hub id, if one does."""
    from plmctl.tokenization.load import load_tokenizer

    if Path(source).is_dir() and not vocabulary_files(source):
        return None
    return load_tokenizer(source)

"""The network of a pretraining run: with fresh weights, its teacher's, or those of a folder.

``make_network`` is what ``pretrain``, ``plan`` and ``export`` call. On PyTorch's meta device
``fresh_model`` gives the network's config without any weights, for the checks of ``preflight.py``.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

from plmctl.config.base import ModelConfig
from plmctl.corpus.cooccurrence import embeddings_of
from plmctl.corpus.store import Corpus
from plmctl.examples.keys import fold, stream
from plmctl.families.base import get_family
from plmctl.objectives.base import make_objective
from plmctl.run.configs import PretrainConfig
from plmctl.run.display import say
from plmctl.tokenization.check import vocabulary_files
from plmctl.tokenization.load import Vocab

if TYPE_CHECKING:
    from transformers import PreTrainedModel, PreTrainedTokenizerBase

    from plmctl.models.network import Network


def make_network(
    config: PretrainConfig,
    tokenizer: PreTrainedTokenizerBase,
    new_heads: Callable[[str], None] = say,
    text: Corpus | None = None,
) -> Network:
    """The family's network with fresh weights, or the pretrained one that ``init_from`` names.

    Args:
        tokenizer: Its tokenizer, as it was saved.
        new_heads: Called with heads that the folder of ``init_from`` lacks.
        text: The training text, for embeddings that start from it; None: where the initial weights
            do not matter.
    """
    import torch

    from plmctl.models.network import Network
    from plmctl.models.parameters import extend_vocabulary, start_embeddings_

    family = get_family(config.model.family)
    torch.manual_seed(int(fold(config.seed, stream("init"))) >> 1)
    if config.model.init_from is not None:
        model = loaded_model(config, new_heads)
        if config.model.extend_vocab is not None:
            pieces = pieces_of_new_ids(config, tokenizer, model.config.vocab_size)
            extend_vocabulary(model, pieces)
        return Network(model, family.forward)
    model = fresh_model(config, Vocab.of(tokenizer))
    start_from_teacher(config, model)
    if text is not None and starts_from_text(config):
        say("token embeddings start from counts in the training text")
        table: Any = model.get_input_embeddings().weight
        start_embeddings_(table, embeddings_of(text, *table.shape))
    return Network(model, family.forward)


def fresh_model(config: PretrainConfig, vocab: Vocab) -> PreTrainedModel:
    """The family's model with fresh weights from the global generator, or its teacher's."""
    family, objective = get_family(config.model.family), make_objective(config.objective)
    filler = vocab.pad if vocab.pad is not None else vocab.eos
    model = family.build(
        config.model,
        vocab_size=objective.num_outputs(vocab.size),
        pad_id=filler or 0,
        loss_terms=objective.LOSS_TERMS,
    )
    if getattr(model.config, "is_encoder_decoder", False):
        # Where generating stops; T5's own config says 1, whatever the tokenizer.
        model.config.eos_token_id = model.generation_config.eos_token_id = vocab.eos
    return model


def network_facts(model: PreTrainedModel) -> dict[str, int]:
    """Its number of parameters and its sizes, in the words of a card; unknown ones are left out."""
    names = {
        "layers": "num_hidden_layers",
        "hidden size": "hidden_size",
        "attention heads": "num_attention_heads",
        "positions": "max_position_embeddings",
        "vocabulary": "vocab_size",
    }
    sizes = {name: getattr(model.config, key, None) for name, key in names.items()}
    known = {name: size for name, size in sizes.items() if isinstance(size, int)}
    return {"parameters": sum(one.numel() for one in model.parameters()), **known}


def start_from_teacher(config: PretrainConfig, model: PreTrainedModel) -> None:
    """Give a student the weights that its teacher starts it with, if the objective has one."""
    teacher = make_objective(config.objective).teacher()
    if teacher is not None:
        get_family(config.model.family).init_from_teacher(model, teacher)


def starts_from_text(config: PretrainConfig) -> bool:
    """Whether the token embeddings start from counts in the training text."""
    return getattr(config.model, "initial_embeddings", "published") == "cooccurrence"


# --- Continued pretraining: what differs from the folder that it starts from ---


NOT_OF_NETWORK = set(ModelConfig.model_fields)


def loaded_model(config: PretrainConfig, new_heads: Callable[[str], None]) -> PreTrainedModel:
    """The model of ``init_from`` with the heads of the objective and its own vocabulary."""
    terms = make_objective(config.objective).LOSS_TERMS
    family, source = get_family(config.model.family), str(config.model.init_from)
    return family.load(source, terms, new_heads=new_heads, **dropout_changes(config))


def dropout_changes(config: PretrainConfig) -> dict[str, Any]:
    """The dropout that the config sets for a loaded network, where it is not the family's."""
    names = get_family(config.model.family).DROPOUT
    return {
        name: getattr(config.model, name) for name in sorted(fields_set(config)) if name in names
    }


def fields_set(config: PretrainConfig) -> set[str]:
    """Fields that are not as they are by default: a resolved config names all of them."""
    fields = type(config.model).model_fields.items()
    return {n for n, f in fields if getattr(config.model, n) != f.default} - NOT_OF_NETWORK


def pieces_of_new_ids(
    config: PretrainConfig, tokenizer: PreTrainedTokenizerBase, rows: int
) -> dict[int, list[int]]:
    """For each id that the folder's tokenizer does not have, the old ids that stand for it.

    Args:
        config: With ``model.init_from`` and ``model.extend_vocab``.
        tokenizer: That of the run, with the new ids.
        rows: The number of rows of the folder's embeddings, where the folder has no tokenizer.
    """
    before = folder_tokenizer(config)
    known = max(before.get_vocab().values()) + 1 if before is not None else rows
    pieces_by_id: dict[int, list[int]] = {}
    for token, id_ in sorted(tokenizer.get_vocab().items(), key=lambda item: item[1]):
        if id_ < known:
            continue
        pieces_by_id[id_] = []
        if config.model.extend_vocab == "subtokens" and before is not None:
            text = tokenizer.convert_tokens_to_string([token]).removeprefix("##").strip()
            pieces = before(text, add_special_tokens=False)["input_ids"]
            pieces_by_id[id_] = [piece for piece in pieces if piece != before.unk_token_id]
    return pieces_by_id


def folder_tokenizer(config: PretrainConfig) -> PreTrainedTokenizerBase | None:
    """The tokenizer that lies beside the weights, if one does."""
    from plmctl.tokenization.load import load_tokenizer

    source = str(config.model.init_from)
    if Path(source).is_dir() and not vocabulary_files(source):
        return None
    return load_tokenizer(source)

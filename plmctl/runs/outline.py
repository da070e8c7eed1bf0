"""A run's network before there is one: what its family or its teacher refuses is refused early."""

from typing import TYPE_CHECKING

from plmctl import families, objectives
from plmctl.config.pretrain import PretrainConfig
from plmctl.errors import ConfigError
from plmctl.runs import launch
from plmctl.runs.finetune import check_model
from plmctl.runs.prepare import check_objective
from plmctl.tokenization.encode import Encoder
from plmctl.tokenization.vocab import Vocab

if TYPE_CHECKING:
    from transformers import PreTrainedConfig, PreTrainedModel


def check_network(config: PretrainConfig) -> None:
    """Refuse a network that cannot be built or cannot be taught, before any text is read.

    Raises:
        ConfigError: From the family, the objective, or transformers.
        DataError: The weights to start from, or the teacher's, are not whole.
    """
    check_lengths(config)
    Encoder(config.tokenizer)  # refuses what is no tokenizer
    vocab = Vocab.from_folder(config.tokenizer)
    check_objective(config, vocab)
    outline = _outline(config, vocab)
    if config.launch.strategy == "fsdp":
        _check_sharded(config, outline.model_type)
    if config.compute.checkpoint_activations and outline.model_type == "elmo":
        from plmctl.modeling.recompute import refusal

        raise refusal("ELMo")
    check = getattr(objectives.get(config.objective.name), "check", None)
    if check is not None:
        longest = max(phase.seq_len for phase in config.train.phases)
        check(config.objective, config.tokenizer, outline, longest)


def check_lengths(config: PretrainConfig) -> None:
    """Refuse sequences that are longer than the network has positions.

    Raises:
        ConfigError: With the longest of the phases.
    """
    longest = max(phase.seq_len for phase in config.train.phases)
    positions = families.get(config.model.family).positions(config.model)
    if longest > positions:
        raise ConfigError(
            f"train.phases: seq_len {longest} is longer than the network's {positions} positions",
            "shorten the sequences, or increase the number of positions under `model`",
        )


def _check_sharded(config: PretrainConfig, model_type: str) -> None:
    """Refuse what needs whole weights, or more than one set of them.

    Raises:
        ConfigError: ELMo, Muon, fp16's scaler, or a compiled network.
    """
    said = "launch.strategy: fsdp is not done"
    if model_type == "elmo":
        raise ConfigError(f"{said} for ELMo", "use ddp")
    if config.optim.name == "muon":
        raise ConfigError(
            f"{said} with optim.name=muon, whose every update needs whole matrices",
            "use another optimizer, or ddp",
        )
    if config.compute.precision == "fp16":
        raise ConfigError(f"{said} in fp16", "use bf16 or fp32, or ddp")
    if config.compute.compile is True:
        raise ConfigError(f"{said} for a compiled network", "use compute.compile=auto, or ddp")


def fresh_model(config: PretrainConfig, vocab: Vocab) -> "PreTrainedModel":
    """The family's model with fresh weights from the global generator, or its teacher's."""
    family = families.get(config.model.family)
    parts = objectives.get(config.objective.name).PARTS
    filler = vocab.pad if vocab.pad is not None else vocab.eos
    model = family.build(
        config.model, vocab_size=outputs(config, vocab), pad_id=filler or 0, parts=parts
    )
    if getattr(model.config, "is_encoder_decoder", False):
        # Where generating stops; T5's own config says 1, whatever the tokenizer.
        model.config.eos_token_id = model.generation_config.eos_token_id = vocab.eos
    return model


def outputs(config: PretrainConfig, vocab: Vocab) -> int:
    """Ids that the network predicts: the tokenizer's, or fewer if the objective says so (bilm)."""
    fewer: int | None = getattr(config.objective, "target_words", None)
    return fewer or vocab.size


def begin(config: PretrainConfig, model: "PreTrainedModel") -> None:
    """Give a student the weights that its teacher starts it with, if the objective has one."""
    if getattr(config.objective, "init", None) == "alternate":
        family = families.get(config.model.family)
        family.begin_as(model, config.objective.teacher)  # type: ignore[attr-defined]  # checked


def _outline_of_folder(config: PretrainConfig, vocab: Vocab, source: str) -> "PreTrainedConfig":
    """The config of the folder to start from, whose weights are looked at before any text is."""
    import torch

    from plmctl.modeling.auto import config_of

    check_model(source)
    found = config_of(source)
    with torch.device("meta"):
        asked = fresh_model(config, vocab).config.model_type
    if found.model_type != asked:
        raise ConfigError(
            f"model.init_from: {source} is of type {found.model_type!r}, but the family "
            f"{config.model.family} is of type {asked!r}",
            "set `model.family` to that of the folder",
        )
    if not launch.is_worker():  # whose launcher has looked already
        parts = objectives.get(config.objective.name).PARTS
        families.get(config.model.family).load(source, parts, new_heads=lambda told: None)
    return found


def _outline(config: PretrainConfig, vocab: Vocab) -> "PreTrainedConfig":
    import torch

    if config.model.init_from is not None:
        return _outline_of_folder(config, vocab, config.model.init_from)
    try:
        with torch.device("meta"):
            return fresh_model(config, vocab).config
    except ValueError as error:
        raise ConfigError(f"model: {error}") from error

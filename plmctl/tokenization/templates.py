"""The families' tokenizers around a vocabulary: cleaning, special tokens, template, class.

transformers' classes set up the published rules by themselves, and do so again when they are
loaded. Settings that a class has no word for make a tokenizer of the general class, which loads
whatever rules were saved.
"""

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from plmctl.config.tokenizer import TokenizerConfig
from plmctl.errors import ConfigError
from plmctl.tokenization.charsmap import nmt_nfkc
from plmctl.tokenization.units import Kind

if TYPE_CHECKING:
    from tokenizers.normalizers import Normalizer
    from transformers import PreTrainedTokenizerFast

_END_OF_TEXT = "<|endoftext|>"


@dataclass(frozen=True)
class Rules:
    """How text is cleaned before it is cut."""

    normalization: str
    lowercase: bool
    strip_accents: bool
    space_chinese: bool


@dataclass(frozen=True)
class Template:
    """What a family's tokenizer has besides its vocabulary.

    Attributes:
        class_name: In transformers.
        kind: Of its units, under the published rules.
        first: Special tokens with the first ids.
        last: Special tokens with the last ids; those of T5 are as many as the config says.
        rules: The published ones.
        max_length: Longest input of the published models.
        mask: The mask token, if it swallows the space before it.
    """

    class_name: str
    kind: Kind
    first: tuple[str, ...]
    last: tuple[str, ...]
    rules: Rules
    max_length: int = 512
    mask: str | None = None


_CLEANED = Rules("none", lowercase=True, strip_accents=True, space_chinese=True)
_AS_IS = Rules("none", lowercase=False, strip_accents=False, space_chinese=False)

TEMPLATES: dict[str, Template] = {
    "albert": Template(
        "AlbertTokenizer",
        "spaces",
        ("<pad>", "<unk>", "[CLS]", "[SEP]", "[MASK]"),
        (),
        Rules("nfkd", lowercase=True, strip_accents=True, space_chinese=False),
        mask="[MASK]",
    ),
    # A fresh vocabulary begins with these five; the published ones have them at 0 and 100 to 103.
    "bert": Template(
        "BertTokenizer", "bert", ("[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]"), (), _CLEANED
    ),
    "elmo": Template(
        "PreTrainedTokenizerFast",
        "bert",
        ("<S>", "</S>", "<UNK>"),
        (),
        Rules("none", lowercase=False, strip_accents=False, space_chinese=True),
        max_length=2**31 - 1,
    ),
    "gpt1": Template("OpenAIGPTTokenizer", "bert", ("<unk>",), (), _CLEANED),
    "gpt2": Template("GPT2Tokenizer", "bytes", (), (_END_OF_TEXT,), _AS_IS, max_length=1024),
    "roberta": Template(
        "RobertaTokenizer",
        "bytes",
        ("<s>", "<pad>", "</s>", "<unk>"),
        ("<mask>",),
        _AS_IS,
        mask="<mask>",
    ),
    "t5": Template(
        "T5Tokenizer",
        "spaces",
        ("<pad>", "</s>", "<unk>"),
        (),
        Rules("nmt_nfkc", lowercase=False, strip_accents=False, space_chinese=False),
    ),
}


def special_tokens(config: TokenizerConfig) -> tuple[list[str], list[str]]:
    """Those before the vocabulary's tokens and those after.

    Raises:
        ConfigError: One of the config's is there twice.
    """
    template = TEMPLATES[config.family]
    first = [*template.first, *config.special_tokens]
    last = [*template.last, *_sentinels(config)]
    seen: set[str] = set()
    for token in first + last:
        if token in seen:
            raise ConfigError(
                f"special_tokens: {token!r} is there twice",
                f"the family {config.family} has {', '.join(template.first + template.last)}",
            )
        seen.add(token)
    return first, last


def kind_of_units(config: TokenizerConfig) -> Kind:
    """Whose units the text is counted in."""
    kind = TEMPLATES[config.family].kind
    if config.pretokenized:
        return "spaces"
    # Chinese characters are units only where they are words.
    return "spaces" if kind == "bert" and not rules_of(config).space_chinese else kind


def rules_of(config: TokenizerConfig) -> Rules:
    """The config's rules, and the family's where it has none."""
    published = TEMPLATES[config.family].rules
    lowercase = published.lowercase if config.lowercase is None else config.lowercase
    accents = config.strip_accents
    if accents is None:  # BERT's are dropped if case is folded
        accents = lowercase if published == _CLEANED else published.strip_accents
    chinese = config.space_chinese
    return Rules(
        config.normalization or published.normalization,
        lowercase,
        accents,
        published.space_chinese and not config.pretokenized if chinese is None else chinese,
    )


def make(config: TokenizerConfig, model: dict[str, Any]) -> "PreTrainedTokenizerFast":
    """A family's tokenizer.

    Args:
        config: Family and rules.
        model: ``vocab``, and ``merges`` for BPE, as the family's class takes them; empty for the
            rules alone.
    """
    import transformers
    from tokenizers import AddedToken

    template = TEMPLATES[config.family]
    if config.family == "elmo":
        return _words(config, model)
    options, general = _options(config)
    if config.family == "albert":  # whose class in transformers leaves the segments out
        options["model_input_names"] = ["input_ids", "token_type_ids", "attention_mask"]
    if template.mask:
        options["mask_token"] = AddedToken(template.mask, lstrip=True, special=True)
    tokenizer: PreTrainedTokenizerFast = getattr(transformers, template.class_name)(
        **model,
        **options,
        model_max_length=config.max_length or template.max_length,
        split_special_tokens=config.split_special_tokens,
        **_extra(config),
    )
    return _generalised(config, tokenizer) if general else tokenizer


def _words(config: TokenizerConfig, model: dict[str, Any]) -> "PreTrainedTokenizerFast":
    """ELMo's: transformers has no class for whole words."""
    from tokenizers import Tokenizer, models, pre_tokenizers
    from transformers import PreTrainedTokenizerFast

    begin, end, unknown = TEMPLATES["elmo"].first
    backend = Tokenizer(models.WordLevel(model.get("vocab", {}), unk_token=unknown))
    backend.normalizer = _normalizer(config)
    backend.pre_tokenizer = (
        pre_tokenizers.WhitespaceSplit()
        if config.pretokenized
        else pre_tokenizers.BertPreTokenizer()
    )
    return PreTrainedTokenizerFast(  # type: ignore[no-untyped-call]  # theirs
        tokenizer_object=backend,
        bos_token=begin,
        eos_token=end,
        unk_token=unknown,
        model_max_length=config.max_length or TEMPLATES["elmo"].max_length,
        split_special_tokens=config.split_special_tokens,
        **_extra(config),
    )


def _extra(config: TokenizerConfig) -> dict[str, Any]:
    sentinels = [f"<extra_id_{number}>" for number in range(len(_sentinels(config)))]
    extra = [*config.special_tokens, *sentinels]
    if config.family == "t5":
        return {"extra_ids": len(sentinels), "additional_special_tokens": extra}
    return {"extra_special_tokens": extra} if extra else {}


def _sentinels(config: TokenizerConfig) -> list[str]:
    """In the order of their ids."""
    count = config.sentinels if config.family == "t5" else 0
    return [f"<extra_id_{number}>" for number in reversed(range(count))]


def _options(config: TokenizerConfig) -> tuple[dict[str, Any], bool]:
    """Arguments of the family's class, and whether it cannot express the rest."""
    rules, published = rules_of(config), TEMPLATES[config.family].rules
    general = rules.normalization != published.normalization
    if config.family == "bert":
        long_words = config.max_word_length not in (None, 100)
        accents = None if rules.strip_accents == rules.lowercase else rules.strip_accents
        return {
            "do_lower_case": rules.lowercase,
            "strip_accents": accents,
            "tokenize_chinese_chars": rules.space_chinese,
        }, general or long_words
    if config.family == "albert":
        return {
            "do_lower_case": rules.lowercase,
            "keep_accents": not rules.strip_accents,
            "_spm_precompiled_charsmap": nmt_nfkc(),
        }, general or rules.space_chinese
    table = {"_spm_precompiled_charsmap": nmt_nfkc()} if config.family == "t5" else {}
    return table, rules != published


def _generalised(
    config: TokenizerConfig, tokenizer: "PreTrainedTokenizerFast"
) -> "PreTrainedTokenizerFast":
    """The same with the config's rules, as a class that keeps them when it is loaded."""
    from tokenizers.models import WordPiece
    from transformers import PreTrainedTokenizerFast

    backend = tokenizer.backend_tokenizer
    backend.normalizer = _normalizer(config)
    if isinstance(backend.model, WordPiece) and config.max_word_length:
        backend.model.max_input_chars_per_word = config.max_word_length
    return PreTrainedTokenizerFast(  # type: ignore[no-untyped-call]  # theirs
        tokenizer_object=backend,
        model_input_names=tokenizer.model_input_names,
        model_max_length=tokenizer.model_max_length,
        split_special_tokens=config.split_special_tokens,
        extra_special_tokens=_extra(config).get("extra_special_tokens", []),
        **tokenizer.special_tokens_map,
    )


def _normalizer(config: TokenizerConfig) -> "Normalizer":
    from tokenizers import normalizers

    rules, family = rules_of(config), config.family
    parts = _form(rules.normalization)
    if family in ("bert", "gpt1") or (family == "elmo" and not config.pretokenized):
        parts.append(
            normalizers.BertNormalizer(
                True, rules.space_chinese, rules.strip_accents, rules.lowercase
            )
        )
        return normalizers.Sequence(parts)
    if family == "albert":
        parts += [normalizers.Replace("``", '"'), normalizers.Replace("''", '"')]
    if rules.space_chinese:
        parts.append(normalizers.BertNormalizer(False, True, False, False))
    if rules.strip_accents:
        parts += [normalizers.NFD(), normalizers.StripAccents()]
    if rules.lowercase:
        parts.append(normalizers.Lowercase())
    if family == "albert":
        parts.append(normalizers.Precompiled(nmt_nfkc()))
    return normalizers.Sequence(parts)


def _form(name: str) -> list[Any]:
    """The normalizer of a Unicode form."""
    from tokenizers import normalizers

    if name == "none":
        return []
    if name == "nmt_nfkc":
        return [normalizers.Precompiled(nmt_nfkc())]
    return [getattr(normalizers, name.upper())()]

"""Log-likelihoods of texts and of sentences under a model of any family.

There is one class per kind of likelihood; ``Likelihood.of`` chooses it by the family. All of them
sum the negative log-likelihood of every token in nats, and score each token exactly once. Measures
take averages, over the whole set and never over batches.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, ClassVar, Literal, NamedTuple, Self

import numpy as np
from numpy.typing import NDArray

from plmctl.arrays import Floats, Ints, batches, lengths_of, padded
from plmctl.errors import ConfigError, DataError
from plmctl.evaluation.model import LoadedModel, TokenizedText

if TYPE_CHECKING:
    from torch import Tensor

    from plmctl.models.batch import Rows


# --- What is scored, and the result ---


MaskingVariant = Literal["original", "word_l2r"]


@dataclass(frozen=True)
class ScoringOptions:
    """How texts are scored, where a kind of likelihood leaves a choice.

    Attributes:
        seq_len: Tokens that the model reads at once; None: the default of its kind.
        stride: Causal models: see ``sliding_windows``; None: half of the window.
        begin: Causal models: whether the begin token is put before a text.
        variant: Masked models: original: one token is masked; word_l2r: the later tokens of its
            word too.
        span: Encoder-decoders: tokens that are hidden together; None: the whole text.
    """

    seq_len: int | None = None
    stride: int | None = None
    begin: bool = True
    variant: MaskingVariant = "original"
    span: int | None = 3


@dataclass(frozen=True)
class TextScores:
    """Scores of N texts.

    Attributes:
        nll: [N] negative log-likelihood in nats, summed over the scored tokens.
        scored: [N] number of scored tokens.
        first: [N] tokens without a prediction: the first token of a text if the model has no begin
            token.
    """

    nll: Floats
    scored: Ints
    first: Ints

    @classmethod
    def empty(cls, texts: int) -> TextScores:
        """Nothing scored yet."""
        return cls(np.zeros(texts), np.zeros(texts, np.int64), np.zeros(texts, np.int64))

    def add(self, text: Ints, nll: Floats) -> None:
        """Add the ``nll`` [K] of tokens to the texts [K] that they belong to."""
        np.add.at(self.nll, text, nll)
        np.add.at(self.scored, text, 1)


@dataclass(frozen=True)
class SentenceScores:
    """Scores of N sentences.

    Attributes:
        log_probability: [N] in nats.
        tokens: [N] tokens that are counted in it.
        cut: Number of sentences that were longer than the context and were cut from the left.
        unknown: Number of tokens that stand for text outside the vocabulary.
    """

    log_probability: Floats
    tokens: Ints
    cut: int
    unknown: int


def _at(logits: Tensor, scored: NDArray[np.bool_]) -> Tensor:
    """[K, V] the logits [B, T, V] at the scored places [B, T]; a GPU need not count them."""
    import torch

    return logits.flatten(0, 1)[torch.from_numpy(np.flatnonzero(scored)).to(logits.device)]


def token_nll(logits: Tensor, targets: Ints) -> Floats:
    """Negative log-likelihood of each target in nats, unreduced.

    Args:
        logits: [K, V].
        targets: [K].

    Returns:
        [K], from a softmax in float32.
    """
    import torch
    from torch.nn.functional import cross_entropy

    target = torch.from_numpy(targets).to(logits.device)
    nll = cross_entropy(logits.float(), target, reduction="none")
    return nll.cpu().double().numpy()


# --- Every kind of likelihood ---


# Parts of the names of transformers' and our classes that have a language-model head.
_LM_HEADS = (
    "MaskedLM", "PreTraining", "LMHead", "DoubleHeads", "CausalLM", "ConditionalGeneration",
    "SpanBert", "MTModel",
)  # fmt: skip


class Likelihood(ABC):
    """Scores texts with one model; make it by ``of``."""

    KIND: ClassVar[str]
    """The kind of model, as results name it."""
    LOSS_TERMS: ClassVar[tuple[str, ...]]
    """The heads that it needs."""
    MEASURES: ClassVar[str]
    """The measures that support this kind, for messages."""
    REMEDY: ClassVar[str] = ""
    """What makes a model of this kind one of another, for messages."""
    READS_SENTENCES: ClassVar[bool] = False
    """Whether models of this kind are trained on sentences; else on text as it is."""

    def __init__(self, model: LoadedModel) -> None:
        self.model = model

    @classmethod
    def of(cls, model: LoadedModel) -> Self:
        """The likelihood of a model, by its family.

        Raises:
            ConfigError: The model is of another kind than this class, or has no language-model
                head. Its weights are not read for this.
        """
        kind: type[Likelihood]
        kind = EncoderDecoderLikelihood if model.text_to_text else CausalLikelihood
        if kind is CausalLikelihood and model.is_masked:
            kind = MaskedNextTokenLikelihood
        for other in (BidirectionalLikelihood, MaskedLikelihood):
            if set(other.LOSS_TERMS) <= set(model.family.HEADS):
                kind = other
        likelihood = kind(model)
        if not isinstance(likelihood, cls):
            raise ConfigError(
                f"{model.name} is a {kind.KIND.replace('_', '-')} model ({model.family.name}); "
                f"this measure supports only {cls.KIND.replace('_', '-')} models",
                f"{likelihood.REMEDY if model.family.BOTH_SIDES else ''}use {kind.MEASURES}",
            )
        classes = model.config.architectures or []
        beside = model.family.masked_folder(model.name) != model.name  # a generator in the folder
        if classes and not beside and not any(head in classes[0] for head in _LM_HEADS):
            raise ConfigError(
                f"{model.name}: a {classes[0]} has no language-model head to score text with",
                "name the pretrained model from which it was finetuned",
            )
        return likelihood

    @abstractmethod
    def score(self, texts: Sequence[TokenizedText], options: ScoringOptions) -> TextScores:
        """Score every token of each text once.

        Raises:
            ConfigError: See ``window``.
        """

    @abstractmethod
    def definition(self, options: ScoringOptions) -> str:
        """The likelihood of a token of ``score``, in one line."""

    @abstractmethod
    def sentence_definition(self, options: ScoringOptions) -> str:
        """The result of ``score_sentences``, in one line."""

    @property
    def default_window(self) -> int:
        """Tokens at once if ``seq_len`` is not given: models that read a row once per token."""
        return min(128, self.model.context)

    @property
    def sentence_length(self) -> int:
        """Tokens of a sentence that the model can read at once."""
        return self.model.context

    def window(self, options: ScoringOptions) -> tuple[int, int]:
        """Tokens of a window, and its stride.

        Raises:
            ConfigError: The model cannot read that many at once, or the stride skips tokens.
        """
        context = self.model.context
        size = options.seq_len or self.default_window
        if size > context:
            raise ConfigError(
                f"seq_len is {size:,}, but {self.model.name} reads at most {context:,} tokens at "
                "once",
                f"set seq_len to {context} or less",
            )
        stride = options.stride or max(1, size // 2)
        if stride > size:
            raise ConfigError(
                f"stride is {stride:,}, but the window has {size:,} tokens: tokens between two "
                "windows would not be scored",
                f"set stride to {size} or less; a smaller stride gives more context and takes "
                "longer",
            )
        return size, stride

    def score_sentences(
        self,
        texts: Sequence[str],
        variant: MaskingVariant = "original",
        span: int | None = None,
    ) -> SentenceScores:
        """The log-probability of each of N sentences by itself.

        Returns:
            Sums of logarithms. The first token of a model without a begin token counts as a guess
            among all tokens, the same for every sentence.

        Raises:
            DataError: A sentence has no token, and would be certain.
        """
        tokenized = self.model.tokens([[text] for text in texts])
        for text, tokens in zip(texts, tokenized, strict=True):
            if not len(tokens.ids):
                raise DataError(
                    f"{text!r}: the tokenizer of {self.model.name} returns no token for this "
                    "sentence",
                    "remove the sentence, or fix its characters",
                )
        limit = self.sentence_length
        inputs = [cut_from_left(tokens, limit) for tokens in tokenized]
        context = self.model.context
        scores = self.score(inputs, ScoringOptions(context, context, variant=variant, span=span))
        return SentenceScores(
            -scores.nll - scores.first * np.log(self.model.outputs),
            np.array([len(tokens.ids) for tokens in inputs], dtype=np.int64),
            sum(len(tokens.ids) > limit for tokens in tokenized),
            sum(tokens.unknown for tokens in tokenized),
        )

    def logits(self, *, rows: Rows | None = None, **inputs: NDArray[Any]) -> dict[str, Tensor]:
        """The logits of the family's forward; call it in inference mode."""
        import torch

        tensors = {n: torch.from_numpy(a).to(self.model.device) for n, a in inputs.items()}
        with self.model.autocast():
            logits: dict[str, Tensor] = self.model.network(self.LOSS_TERMS)(rows=rows, **tensors)
        return logits


# --- Causal models (GPT-1, GPT-2, GPT-3): log p(token | the tokens before it), sliding windows ---


class CausalLikelihood(Likelihood):
    """log p(token | the tokens before it in its text)."""

    KIND = "causal"
    LOSS_TERMS = ("lm",)
    MEASURES = "`perplexity` or `bits_per_byte`"
    REMEDY = "add both_sides=true if it was pretrained with mntp, or "

    @property
    def default_window(self) -> int:
        """The context: a window is read once for all of its tokens; of long ones 2,048 tokens."""
        return min(2048, self.model.context)

    @property
    def sentence_length(self) -> int:
        """The last token is only predicted; the begin token takes a position if there is one."""
        return self.model.context + (not self.model.start)

    def score(self, texts: Sequence[TokenizedText], options: ScoringOptions) -> TextScores:
        """Score in sliding windows; without a begin token the first token has no prediction."""
        import torch

        size, stride = self.window(options)
        before = np.array(self.model.start if options.begin else (), dtype=np.int64)
        scores = TextScores.empty(len(texts))
        rows: list[Ints] = []
        spans: list[tuple[int, int, int]] = []  # the text, and which part of a row is scored
        for number, text in enumerate(texts):
            ids = np.concatenate([before, text.ids])
            scores.first[number] = len(text.ids) > 0 and not len(before)
            for window in sliding_windows(len(ids) - 1, size, stride):
                rows.append(ids[window.begin : window.end + 1])
                spans.append((number, window.first - window.begin, window.end - window.begin))
        text_of, first, end = np.array(spans, dtype=np.int64).reshape(-1, 3).T
        limit = min(self.model.batch_tokens, self.model.batch_predictions)
        with torch.inference_mode():
            for chosen in batches(end, max_tokens=limit):
                table, _ = padded([rows[number] for number in chosen], 0)
                # Padding follows the tokens of a row, which attend only to what is before them.
                logits = self.logits(input_ids=np.ascontiguousarray(table[:, :-1]))["lm"]
                column = np.arange(table.shape[1] - 1)
                scored = (column >= first[chosen, None]) & (column < end[chosen, None])
                row, _ = np.nonzero(scored)
                nll = token_nll(_at(logits, scored), table[:, 1:][scored])
                scores.add(text_of[chosen][row], nll)
        return scores

    def definition(self, options: ScoringOptions) -> str:
        """See ``Likelihood.definition``."""
        size, stride = self.window(options)
        begin = "a begin token" if options.begin and self.model.start else "no begin token"
        return (
            f"p(token | tokens before it in its document), windows of {size} inputs, stride "
            f"{stride}, {begin}"
        )

    def sentence_definition(self, options: ScoringOptions) -> str:
        """See ``Likelihood.sentence_definition``."""
        return "sum of log p(token | tokens before it), given the begin token where there is one"


# --- Masked models: pseudo-log-likelihood (Salazar et al., 2020, arXiv:1910.14659) ---
#
# The sum over the tokens of log p(token | the others), one masked copy of the text per token. The
# other tokens of a word give a token away; ``word_l2r`` also masks the later tokens of its word
# (Kauf and Ivanova, 2023, arXiv:2305.10588).


@dataclass(frozen=True)
class MaskedCopies:
    """Masked copies of rows, each of which predicts one token.

    Attributes:
        rows: Ids, special tokens included.
        row: [n] the row that each copy is of.
        place: [n] the token to predict.
        until: [n] end of the masked tokens, which begin at ``place``.
    """

    rows: Sequence[Ints]
    row: Ints
    place: Ints
    until: Ints


class MaskedLikelihood(Likelihood):
    """log p(token | the others); special tokens are not scored."""

    KIND = "masked"
    LOSS_TERMS = ("mlm",)
    MEASURES = "`pseudo_perplexity` or `bits_per_byte`"
    READS_SENTENCES = True
    SPECIAL_AFTER: ClassVar[int] = 1
    """Special tokens after the tokens of a row; before them there is always one."""

    @property
    def sentence_length(self) -> int:
        """The length without special tokens."""
        return self.model.context - 1 - self.SPECIAL_AFTER

    def score(self, texts: Sequence[TokenizedText], options: ScoringOptions) -> TextScores:
        """Mask and score every token; longer texts are cut into pieces, each scored by itself."""
        size, _ = self.window(options)
        rows: list[Ints] = []
        places: list[Ints] = []  # [4, n]: row, place, end of the masked tokens, text
        for number, text in enumerate(texts):
            for start, end in equal_pieces(len(text.ids), size - 1 - self.SPECIAL_AFTER):
                place = np.arange(1, end - start + 1)
                until = masked_until(text.starts[start:end], options.variant) + 1
                fixed = np.full_like(place, len(rows)), np.full_like(place, number)
                places.append(np.stack([fixed[0], place, until, fixed[1]]))
                rows.append(self.with_special_tokens(text.ids[start:end]))
        row, place, until, text_of = np.concatenate([np.zeros((4, 0), np.int64), *places], axis=1)
        scores = TextScores.empty(len(texts))
        for chosen, nll, _ in self.masked_token_nll(MaskedCopies(rows, row, place, until)):
            scores.add(text_of[chosen], nll)
        return scores

    def definition(self, options: ScoringOptions) -> str:
        """See ``Likelihood.definition``."""
        size, _ = self.window(options)
        words = ", later tokens of its word masked too" if options.variant == "word_l2r" else ""
        return f"p(token | the others), one masked copy a token{words}, rows of {size} tokens"

    def sentence_definition(self, options: ScoringOptions) -> str:
        """See ``Likelihood.sentence_definition``."""
        words = options.variant == "word_l2r"
        masked = "its word's later tokens masked too" if words else "one masked at once"
        return f"pseudo-log-likelihood: sum of log p(token | the others), {masked}"

    def with_special_tokens(self, ids: Ints) -> Ints:
        """A row: the ids between the two special tokens."""
        return np.concatenate([[self.model.special("cls")], ids, [self.model.special("sep")]])

    def masked_token_nll(
        self, copies: MaskedCopies
    ) -> Iterator[tuple[Ints, Floats, NDArray[np.bool_]]]:
        """Score every copy, in batches by length.

        Yields:
            Numbers of copies [K], the negative log-likelihood of their tokens in nats [K], and
            whether each token is the most probable one [K].
        """
        import torch

        mask, fill = self.model.special("mask"), self.model.vocab.pad or 0
        lengths = lengths_of(copies.rows)[copies.row]
        tokens, predictions = self.model.batch_tokens, self.model.batch_predictions
        with torch.inference_mode():
            for chosen in batches(lengths, max_tokens=tokens, most=predictions):
                place, until = copies.place[chosen], copies.until[chosen]
                ids, present = padded([copies.rows[number] for number in copies.row[chosen]], fill)
                column = np.arange(ids.shape[1])
                at = np.arange(len(chosen)), place
                targets = ids[at]
                ids[(column >= place[:, None]) & (column < until[:, None])] = mask
                logits = self.predictions(ids, present, at[0] * ids.shape[1] + at[1])
                first = logits.argmax(-1).cpu().numpy() == targets
                yield chosen, token_nll(logits, targets), first

    def predictions(self, ids: Ints, present: NDArray[np.bool_], masked: Ints) -> Tensor:
        """Logits [K, V] of the tokens at the places [K] of the flattened ids [B, T]."""
        return self.logits(
            input_ids=ids,
            attention_mask=present.astype(np.int64),
            token_type_ids=np.zeros_like(ids),
            positions=masked,
        )["mlm"]


FROM_BEFORE = ", from the output before it"
"""What definitions add for a decoder that sees both sides."""


class MaskedNextTokenLikelihood(MaskedLikelihood):
    """The same of a decoder that sees both sides (``mntp``), read one position earlier."""

    LOSS_TERMS = ("lm",)
    REMEDY = "leave out both_sides, or "
    READS_SENTENCES = False
    SPECIAL_AFTER = 0

    def with_special_tokens(self, ids: Ints) -> Ints:
        """A row: the token that begins a text, from which the first one is predicted, and ids."""
        begin = self.model.start or (self.model.special("bos"),)
        return np.concatenate([begin, ids])

    def predictions(self, ids: Ints, present: NDArray[np.bool_], masked: Ints) -> Tensor:
        """See the base class."""
        return self.logits(
            input_ids=ids, attention_mask=present.astype(np.int64), positions=masked - 1
        )["lm"]

    def definition(self, options: ScoringOptions) -> str:
        """See ``Likelihood.definition``."""
        return f"{super().definition(options)}{FROM_BEFORE}"

    def sentence_definition(self, options: ScoringOptions) -> str:
        """See ``Likelihood.sentence_definition``."""
        return f"{super().sentence_definition(options)}{FROM_BEFORE}"


def masked_until(starts: NDArray[np.bool_], variant: MaskingVariant) -> Ints:
    """The end of the masked span that starts at each token.

    Args:
        starts: [n] whether a word starts at each token.
        variant: One token, or the rest of its word.

    Returns:
        [n], each greater than its own place.
    """
    after = np.arange(1, len(starts) + 1)
    if variant == "original":
        return after
    cuts = np.append(np.flatnonzero(starts), len(starts))
    return cuts[np.searchsorted(cuts, after)]


# --- Encoder-decoders (T5): likelihood of hidden spans, as in pretraining ---
#
# The first sentinel replaces a span of a text. The encoder reads the rest and the end token; the
# decoder is given the sentinel and then the span, token by token. Spans follow one another, so that
# every token is in one; the likelihoods of the sentinel and the end token are left out. Within a
# span this is the chain rule, over the spans it is a pseudo-likelihood. If the span is the whole
# text, the result is log p(text | a hidden text): the encoder reads only the sentinel.


class EncoderDecoderLikelihood(Likelihood):
    """log p(token | the rest of the text, the tokens before it in its hidden span)."""

    KIND = "encoder_decoder"
    LOSS_TERMS = ("lm",)
    MEASURES = "`bits_per_byte` or `span_corruption`"

    def score(self, texts: Sequence[TokenizedText], options: ScoringOptions) -> TextScores:
        """Hide and score every token; longer texts are cut into pieces, each scored by itself."""
        import torch

        size, _ = self.window(options)  # the end token included
        eos, pad, sentinel = (self.model.special(name) for name in ("eos", "pad", "sentinels"))
        sources: list[Ints] = []
        hidden: list[Ints] = []
        texts_of: list[int] = []
        for number, text in enumerate(texts):
            for start, end in equal_pieces(len(text.ids), size - 1):
                piece = text.ids[start:end]
                span = options.span or len(piece)
                for first in range(0, len(piece), span):
                    last = first + span
                    sources.append(np.concatenate([piece[:first], [sentinel], piece[last:], [eos]]))
                    hidden.append(piece[first:last])
                    texts_of.append(number)
        scores, text_of = TextScores.empty(len(texts)), np.array(texts_of, dtype=np.int64)
        lengths = lengths_of(sources) + lengths_of(hidden)
        limit = min(self.model.batch_tokens, self.model.batch_predictions)
        with torch.inference_mode():
            for chosen in batches(lengths, max_tokens=limit):
                source, present = padded([sources[number] for number in chosen], pad)
                targets, scored = padded([hidden[number] for number in chosen], -1)
                rows, places = np.nonzero(scored)
                # The decoder's first input is the padding token, its first output the sentinel.
                decoder_ids = np.full((len(chosen), targets.shape[1] + 1), pad, dtype=np.int64)
                decoder_ids[:, 1] = sentinel
                decoder_ids[:, 2:] = np.maximum(targets[:, :-1], 0)
                logits = self.logits(
                    input_ids=source,
                    attention_mask=present.astype(np.int64),
                    decoder_input_ids=decoder_ids,
                    positions=rows * decoder_ids.shape[1] + places + 1,
                )
                scores.add(text_of[chosen][rows], token_nll(logits["lm"], targets[rows, places]))
        return scores

    def definition(self, options: ScoringOptions) -> str:
        """See ``Likelihood.definition``."""
        size, _ = self.window(options)
        return (
            f"p(token | the rest, tokens before it in its span), spans of {options.span} tokens "
            f"hidden one after the other, rows of {size} tokens, without sentinels and end tokens"
        )

    def sentence_definition(self, options: ScoringOptions) -> str:
        """See ``Likelihood.sentence_definition``."""
        if options.span is None:
            return (
                "sum of log p(token | tokens before it) in the decoder; the encoder reads one "
                "sentinel for the whole sentence"
            )
        return (
            f"sum of log p(token | the rest, tokens before it in its span), spans of {options.span}"
            " hidden one after the other"
        )


# --- ELMo: the mean of the log-likelihoods of both directions ---
#
# A text is a stream of its sentences, each from <S> to its last word; the backward stream has the
# last sentence first and each from </S> to its first word, as in pretraining. The recurrent state
# starts at zero and is kept through a text. The likelihoods of the marks are left out. A word
# outside the vocabulary is predicted as <UNK>.


_ELMO_WINDOW = 64  # words whose logits are computed at once; the state is kept between windows

_NO_TARGET = -1


class BidirectionalLikelihood(Likelihood):
    """Mean over both directions of log p(word | the words before it in its text)."""

    KIND = "bidirectional"
    LOSS_TERMS = ("forward", "backward")
    MEASURES = "`bits_per_byte` or `bilm`"
    READS_SENTENCES = True

    def score(self, texts: Sequence[TokenizedText], options: ScoringOptions) -> TextScores:
        """Score every word once in each direction; sums of both directions, halved."""
        import torch

        from plmctl.models.batch import Rows

        self.window(options)
        unknown, bos, eos = (self.model.special(name) for name in ("unk", "bos", "eos"))
        streams = [_elmo_streams(text, bos, eos) for text in texts]
        characters, scores = self.word_characters(bos, eos), TextScores.empty(len(texts))
        lengths = np.array([stream.shape[-1] for stream in streams], dtype=np.int64)
        limit = min(self.model.batch_tokens, self.model.batch_predictions // 2)
        network = self.model.network(self.LOSS_TERMS)
        with torch.inference_mode():
            for chosen in batches(lengths, max_tokens=limit, window=_ELMO_WINDOW):
                batch = [streams[number] for number in chosen]
                inputs, targets = (
                    np.stack(
                        [padded([stream[side, d] for stream in batch], fill)[0] for d in (0, 1)]
                    )
                    for side, fill in ((0, bos), (1, _NO_TARGET))
                )
                targets[targets >= self.model.outputs] = unknown
                with network.isolated():  # the recurrent state starts at zero
                    for number, start in enumerate(range(0, inputs.shape[-1], _ELMO_WINDOW)):
                        part = np.s_[:, :, start : start + _ELMO_WINDOW]
                        distinct, words = np.unique(inputs[part], return_inverse=True)
                        logits = self.logits(
                            rows=Rows(0, len(chosen), len(chosen), number),
                            characters=characters[distinct],
                            words=words.reshape(inputs[part].shape),
                        )
                        for name, target in zip(self.LOSS_TERMS, targets[part], strict=True):
                            scored = target >= 0
                            nll = token_nll(_at(logits[name], scored), target[scored])
                            scores.add(chosen[np.nonzero(scored)[0]], nll)
        scores.nll[:] /= 2
        scores.scored[:] //= 2
        return scores

    def definition(self, options: ScoringOptions) -> str:
        """See ``Likelihood.definition``."""
        self.window(options)
        return "p(word | words before it in its document), mean of both directions, without marks"

    def sentence_definition(self, options: ScoringOptions) -> str:
        """See ``Likelihood.sentence_definition``."""
        return "mean over both directions of the sum of log p(word | words before it)"

    def word_characters(self, bos: int, eos: int) -> NDArray[np.int16]:
        """The characters of every word and mark.

        Raises:
            ConfigError: The tokenizer is not one of whole words.
        """
        from plmctl.models.elmo import BEGIN_SENTENCE, END_SENTENCE, boundary, encode_words

        if self.model.vocab.words is None:
            raise ConfigError(
                f"{self.model.name}: ELMo requires a tokenizer of whole words",
                "measure a model that was saved with the tokenizer it was pretrained with",
            )
        table = encode_words(self.model.vocab.words)
        table[bos], table[eos] = boundary(BEGIN_SENTENCE), boundary(END_SENTENCE)
        return table


def _elmo_streams(text: TokenizedText, bos: int, eos: int) -> Ints:
    """Inputs and targets of the forward and of the backward stream, [2 sides, 2 directions, S]."""
    sentences = np.split(text.ids, np.cumsum(text.sentences)[:-1])
    forward = [np.concatenate([[bos], sentence]) for sentence in sentences]
    backward = [np.concatenate([[eos], sentence[::-1]]) for sentence in reversed(sentences)]
    inputs = np.stack([np.concatenate(forward), np.concatenate(backward)])
    targets = np.full_like(inputs, _NO_TARGET)  # what follows a sentence's last word is not scored
    for direction, stream in enumerate((forward, backward)):
        ends = np.cumsum([len(sentence) for sentence in stream]) - 1
        targets[direction, :-1] = inputs[direction, 1:]
        targets[direction, ends] = _NO_TARGET
    return np.stack([inputs, targets])


# --- How long texts are cut: windows that overlap, and pieces of about one length ---


class ScoringWindow(NamedTuple):
    """Predictions that are made together.

    Attributes:
        begin: The first input.
        first: The first prediction that is scored; the window before has scored those before it.
        end: After the last input and the last prediction.
    """

    begin: int
    first: int
    end: int


def sliding_windows(count: int, size: int, stride: int) -> Iterator[ScoringWindow]:
    """Sliding windows over ``count`` predictions, each of which is scored exactly once.

    Prediction i is that of token i + 1 from the tokens up to i. So a window has ``size`` inputs,
    and a scored token always has at least one token of context, even if the stride is the size.

    Args:
        count: Tokens less one; with a begin token, the tokens of the text.
        size: Inputs of a window.
        stride: Distance between the beginnings of two windows; 1 gives every token all the context
            that fits, ``size`` makes the windows disjoint.
    """
    scored = 0
    for begin in range(0, count, stride):
        end = min(begin + size, count)
        yield ScoringWindow(begin, scored, end)
        scored = end
        if end == count:
            return


def equal_pieces(count: int, size: int) -> list[tuple[int, int]]:
    """[start, end) of consecutive pieces of at most ``size`` tokens, as equal as possible.

    Equal pieces, so that the last piece of a text has context too.
    """
    number = -(-count // size)
    cuts = [count * part // number for part in range(number + 1)] if number else [0]
    return list(zip(cuts, cuts[1:], strict=False))


def cut_from_left(tokens: TokenizedText, limit: int) -> TokenizedText:
    """The last ``limit`` tokens."""
    if len(tokens.ids) <= limit:
        return tokens
    ids = tokens.ids[-limit:]
    return replace(tokens, ids=ids, starts=tokens.starts[-limit:], sentences=np.array([len(ids)]))

"""Extractive question answering: the answer is a span of the context, or there is none.

Contexts longer than the input are read in overlapping windows. Windows, labels and the choice of
the answer are those of BERT's code (SQuAD 1.1 and 2.0), with Chinese characters as words. There are
two differences: the text of an answer is cut from the context by the character offsets of its
pieces (BERT's code has no offsets and searches for the text), and padding is masked in the softmax,
so that the width of a batch changes no loss.

From top to bottom: the config, the task, its examples, the windows of a question and its context,
pieces with their characters, and how an answer is chosen from logits.

Sources: google-research/bert, run_squad.py; google-research/albert, squad_utils.py.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import TYPE_CHECKING, Any, ClassVar, Literal

import numpy as np
from numpy.typing import NDArray
from pydantic import Field

from plmctl.arrays import IGNORE, Ints, padded
from plmctl.corpus.cells import number_of, written_value
from plmctl.errors import ConfigError, DataError
from plmctl.examples.windows import (
    PieceWindows,
    covering,
    owners,
    pieces_over,
    tightened,
    windows,
    words,
)
from plmctl.families.base import HeadKind, family_of
from plmctl.metrics import squad
from plmctl.metrics.modules import Kind
from plmctl.metrics.text import without_spaces
from plmctl.tasks._sequences import pad_id_of
from plmctl.tasks.base import (
    Answer,
    Counted,
    Outputs,
    ReadableAnswer,
    ScoredConfig,
    Task,
    TaskExamples,
    Use,
    as_batch,
    learnable,
    required,
    text_cell,
)
from plmctl.tokenization.layout import Ids, Layout, layout_of
from plmctl.tokenization.units import plain_copy

if TYPE_CHECKING:
    from torch import Tensor
    from transformers import PreTrainedConfig, PreTrainedModel, PreTrainedTokenizerBase

    from plmctl.corpus.labelled import Row
    from plmctl.models.batch import Batch
    from plmctl.models.load import HeadSource
    from plmctl.models.network import Network


class Config(ScoredConfig):
    """Find the answer to a question in a context."""

    COLUMNS: ClassVar[tuple[str, ...]] = ("question", "context", "answers", "id")

    name: Literal["question_answering"] = "question_answering"
    question: str = "question"
    """Column of the question."""
    context: str = "context"
    """Column of the text that the answer is in."""
    answers: str = "answers"
    """Column of the answers: lists `text` and `answer_start`, empty for no answer. The first answer
    is learned; in scoring each is right."""
    id: str = "id"
    """Column of the question's id, which its answer repeats; rows without an id are numbered."""
    version2: bool = False
    """Questions may have no answer (SQuAD 2.0)."""
    head: Literal["auto", "linear", "albert"] = "auto"
    """linear: a start and an end logit for each token. albert: ALBERT's for version2, the end given
    the start and a logit of no answer. auto: albert for an ALBERT with version2, else linear."""
    metric: Literal["auto", "squad", "cmrc"] = "auto"
    """squad: SQuAD's scripts; cmrc: CMRC 2018's, by characters; auto: by the language."""
    doc_stride: int = Field(default=128, ge=1)
    """Tokens from the start of a window to the start of the next."""
    max_query_length: int = Field(default=64, ge=1)
    """Most tokens of a question; longer ones are cut at the end."""
    max_answer_length: int = Field(default=30, ge=1)
    """Most tokens of an answer."""
    n_best: int = Field(default=20, ge=2)
    """Number of starts and ends that are tried in each window, and of answers that are listed."""
    null_threshold: float | Literal["tune"] = "tune"
    """version2: no answer is given if its score exceeds that of the best answer by more than this
    (with ALBERT's head: if its logit exceeds this). tune: the value with the best F1 on the
    validation rows, which the finetuned folder then keeps."""


# --- The task ---


class QuestionAnswering(Task[Config], config=Config):
    """Questions about contexts, and a network with a head that finds spans."""

    HEADS = ("ForQuestionAnswering",)

    def text_columns(self) -> tuple[str, ...]:
        """Question and context."""
        return (self.config.question, self.config.context)

    def prompt(self, row: Row) -> str:
        """The question."""
        return text_cell(row, self.config.question)

    def right_answer(self, row: Row) -> str:
        """The first of the right answers."""
        return next((text for text, _ in answers_in(row, self.config.answers)), "(no answer)")

    def readable(self, answer: Answer, values: Mapping[str, Any], top: int) -> list[ReadableAnswer]:
        """The answer and its probability."""
        return [ReadableAnswer(answer["prediction"] or "(no answer)", answer["probability"])]

    def split_columns(self) -> tuple[str, ...]:
        """The context: all questions about it are in one split."""
        return (self.config.context,)

    def with_tuned_values(self, results: Mapping[str, Any]) -> ScoredConfig:
        """The config with the no-answer threshold that was tuned on the validation rows."""
        config, threshold = self.config, results.get("null_threshold")
        if not config.version2 or config.null_threshold != "tune" or threshold is None:
            return config
        return config.model_copy(update={"null_threshold": threshold})

    def tokenizer(self, model: str) -> PreTrainedTokenizerBase:
        """The model's, without a template of its family."""
        from plmctl.tokenization.load import load_tokenizer

        return load_tokenizer(model)

    def make(
        self,
        rows: Sequence[Row],
        tokenizer: PreTrainedTokenizerBase,
        labels: tuple[str, ...],
        max_length: int,
        use: Use,
    ) -> QuestionAnsweringExamples:
        """The rows in windows of ``max_length`` tokens; see ``question_windows``."""
        source = tokenizer.name_or_path  # the model's folder, which decides the head
        has_none = False
        if source and self.config.version2:
            from plmctl.models.load import config_of

            has_none = self.head_of(config_of(source)) == "answer_or_none"
        windows = question_windows(self.config, rows, tokenizer, max_length, use)
        return QuestionAnsweringExamples(
            self.config, windows, has_none, cut=windows.cut, dropped=windows.dropped
        )

    def count(self, rows: Sequence[Row], labels: tuple[str, ...]) -> Iterator[Counted]:
        """The sliding window, which learns from no rows."""
        from plmctl.counting.spans import find_spans

        def answers(rows: Sequence[Row], examples: Any) -> list[Answer]:
            questions, contexts = (
                [text_cell(row, column) for row in rows] for column in self.text_columns()
            )
            spans = find_spans(questions, contexts, self.config.max_answer_length)
            return list(examples.answers_of_spans([(span.text, span.score) for span in spans]))

        yield Counted("sliding window", answers, 0)

    def check(self, model: str, network: PreTrainedConfig) -> None:
        """Refuse a family without a head for spans."""
        self._class_with_head(model, network)

    def load(self, start: HeadSource) -> PreTrainedModel:
        """The network with a head for spans."""
        from plmctl.models.load import changed_config, from_scratch, load_network

        config = changed_config(start.model, {"num_labels": 2, **start.changes})
        cls = self._class_with_head(start.model, config)
        network: PreTrainedModel = (
            load_network(cls, start.model, config=config, new_heads=start.new_heads).network
            if start.pretrained
            else from_scratch(cls, config)
        )
        return network

    def _class_with_head(self, model: str, network: PreTrainedConfig) -> Any:
        """The class of the network with its head.

        Raises:
            ConfigError: There is none.
        """
        kind = self.head_of(network)
        known_class = family_of(network).head_class(kind, network)
        if known_class is None:
            raise ConfigError(
                f"{model}: {network.model_type} has no head that finds an answer in a context",
                "encoders, gpt2 and llama have; T5 answers as text (text_to_text)",
            )
        return known_class

    @staticmethod
    def forward(model: Any, **inputs: Tensor) -> dict[str, Tensor]:
        """Logits of the loss terms, or the beams of ALBERT's head.

        Args:
            **inputs: The inputs of the encoder; for ALBERT's head also ``allowed`` [B, L], where an
                answer may be, and in training and scoring ``start_positions`` [B], the true starts.

        Returns:
            start and end [B, L], minus infinity at padding; for ALBERT's head see
            ``AlbertForAnswerOrNone``.
        """
        import torch

        if type(model).__name__ == "AlbertForAnswerOrNone":
            logits: dict[str, Tensor] = model(**inputs)
            return logits
        out = model(**{name: value for name, value in inputs.items() if name != "allowed"})
        padding = inputs["attention_mask"] == 0
        return {
            "start": out.start_logits.float().masked_fill(padding, -torch.inf),
            "end": out.end_logits.float().masked_fill(padding, -torch.inf),
        }

    def head_of(self, network: PreTrainedConfig) -> HeadKind:
        """Which head a network gets.

        Raises:
            ConfigError: ALBERT's for another family, or if all questions have answers.
        """
        config = self.config
        has_one = family_of(network).head_class("answer_or_none", network) is not None
        if config.head == "albert" and not (has_one and config.version2):
            raise ConfigError(
                f"task.head: albert, for {network.model_type} "
                f"{'with' if config.version2 else 'without'} task.version2",
                "the head is for an ALBERT and version2; use `head: linear`",
            )
        separate = has_one and config.version2 and config.head != "linear"
        return "answer_or_none" if separate else "question_answering"


# --- Examples: batches, losses, answers, metrics ---


@dataclass(frozen=True)
class QuestionAnsweringExamples(TaskExamples[Config]):
    """Questions about contexts; an example is a window. ``cut`` counts questions that lost text.

    Attributes:
        has_none: Whether the network's head has its own logit for no answer (ALBERT's).
    """

    windows: QuestionWindows
    has_none: bool

    @property
    def loss_terms(self) -> tuple[str, ...]:
        """Start and end, and whether there is no answer for ALBERT's head."""
        return ("start", "end", "none") if self.has_none else ("start", "end")

    @property
    def weights(self) -> dict[str, float]:
        """The loss is the mean of start and end; ALBERT adds half of its third term."""
        return dict.fromkeys(self.loss_terms, 0.5)

    @property
    def notices(self) -> tuple[str, ...]:
        """How many questions have no answer, which only ``version2`` can get right."""
        references = self.windows.references or ()
        count = sum(not right for right in references)
        if self.config.version2 or not count:
            return ()
        return (
            f"{count:,} of {len(references):,} rows have no answer, and are scored: set "
            "`task.version2: true`, or leave them out",
        )

    def __len__(self) -> int:
        """Windows."""
        return len(self.windows.row)

    def lengths(self) -> Ints:
        """[W] tokens of each window."""
        windows = self.windows
        questions = np.array([len(question) for question in windows.questions])
        return questions[windows.row] + windows.size + windows.layout.special

    def collate(self, epochs: Ints, samples: Ints) -> Batch:
        """The windows ``samples`` padded to the longest of them.

        Args:
            epochs: [B], not used: windows are the same in every epoch.
            samples: [B] window numbers.

        Returns:
            inputs: input_ids, attention_mask, allowed (where an answer may be) and, where the model
            has them, token_type_ids, [B, L]; start_positions [B] for ALBERT's head. targets: start
            and end [B], and none [B] for ALBERT's head.
        """
        windows = self.windows
        joined = [windows.join(number) for number in samples]
        ids, real = padded([window for window, _ in joined], windows.pad_id)
        offsets = np.array([windows.offset(number) for number in samples])[:, None]
        column = np.arange(ids.shape[1])
        allowed = (column >= offsets) & (column < offsets + windows.size[samples][:, None])
        inputs = {
            "input_ids": ids,
            "attention_mask": real.astype(int),
            "allowed": allowed | (column == 0),
        }
        if windows.segmented:
            inputs["token_type_ids"], _ = padded([segments for _, segments in joined], 0)
        targets = {}
        if windows.labels is not None:
            targets = dict(zip(("start", "end"), windows.labels[samples].T.copy(), strict=True))
            if self.has_none:
                inputs["start_positions"] = targets["start"]
                start = targets["start"]
                targets["none"] = np.where(start < 0, start, start == 0)
        return as_batch(inputs, targets, real)

    def loss(self, network: Network, batch: Batch) -> dict[str, Tensor]:
        """Summed cross-entropies of start and end in nats; of no answer for ALBERT's head."""
        return self._sums(network, batch, score=False)

    def score(self, network: Network, batch: Batch) -> dict[str, Tensor]:
        """The losses, and how often each part is right in a window."""
        return self._sums(network, batch, score=True)

    def _sums(self, network: Network, batch: Batch, *, score: bool) -> dict[str, Tensor]:
        from torch.nn.functional import binary_cross_entropy_with_logits

        from plmctl.models.losses import cross_entropy_sums, score_sums

        logits = network(**batch.inputs)
        ends = {part: batch.targets[part] for part in ("start", "end")}
        sums = (score_sums if score else cross_entropy_sums)(logits, ends)
        if self.has_none:
            known = batch.targets["none"] != IGNORE
            none, target = logits["none"][known], batch.targets["none"][known]
            sums["none"] = binary_cross_entropy_with_logits(
                none, target.to(none.dtype), reduction="sum"
            )
            if score:
                sums["none/correct"] = ((none > 0) == (target == 1)).sum().to(none.dtype)
        return sums

    def outputs(self, network: Network, batch: Batch) -> dict[str, Tensor]:
        """Logits of start and end [B, L], or the beams of ALBERT's head."""
        inputs = {name: value for name, value in batch.inputs.items() if name != "start_positions"}
        logits: dict[str, Tensor] = network(**inputs)
        return logits

    def answers(self, outputs: Outputs) -> list[Answer]:
        """The answer to each question, in the order of the rows.

        Each has id, prediction ("" for no answer), probability, start (a character of the context)
        and n_best; with ``version2`` also null_difference, which the threshold is compared with,
        and best, the most probable answer that is not empty.
        """
        answers = [self._answer(row, outputs) for row in range(len(self.windows.ids))]
        if self.config.version2:
            threshold = self._threshold(answers)
            for answer in answers:
                if answer["null_difference"] > threshold:
                    answer |= {"prediction": "", "start": None}
        for answer in answers:
            chances = {one["text"]: one["probability"] for one in answer["n_best"]}
            if self.has_none:  # whose silence is none of the n best, but a logit
                chances[""] = float(1 / (1 + np.exp(-answer["null_difference"])))
            answer["probability"] = chances.get(answer["prediction"], 0.0)
        return answers

    def answers_of_spans(self, spans: Sequence[tuple[str, float]]) -> list[Answer]:
        """The answers of a method without a network: a text and its score for each row."""
        answers: list[Answer] = [
            {"id": id_, "prediction": text, "best": text, "null_difference": -score}
            for id_, (text, score) in zip(self.windows.ids, spans, strict=True)
        ]
        if self.config.version2:
            threshold = self._threshold(answers)
            for answer in answers:
                if answer["null_difference"] > threshold:
                    answer["prediction"] = ""
        return answers

    @cached_property
    def rules(self) -> squad.Metric:
        """The scoring rules that apply: SQuAD's or CMRC's."""
        metric = self.config.metric
        if metric == "auto":
            texts = [context.text for context in self.windows.contexts]
            metric = "cmrc" if 2 * sum(map(without_spaces, texts)) > len(texts) else "squad"
        return "squad2" if metric == "squad" and self.config.version2 else metric

    @property
    def metric_kind(self) -> Kind:
        """Texts of answers."""
        return "text"

    @property
    def usual_metrics(self) -> tuple[str, ...]:
        """Exact match and F1 by the rules of the data."""
        return ({"squad": "squad", "squad2": "squad_v2", "cmrc": "cmrc2018"}[self.rules],)

    @property
    def metric_options(self) -> dict[str, Any]:
        """Whether questions may have no answer."""
        return {"version2": self.config.version2}

    def predictions(self, answers: Sequence[Answer]) -> list[str]:
        """The text of each answer, "" for no answer."""
        return [answer["prediction"] for answer in answers]

    def references(self) -> tuple[tuple[str, ...], ...]:
        """The right answers to each question; none if it has no answer."""
        return required(self.windows.references, "answers")

    def compute_metrics(self, answers: Sequence[Answer]) -> dict[str, Any]:
        """The metrics; with ``version2`` also the best thresholds of no answer."""
        metrics = super().compute_metrics(answers)
        if not self.config.version2:
            return metrics
        best = [answer["best"] for answer in answers]
        scores = squad.scores(best, self.references(), self.rules)
        differences = [answer["null_difference"] for answer in answers]
        for name, values in (("best_exact_match", scores.exact), ("best_f1", scores.f1)):
            metrics[name], metrics[f"{name}_threshold"] = squad.best_threshold(
                best, values, scores.answerable, differences, min(differences) - 1
            )
        return {**metrics, "null_threshold": self._threshold(answers)}

    def uncertainty(self, answers: Sequence[Answer]) -> dict[str, dict[str, float]]:
        """The intervals of exact match and F1, in per cent."""
        scores = squad.scores(self.predictions(answers), self.references(), self.rules)
        return squad.uncertainty(scores)

    def per_example_scores(self, answers: Sequence[Answer]) -> tuple[str, list[float]]:
        """F1 of each question, from 0 to 1."""
        scores = squad.scores(self.predictions(answers), self.references(), self.rules)
        return "f1", list(scores.f1)

    def _answer(self, row: int, outputs: Outputs) -> Answer:
        context = self.windows.contexts[row]
        candidates, silences = [], []
        for number, window in self.windows.of_row(row):
            offered, silence = self._window(number, window, outputs)
            candidates += offered
            silences.append(silence)
        # BERT's rule: the least sure window decides, since most windows have no answer in them.
        silence = min(silences)

        def text_of(first: int, last: int) -> tuple[str, int]:
            return context.slice(first, last), int(context.offsets[first, 0])

        among = silence if self.config.version2 and not self.has_none else None
        ranked = best_answers(candidates, text_of, among, self.config.n_best)
        best = next((one for one in ranked if one.text), FoundAnswer("", None, -np.inf))
        answer: Answer = {
            "id": self.windows.ids[row],
            "prediction": best.text,
            "start": best.start,
            "n_best": [
                {"text": one.text, "start": one.start, "probability": chance}
                for one, chance in zip(ranked, answer_probabilities(ranked), strict=True)
            ],
        }
        if self.config.version2:
            margin = silence if self.has_none else silence - best.score
            answer |= {"null_difference": margin if best.text else 1e9, "best": best.text}
        return answer

    def _window(
        self, number: int, window: ContextWindow, outputs: Outputs
    ) -> tuple[list[Candidate], float]:
        """The answers that a window offers, and its score of there being none."""
        longest = self.config.max_answer_length
        if self.has_none:
            first, last, score = (outputs[name][number] for name in ("first", "last", "score"))
            offered = candidates_from_beams(first, last, score, window, longest)
            return offered, float(outputs["none"][number])
        starts, ends = outputs["start"][number], outputs["end"][number]
        offered = candidates_from_logits(starts, ends, window, self.config.n_best, longest)
        return offered, float(starts[0]) + float(ends[0])

    def _threshold(self, answers: Sequence[Answer]) -> float:
        """The config's; the one of the best F1 where it is to be tuned and can be, else 0."""
        if self.config.null_threshold != "tune":
            return float(self.config.null_threshold)
        if self.windows.references is None:
            return 0.0
        best = [answer["best"] for answer in answers]
        scores = squad.scores(best, self.windows.references, self.rules)
        differences = [answer["null_difference"] for answer in answers]
        silent = min(differences) - 1
        return squad.best_threshold(best, scores.f1, scores.answerable, differences, silent)[1]


# --- Windows: which pieces of the context, and where the answer is in them ---


@dataclass(frozen=True)
class QuestionWindows:
    """Questions, contexts and windows.

    Attributes:
        ids: [R] ids of the rows.
        questions: [R] pieces of each question.
        contexts: [R] of its context; rows share them.
        references: [R] texts of the right answers; None for rows that are to be answered.
        row: [W] the row of each window.
        start: [W] its first piece in the context.
        size: [W] its pieces.
        labels: [W, 2] positions of the answer's first and last piece, (0, 0) for a window without
            it, IGNORE if it is unknown; None for rows that are to be answered.
        layout: Special tokens; question and context are segments 0 and 1.
        cut: Rows whose question lost its end.
        dropped: Rows that cannot be learned from, and why.
    """

    ids: tuple[str, ...]
    questions: tuple[NDArray[np.int32], ...]
    contexts: tuple[TextPieces, ...]
    references: tuple[tuple[str, ...], ...] | None
    row: Ints
    start: Ints
    size: Ints
    labels: Ints | None
    layout: Layout
    segmented: bool
    pad_id: int
    cut: int
    dropped: tuple[str, ...]

    def offset(self, number: int | np.int64) -> int:
        """The position of a window's first context piece."""
        return self.layout.offset(len(self.questions[self.row[number]]))

    def join(self, number: int | np.int64) -> tuple[Ids, Ids]:
        """The ids of a window, special tokens included, and its segments."""
        row, start = self.row[number], self.start[number]
        context = self.contexts[row].ids[start : start + self.size[number]]
        return self.layout.join([self.questions[row], context])

    def of_row(self, row: int) -> list[tuple[int, ContextWindow]]:
        """The windows of a row, with their numbers."""
        which = np.arange(*np.searchsorted(self.row, [row, row + 1]))
        here = PieceWindows(self.start[which], self.size[which])
        owner = owners(here, len(self.contexts[row].ids))
        numbered = []
        for place, number in enumerate(which):
            start, size = int(self.start[number]), int(self.size[number])
            own = owner[start : start + size] == place
            numbered.append((int(number), ContextWindow(self.offset(number), start, size, own)))
        return numbered


def question_windows(
    config: Config,
    rows: Sequence[Row],
    tokenizer: PreTrainedTokenizerBase,
    max_length: int,
    use: Use,
) -> QuestionWindows:
    """The rows in windows of ``max_length`` tokens.

    Training leaves out rows whose answer is not where it is said to be. Windows without the answer
    stay, and point at position 0.

    Raises:
        DataError: A missing column, or no row to learn from.
        ConfigError: No room for a context beside a question.
    """
    layout = question_layout(tokenizer)
    contexts = _shared_pieces([text_cell(row, config.context) for row in rows], tokenizer)
    whole = pieces_of([text_cell(row, config.question) for row in rows], tokenizer)
    questions = [question.ids[: config.max_query_length] for question in whole]
    answers = [answers_in(row, config.answers) for row in rows] if use != "predict" else None
    places = _places(config, answers, contexts, tokenizer) if answers is not None else None

    def problem(number: int) -> str | None:
        place = places[number] if places is not None else None
        return f"{_row_name(config, rows[number])}: {place}" if isinstance(place, str) else None

    kept, dropped = learnable(range(len(rows)), problem, use)
    kept_questions = [questions[n] for n in kept]
    cuts = _cut_windows(
        [len(contexts[n].ids) for n in kept],
        [len(question) for question in kept_questions],
        max_length - layout.special,
        config.doc_stride,
    )
    known = [places[n] for n in kept] if places is not None else None
    return QuestionWindows(
        tuple(_question_id(config, rows[n], n) for n in kept),
        tuple(kept_questions),
        tuple(contexts[n] for n in kept),
        None if answers is None else tuple(tuple(text for text, _ in answers[n]) for n in kept),
        *cuts,
        None
        if known is None
        else _label_positions(known, cuts, [layout.offset(len(q)) for q in kept_questions]),
        layout,
        _has_segments(tokenizer),
        pad_id_of(tokenizer),
        sum(len(question.ids) > config.max_query_length for question in whole),
        dropped,
    )


Place = tuple[int, int] | str | None
"""An answer's first and last piece; why it has none; None for a question without an answer."""


def _places(
    config: Config,
    answers: Sequence[list[tuple[str, int | None]]],
    contexts: Sequence[TextPieces],
    tokenizer: PreTrainedTokenizerBase,
) -> list[Place]:
    alone: list[list[int] | None] = [None] * len(answers)
    if _is_wordpiece(tokenizer):
        firsts = [right[0][0] if right else "" for right in answers]
        alone = [pieces.ids.tolist() for pieces in pieces_of(firsts, tokenizer)]
    places: list[Place] = []
    for right, context, own in zip(answers, contexts, alone, strict=True):
        if right:
            places.append(place_of(context, *right[0], own))
        else:
            places.append(None if config.version2 else "no answer, and not `task.version2: true`")
    return places


def _label_positions(
    places: Sequence[Place], cuts: tuple[Ints, Ints, Ints], offsets: Sequence[int]
) -> Ints:
    labels = np.zeros((len(cuts[0]), 2), dtype=np.int64)
    for number, (row, start, size) in enumerate(zip(*cuts, strict=True)):
        place = places[row]
        if isinstance(place, str):
            labels[number] = IGNORE
        elif place is not None and start <= place[0] and place[1] < start + size:
            labels[number] = np.array(place) - start + offsets[row]
    return labels


def _cut_windows(
    contexts: Sequence[int], questions: Sequence[int], room: int, stride: int
) -> tuple[Ints, Ints, Ints]:
    """Row, start and size of every window."""
    rows, starts, sizes = [], [], []
    for row, (context, question) in enumerate(zip(contexts, questions, strict=True)):
        if room - question < 1:
            raise ConfigError(
                f"train.max_length: no room for a context beside a question of {question} tokens",
                "raise it (384 is usual), or lower task.max_query_length",
            )
        spans = windows(context, room - question, stride)
        rows.append(np.full(len(spans.starts), row))
        starts.append(spans.starts)
        sizes.append(spans.sizes)
    return np.concatenate(rows), np.concatenate(starts), np.concatenate(sizes)


def _shared_pieces(texts: Sequence[str], tokenizer: PreTrainedTokenizerBase) -> list[TextPieces]:
    """A text's pieces, the same object for equal texts."""
    distinct = list(dict.fromkeys(texts))
    pieces = dict(zip(distinct, pieces_of(distinct, tokenizer), strict=True))
    return [pieces[text] for text in texts]


def _has_segments(tokenizer: PreTrainedTokenizerBase) -> bool:
    """ALBERT has them, though transformers' class for its tokenizer leaves them out."""
    named = "token_type_ids" in tokenizer.model_input_names
    return named or type(tokenizer).__name__.startswith("Albert")


def _is_wordpiece(tokenizer: Any) -> bool:
    return type(tokenizer.backend_tokenizer.model).__name__ == "WordPiece"


def _question_id(config: Config, row: Row, number: int) -> str:
    own = row.values.get(config.id)
    return str(number + 1) if own is None else str(own)


def _row_name(config: Config, row: Row) -> str:
    """Origin and id; that of a nested file ends with the id."""
    own = row.values.get(config.id)
    known = own is None or row.origin.endswith(f"/{own}")
    return row.origin if known else f"{row.origin}: {own}"


# --- Questions and contexts as pieces that know their characters ---
#
# Every distinct context is cut into pieces once, however many questions are about it.


_AT_ONCE = 1_000  # texts: offsets are Python tuples until they are arrays


@dataclass(frozen=True)
class TextPieces:
    """A text in pieces.

    Attributes:
        ids: [N].
        offsets: [N, 2] first character and end of each piece, without the space around it.
    """

    text: str
    ids: NDArray[np.int32]
    offsets: NDArray[np.int32]

    @cached_property
    def words(self) -> Ints:
        """[W, 2] see ``examples.windows.words``."""
        return words(self.text)

    def slice(self, first: int, last: int) -> str:
        """The text from one piece to another, as it was written."""
        return self.text[self.offsets[first, 0] : self.offsets[last, 1]]


def pieces_of(texts: Sequence[str], tokenizer: PreTrainedTokenizerBase) -> list[TextPieces]:
    """The texts in pieces, without special tokens; text that looks like one is only text."""
    pieces: list[TextPieces] = []
    backend = plain_copy(tokenizer)
    for start in range(0, len(texts), _AT_ONCE):
        batch = list(texts[start : start + _AT_ONCE])
        encodings = backend.encode_batch(batch, add_special_tokens=False)
        for text, encoding in zip(batch, encodings, strict=True):
            spans = [_stripped(text, *span) for span in encoding.offsets]
            pieces.append(
                TextPieces(
                    text,
                    np.array(encoding.ids, dtype=np.int32),
                    np.array(spans, dtype=np.int32).reshape(-1, 2),
                )
            )
    return pieces


def _stripped(text: str, start: int, end: int) -> tuple[int, int]:
    """The piece without the space around it; a piece of nothing else lies at its end."""
    inside = text[start:end]
    bare = inside.strip()
    if len(bare) == len(inside):
        return start, end
    start = end - len(inside.lstrip())
    return start, start + len(bare)


def question_layout(tokenizer: PreTrainedTokenizerBase) -> Layout:
    """The template of a pair; GPT-2's end-of-text token at all three places, since it has none.

    Raises:
        ConfigError: The tokenizer has no character offsets.
    """
    if not tokenizer.is_fast:
        raise ConfigError(
            f"{type(tokenizer).__name__}: does not give the characters of its pieces",
            "question answering needs a tokenizer with a tokenizer.json",
        )
    layout = layout_of(tokenizer, pair=True)
    if not layout.between:
        end = tokenizer.eos_token_id
        if not isinstance(end, int):
            raise ConfigError("the tokenizer has no token to put between question and context")
        layout = Layout((end,), (end,), (end,))
    return replace(layout, second=1)


def answers_in(row: Row, column: str) -> list[tuple[str, int | None]]:
    """The right answers to a question, each with the character that it starts at, if that is known.

    Raises:
        DataError: No such column, or one of another form.
    """
    cell = row.cell(column)
    if isinstance(cell, str) and (read := written_value(cell)) is not None:
        cell = read
    texts: Any = None
    starts: Any = None
    if isinstance(cell, dict):
        texts, starts = cell.get("text"), cell.get("answer_start")
        if isinstance(texts, str):
            texts, starts = [texts], [starts]
    elif isinstance(cell, list) and all(isinstance(answer, dict) for answer in cell):
        texts = [answer.get("text") for answer in cell]
        starts = [answer.get("answer_start") for answer in cell]
    elif isinstance(cell, list):  # texts alone, as in CMRC 2018's own form
        texts = cell
    starts = [None] * len(texts) if isinstance(texts, list) and starts is None else starts
    right = isinstance(texts, list) and isinstance(starts, list) and len(texts) == len(starts)
    if not right or not all(isinstance(text, str) for text in texts):
        raise DataError(
            f"{row.origin}: column {column!r} has no answers in SQuAD's form",
            'expected {"text": ["Paris"], "answer_start": [17]}, with empty lists for no answer',
        )
    answers: list[tuple[str, int | None]] = []
    for text, start in zip(texts, starts, strict=True):
        number = number_of(start)
        if start is not None and (number is None or number != int(number)):
            raise DataError(
                f"{row.origin}: column {column!r}: answer_start is {start!r:.60}",
                "expected the number of the character that the answer starts at, from 0; without "
                "answer_start the answer is looked for",
            )
        answers.append((text, None if number is None else int(number)))
    return answers


def place_of(
    context: TextPieces, answer: str, start: int | None, alone: Sequence[int] | None
) -> tuple[int, int] | str:
    """The first and the last piece of an answer, or why it has none.

    Args:
        start: The character that it starts at; None: where it is, if that is one place.
        alone: The answer's own pieces where a piece is a part of one word (WordPiece); None where
            pieces are to be found by their characters.
    """
    if start is None:
        count = len(re.findall(f"(?={re.escape(answer)})", context.text))
        if count != 1:
            return f"answer {_shortened(answer)} has no answer_start, and is {count} times there"
        start = context.text.index(answer)
    covered = covering(context.text, context.words, answer, start)
    if covered is None:
        there = context.text[max(0, start) : max(0, start) + len(answer)]
        position = context.text.find(answer)
        where = f"it is at {position}" if position >= 0 else "it is nowhere in the context"
        return (
            f"answer {_shortened(answer)} is not at {start}, where {_shortened(there)} is; {where}"
        )
    if alone is None:
        covered = (start, start + len(answer))
    span = pieces_over(context.offsets, *covered)
    if span is None:
        return f"answer {answer!r} has no tokens in this vocabulary"
    return span if alone is None else tightened(context.ids, span, alone)


def _shortened(text: str) -> str:
    return repr(text if len(text) <= 40 else f"{text[:37]}...")


# --- From logits to answers: candidates of each window, then the best of a row ---


Floats = NDArray[np.floating[Any]]


@dataclass(frozen=True)
class ContextWindow:
    """A window as its logits see it.

    Attributes:
        offset: Position of its first context piece.
        start: That piece's number in the context.
        size: Context pieces.
        own: [size] whether the piece has its most context here: an answer may start there.
    """

    offset: int
    start: int
    size: int
    own: NDArray[np.bool_]

    @property
    def end(self) -> int:
        """The position after the last context piece."""
        return self.offset + self.size


@dataclass(frozen=True)
class Candidate:
    """An answer: its first and last piece in the context, and the score."""

    first: int
    last: int
    score: float


def candidates_from_logits(
    starts: Floats, ends: Floats, window: ContextWindow, top: int, longest: int
) -> list[Candidate]:
    """The pairs of the ``top`` starts and the ``top`` ends of a window that can be an answer.

    Args:
        starts: [L] logits; those after its end are padding, which is ignored.
        ends: [L].
    """
    # The last separator takes part, as in the published code: it may be among the best.
    starts, ends = starts[: window.end + 1], ends[: window.end + 1]
    first, last = (np.argsort(-logits, kind="stable")[:top] for logits in (starts, ends))
    pairs_first, pairs_last = np.repeat(first, len(last)), np.tile(last, len(first))
    scores = starts[pairs_first].astype(np.float64) + ends[pairs_last]
    return _possible_candidates(pairs_first, pairs_last, scores, window, longest)


def candidates_from_beams(
    first: Ints, last: Ints, scores: Floats, window: ContextWindow, longest: int
) -> list[Candidate]:
    """The pairs of a beam that can be an answer.

    Args:
        first: [K] positions of the starts.
        last: [K, K] of the ends of each.
        scores: [K, K] sums of log-probabilities.
    """
    repeated = np.repeat(first, last.shape[1])
    return _possible_candidates(
        repeated, last.ravel(), scores.ravel().astype(np.float64), window, longest
    )


def _possible_candidates(
    first: Ints, last: Ints, scores: Floats, window: ContextWindow, longest: int
) -> list[Candidate]:
    inside = (first >= window.offset) & (last < window.end)
    right = inside & (last >= first) & (last - first < longest)
    shift = window.start - window.offset
    return [
        Candidate(int(a) + shift, int(b) + shift, float(score))
        for a, b, score in zip(first[right], last[right], scores[right], strict=True)
        if window.own[a - window.offset]
    ]


@dataclass(frozen=True)
class FoundAnswer:
    """A text that may be the answer.

    Attributes:
        text: "" for no answer.
        start: Character of the context; None for no answer.
    """

    text: str
    start: int | None
    score: float


def best_answers(
    candidates: Sequence[Candidate],
    text_of: Callable[[int, int], tuple[str, int]],
    silence: float | None,
    keep: int,
) -> list[FoundAnswer]:
    """The best texts, each once, the best first.

    Args:
        candidates: Those of all windows of a row; their order decides between equal scores.
        text_of: The text from a first to a last piece, and the character that it starts at.
        silence: The score of no answer, which is then among the best in any case; None where it is
            none of the choices.
    """
    distinct: dict[str, FoundAnswer] = {}
    for candidate in sorted(candidates, key=lambda one: -one.score):
        if len(distinct) == keep:
            break
        text, start = text_of(candidate.first, candidate.last)
        if text and text not in distinct:
            distinct[text] = FoundAnswer(text, start, candidate.score)
    ranked = list(distinct.values())
    if silence is not None:
        better = [one for one in ranked if one.score >= silence]
        ranked = [*better, FoundAnswer("", None, silence), *ranked[len(better) :]]
        ranked = ranked[:keep] if len(better) < keep else [*ranked[:keep], ranked[keep]]
    return ranked


def answer_probabilities(ranked: Sequence[FoundAnswer]) -> list[float]:
    """The softmax of the scores of texts."""
    scores = np.array([one.score for one in ranked])
    raised = np.exp(scores - scores.max(initial=-np.inf)) if len(scores) else scores
    return [float(value) for value in raised / raised.sum()] if len(scores) else []

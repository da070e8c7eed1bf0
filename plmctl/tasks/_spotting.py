"""Windows of questions as a step that a network learns from, and as answers."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING, Any, Literal

import numpy as np
from numpy.typing import NDArray

from plmctl.arrays import Ints, padded
from plmctl.errors import DataError
from plmctl.metrics import squad
from plmctl.tasks import _spans
from plmctl.tasks._windowed import Windowed
from plmctl.tokenization.words import has_chinese

if TYPE_CHECKING:
    from torch import Tensor

    from plmctl.modeling.batch import Batch
    from plmctl.modeling.network import Network

Outputs = Mapping[str, Sequence[NDArray[Any]]]


@dataclass(frozen=True)
class Spotting:
    """Questions about contexts; see ``tasks.Examples``. An example is a window.

    Attributes:
        config: The task's.
        windows: The rows.
        head: The network's.
    """

    config: Any
    windows: Windowed
    head: Literal["linear", "albert"]

    @property
    def parts(self) -> tuple[str, ...]:
        """Start and end, and whether there is no answer for ALBERT's head."""
        return ("start", "end", "none") if self.head == "albert" else ("start", "end")

    @property
    def weights(self) -> dict[str, float]:
        """The loss is the mean of start and end; ALBERT adds half of its third part."""
        return dict.fromkeys(self.parts, 0.5)

    @property
    def cut(self) -> int:
        """Rows whose question lost its end; contexts lose nothing."""
        return self.windows.cut

    @property
    def dropped(self) -> tuple[str, ...]:
        """Rows that cannot be learnt from, and why."""
        return self.windows.dropped

    def __len__(self) -> int:
        """Windows."""
        return len(self.windows.row)

    def lengths(self) -> Ints:
        """[W] tokens of each window."""
        made = self.windows
        questions = np.array([len(question) for question in made.questions])
        return questions[made.row] + made.size + len(made.template)

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
        import torch

        from plmctl.modeling.batch import Batch

        made = self.windows
        ids, real = padded([made.input_ids(number) for number in samples], made.pad_id)
        offsets = np.array([made.offset(number) for number in samples])[:, None]
        cell = np.arange(ids.shape[1])
        allowed = (cell >= offsets) & (cell < offsets + made.size[samples][:, None]) | (cell == 0)
        inputs = {"input_ids": ids, "attention_mask": real.astype(int), "allowed": allowed}
        if made.segmented:
            inputs["token_type_ids"], _ = padded([made.segments(k) for k in samples], 0)
        targets = {}
        if made.labels is not None:
            targets = dict(zip(("start", "end"), made.labels[samples].T.copy(), strict=True))
            if self.head == "albert":
                inputs["start_positions"] = targets["start"]
                start = targets["start"]
                targets["none"] = np.where(start < 0, start, start == 0)
        return Batch(
            {name: torch.from_numpy(array) for name, array in inputs.items()},
            {name: torch.from_numpy(array) for name, array in targets.items()},
            int(real.sum()),
            real.size,
        )

    def loss(self, network: Network, batch: Batch) -> dict[str, Tensor]:
        """Summed cross-entropies of start and end in nats; of no answer for ALBERT's head."""
        return self._sums(network, batch, score=False)

    def score(self, network: Network, batch: Batch) -> dict[str, Tensor]:
        """The losses, and how often each part is right in a window."""
        return self._sums(network, batch, score=True)

    def _sums(self, network: Network, batch: Batch, *, score: bool) -> dict[str, Tensor]:
        from torch.nn.functional import binary_cross_entropy_with_logits

        from plmctl.modeling.batch import IGNORE
        from plmctl.modeling.losses import cross_entropy_sums, score_sums

        logits = network(**batch.inputs)
        ends = {part: batch.targets[part] for part in ("start", "end")}
        sums = (score_sums if score else cross_entropy_sums)(logits, ends)
        if self.head == "albert":
            asked = batch.targets["none"] != IGNORE
            none, target = logits["none"][asked], batch.targets["none"][asked]
            sums["none"] = binary_cross_entropy_with_logits(
                none, target.to(none.dtype), reduction="sum"
            )
            if score:
                sums["none/correct"] = ((none > 0) == (target == 1)).sum().to(none.dtype)
        return sums

    def outputs(self, network: Network, batch: Batch) -> dict[str, Tensor]:
        """Logits of start and end [B, L], or the beams of ALBERT's head."""
        inputs = {name: value for name, value in batch.inputs.items() if name != "start_positions"}
        found: dict[str, Tensor] = network(**inputs)
        return found

    def answers(self, outputs: Outputs) -> list[dict[str, Any]]:
        """The answer to each question, in the order of the rows.

        Each has id, prediction ("" for no answer), probability, start (a character of the context)
        and n_best; with ``version2`` also null_difference, which the threshold is compared with,
        and best, the answer if there has to be one.
        """
        found = [self._answer(row, outputs) for row in range(len(self.windows.ids))]
        if self.config.version2:
            threshold = self._threshold(found)
            for answer in found:
                if answer["null_difference"] > threshold:
                    answer |= {"prediction": "", "start": None}
        for answer in found:
            chances = {one["text"]: one["probability"] for one in answer["n_best"]}
            if self.head == "albert":  # whose silence is none of the n best, but a logit
                chances[""] = float(1 / (1 + np.exp(-answer["null_difference"])))
            answer["probability"] = chances.get(answer["prediction"], 0.0)
        return found

    def figures(self, answers: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
        """Per cent by ``metrics.squad``; with ``version2`` also HasAns, NoAns and thresholds."""
        references = self._references()
        texts = [answer["prediction"] for answer in answers]
        scores = squad.scores(texts, references, self.metric)
        if not self.config.version2:
            return squad.summary(scores)
        figures: dict[str, Any] = squad.by_answerability(scores)
        best = [answer["best"] for answer in answers]
        scores = squad.scores(best, references, self.metric)
        differences = [answer["null_difference"] for answer in answers]
        for name, values in (("best_exact_match", scores.exact), ("best_f1", scores.f1)):
            figures[name], figures[f"{name}_threshold"] = squad.best_threshold(
                best, values, scores.answerable, differences, min(differences) - 1
            )
        return {**figures, "null_threshold": self._threshold(answers)}

    def uncertainty(self, answers: Sequence[Mapping[str, Any]]) -> dict[str, dict[str, float]]:
        """Of exact match and F1, in per cent."""
        texts = [answer["prediction"] for answer in answers]
        return squad.uncertainty(squad.scores(texts, self._references(), self.metric))

    def credits(self, answers: Sequence[Mapping[str, Any]]) -> tuple[str, list[float]]:
        """F1 of each question, from 0 to 1."""
        texts = [answer["prediction"] for answer in answers]
        return "f1", list(squad.scores(texts, self._references(), self.metric).f1)

    @cached_property
    def metric(self) -> squad.Metric:
        """Whose rules count."""
        asked = self.config.metric
        if asked == "auto":
            texts = [context.text for context in self.windows.contexts]
            asked = "cmrc" if 2 * sum(map(has_chinese, texts)) > len(texts) else "squad"
        return "squad2" if asked == "squad" and self.config.version2 else asked

    def _answer(self, row: int, outputs: Outputs) -> dict[str, Any]:
        context = self.windows.contexts[row]
        candidates, silences = [], []
        for number, window in self.windows.of_row(row):
            found, silence = self._window(number, window, outputs)
            candidates += found
            silences.append(silence)
        # BERT's rule: the least sure window decides, since most windows have no answer in them.
        silence = min(silences)

        def text_of(first: int, last: int) -> tuple[str, int]:
            return context.slice(first, last), int(context.offsets[first, 0])

        among = silence if self.config.version2 and self.head == "linear" else None
        ranked = _spans.n_best(candidates, text_of, among, self.config.n_best)
        best = next((one for one in ranked if one.text), _spans.Found("", None, -np.inf))
        answer: dict[str, Any] = {
            "id": self.windows.ids[row],
            "prediction": best.text,
            "start": best.start,
            "n_best": [
                {"text": one.text, "start": one.start, "probability": chance}
                for one, chance in zip(ranked, _spans.probabilities(ranked), strict=True)
            ],
        }
        if self.config.version2:
            margin = silence - best.score if self.head == "linear" else silence
            answer |= {"null_difference": margin if best.text else 1e9, "best": best.text}
        return answer

    def _window(
        self, number: int, window: _spans.Window, outputs: Outputs
    ) -> tuple[list[_spans.Candidate], float]:
        """The answers that a window offers, and its score of there being none."""
        longest = self.config.max_answer_length
        if self.head == "albert":
            first, last, score = (outputs[name][number] for name in ("first", "last", "score"))
            found = _spans.from_beams(first, last, score, window, longest)
            return found, float(outputs["none"][number])
        starts, ends = outputs["start"][number], outputs["end"][number]
        found = _spans.from_logits(starts, ends, window, self.config.n_best, longest)
        return found, float(starts[0]) + float(ends[0])

    def _threshold(self, answers: Sequence[Mapping[str, Any]]) -> float:
        """The config's; the one of the best F1 where it is to be tuned and can be, else 0."""
        if self.config.null_threshold != "tune":
            return float(self.config.null_threshold)
        if self.windows.references is None:
            return 0.0
        best = [answer["best"] for answer in answers]
        scores = squad.scores(best, self.windows.references, self.metric)
        differences = [answer["null_difference"] for answer in answers]
        silent = min(differences) - 1
        return squad.best_threshold(best, scores.f1, scores.answerable, differences, silent)[1]

    def _references(self) -> tuple[tuple[str, ...], ...]:
        if self.windows.references is None:
            raise DataError("these rows have no answers to score against")
        return self.windows.references

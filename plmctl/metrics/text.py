"""Metrics of written texts: BLEU, chrF, ROUGE, exact match.

BLEU and chrF are sacrebleu's, ROUGE is that of the package rouge-score; both come with the extra
``text``. BLEU, chrF and ROUGE go from 0 to 100, as papers print them; shares go from 0 to 1.
"""

import importlib
import re
import string
import unicodedata
from collections import Counter
from collections.abc import Sequence
from typing import Any, Literal

from plmctl.characters import HAN, JOINERS, KANA, SYLLABLES, marks
from plmctl.errors import ConfigError, DataError

Tokens = Literal["13a", "intl", "zh", "char"]
"""How texts are split into words. 13a: the default of sacrebleu; intl: by Unicode (BLEU of the T5
paper); zh: every Chinese character is a word; char: every character is one, for other scripts
without spaces. ROUGE's words are the same for all but char."""

Rules = Literal["squad", "trivia_qa"]
"""How answers are normalised before they are compared; see ``normalized``."""

_ROUGE = ("rouge1", "rouge2", "rougeL", "rougeLsum")
_ARTICLES = re.compile(r"\b(a|an|the)\b")
_NO_MARKS = str.maketrans("", "", string.punctuation)
_SPACES = {ord(mark): " " for mark in string.punctuation + "‘’´"}
# Wider than `characters.ALL_HAN`: all of planes 2 and 3, for characters that Unicode adds there.
_UNSPACED = f"{HAN}\U00020000-\U0003ffff{KANA}{SYLLABLES}"
_CHINESE = re.compile(f"[{HAN}]")
_UNSPACED_LETTER = re.compile(rf"(?=\w)[{_UNSPACED}]")


def bleu(
    predictions: Sequence[str], references: Sequence[Sequence[str]], tokens: Tokens = "13a"
) -> float:
    """BLEU of the whole set (Papineni et al., 2002), smoothed as sacrebleu does, 0 to 100.

    Args:
        predictions: [N].
        references: [N] one or more right texts each.

    Raises:
        ConfigError: The extra ``text`` is not installed.
        DataError: Nothing to score, or not one prediction for each row.
    """
    _check(predictions, references)
    metric = _package("sacrebleu").BLEU(tokenize=tokens)
    return float(metric.corpus_score(list(map(composed, predictions)), _columns(references)).score)


def chrf(predictions: Sequence[str], references: Sequence[Sequence[str]]) -> float:
    """ChrF2 (Popović, 2015): F2 of character 1- to 6-grams of the whole set, 0 to 100.

    Raises:
        ConfigError: The extra ``text`` is not installed.
        DataError: As ``bleu``.
    """
    _check(predictions, references)
    metric = _package("sacrebleu").CHRF()
    return float(metric.corpus_score(list(map(composed, predictions)), _columns(references)).score)


def rouge(
    predictions: Sequence[str], references: Sequence[Sequence[str]], tokens: Tokens = "13a"
) -> dict[str, float]:
    """Mean F1 of ROUGE-1, -2, -L and -Lsum, 0 to 100; of several references the best counts.

    Without stemming, as the T5 paper; rougeLsum treats each line as a sentence. A word is a run of
    letters with their marks, and digits; in a script without spaces it is a letter with its marks.
    Of ASCII text these are rouge-score's own words, which have no other letters than a to z: they
    would leave nothing of most scripts, and ``sch n`` of ``schön``.

    Args:
        predictions: [N].
        references: [N] one or more right texts each.
        tokens: char: each letter is a word, in every script.

    Raises:
        ConfigError: The extra ``text`` is not installed.
        DataError: As ``bleu``.
    """
    _check(predictions, references)
    words = Words(each_letter=tokens == "char")
    scorer = _package("rouge_score.rouge_scorer").RougeScorer(_ROUGE, tokenizer=words)
    sums = dict.fromkeys(_ROUGE, 0.0)
    for prediction, texts in zip(predictions, references, strict=True):
        for name, result in scorer.score_multi(list(texts), prediction).items():
            sums[name] += result.fmeasure
    return {name: 100 * total / len(predictions) for name, total in sums.items()}


def exact_match(
    predictions: Sequence[str], references: Sequence[Sequence[str]], rules: Rules = "squad"
) -> float:
    """Share of predictions that are one of their references, but for case, marks and articles."""
    _check(predictions, references)
    pairs = zip(predictions, references, strict=True)
    return sum(is_match(prediction, texts, rules) for prediction, texts in pairs) / len(predictions)


def f1(
    predictions: Sequence[str], references: Sequence[Sequence[str]], rules: Rules = "squad"
) -> float:
    """Mean F1 of the words of a prediction and of its nearest reference, after ``rules``."""
    _check(predictions, references)
    scores = (
        max(word_f1(normalized(prediction, rules), normalized(text, rules)) for text in texts)
        for prediction, texts in zip(predictions, references, strict=True)
    )
    return sum(scores) / len(predictions)


def trivia_qa(predictions: Sequence[str], references: Sequence[Sequence[str]]) -> dict[str, float]:
    """Exact match and F1 by TriviaQA's rules, 0 to 100."""
    return {
        "trivia_qa_exact_match": 100 * exact_match(predictions, references, "trivia_qa"),
        "trivia_qa_f1": 100 * f1(predictions, references, "trivia_qa"),
    }


def sequence_accuracy(predictions: Sequence[str], references: Sequence[Sequence[str]]) -> float:
    """Share of predictions that are one of their references, character by character.

    White space at the ends does not count.
    """
    _check(predictions, references)
    right = sum(
        composed(prediction.strip()) in {composed(text.strip()) for text in texts}
        for prediction, texts in zip(predictions, references, strict=True)
    )
    return right / len(predictions)


def is_match(prediction: str, references: Sequence[str], rules: Rules = "squad") -> bool:
    """Whether a prediction is one of its references, once all are normalised."""
    return normalized(prediction, rules) in {normalized(text, rules) for text in references}


def word_f1(prediction: str, reference: str) -> float:
    """F1 of the words of two normalised texts; 0 where nothing is left of one."""
    left, right = prediction.split(), reference.split()
    shared = (Counter(left) & Counter(right)).total()
    return 2 * shared / (len(left) + len(right)) if shared else 0.0


def normalized(text: str, rules: Rules = "squad") -> str:
    """Lower case, without punctuation, without the words a, an, the, single spaces.

    Args:
        rules: squad: ASCII punctuation is deleted, and curved quotes stay (evaluate-v1.1.py of
            SQuAD; also of Natural Questions and WebQuestions). trivia_qa: punctuation becomes a
            space, single curved quotes and accents too (triviaqa_evaluation.py of TriviaQA, and
            evaluation/qa_utils.py of T5).
    """
    text = composed(text).lower().translate(_NO_MARKS if rules == "squad" else _SPACES)
    return " ".join(_ARTICLES.sub(" ", text).split())


def require(names: Sequence[str]) -> None:
    """Refuse metrics that could not be computed, before anything is trained.

    Raises:
        ConfigError: A package is not installed.
    """
    packages = {"bleu": "sacrebleu", "chrf": "sacrebleu", "rouge": "rouge_score.rouge_scorer"}
    for name in names:
        if name in packages:
            _package(packages[name])


def composed(text: str) -> str:
    """The text with accents as parts of their letters (NFC): a text is equal in both forms."""
    return unicodedata.normalize("NFC", text)


def without_spaces(text: str) -> bool:
    """Whether a text has Chinese characters, or mostly letters of scripts without spaces."""
    letters = len(_UNSPACED_LETTER.findall(text))
    return _CHINESE.search(text) is not None or 2 * letters > sum(map(str.isalpha, text)) > 0


class Words:
    """A tokenizer as rouge-score takes one: lower-cased words."""

    def __init__(self, *, each_letter: bool) -> None:
        joined = f"[{marks()}{JOINERS}]"
        letter = r"[^\W_]" if each_letter else rf"(?=\w)[{_UNSPACED}]"
        run = "" if each_letter else "+"
        word = rf"{letter}{joined}*|(?:(?![{_UNSPACED}])[^\W_]|{joined}){run}"
        self._word = re.compile(word)

    def tokenize(self, text: str) -> list[str]:
        """The words of a text in lower case, in order."""
        return self._word.findall(composed(text).lower())


def _package(name: str) -> Any:
    try:
        return importlib.import_module(name)
    except ModuleNotFoundError as error:
        package = name.partition(".")[0].replace("_", "-")
        raise ConfigError(
            f"the package {package} is not installed, which BLEU, chrF and ROUGE need",
            "pip install 'plmctl[text]', or leave these out of task.metrics",
        ) from error


def _check(predictions: Sequence[str], references: Sequence[Sequence[str]]) -> None:
    if len(predictions) != len(references):
        raise DataError(
            f"{len(predictions)} predictions do not match {len(references)} references",
            "give one prediction for each row, in the same order",
        )
    if not predictions:
        raise DataError("nothing to score: there are no predictions")
    for number, texts in enumerate(references):
        if isinstance(texts, str) or not texts:
            raise DataError(f"row {number}: the references are no list of one or more texts")


def _columns(references: Sequence[Sequence[str]]) -> list[list[str | None]]:
    """[references, N] as sacrebleu takes them: None where a row has fewer than others."""
    most = max(map(len, references))
    return [
        [composed(texts[k]) if k < len(texts) else None for texts in references]
        for k in range(most)
    ]

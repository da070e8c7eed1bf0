"""``plmctl init``: look at a corpus, propose settings with a reason for each, and write configs.

What the corpus is comes from ``corpus/profile.py``; the size and the steps from the arithmetic of
``plmctl plan --budget``; the optimizer, schedule and masking from the recipes of ``configs/fast``.
"""

from __future__ import annotations

import json
import math
import os
import sys
from collections.abc import Sequence
from dataclasses import dataclass, replace
from importlib.util import find_spec
from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np

from plmctl import registry
from plmctl.config.tokenizer import ALGORITHM_OF
from plmctl.config.units import Budget
from plmctl.corpus.document import locate
from plmctl.corpus.gather import Corpus, counted, one_line, together
from plmctl.corpus.labelled import read_rows
from plmctl.corpus.languages import LANGUAGES, check_language, language_of_script, scripts_of
from plmctl.corpus.profile import Part, Profile, profile, unreadable
from plmctl.corpus.remote import is_url
from plmctl.corpus.source import FORMATS, Source, resolve
from plmctl.errors import ConfigError, DataError, nearest
from plmctl.families.base import get_family
from plmctl.files import new_folder, write_atomically, writing
from plmctl.formatting import format_value
from plmctl.reporting.tables import metrics_table, text_table
from plmctl.run.configs import PretrainConfig, load
from plmctl.run.display import say, show_result, work_progress
from plmctl.run.launch import StartOptions
from plmctl.run.preflight import check_network, stand_in


@dataclass(frozen=True)
class Request:
    """What the user wants.

    Attributes:
        corpus: Files, folders, globs or names of sources.
        out: The folder to write; None: named after the corpus and the family.
        lang: The language, as a code.
        family: The family of the model; None: proposed.
        budget: What pretraining may use.
        evaluation: Files that the model will be evaluated on.
        smoke: Run the smoke test; None: ask, on a terminal.
    """

    corpus: Sequence[str]
    out: str | None = None
    lang: str | None = None
    family: str | None = None
    budget: str = "2h"
    evaluation: Sequence[str] = ()
    smoke: bool | None = None


def run(request: Request, *, as_json: bool) -> None:
    """Look, propose, write, check, and try.

    Raises:
        ConfigError: An unknown language or family, a wrong budget, or a folder that has files.
        DataError: The corpus has no text, or a file is not text; with file and line.
    """
    language = None if request.lang is None else check_language(request.lang)
    budget = Budget.of(request.budget, "--budget")
    family = None if request.family is None else _check_family(request.family)
    corpus = Corpus.of(request.corpus)
    out = _check_out(Path(request.out or f"{corpus.name}-{family or _FAMILY}"))
    evaluation = resolve(tuple(request.evaluation))
    looked, corpus = _look(corpus, evaluation)
    language = language or language_of_script(looked.scripts)
    findings, notes = describe(looked, corpus, language, request.lang)
    if not as_json:
        show_result({}, [text_table("the corpus", ("", ""), findings)], as_json=False)
        for note in notes:
            say(f"note: {note}")
    proposal = propose(looked, corpus, budget, family)
    proposal, planned = _write(out, proposal, corpus, looked, evaluation)
    files = [f"{out}/{name}.yaml" for name in ("tokenizer", "pretrain", "finetune", "eval")]
    if not as_json:
        settings = [(one.key, f"{one.value}: {one.because}") for one in proposal.settings]
        table = text_table("the proposal", ("setting", "value: because"), settings)
        checked = metrics_table(f"{files[1]} will cost", planned)
        show_result({}, [table, checked], as_json=False)
        for line in _next(out, bool(evaluation)):
            say(line)
    if request.smoke or (request.smoke is None and not as_json and _agrees()):
        smoke_test(out, proposal, looked)
    if as_json:
        document: dict[str, object] = {"corpus": dict(findings), "notes": notes}
        document["settings"] = {
            one.key: {"value": one.value, "because": one.because} for one in proposal.settings
        }
        show_result({**document, "plan": planned, "files": files}, [], as_json=True)


def _check_family(name: str) -> str:
    """A family that can be pretrained from raw text alone.

    Raises:
        ConfigError: It is unknown, or needs a teacher.
    """
    known = registry.names("families")
    if name not in known:
        raise ConfigError(f"--family {name}: no such family{nearest(name, known)}")
    if name == "distilbert":
        raise ConfigError(
            "--family distilbert: it learns from a larger model, not from text alone",
            "propose `--family bert` first, then see configs/pretrain/distilbert.yaml",
        )
    return name


def _check_out(folder: Path) -> Path:
    """A folder that can be written.

    Raises:
        ConfigError: It is a file, or has files.
    """
    if folder.is_dir() and any(folder.iterdir()):
        raise ConfigError(
            f"{folder}: the folder has files already", "name another folder with --out"
        )
    if folder.exists() and not folder.is_dir():
        raise ConfigError(f"{folder}: a file of this name exists", "name a folder with --out")
    return folder


# --- Looking ---


def _look(corpus: Corpus, evaluation: Sequence[Source]) -> tuple[Profile, Corpus]:
    """The profile, and the corpus without files that cannot be read.

    Text files of few documents are read line by line.
    """
    with work_progress("looking at the corpus") as progress:
        looked = profile(resolve(corpus.train), corpus.config, evaluation, progress)
        bad = looked.unreadable | unreadable(resolve(corpus.valid), corpus.config)
        corpus = corpus.without(bad)
        if looked.one_each and looked.documents < _FEW and looked.lines >= 2 * _FEW:
            corpus = replace(corpus, documents="line")
            looked = profile(resolve(corpus.train), corpus.config, evaluation, progress)
    looked = replace(looked, unreadable=bad)
    if looked.documents < 2:
        single = DataError(
            f"{corpus.train[0]}: the corpus is a single document of one line",
            "separate documents by blank lines, or put one document on each line"
            + (f"; left out: {corpus.left_out}" if corpus.left_out else ""),
        )
        raise together([single, *bad.values()])
    return looked, corpus


_FEW = 50  # documents: too few to hold some of them out


# --- What was found, in words ---


def describe(
    looked: Profile, corpus: Corpus, language: str | None, tag: str | None
) -> tuple[list[tuple[str, str]], list[str]]:
    """What a corpus is, as names and values; and what a user should do about it.

    Args:
        corpus: Its files.
        language: The code of its language; None: unknown.
        tag: The language as the user gave it; None: it was not given.
    """
    files = counted(len(resolve(corpus.train)), "file")
    scope = "all of it" if looked.whole else "a seeded sample from all of its parts"
    lengths, size = looked.lengths, len(looked.sample)
    if language is None:
        spoken = "not given (--lang); its script decides the settings"
    else:
        source = f"--lang {tag}" if tag else "the only one here in this script"
        spoken = f"{LANGUAGES[language]} ({source})"
    facts = [
        ("size", f"{_megabytes(looked.size)} in {files}"),
        *([("left out", corpus.left_out)] if corpus.left_out else []),
        *(
            [("cannot be read", counted(len(looked.unreadable), "file"))]
            if looked.unreadable
            else []
        ),
        ("read", f"{_megabytes(looked.read)}, {scope}"),
        ("documents", f"{looked.documents:,}" + ("" if looked.whole else " in what was read")),
        (
            "characters per document",
            f"median {np.median(lengths):,.0f}, 90 % below {np.quantile(lengths, 0.9):,.0f}, "
            f"longest {lengths.max():,}",
        ),
        ("language", spoken),
        ("script", ", ".join(f"{s} {share:.1%}" for s, share in islice(looked.scripts.items(), 4))),
    ]
    facts = [fact for fact in facts if fact[1] not in ("", "0 files")]
    if not corpus.programs:
        facts += _divisions(looked)
    if looked.chinese and looked.traditional is not None:
        words = f"about {looked.traditional:.0%}, by frequent characters that have two forms"
        facts.append(("traditional Chinese", words))
    closely = f"of {size:,} documents" + (" (a seeded sample)" if size < looked.documents else "")
    facts += [
        (
            "exact copies",
            f"{looked.exact:.1%} of the documents, {looked.exact_text:.1%} of the text",
        ),
        (
            "near copies",
            f"{looked.near.share:.1%} of the documents repeat at least 70% of an earlier one",
        ),
        (
            "lines",
            f"median {looked.line_length:,.0f} characters; {looked.short_lines:.0%} have less than "
            f"30; {looked.repeated_lines:.1%} occur five times or more",
        ),
    ]
    for fault, count in looked.faults.items():
        facts.append((fault, f"in {count:,} {closely}"))
    if not looked.faults:
        facts.append(("encoding faults", f"none in {size:,} documents"))
    for overlap in looked.overlaps:
        short = f"; {overlap.short:,} more are shorter than that" if overlap.short else ""
        facts.append(
            (
                f"overlap with {Path(overlap.name).name}",
                f"{overlap.shared:,} of {overlap.rows:,} rows have 13 words in a row (characters, "
                f"without spaces) that the corpus has, too{short}",
            )
        )
    return facts, _advice(looked, corpus, language)


def _advice(looked: Profile, corpus: Corpus, language: str | None) -> list[str]:
    notes = [
        f"left out, because it cannot be read: {one}"
        for one in one_line(list(looked.unreadable.values()))
    ]
    if len(looked.unreadable) > len(notes):
        notes.append(f"and {len(looked.unreadable) - len(notes):,} more files cannot be read")
    if corpus.left_out:
        notes += [f"left out: {corpus.left_out}", *corpus.advice, FORMATS]
    notes += [] if corpus.programs else _mixed(looked, language)
    if looked.all_characters < 1_000_000:
        notes.append(
            "this is little text: a model will learn its frequent words, and not much more"
        )
    if looked.exact_text > 0.01:
        notes.append(
            "the model would learn exact copies by heart: pretrain.yaml leaves them out "
            "(data.duplicates: drop)"
        )
    if looked.near.share > 0.03:
        least = "" if looked.whole else "at least "
        where = ""
        if looked.near.example is not None:
            first, second = (Path(_place(origin)).name for origin in looked.near.example)
            where = f", for example {second} of {first}"
        notes.append(
            f"{least}{looked.near.share:.0%} of the documents are nearly copies of earlier ones"
            f"{where}; docs/cleaning.md says how to remove them"
        )
    if looked.repeated_lines > 0.03 and looked.line_length < 200:
        notes.append(
            f"{looked.repeated_lines:.1%} of the lines occur five times or more: look for menus, "
            "headers and footers, and remove them"
        )
    notes += looked.marks
    for fault, count in looked.faults.items():
        if count > 0.01 * len(looked.sample):
            notes.append(f"{fault}: clean the text, or the model learns them")
    for overlap in looked.overlaps:
        if overlap.shared:
            notes.append(
                f"{overlap.shared:,} rows of {overlap.name} are partly in the corpus: scores on "
                "them say too much; remove the rows, or the documents"
            )
    median, high = np.quantile(looked.lengths, [0.5, 0.9])
    if median < 60 and high > 10 * median:
        notes.append(
            f"half of the documents have less than {median:,.0f} characters: if blank lines "
            "separate headings and paragraphs in your text, remove the blank lines within documents"
        )
    if corpus.documents == "line":
        notes.append("there are no blank lines, so each line is a document (data.documents: line)")
    elif corpus.documents == "file":
        notes.append("these are programs, so each file is a document (data.documents: file)")
    if corpus.column != "text":
        notes.append(f"the column {corpus.column!r} has the longest text, so it is read")
    if corpus.test:
        notes.append(f"named after test text, and not read: {', '.join(corpus.test)}")
    return notes


_NOTABLE = 0.05  # share of the documents


def _divisions(looked: Profile) -> list[tuple[str, str]]:
    """How the documents divide by script and, in Latin letters, into English and other text."""
    facts = []
    if len(looked.main_scripts) > 1:
        shares = [f"{name} {part.share:.1%}" for name, part in looked.main_scripts.items()]
        facts.append(("documents by script", ", ".join(shares[:4])))
    if len(looked.english) > 1:
        english, other = (looked.english[key].share for key in ("en", "other"))
        unclear = f"{1 - english - other:.1%} too short or unclear"
        facts.append(("documents in English", f"{english:.1%}; {other:.1%} not, {unclear}"))
    return facts


def _mixed(looked: Profile, language: str | None) -> list[str]:
    """Notes on text in another script or language."""
    notes, remove = [], "remove them (docs/cleaning.md), or the model spends its training on them"
    name = "" if language is None else LANGUAGES[language]
    usual = set() if language is None else scripts_of(language)
    usual = usual or {looked.script}
    own = sum(looked.scripts.get(script, 0.0) for script in usual)
    if own < 0.8 and looked.scripts:
        others = ", ".join(f"{s} {n:.0%}" for s, n in looked.scripts.items() if s not in usual)
        scripts = " or ".join(sorted(usual))
        about = f", which {name} is usually written in" if name else ""
        end = "is --lang right?" if own < 0.1 else "if other languages are in the text, remove them"
        notes.append(f"{own:.0%} of the letters are {scripts}{about}; {others}: {end}")
    for script, part in looked.main_scripts.items():
        if script not in usual and part.share >= _NOTABLE and own >= 0.1:
            notes.append(
                f"{part.share:.0%} of the documents are mainly in {script} letters, for example "
                f"{_place(part.example)}: if they are in another language, {remove}"
            )
    none = Part(0.0, "")
    english, other = (looked.english.get(key, none) for key in ("en", "other"))
    if language in ("pcm", "sco") or "Latin" not in looked.scripts:
        return notes
    unwanted = language is not None or other.share >= _NOTABLE
    if language != "en" and unwanted and english.share >= _NOTABLE:
        wanted = f", not {name}" if name else ""
        notes.append(
            f"{english.share:.0%} of the documents look English{wanted}, for example "
            f"{_place(english.example)}: if they are not wanted, {remove}"
        )
    if other.share >= _NOTABLE and language == "en":
        notes.append(
            f"{other.share:.0%} of the documents hardly have the most frequent words of English, "
            f"for example {_place(other.example)}: if they are in another language, {remove}"
        )
    return notes


def _place(origin: str) -> str:
    """``file:line``, also of a document whose origin is a byte of a local file."""
    name, mark, offset = origin.rpartition(":byte ")
    return locate(Path(name), int(offset), 1) if mark and not is_url(name) else origin


def _megabytes(size: float) -> str:
    return f"{size / 1e9:,.1f} GB" if size >= 1e9 else f"{size / 1e6:,.2f} MB"


# --- The proposal ---


@dataclass(frozen=True)
class Setting:
    """A setting, its value, and the reason for it."""

    key: str
    value: str
    because: str


@dataclass(frozen=True)
class Proposal:
    """The settings of a model and its training.

    Attributes:
        family: The family of the network.
        size: Its size.
        template: The family of the tokenizer.
        vocab_size: Its ids.
        rules: Further options of the tokenizer.
        objective: The fields of the objective.
        words: ``data.words``.
        sentences: ``data.sentences``.
        seq_len: Tokens of a sequence.
        batch_size: Sequences of a step.
        budget: ``train.budget``.
        lr: The learning rate.
        beta: The second of the betas.
        valid: ``data.valid``, as YAML.
        steps: The steps that fit the budget, about.
        settings: All of it with reasons.
    """

    family: str
    size: str
    template: str
    vocab_size: int
    rules: dict[str, Any]
    objective: dict[str, Any]
    words: str
    sentences: str
    seq_len: int
    batch_size: int
    budget: Budget
    lr: float
    beta: float
    valid: str
    steps: int
    settings: tuple[Setting, ...] = ()

    def because(self, key: str) -> str:
        """The reason for a setting."""
        return next(one.because for one in self.settings if one.key == key)


_PAPER = {
    "albert": "ALBERT",
    "bert": "BERT",
    "elmo": "ELMo",
    "gpt1": "GPT-1",
    "gpt2": "GPT-2",
    "gpt3": "GPT-3",
    "roberta": "RoBERTa",
    "spanbert": "SpanBERT",
    "t5": "T5",
}

_FAMILY = "bert"  # proposed, if the user names none

_GPT = ("gpt1", "gpt2", "gpt3")

_MASKED = ("bert", "roberta", "albert", "spanbert")

_LONGEST = {"cpu": 128, "mps": 256, "cuda": 512}

_BATCH = {"cpu": 32, "mps": 64, "cuda": 256}

_VALID_ROWS = 500  # sequences to validate on


def propose(looked: Profile, corpus: Corpus, budget: Budget, family: str | None) -> Proposal:
    """Settings for a corpus on this machine; the size and the steps are still to be decided.

    Args:
        corpus: Its files.
        budget: What pretraining may use.
        family: As the user wants it; None: bert.
    """
    settings: list[Setting] = []

    def because(key: str, value: object, reason: str) -> None:
        settings.append(Setting(key, str(value), reason))

    device = _device()
    because(
        "family",
        family or _FAMILY,
        "as requested" if family else "to understand text; --family gpt2 writes text, t5 does both",
    )
    family = family or _FAMILY
    template, reason = _template(looked, family)
    algorithm = ALGORITHM_OF[template]  # type: ignore[index]  # one of its keys
    because("tokenizer", f"{algorithm} ({template})", reason)
    vocab_size, reason = _vocab_size(looked, algorithm)
    because("vocab_size", f"{vocab_size:,}", reason)
    rules, reason = _rules(looked, template)
    if rules:
        because("case, accents", "kept", reason)
    if looked.joiners > 0.0005 and template not in ("gpt2", "roberta"):  # these two keep them
        rules = rules | {"keep_joiners": True}
        why = f"{looked.joiners:.2%} of the letters are joined by U+200C or U+200D"
        because("keep_joiners", "true", why)
    per_token = _characters_per_token(looked, algorithm, vocab_size)
    tokens = (1 - looked.exact_text) * looked.all_characters / per_token
    seq_len, reason = _seq_len(looked, family, device, per_token)
    because("seq_len", seq_len, reason)
    objective, reason = _objective(looked, family)
    because("objective", objective["name"], reason)
    if "rate" in objective:
        because("rate", objective["rate"], "more to learn from each step than the usual 0.15")
    words = "pretokenizer"
    if looked.chinese and family in _MASKED and family != "spanbert":
        if find_spec("jieba") is None:
            because("words", words, "jieba is not installed: pip install 'plmctl[zh]' masks words")
        elif looked.size <= 2_000_000_000:
            words, objective["unit"] = "jieba", "word"
            because("words", words, "Chinese words, masked as a whole; jieba is installed")
    sentences = "auto"
    if family in _MASKED or family == "elmo":
        sentences = looked.sentences.rule
        reason = looked.sentences.reason
        if sentences == "en":
            reason = "they end at punctuation (. ? ! and that of other scripts)"
        because("sentences", sentences, reason)
    if corpus.documents != "auto":
        reasons = {"line": "there are no blank lines between documents", "file": "programs"}
        because("documents", corpus.documents, reasons[corpus.documents])
    if looked.exact_text > 0.01:
        copies = f"{looked.exact_text:.1%} of the text are exact copies of earlier documents"
        because("duplicates", "drop", copies)
    batch_size = 32 if family == "elmo" else _BATCH[device]
    because("batch_size", batch_size, f"for {_machine(device)}")
    if corpus.valid:
        valid = ""
        because(
            "valid", counted(len(corpus.valid), "file"), "by their names, beside the training text"
        )
    else:
        share = math.ceil(100 * _VALID_ROWS * seq_len / max(1.0, tokens))
        valid = f"{min(10, max(1, share))}%"
        held = min(10, max(1, share)) / 100 * tokens / seq_len
        because("valid", valid, f"holds out about {held:,.0f} sequences")
    lr, beta = (5e-3, 0.95) if family in _GPT else (3e-3, 0.98)
    because(
        "optimizer", f"muon, lr {lr:g}", "the fast recipe (configs/fast), chosen on small models"
    )
    because("schedule", "wsd, warmup 50, decay 30%", "the fast recipe; constant, then down to 0")
    because("dropout", "0", "a short training on little text is better without")
    if "initial_attention" in get_family(family).Config.model_fields:
        because(
            "initial_attention",
            "local",
            "the first layer starts with near tokens: it learns sooner",
        )
    if "initial_embeddings" in get_family(family).Config.model_fields:
        because(
            "initial_embeddings",
            "cooccurrence",
            "tokens with the same neighbours start alike: it learns sooner",
        )
    return Proposal(
        family, "tiny", template, vocab_size, rules, objective, words, sentences, seq_len,
        batch_size, budget, lr, beta, valid, 0, tuple(settings),
    )  # fmt: skip


def _template(looked: Profile, family: str) -> tuple[str, str]:
    """The family of the tokenizer, which decides its algorithm."""
    own = {"spanbert": "bert", "gpt3": "gpt2"}.get(family, family)
    if family == "elmo":
        return own, "ELMo reads words by their characters"
    if family in ("bert", "spanbert") and not looked.spaced and not looked.chinese:
        return "albert", (
            "no spaces between words: WordPiece would read a clause as one word; a Unigram piece "
            "may start anywhere"
        )
    if family == "roberta" or family in _GPT:
        reason = f"as in {_PAPER[family]}" + ("" if own == "gpt1" else "; no unknown characters")
        return own, reason
    if looked.chinese and own == "bert":
        return own, "as Chinese BERT: each Chinese character is a token"
    return own, f"as in {_PAPER[family]}"


def _vocab_size(looked: Profile, algorithm: str) -> tuple[int, str]:
    """Ids of the vocabulary: the square root of the text, within limits."""
    millions = looked.all_characters / 1e6
    size = min(32_000, max(1_000, round(2 * math.sqrt(millions)) * 1_000))
    if algorithm == "word":
        size = min(50_000, max(2_000, 3 * size))
        return (
            size,
            "the frequent words; rarer ones are read by their characters, but not predicted",
        )
    least = _thousands(1.05 * looked.characters + 200)
    if looked.chinese and algorithm == "wordpiece":
        size = min(21_128, max(least, 2_000))
        return size, f"{looked.characters:,} characters make up 99.995 % of the text, each a token"
    reason = f"2,000 x the square root of {millions:,.1f} (million characters), rounded"
    if algorithm != "byte_bpe" and least > size:
        size = least
        reason = f"the text has {looked.characters:,} different characters"
    return size, reason + (", at most 32,000" if size == 32_000 else "")


def _thousands(number: float) -> int:
    return math.ceil(number / 1000) * 1000


def _rules(looked: Profile, template: str) -> tuple[dict[str, Any], str]:
    """Whether the tokenizer keeps case and accents."""
    if template not in ("bert", "albert", "gpt1") or looked.chinese:
        return {}, ""
    keeps: dict[str, Any] = {"lowercase": False}
    if template == "albert":
        keeps = {"normalization": "nfkc", "lowercase": False, "strip_accents": False}
    if not any(c.lower() != c for document in looked.sample[:200] for c in document.text[:500]):
        return keeps, (
            "the script has no case, and lower case would also drop its vowel signs and accents"
        )
    if looked.accents > 0.005:
        return keeps, (
            f"{looked.accents:.1%} of the letters have accents, which lower case would drop with "
            "the case"
        )
    if not looked.spaced:
        return keeps, "lower case would also drop marks of this script"
    return {}, ""


def _characters_per_token(looked: Profile, algorithm: str, vocab_size: int) -> float:
    """About; for lengths and passes only."""
    if algorithm == "word":
        return 1 / max(0.02, looked.spaces)
    if looked.chinese:
        return 1.05 if algorithm == "wordpiece" else 1.4
    if not looked.spaced:
        return 1.2 if algorithm == "byte_bpe" else 2.5
    return 3.0 + 0.3 * math.log2(vocab_size / 1000)


def _seq_len(looked: Profile, family: str, device: str, per_token: float) -> tuple[int, str]:
    if family == "elmo":
        return 20, "ELMo's windows; its state continues from one to the next"
    long = float(np.quantile(looked.lengths, 0.75)) / per_token
    if corpus_is_long := long > 64:
        length = min(_LONGEST[device], 2 ** math.ceil(math.log2(min(long, 512))))
    else:
        length = 64
    share = f"a quarter of the documents have more than {long:,.0f} tokens"
    if corpus_is_long and length == _LONGEST[device] < long:
        return length, f"{share}; longer rows are slow here ({device})"
    return length, share


def _objective(looked: Profile, family: str) -> tuple[dict[str, Any], str]:
    name = get_family(family).OBJECTIVE
    if name in ("mlm+nsp", "mlm+sop") and looked.continued < 0.6:
        alone = 1 - looked.continued
        return {"name": "mlm", "packing": "full_sentences", "rate": 0.4}, (
            f"{alone:.0%} of the sentences are alone in their document: there are few pairs"
        )
    if family == "roberta":
        return {"name": "mlm", "packing": "full_sentences", "rate": 0.4}, "as in RoBERTa"
    if family == "t5":
        return {"name": "span_corruption", "z_loss": 0}, "as in T5"
    if name in ("mlm+nsp", "mlm+sop"):
        return {
            "name": name,
            "rate": 0.4,
        }, f"as in {_PAPER[family]}; documents have several sentences"
    return {"name": name}, f"as in {_PAPER[family]}"


def _device() -> str:
    import torch

    if torch.cuda.is_available():
        return "cuda"
    return "mps" if torch.backends.mps.is_available() else "cpu"


def _machine(device: str) -> str:
    if device != "cpu":
        return f"a GPU ({device})"
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count()
    return f"a CPU ({counted(cores or 1, 'core')})"


# --- The files ---


def _write(
    out: Path, proposal: Proposal, corpus: Corpus, looked: Profile, evaluation: Sequence[Source]
) -> tuple[Proposal, dict[str, object]]:
    """Decide size and steps, write the files, and check all of them.

    Returns:
        The proposal with size and steps, and what the pretraining will cost.
    """
    with writing(out):
        out.parent.mkdir(parents=True, exist_ok=True)
    with writing(out), new_folder(out, several_writers=True) as beside:
        beside.mkdir()
        draft = beside / "pretrain.yaml"
        write_atomically(draft, pretrain_yaml(out, proposal, corpus))
        config = load("pretrain", draft)
        proposal = _sized(config, proposal, looked)
        write_atomically(draft, pretrain_yaml(out, proposal, corpus))
        write_atomically(beside / "tokenizer.yaml", tokenizer_yaml(out, proposal, corpus))
        write_atomically(beside / "finetune.yaml", finetune_yaml(out, proposal, evaluation))
        write_atomically(beside / "eval.yaml", eval_yaml(out, proposal, corpus, evaluation))
        load("tokenizer", beside / "tokenizer.yaml")
        load("finetune", beside / "finetune.yaml")
        load("eval", beside / "eval.yaml")
        config = load("pretrain", draft)
        vocab = stand_in(proposal.vocab_size)
        from plmctl.commands.plan import costs, in_words

        network = check_network(config, vocab)
        planned = in_words(costs(config.with_steps([proposal.steps]), vocab, network, None))
        planned["steps"] = f"{proposal.steps:,}, about"
    for key in ("passes over the text", "time", "tokens"):
        planned.pop(key, None)
    return proposal, planned


def _sized(config: PretrainConfig, proposal: Proposal, looked: Profile) -> Proposal:
    """The proposal with the best size within its budget, and its steps.

    Raises:
        ConfigError: No size fits.
    """
    from plmctl.commands.plan import compare_sizes

    algorithm = ALGORITHM_OF[proposal.template]  # type: ignore[index]  # one of its keys
    per_token = _characters_per_token(looked, algorithm, proposal.vocab_size)
    tokens = max(1, round((1 - looked.exact_text) * looked.all_characters / per_token))
    budget = proposal.budget
    if budget.unit == "words":
        # Words are counted when the text is prepared; until then, about.
        words = max(1.0, looked.all_characters * max(0.01, looked.spaces))
        budget = Budget.of(f"{round(budget.number / words * tokens)} tokens", "--budget")
    vocab = stand_in(proposal.vocab_size)
    sizes, reasons = list[dict[str, Any]](), dict[str, str]()
    for name in get_family(proposal.family).SIZES:
        fitting, why = compare_sizes(config, budget, vocab, None, corpus=tokens, sizes=[name])
        sizes, reasons = sizes + fitting, reasons | why
        # From small to large the loss falls, and then rises. The law behind it is of large texts;
        # with more weights than tokens a network learns these by heart.
        large = len(sizes) > 1 and (
            sizes[-1]["loss"] > sizes[-2]["loss"] or sizes[-1]["parameters"] > sizes[-1]["tokens"]
        )
        if why or large:
            del sizes[len(sizes) - large :]
            break
    if not sizes:
        reason = next(iter(reasons.values())).removeprefix("train.budget: ")
        raise ConfigError(f"--budget: no size of {proposal.family} fits it: {reason}")
    best = min(sizes, key=lambda row: row["loss"])
    steps, epochs = best["steps"], best["epochs"]
    size = Setting(
        "size",
        str(best["size"]),
        f"{best['parameters'] / 1e6:,.1f} M weights: the lowest predicted loss within the budget "
        f"(`plmctl plan --budget`) of the sizes with fewer weights than tokens of training",
    )
    number = Setting(
        "steps",
        f"about {steps:,}",
        f"--budget {proposal.budget}: {format_value(epochs)} passes over about {tokens:,} tokens"
        + ("; more text is better than so many passes" if epochs > 20 else ""),
    )
    settings = (proposal.settings[0], size, *proposal.settings[1:], number)
    return replace(proposal, size=str(best["size"]), steps=steps, settings=settings)


class Plain(str):
    """Text that YAML reads without quotes, such as ``10%``."""


def _yaml(value: object) -> str:
    """A value as YAML on one line."""
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, dict):
        return "{" + ", ".join(f"{key}: {_yaml(one)}" for key, one in value.items()) + "}"
    if isinstance(value, list | tuple):
        return "[" + ", ".join(map(_yaml, value)) + "]"
    plain = (
        isinstance(value, Plain)
        or isinstance(value, str)
        and value.replace("_", "").replace("+", "").isalnum()
    )
    if plain or not isinstance(value, str):
        return str(value)
    return json.dumps(value, ensure_ascii=False)


def _comment(text: str, indent: str = "") -> str:
    """Lines of a comment, of at most 96 characters; a key at its beginning stays as it is."""
    words = text.split()
    if not words[0].endswith(":"):
        words[0] = words[0][:1].upper() + words[0][1:]
    lines = [""]
    for word in words:
        if len(lines[-1]) + len(word) > 92 - len(indent):
            lines.append("")
        lines[-1] = f"{lines[-1]} {word}"
    return "".join(f"{indent}#{line}\n" for line in lines)


def _text_fields(corpus: Corpus) -> dict[str, Any]:
    fields: dict[str, Any] = {"train": corpus.train}
    if corpus.column != "text":
        fields["text"] = corpus.column
    if corpus.documents != "auto":
        fields["documents"] = corpus.documents
    return fields


def _block(fields: dict[str, Any]) -> str:
    """The lines of a section."""
    lines = []
    for key, value in fields.items():
        if isinstance(value, list | tuple) and len(_yaml(value)) > 70:
            lines += [f"  {key}:", *(f"    - {_yaml(one)}" for one in value)]
        else:
            lines.append(f"  {key}: {_yaml(value)}")
    return "\n".join(lines) + "\n"


def tokenizer_yaml(out: Path, proposal: Proposal, corpus: Corpus) -> str:
    """The config of ``plmctl train-tokenizer``."""
    algorithm = ALGORITHM_OF[proposal.template]  # type: ignore[index]  # one of its keys
    rules = "".join(f"{key}: {_yaml(value)}\n" for key, value in proposal.rules.items())
    reasons = [one for one in proposal.settings if one.key in ("case, accents", "keep_joiners")]
    why = "".join(_comment(one.because) for one in reasons)
    return (
        f"# plmctl train-tokenizer {out}/tokenizer.yaml\n"
        f"run: {_yaml(f'{out}/runs/tokenizer')}\n"
        f"{_comment(proposal.because('tokenizer'))}"
        f"algorithm: {algorithm}\n"
        f"family: {proposal.template}\n"
        f"{_comment(proposal.because('vocab_size'))}"
        f"vocab_size: {proposal.vocab_size}\n"
        f"{why}{rules}"
        f"data:\n{_block(_text_fields(corpus))}"
    )


def _model_fields(proposal: Proposal) -> tuple[dict[str, Any], str]:
    """The network, and a comment on its positions."""
    family = get_family(proposal.family)
    known = family.Config.model_fields
    fields: dict[str, Any] = {"family": proposal.family, "size": proposal.size}
    if proposal.family == "t5":
        fields["version"] = "v1.1"
    comment = "No dropout: " + proposal.because("dropout") + "."
    if family.POSITIONS in known:
        fields[family.POSITIONS] = proposal.seq_len + family.UNUSED_POSITIONS
        comment += (
            " Positions: as many as are trained; longer inputs are refused. Increase them "
            "together with seq_len."
        )
    if "initial_attention" in known:
        fields["initial_attention"] = "local"
        comment += f" initial_attention: {proposal.because('initial_attention')}."
    if "initial_embeddings" in known:
        fields["initial_embeddings"] = "cooccurrence"
        comment += f" initial_embeddings: {proposal.because('initial_embeddings')}."
    for name in family.DROPOUT:
        if name in known and known[name].default:
            fields[name] = 0
    return fields, comment


def pretrain_yaml(out: Path, proposal: Proposal, corpus: Corpus) -> str:
    """The config of ``plmctl pretrain``."""
    model, about_model = _model_fields(proposal)
    size = "" if not proposal.steps else proposal.because("size") + ". "
    every = max(10, round(proposal.steps / 10))
    warmup = "50" if proposal.steps >= 500 else "10%"
    text = _text_fields(corpus)
    reasons = [f"valid: {proposal.because('valid')}."]
    text["valid"] = corpus.valid or Plain(proposal.valid)
    if proposal.sentences != "auto":
        text["sentences"] = proposal.sentences
        reasons.append(f"sentences: {proposal.because('sentences')}.")
    if proposal.words != "pretokenizer":
        text["words"] = proposal.words
        reasons.append(f"words: {proposal.because('words')}.")
    if looked_up := [one for one in proposal.settings if one.key == "duplicates"]:
        text["duplicates"] = looked_up[0].value
        reasons.append(f"duplicates: {looked_up[0].because}.")
    data = _block({**text, "store": f"{out}/stores"})
    about_steps = f"About {proposal.steps:,} steps here; the run decides when it knows its speed. "
    about_steps += f"seq_len: {proposal.because('seq_len')}."
    # All validations together take about a tenth of the time of the steps.
    samples = min(1000, max(100, 3 * proposal.steps * proposal.batch_size // 100))
    log = {
        "every": max(1, min(50, every // 2)),
        "validate_every": every,
        "validate_samples": samples,
    }
    optim = {
        "name": "muon",
        "lr": proposal.lr,
        "betas": [0.9, proposal.beta],
        "weight_decay": 0.01,
    }
    return (
        f"# plmctl pretrain {out}/pretrain.yaml\n"
        f"run: {_yaml(f'{out}/runs/{proposal.family}')}\n"
        f"tokenizer: {_yaml(f'{out}/runs/tokenizer')}\n"
        f"{_comment(f'size: {size}{about_model}')}"
        f"model:\n{_block(model)}"
        f"{_comment(' '.join(reasons))}"
        f"data:\n{data}"
        f"{_comment(proposal.because('objective'))}"
        f"objective: {_yaml(proposal.objective)}\n"
        f"{_comment(about_steps)}"
        f"train:\n"
        f"  batch_size: {proposal.batch_size}\n"
        f"  budget: {proposal.budget.written}\n"
        f"  phases: [{{seq_len: {proposal.seq_len}}}]\n"
        f"{_comment(proposal.because('optimizer') + '. If the loss rises, halve lr.')}"
        f"optim: {_yaml(optim)}\n"
        f"schedule: {{name: wsd, warmup: {warmup}, decay: 0.3}}\n"
        f"checkpoint: {{every: {every}, keep: 2}}\n"
        f"log: {_yaml(log)}\n"
    )


def finetune_yaml(out: Path, proposal: Proposal, evaluation: Sequence[Source]) -> str:
    """The config of ``plmctl finetune``: of labelled rows that were given, or a template."""
    rows_given = next(filter(None, map(_labelled, evaluation)), None)
    if rows_given is None:
        about = (
            "A template: name your labelled rows, and the columns of their text and label. Other "
            "tasks: tagging, question_answering, multiple_choice, text_to_text "
            "(docs/finetuning.md)."
        )
        data = 'data:\n  train: ["rows/train.jsonl"]  # {"text": "...", "label": "..."}\n'
        data += '  valid: 10%  # or files: ["rows/valid.jsonl"]\n'
        task = "task: {name: classification, text: text, label: label}\n"
    else:
        train, valid, columns = rows_given
        about = "Classification of the rows that were given."
        data = f"data:\n{_block({'train': [train], 'valid': [valid]})}"
        if train is None:
            about += " Name the rows to train on."
            data = f'data:\n  train: ["rows/train.jsonl"]  # your rows\n  valid: {_yaml([valid])}\n'
        task = f"task: {_yaml({'name': 'classification', **columns})}\n"
    length = max(64, proposal.seq_len)
    return (
        f"# plmctl finetune {out}/finetune.yaml\n"
        f"run: {_yaml(f'{out}/runs/finetune')}\n"
        f"model: {_yaml(f'{out}/runs/{proposal.family}/model')}\n"
        f"{_comment(about)}"
        f"{task}{data}"
        f"train: {{epochs: 5, batch_size: 16, max_length: {length}, dropout: 0.1}}\n"
        f"# A small model needs a larger rate than BERT-base (3e-5).\n"
        f"optim: {{lr: 2e-4}}\n"
        f"log: {{every: 20}}\n"
    )


def _labelled(source: Source) -> tuple[str | None, str, dict[str, Any]] | None:
    """The training file beside labelled rows, the rows, and their columns; None: no labels."""
    if source.kind in ("text", "conll", "sample", "hf"):
        return None
    row = read_rows([source.name])[0].values
    label = next((key for key in row if key.lower() in ("label", "labels", "class")), None)
    texts = [key for key, value in row.items() if isinstance(value, str) and key != label]
    texts = [key for key in texts if key.lower() not in ("id", "idx", "uid", "guid")]
    if label is None or not texts:
        return None
    path = Path(source.name)
    stem = path.name.split(".")[0]
    beside = path.with_name(path.name.replace(stem, "train", 1))
    train = str(beside) if beside != path and beside.is_file() else None
    return train, source.name, {"text": texts[0] if len(texts) == 1 else texts[:2], "label": label}


_MEASURES = {
    "mlm": ("mlm",),
    "mlm+nsp": ("mlm", "nsp"),
    "mlm+sop": ("mlm", "sop"),
    "mlm+sbo": ("mlm",),
    "clm": ("clm",),
    "span_corruption": ("span_corruption",),
    "bilm": ("bilm",),
}


def eval_yaml(out: Path, proposal: Proposal, corpus: Corpus, evaluation: Sequence[Source]) -> str:
    """The config of ``plmctl eval``, on the text that pretraining holds out."""
    held = {"data": corpus.valid} if corpus.valid else {"data": corpus.train}
    share = {} if corpus.valid else {"held_out": Plain(proposal.valid)}
    reading = {key: one for key, one in _text_fields(corpus).items() if key != "train"}
    lines = []
    if not reading:  # these measures read the column `text`, and documents by blank lines
        for name in _MEASURES[proposal.objective["name"]]:
            options = {"seq_len": proposal.seq_len, "store": f"{out}/stores"}
            lines.append({"name": name, **held, **share, **options})
    bits = {"max_bytes": "30kB", "max_document_bytes": "1kB"}
    lines.append({"name": "bits_per_byte", **held, **share, **reading, **bits})
    texts = [one.name for one in evaluation if one.kind == "text"]
    if texts:
        lines.append({"name": "bits_per_byte", "data": texts, **bits})
    measures = "".join(_measure_lines(line) for line in lines)
    return (
        f"# plmctl eval {out}/eval.yaml\n"
        f"run: {_yaml(f'{out}/runs/eval')}\n"
        f"model: {_yaml(f'{out}/runs/{proposal.family}/model')}\n"
        "# On held-out text. bits_per_byte compares models of any family and tokenizer. It reads\n"
        "# at most max_bytes, because a masked model needs a forward pass for each token.\n"
        f"measures:\n{measures}"
        "# Others (docs/evaluation.md), with your data:\n"
        '#  - {name: minimal_pairs, data: ["pairs/*.jsonl"]}\n'
    )


def _measure_lines(fields: dict[str, Any]) -> str:
    if len(_yaml(fields)) < 90:
        return f"  - {_yaml(fields)}\n"
    first, *others = (f"{key}: {_yaml(value)}" for key, value in fields.items())
    return f"  - {first}\n" + "".join(f"    {line}\n" for line in others)


# --- What comes next ---


def _next(out: Path, has_rows: bool) -> list[str]:
    template = "" if has_rows else "   # after you name your rows in it"
    return [
        f"wrote {out}/; read and change the files, then:",
        f"  plmctl train-tokenizer {out}/tokenizer.yaml",
        f"  plmctl pretrain {out}/pretrain.yaml",
        f"  plmctl eval {out}/eval.yaml",
        f"  plmctl finetune {out}/finetune.yaml{template}",
    ]


def _agrees() -> bool:
    """Whether the user wants the smoke test; no if nobody can answer."""
    if not (sys.stdin.isatty() and sys.stderr.isatty()):
        return False
    print("Try all steps on a small sample now, about two minutes? [y/N] ", end="", file=sys.stderr)
    return input().strip().lower() in ("y", "yes")


_SMOKE = 300_000  # characters

_SMOKE_SECONDS = 45  # of the pretraining


def smoke_test(out: Path, proposal: Proposal, looked: Profile) -> None:
    """Tokenizer, a short pretraining and an evaluation, on a part of the sample.

    Args:
        out: The folder with the configs; everything is written to its folder ``smoke``.
        proposal: Its settings.
        looked: Has the sample.
    """
    from plmctl.commands import evaluate, pretrain, train_tokenizer

    folder = out / "smoke"
    with writing(folder):
        folder.mkdir(exist_ok=True)
        write_atomically(folder / "sample.txt", "".join(_sample(looked)))
    text = [f"data.train={_yaml([f'{folder}/sample.txt'])}", "data.documents=blank_line"]
    size = min(proposal.vocab_size, max(1000, _thousands(1.05 * looked.characters)))
    say("smoke test 1/3: a tokenizer")
    overrides = [f"run={folder}/tokenizer", f"vocab_size={size}", *text]
    train_tokenizer.run(
        load("tokenizer", out / "tokenizer.yaml", overrides), fresh=True, as_json=False
    )
    say(f"smoke test 2/3: a pretraining of {_SMOKE_SECONDS} seconds")
    overrides = [
        f"run={folder}/pretrain", f"tokenizer={folder}/tokenizer", *text, "data.valid=10%",
        "data.text=text", f"data.store={folder}/stores", "model.size=tiny",
        f"train.budget={_SMOKE_SECONDS}s", "schedule.warmup=10%", "checkpoint.every=100000",
        "log.validate_every=100000", "log.validate_samples=200",
    ]  # fmt: skip
    pretrain.run(
        load("pretrain", out / "pretrain.yaml", overrides), StartOptions(fresh=True), as_json=False
    )
    say("smoke test 3/3: an evaluation")
    name = _MEASURES[proposal.objective["name"]][0]
    measure: dict[str, Any] = {"name": name, "data": [f"{folder}/sample.txt"], "held_out": "10%"}
    measure |= {"seq_len": proposal.seq_len, "max_samples": 200, "store": f"{folder}/stores"}
    overrides = [f"run={folder}/eval", f"model={folder}/pretrain/model"]
    overrides.append(f"measures={_yaml([measure])}")
    evaluate.run(
        load("eval", out / "eval.yaml", overrides), at_checkpoints=False, fresh=True, as_json=False
    )
    say(f"smoke test: all steps work; you may remove {folder}")


def _sample(looked: Profile) -> list[str]:
    """Documents of the sample, with a blank line after each."""
    texts, size = list[str](), 0
    for document in looked.sample:
        lines = [line for line in document.text.splitlines() if line.strip()]
        texts.append("\n".join(lines) + "\n\n")
        size += len(document.text)
        if size > _SMOKE:
            break
    return texts

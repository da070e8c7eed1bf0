"""``plmctl init``: look at a corpus, propose settings with a reason for each, and write configs.

What the corpus is comes from ``corpus/profile.py``; the size and the steps from the arithmetic of
``plmctl plan --budget``; the optimizer, schedule and masking from the recipes of ``configs/fast``.
"""

from __future__ import annotations

import json
import math
import re
import sys
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from importlib.util import find_spec
from itertools import islice
from pathlib import Path
from string import Template
from textwrap import wrap
from typing import Any

import numpy as np

from plmctl import registry
from plmctl.config.document import to_yaml
from plmctl.config.load import KINDS, Kind, configs_folder
from plmctl.config.sections import MANY_DOCUMENTS
from plmctl.config.units import Budget
from plmctl.corpus.document import locate
from plmctl.corpus.documents import INSTALL
from plmctl.corpus.gather import Corpus, counted, one_line, together
from plmctl.corpus.labelled import read_rows
from plmctl.corpus.languages import (
    LANGUAGES,
    check_language,
    is_detectable,
    is_same,
    language_of_script,
    scripts_of,
)
from plmctl.corpus.profile import DocumentShare, Profile, profile, unreadable
from plmctl.corpus.remote import is_url
from plmctl.corpus.source import FORMATS, Source, resolve
from plmctl.cpus import usable_cpus
from plmctl.errors import ConfigError, DataError, nearest
from plmctl.families.base import Family, get_family
from plmctl.files import new_folder, write_atomically, writing
from plmctl.formatting import format_value
from plmctl.objectives.base import get_objective
from plmctl.reporting.tables import metrics_table, text_table
from plmctl.run.configs import PretrainConfig, load
from plmctl.run.display import say, show_result, work_progress
from plmctl.run.launch import StartOptions
from plmctl.run.preflight import check_network, stand_in
from plmctl.run.yardstick import WORTH_IT
from plmctl.suites.base import get_suite
from plmctl.tokenization.units import cut_words


@dataclass(frozen=True)
class InitRequest:
    """What the user wants."""

    corpus: Sequence[str]  # files, folders, globs or names of sources
    out: str | None = None  # the folder to write; None: named after the corpus and the family
    lang: str | None = None  # the code of the language
    family: str | None = None  # None: proposed
    budget: str = "2h"  # what pretraining may use
    evaluation: Sequence[str] = ()  # files that the model will be evaluated on
    smoke: bool | None = None  # run the smoke test; None: ask, on a terminal


def run(request: InitRequest, *, as_json: bool) -> None:
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
    planned = _write(out, proposal, evaluation)
    chosen = proposal.settings.values()
    files = [f"{out}/{name}.yaml" for name in ("tokenizer", "pretrain", "finetune", "eval")]
    if not as_json:
        settings = [(one.name, f"{one}: {one.because}") for one in chosen]
        table = text_table("the proposal", ("setting", "value: because"), settings)
        checked = metrics_table(f"{files[1]} will cost", planned)
        show_result({}, [table, checked], as_json=False)
        rows = "" if evaluation else ", name your labelled rows in finetune.yaml if you have some"
        say(
            f"wrote {out}/; read and change the files{rows}, then:\n"
            f"  plmctl run {out}   # all of it, to the report; or one at a time:\n"
            f"  plmctl train-tokenizer {out}/tokenizer.yaml\n"
            f"  plmctl pretrain {out}/pretrain.yaml\n"
            f"  plmctl eval {out}/eval.yaml\n"
            f"  plmctl finetune {out}/finetune.yaml"
        )
        say(WORTH_IT)
        if parts := get_suite("language").languages.get(language or ""):
            say(
                f"published results for {LANGUAGES[str(language)]} are on {parts}; to stand beside "
                f"them: plmctl suite MODEL language --data DIR --lang {language}"
            )
    if request.smoke or (request.smoke is None and not as_json and _agrees()):
        smoke_test(out, proposal)
    if as_json:
        document = {
            "corpus": dict(findings),
            "notes": notes,
            "settings": {one.name: {"value": str(one), "because": one.because} for one in chosen},
            "plan": planned,
            "files": files,
        }
        show_result(document, [], as_json=True)


def _check_family(name: str) -> str:
    """A family that can be pretrained from raw text alone.

    Raises:
        ConfigError: It is unknown, or needs a teacher.
    """
    known = registry.names("families")
    if name not in known:
        raise ConfigError(f"--family {name}: no such family{nearest(name, known)}")
    if not get_family(name).SIZES:
        raise ConfigError(
            f"--family {name}: it takes any architecture, so that none can be proposed",
            "propose another family, and then write `family: auto` with an architecture",
        )
    if "teacher" in get_objective(get_family(name).OBJECTIVE).Config.model_fields:
        raise ConfigError(
            f"--family {name}: it learns from a larger model, not from text alone",
            f"propose `--family bert` first, then see configs/pretrain/{name}.yaml",
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
        try:
            looked = profile(resolve(corpus.train), corpus.config, evaluation, progress)
        except DataError as error:
            if corpus.left_out:
                left_out = f"left out: {corpus.left_out}"
                error.hint = "\n  ".join(filter(None, (error.hint, left_out, *corpus.advice)))
            raise
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
        language: The code of its language; None: unknown.
        tag: The language as the user gave it; None: it was not given.
    """
    lengths, size, spoken = looked.lengths, len(looked.sample), ""
    if language is not None:
        source = f"--lang {tag}" if tag else "the only one here in this script"
        spoken = f"{LANGUAGES[language]} ({source})"
    closely = f"of {size:,} documents" + (" (a seeded sample)" if size < looked.documents else "")
    facts = {
        "size": f"{_megabytes(looked.size)} in {counted(len(resolve(corpus.train)), 'file')}",
        "left out": corpus.left_out,
        "cannot be read": counted(len(looked.unreadable), "file") if looked.unreadable else "",
        "read": f"{_megabytes(looked.read)}, "
        + ("all of it" if looked.whole else "a seeded sample from all of its parts"),
        "documents": f"{looked.documents:,}" + ("" if looked.whole else " in what was read"),
        "characters per document": f"median {np.median(lengths):,.0f}, 90 % below "
        f"{np.quantile(lengths, 0.9):,.0f}, longest {lengths.max():,}",
        "language": spoken or "not given (--lang); its script decides the settings",
        "script": ", ".join(f"{s} {part:.1%}" for s, part in islice(looked.scripts.items(), 4)),
        **({} if corpus.programs else _divisions(looked)),
        "traditional Chinese": ""
        if looked.traditional is None or not looked.chinese
        else f"about {looked.traditional:.0%}, by frequent characters that have two forms",
        "exact copies": f"{looked.exact:.1%} of the documents, {looked.exact_text:.1%} of the text",
        "near copies": f"{looked.near.share:.1%} of the documents repeat at least 70% of an "
        "earlier one",
        "lines": f"median {looked.line_length:,.0f} characters; {looked.short_lines:.0%} have less "
        f"than 30; {looked.repeated_lines:.1%} occur five times or more",
        **{fault: f"in {count:,} {closely}" for fault, count in looked.faults.items()},
        "encoding faults": "" if looked.faults else f"none in {size:,} documents",
    }
    for overlap in looked.overlaps:
        short = f"; {overlap.short:,} more are shorter than that" if overlap.short else ""
        facts[f"overlap with {Path(overlap.name).name}"] = (
            f"{overlap.shared:,} of {overlap.rows:,} rows have 13 words in a row (characters, "
            f"without spaces) that the corpus has, too{short}"
        )
    return [fact for fact in facts.items() if fact[1]], _advice(looked, corpus, language)


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
            first, second = (_place(origin, short=True) for origin in looked.near.example)
            where = f", for example {second} of {first}"
        notes.append(
            f"{least}{looked.near.share:.0%} of the documents are nearly copies of earlier ones"
            f"{where}: data.duplicates: near leaves them out"
            + ("" if _finds_near_copies() else f" ({INSTALL})")
        )
    if _has_repeated_lines(looked, corpus):
        notes.append(
            f"{looked.repeated_lines:.1%} of the lines occur five times or more, such as menus, "
            "headers and footers: pretrain.yaml leaves out those of more than "
            f"{MANY_DOCUMENTS} documents (data.repeated_lines: drop)"
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
    files = sum(source.kind == "text" for source in resolve(corpus.train))
    cut = corpus.documents == "auto" and looked.documents > 3 * files
    if cut and files >= 10 and looked.lines < 1.5 * len(looked.sample):
        notes.append(
            f"blank lines cut {files:,} files into {looked.documents:,} documents, most of one "
            "line: if each file is one text, such as a chapter, write `documents: file` below "
            "`data:` in tokenizer.yaml and pretrain.yaml"
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


def _has_repeated_lines(looked: Profile, corpus: Corpus) -> bool:
    several = corpus.documents != "line" and looked.lines > 2 * len(looked.sample)
    several = several and looked.documents > MANY_DOCUMENTS
    return several and looked.repeated_lines > 0.03 and looked.line_length < 200


_NOTABLE = 0.05  # share of the documents


def _divisions(looked: Profile) -> dict[str, str]:
    """How the documents divide by script and, in Latin letters, into English and other text."""
    facts = {}
    if len(looked.main_scripts) > 1:
        shares = [f"{name} {part.share:.1%}" for name, part in looked.main_scripts.items()]
        facts["documents by script"] = ", ".join(shares[:4])
    if len(looked.languages) > 1:
        known = {code: part.share for code, part in looked.languages.items()}
        shares = [
            f"{_language(code)} {share:.1%}" for code, share in known.items() if share >= 0.01
        ]
        more = "" if len(shares) < 5 else f" and {len(shares) - 4} more"
        rest = 1 - sum(known.values())
        unclear = f"; {rest:.1%} too short or unclear" if rest >= 0.001 else ""
        facts["documents by language"] = ", ".join(shares[:4]) + more + unclear
    elif len(looked.english) > 1:
        english, other = (looked.english[key].share for key in ("en", "other"))
        unclear = f"{1 - english - other:.1%} too short or unclear"
        facts["documents in English"] = f"{english:.1%}; {other:.1%} not, {unclear}"
    return facts


def _mixed(looked: Profile, language: str | None) -> list[str]:
    """Notes on text in another script or language."""
    notes, remove = (
        [],
        "remove them (`plmctl docs cleaning`), or the model spends its training on them",
    )
    name = "" if language is None else LANGUAGES[language]
    usual = set() if language is None else scripts_of(language)
    usual = usual or {looked.script}
    own = sum(looked.scripts.get(script, 0.0) for script in usual)
    if own < 0.8 and looked.scripts:
        others = ", ".join(f"{s} {n:.0%}" for s, n in looked.scripts.items() if s not in usual)
        scripts = " or ".join(sorted(usual))
        about = f", the usual script of {name}" if name else ""
        end = "is --lang right?" if own < 0.1 else "if other languages are in the text, remove them"
        notes.append(f"{own:.0%} of the letters are {scripts}{about}; {others}: {end}")
    for script, part in looked.main_scripts.items():
        if script not in usual and part.share >= _NOTABLE and own >= 0.1:
            notes.append(
                f"{part.share:.0%} of the documents are mainly in {script} letters, for example "
                f"{_place(part.example)}: if they are in another language, {remove}"
            )
    if looked.languages:
        return [*notes, *_in_other_languages(looked, language)]
    none = DocumentShare(0.0, "")
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


def _in_other_languages(looked: Profile, language: str | None) -> Iterator[str]:
    """A note if documents are in another language than is wanted, or than most of them."""
    code = language or next(iter(looked.languages))
    if not is_detectable(code):
        return
    others = {name: part for name, part in looked.languages.items() if not is_same(name, code)}
    share = sum(part.share for part in others.values())
    if share >= _NOTABLE:
        name, part = next(iter(others.items()))
        yield (
            f"{share:.0%} of the documents are not in {_language(code)} but, for example, in "
            f"{_language(name)} ({_place(part.example)}): data.languages: [{code}] leaves them out"
        )


def _language(code: str) -> str:
    return LANGUAGES.get(code, code)


def _place(origin: str, *, short: bool = False) -> str:
    """``file:line`` and, of a row, its source; also of what starts at a byte of a local file."""
    parts = re.fullmatch(r"(.+?):(byte )?(\d+)( \(.+\))?", origin, re.DOTALL)
    if parts is None or is_url(origin):
        return origin
    name, at_byte, number, source = parts.groups("")
    place = locate(Path(name), int(number), 1) if at_byte else f"{name}:{number}"
    return (Path(place).name if short else place) + source


def _megabytes(size: float) -> str:
    return f"{size / 1e9:,.1f} GB" if size >= 1e9 else f"{size / 1e6:,.2f} MB"


# --- The proposal ---


@dataclass(frozen=True)
class Setting:
    """A setting, its value, and the reason for it.

    Attributes:
        shown: The value as a user reads it; empty: as it is.
    """

    name: str
    value: Any
    because: str
    shown: str = ""

    def __str__(self) -> str:
        return self.shown or str(self.value)


@dataclass(frozen=True)
class Proposal:
    """The settings so far, and what they follow from.

    Attributes:
        requested: Whether the user named it.
        device: What trains: cpu, cuda or mps.
    """

    looked: Profile
    corpus: Corpus
    budget: Budget
    name: str
    requested: bool
    device: str
    settings: dict[str, Setting] = field(default_factory=dict)

    def __getitem__(self, name: str) -> Any:
        return self.settings[name].value

    def get(self, name: str) -> Any:
        """The value of a setting; None: there is none."""
        return self[name] if name in self.settings else None

    @property
    def family(self) -> type[Family]:
        """The family of the network."""
        return get_family(self.name)

    @property
    def characters_per_token(self) -> float:
        """About; for lengths and passes only."""
        looked, algorithm = self.looked, self["tokenizer"]["algorithm"]
        if algorithm == "word":
            return 1 / max(0.02, looked.spaces)
        if looked.chinese:
            return 1.05 if algorithm == "wordpiece" else 1.4
        if not looked.spaced:
            return 1.2 if algorithm == "byte_bpe" and not self.get("pattern") else 2.5
        return 3.0 + 0.3 * math.log2(self["vocab_size"] / 1000)

    @property
    def tokens(self) -> float:
        """Tokens of the text without its exact copies, about."""
        looked = self.looked
        return (1 - looked.exact_text) * looked.all_characters / self.characters_per_token


_FAMILY = "bert"  # proposed, if the user names none

_LONGEST = {"cpu": 128, "mps": 256, "cuda": 512}

_BATCH = {"cpu": 32, "mps": 64, "cuda": 256}

_VALID_ROWS = 500  # sequences to validate on

_PAIRED = 0.6  # share of the sentences that are not alone in their document, for pairs


def propose(looked: Profile, corpus: Corpus, budget: Budget, family: str | None) -> Proposal:
    """Settings for a corpus on this machine; each may use those before it.

    Args:
        family: As the user wants it; None: bert.

    Raises:
        ConfigError: No size of the family fits the budget.
    """
    import torch

    gpu = "mps" if torch.backends.mps.is_available() else "cpu"
    device = "cuda" if torch.cuda.is_available() else gpu
    proposal = Proposal(looked, corpus, budget, family or _FAMILY, family is not None, device)
    # In this order: a setting may look at those before it, and the size comes after all that costs.
    for choose in (
        choose_family,
        choose_tokenizer,
        choose_vocab_size,
        choose_cleaning,
        choose_length,
        choose_objective,
        choose_text,
        choose_batch,
        choose_split,
        choose_optimizer,
        choose_start,
        choose_size,
        choose_schedule,
    ):
        for setting in choose(proposal):
            proposal.settings[setting.name] = setting
    return proposal


def choose_family(proposal: Proposal) -> Iterator[Setting]:
    """The family of the network."""
    reason = (  # docs/learning.md, "Which kind of model learns most with the same compute?"
        "to understand text; --family deberta is a little better on labels, and slower to "
        "finetune; gpt2 writes text, t5 does both"
    )
    yield Setting("family", proposal.name, "as requested" if proposal.requested else reason)


def choose_tokenizer(proposal: Proposal) -> Iterator[Setting]:
    """The algorithm of the tokenizer, and the family whose rules and special tokens it has."""
    looked, own, paper = proposal.looked, proposal.family.TOKENIZER, proposal.family.TITLE
    algorithm: str = own.ALGORITHM
    reason = f"as in {paper}"
    if algorithm == "word":
        reason = f"{paper} reads words by their characters"
    elif algorithm == "byte_bpe":
        reason += "; no unknown characters"
    elif algorithm == "wordpiece" and looked.chinese:
        reason = "as Chinese BERT: each Chinese character is a token"
    elif algorithm == "wordpiece" and not looked.spaced:
        algorithm = "unigram"
        reason = (
            "no spaces between words: WordPiece would read a clause as one word; a Unigram piece "
            "may start anywhere"
        )
    sized = [name for name in registry.names("families") if get_family(name).SIZES]
    templates = {name: get_family(name).TOKENIZER for name in sized}
    family = next(
        name
        for name, template in templates.items()
        if (template is own if algorithm == own.ALGORITHM else algorithm == template.ALGORITHM)
    )
    value = {"algorithm": algorithm, "family": family}
    yield Setting("tokenizer", value, reason, f"{algorithm} ({family})")


def choose_vocab_size(proposal: Proposal) -> Iterator[Setting]:
    """Ids of the vocabulary: the square root of the text, within limits."""
    looked, algorithm = proposal.looked, proposal["tokenizer"]["algorithm"]
    millions = looked.all_characters / 1e6
    size = min(32_000, max(1_000, round(2 * math.sqrt(millions)) * 1_000))
    least = _thousands(1.05 * looked.characters + 200)
    reason = f"2,000 x the square root of {millions:,.1f} (million characters), rounded"
    if algorithm == "word":
        size = min(50_000, max(2_000, 3 * size))
        reason = "the frequent words; rarer ones are read by their characters, but not predicted"
    elif looked.chinese and algorithm == "wordpiece":
        size = min(21_128, max(least, 2_000))
        reason = f"{looked.characters:,} characters make up 99.995 % of the text, each a token"
    elif algorithm != "byte_bpe" and least > size:
        size, reason = least, f"the text has {looked.characters:,} different characters"
    elif size == 32_000:
        reason += ", at most 32,000"
    yield Setting("vocab_size", size, reason, f"{size:,}")


def _thousands(number: float) -> int:
    return math.ceil(number / 1000) * 1000


def choose_cleaning(proposal: Proposal) -> Iterator[Setting]:
    """What the tokenizer keeps of the text that its family would drop."""
    looked, template = proposal.looked, get_family(proposal["tokenizer"]["family"]).TOKENIZER
    text = "".join(document.text[:500] for document in looked.sample[:200])
    reason = ""
    if text.lower() == text.upper():
        reason = (
            "the script has no case, and lower case would also drop its vowel signs and accents"
        )
    elif looked.accents > 0.005:
        reason = (
            f"{looked.accents:.1%} of the letters have accents, which lower case would drop with "
            "the case"
        )
    elif not looked.spaced:
        reason = "lower case would also drop marks of this script"
    if reason and template.RULES.lowercase and not looked.chinese:
        keeps: dict[str, Any] = {"lowercase": False}
        if template.RULES.normalization == "nfkd":  # it takes letters and accents apart
            keeps |= {"normalization": "nfkc", "strip_accents": False}
        yield Setting("case, accents", keeps, reason, "kept")
    if looked.joiners > 0.0005 and template.KIND != "bytes":  # bytes keep them anyway
        share = f"{looked.joiners:.2%} of the letters are joined by U+200C or U+200D"
        yield Setting("keep_joiners", True, share, "true")
    if template.KIND == "bytes" and (cut := cut_words(text.splitlines())) is not None:
        yield Setting("pattern", "marks", cut)


def choose_length(proposal: Proposal) -> Iterator[Setting]:
    """Tokens of a sequence: a power of two that most documents fit in."""
    if window := proposal.family.ADVICE.window:
        reason = f"{proposal.family.TITLE}'s windows; its state continues from one to the next"
        yield Setting("seq_len", window, reason)
        return
    tokens = float(np.quantile(proposal.looked.lengths, 0.75)) / proposal.characters_per_token
    most, length = _LONGEST[proposal.device], 64
    if tokens > length:
        length = min(most, 2 ** math.ceil(math.log2(min(tokens, 512))))
    reason = f"a quarter of the documents have more than {tokens:,.0f} tokens"
    if length == most < tokens:
        reason += f"; longer rows are slow here ({proposal.device})"
    yield Setting("seq_len", length, reason)


def choose_objective(proposal: Proposal) -> Iterator[Setting]:
    """The paper's objective with the fast recipe's options, and the words that it masks."""
    family, looked = proposal.family, proposal.looked
    objective = get_objective(family.OBJECTIVE)
    value = {"name": family.OBJECTIVE, **family.ADVICE.objective}
    reason = f"as in {family.TITLE}"
    if objective.PAIRS and looked.continued < _PAIRED:
        value |= {"name": "mlm", "packing": "full_sentences"}
        alone = f"{1 - looked.continued:.0%} of the sentences are alone in their document"
        reason = f"{alone}: there are few pairs"
    elif objective.PAIRS:
        reason += "; documents have several sentences"
    known, words = get_objective(value["name"]).Config.model_fields, list[Setting]()
    if looked.chinese and "unit" in known:
        if find_spec("jieba") is None:
            why = "jieba is not installed: pip install 'plmctl[zh]' masks words"
            words = [Setting("words", "pretokenizer", why)]
        elif looked.size <= 2_000_000_000:
            value["unit"] = "word"
            why = "Chinese words, masked as a whole; jieba is installed"
            words = [Setting("words", "jieba", why)]
    yield Setting("objective", value, reason, value["name"])
    if "rate" in value:
        why = "more to learn from each step than the usual 0.15"
        yield Setting("rate", value["rate"], why)
    yield from words


def choose_text(proposal: Proposal) -> Iterator[Setting]:
    """How the text is divided, and whether copies are left out."""
    looked, documents = proposal.looked, proposal.corpus.documents
    if get_objective(proposal["objective"]["name"]).Config.reads_sentences:
        rule, reason = looked.sentences.rule, looked.sentences.reason
        if rule == "en":
            reason = "they end at punctuation (. ? ! and that of other scripts)"
        yield Setting("sentences", rule, reason)
    if documents != "auto":
        reasons = {"line": "there are no blank lines between documents", "file": "programs"}
        yield Setting("documents", documents, reasons[documents])
    near = f"{looked.near.share:.0%} of the documents are nearly copies of earlier ones"
    if looked.near.share > 0.03 and _finds_near_copies():
        yield Setting("duplicates", "near", near)
    elif looked.exact_text > 0.01:
        copies = f"{looked.exact_text:.1%} of the text are exact copies of earlier documents"
        yield Setting("duplicates", "drop", copies)
    if _has_repeated_lines(looked, proposal.corpus):
        reason = f"{looked.repeated_lines:.1%} of the lines occur five times or more"
        yield Setting("repeated_lines", "drop", reason)
    if looked.near.share > 0.03 and not _finds_near_copies():
        yield Setting("near_copies", "together", near)


def _finds_near_copies() -> bool:
    return find_spec("datasketch") is not None


def choose_batch(proposal: Proposal) -> Iterator[Setting]:
    """Sequences of a step."""
    device = proposal.device
    size = _BATCH["cpu" if proposal.family.ADVICE.window else device]
    machine = f"a GPU ({device})"
    if device == "cpu":
        machine = f"a CPU ({counted(usable_cpus(), 'core')})"
    yield Setting("batch_size", size, f"for {machine}")


def choose_split(proposal: Proposal) -> Iterator[Setting]:
    """The text that is held out."""
    if files := proposal.corpus.valid:
        reason = "by their names, beside the training text"
        yield Setting("valid", list(files), reason, counted(len(files), "file"))
        return
    rows = proposal.tokens / proposal["seq_len"]
    percent = min(10, max(1, math.ceil(100 * _VALID_ROWS / max(1.0, rows))))
    yield Setting("valid", f"{percent}%", f"holds out about {percent / 100 * rows:,.0f} sequences")


def choose_optimizer(proposal: Proposal) -> Iterator[Setting]:
    """Muon with the learning rate of the fast recipe."""
    advice = proposal.family.ADVICE
    value = {"name": "muon", "lr": advice.lr, "betas": [0.9, advice.beta2], "weight_decay": 0.01}
    reason = "the fast recipe (configs/fast), chosen on small models"
    yield Setting("optimizer", value, reason, f"muon, lr {advice.lr:g}")
    yield Setting("dropout", 0, "a short training on little text is better without")


def choose_start(proposal: Proposal) -> Iterator[Setting]:
    """Initial weights with which a network learns sooner, if the family has them."""
    for option, value, reason in (
        ("initial_attention", "local", "the first layer starts with near tokens"),
        ("initial_embeddings", "cooccurrence", "tokens with the same neighbours start alike"),
    ):
        if option in proposal.family.Config.model_fields:
            yield Setting(option, value, f"{reason}: it learns sooner")


def choose_size(proposal: Proposal) -> Iterator[Setting]:
    """The size with the lowest predicted loss within the budget, and its steps.

    From small to large the loss falls, and then rises. The law behind it is of large texts; with
    more weights than tokens a network learns these by heart.

    Raises:
        ConfigError: No size fits.
    """
    from plmctl.commands.plan import compare_sizes

    tokens, budget = max(1, round(proposal.tokens)), proposal.budget
    if budget.unit == "words":
        # Words are counted when the text is prepared; until then, about.
        words = max(1.0, proposal.looked.all_characters * max(0.01, proposal.looked.spaces))
        budget = Budget.of(f"{round(budget.number / words * tokens)} tokens", "--budget")
    vocab = stand_in(proposal["vocab_size"])
    sizes, reasons = list[dict[str, Any]](), dict[str, str]()
    for name in proposal.family.SIZES:
        outline = check_network(_in_size(proposal, name), vocab)
        fitting, reasons = compare_sizes(outline, budget, corpus=tokens, sizes=[name])
        row = fitting[0] if fitting else None
        if (
            row is None
            or sizes
            and (row["loss"] > sizes[-1]["loss"] or row["parameters"] > row["tokens"])
        ):
            break
        sizes.append(row)
    if not sizes:
        reason = next(iter(reasons.values())).removeprefix("train.budget: ")
        raise ConfigError(f"--budget: no size of {proposal.name} fits it: {reason}")
    best = min(sizes, key=lambda row: row["loss"])
    reason = (
        f"{best['parameters'] / 1e6:,.1f} M weights: the lowest predicted loss within the budget "
        "(`plmctl plan --budget`) of the sizes with fewer weights than tokens of training"
    )
    yield Setting("size", str(best["size"]), reason)
    passes = f"{format_value(best['epochs'])} passes over about {tokens:,} tokens"
    more = "; more text is better than so many passes" if best["epochs"] > 20 else ""
    reason = f"--budget {proposal.budget}: {passes}{more}"
    yield Setting("steps", best["steps"], reason, f"about {best['steps']:,}")


def _in_size(proposal: Proposal, size: str) -> PretrainConfig:
    """The config of a pretraining, as far as its cost depends on it."""
    return PretrainConfig.model_validate(
        {
            "run": "unused",
            "tokenizer": "unused",
            "model": _network(proposal, size),
            "data": {"train": list(proposal.corpus.train)},
            "objective": proposal["objective"],
            "train": {
                "batch_size": proposal["batch_size"],
                "budget": proposal.budget.written,
                "phases": [{"seq_len": proposal["seq_len"]}],
            },
            "optim": proposal["optimizer"],
            # A tenth of the time of the steps, as in the file.
            "log": {"validate_every": 10, "validate_samples": 100},
        }
    )


def _network(proposal: Proposal, size: str) -> dict[str, Any]:
    """The fields of the network."""
    family = proposal.family
    known = family.Config.model_fields
    fields = {"family": proposal.name, "size": size, **family.ADVICE.network}
    if family.POSITIONS:
        fields[family.POSITIONS] = proposal["seq_len"] + family.UNUSED_POSITIONS
    starts = ("initial_attention", "initial_embeddings")
    fields |= {name: proposal[name] for name in starts if name in proposal.settings}
    return fields | {name: 0 for name in family.DROPOUT if name in known and known[name].default}


def choose_schedule(proposal: Proposal) -> Iterator[Setting]:
    """The learning rate over the steps."""
    warmup = 50 if proposal["steps"] >= 500 else "10%"
    shown = f"wsd, warmup {warmup}, decay 30%"
    reason = "the fast recipe; constant, then down to 0"
    yield Setting("schedule", {"name": "wsd", "warmup": warmup, "decay": 0.3}, reason, shown)


# --- The files ---


def _write(out: Path, proposal: Proposal, evaluation: Sequence[Source]) -> dict[str, object]:
    """Write the files, check all of them, and give the cost of the pretraining."""
    from plmctl.commands.plan import as_rows, costs

    values = _values(out, proposal, evaluation)
    with writing(out):
        out.parent.mkdir(parents=True, exist_ok=True)
    with writing(out), new_folder(out, several_writers=True) as beside:
        beside.mkdir()
        for kind in KINDS:
            write_atomically(beside / f"{kind}.yaml", _filled(kind, values))
            load(kind, beside / f"{kind}.yaml")
        config = load("pretrain", beside / "pretrain.yaml")
    vocab = stand_in(proposal["vocab_size"])
    config = config.with_steps([proposal["steps"]])
    planned = as_rows(costs(check_network(config, vocab)))
    planned["steps"] = f"{proposal['steps']:,}, about"
    for key in ("passes over the text", "time", "tokens"):
        planned.pop(key, None)
    return planned


def _filled(kind: Kind, values: Mapping[str, Any]) -> str:
    """A template of ``configs/init``, without the lines that have no value."""
    path = configs_folder() / "init" / f"{kind}.yaml.template"
    lines = list[str]()
    for line in map(Template, path.read_text(encoding="utf-8").splitlines()):
        used = {name: values.get(name) for name in line.get_identifiers()}
        if None in used.values():
            continue
        if line.template.startswith("#"):
            text = line.substitute(used)
            lines += wrap(text, 96, subsequent_indent="# ", break_long_words=False)
        else:
            below = "\n" + " " * (len(line.template) - len(line.template.lstrip()))
            texts = {
                name: to_yaml({"_": value})
                .removeprefix("_:")
                .strip(" ")
                .rstrip("\n")
                .replace("\n", below)
                for name, value in used.items()
            }
            lines.append(line.substitute(texts).replace(": \n", ":\n"))
    return "\n".join(lines) + "\n"


def _values(out: Path, proposal: Proposal, evaluation: Sequence[Source]) -> dict[str, Any]:
    """The values of all templates."""
    corpus, family, steps = proposal.corpus, proposal.family, proposal["steps"]
    chosen = proposal.settings.values()
    every = max(10, round(steps / 10))
    model_run = f"{out}/runs/{proposal.name}"
    reading = {} if corpus.column == "text" else {"text": corpus.column}
    if corpus.documents != "auto":
        reading["documents"] = corpus.documents
    return {
        **{one.name: one.value for one in chosen},
        **{f"why_{one.name.split(',')[0]}": one.because for one in chosen},
        **proposal["tokenizer"],
        **(proposal.get("case, accents") or {}),
        **reading,
        **_rows_of(evaluation),
        "out": out,
        "tokenizer_run": f"{out}/runs/tokenizer",
        "model_run": model_run,
        "finetune_run": f"{out}/runs/finetune",
        "eval_run": f"{out}/runs/eval",
        "model_folder": f"{model_run}/model",
        "store": f"{out}/stores",
        "positions": "as many as are trained" if family.POSITIONS else None,
        "model": _network(proposal, proposal["size"]),
        "train": list(corpus.train),
        "budget": proposal.budget.written,
        "every": every,
        "log_every": max(1, min(50, every // 2)),
        # All validations together take about a tenth of the time of the steps.
        "samples": min(1000, max(100, 3 * steps * proposal["batch_size"] // 100)),
        "max_length": max(64, proposal["seq_len"]),
        "measures": _measures(out, proposal, reading, evaluation),
    }


def _rows_of(evaluation: Sequence[Source]) -> dict[str, Any]:
    """The labelled rows that were given, or names for rows that a user has."""
    for source in evaluation:
        if source.kind in ("text", "conll", "sample", "hf"):
            continue
        row = read_rows([source.name])[0].values
        label = next((key for key in row if key.lower() in ("label", "labels", "class")), None)
        texts = [key for key, value in row.items() if isinstance(value, str) and key != label]
        texts = [key for key in texts if key.lower() not in ("id", "idx", "uid", "guid")]
        if label is None or not texts:
            continue
        path, about = Path(source.name), "Classification of the rows that were given"
        beside = path.with_name(path.name.replace(path.name.split(".")[0], "train", 1))
        train = str(beside) if beside != path and beside.is_file() else "rows/train.jsonl"
        if train == "rows/train.jsonl":
            about += "; name the rows to train on"
        text = texts[0] if len(texts) == 1 else texts[:2]
        task = {"name": "classification", "text": text, "label": label}
        return {"about": about, "task": task, "rows": [train], "valid_rows": [source.name]}
    return {
        "about": "A template: name your labelled rows, and the columns of their text and label, as "
        'in {"text": "...", "label": "..."}',
        "task": {"name": "classification", "text": "text", "label": "label"},
        "rows": ["rows/train.jsonl"],
        "valid_rows": "10%",
    }


def _measures(
    out: Path, proposal: Proposal, reading: Mapping[str, Any], evaluation: Sequence[Source]
) -> list[dict[str, Any]]:
    """Measures on the text that pretraining holds out, and on texts that were given."""
    corpus, options = proposal.corpus, {"seq_len": proposal["seq_len"], "store": f"{out}/stores"}
    bits = {"max_bytes": "30kB", "max_document_bytes": "1kB"}
    measures: list[dict[str, Any]] = [{"name": "bits_per_byte", **reading, **bits}]
    if not reading:  # these measures read the column `text`, and documents by blank lines
        measures = [*({"name": name, **options} for name in _measures_of(proposal)), *measures]
    for measure in measures:
        measure["data"] = list(corpus.valid or corpus.train)
        if not corpus.valid:
            measure["held_out"] = proposal["valid"]
    if texts := [one.name for one in evaluation if one.kind == "text"]:
        measures.append({"name": "bits_per_byte", "data": texts, **bits})
    return measures


def _measures_of(proposal: Proposal) -> list[str]:
    """The measures that are named after the parts of the objective."""
    known = registry.names("measures")
    return [part for part in proposal["objective"]["name"].split("+") if part in known]


# --- The smoke test ---


def _agrees() -> bool:
    """Whether the user wants the smoke test; no if nobody can answer."""
    if not (sys.stdin.isatty() and sys.stderr.isatty()):
        return False
    print("Try all steps on a small sample now, about two minutes? [y/N] ", end="", file=sys.stderr)
    return input().strip().lower() in ("y", "yes")


_SMOKE = 300_000  # characters

_SMOKE_SECONDS = 45  # of the pretraining


def smoke_test(out: Path, proposal: Proposal) -> None:
    """Tokenizer, a short pretraining and an evaluation, on a part of the sample.

    Args:
        out: The folder with the configs; everything is written to its folder ``smoke``.
    """
    from plmctl.commands import evaluate, pretrain, train_tokenizer

    folder, sample = out / "smoke", f"{out}/smoke/sample.txt"
    smallest = next(iter(proposal.family.SIZES))
    with writing(folder):
        folder.mkdir(exist_ok=True)
        write_atomically(Path(sample), "".join(_sample(proposal.looked)))
    text = [f"data.train={json.dumps([sample])}", "data.documents=blank_line"]
    size = min(proposal["vocab_size"], max(1000, _thousands(1.05 * proposal.looked.characters)))
    say("smoke test 1/3: a tokenizer")
    overrides = [f"run={folder}/tokenizer", f"vocab_size={size}", *text]
    train_tokenizer.run(
        load("tokenizer", out / "tokenizer.yaml", overrides), fresh=True, as_json=False
    )
    say(f"smoke test 2/3: a pretraining of {_SMOKE_SECONDS} seconds")
    overrides = [
        f"run={folder}/pretrain", f"tokenizer={folder}/tokenizer", *text, "data.valid=10%",
        "data.text=text", f"data.store={folder}/stores", f"model.size={smallest}",
        f"train.budget={_SMOKE_SECONDS}s", "schedule.warmup=10%", "checkpoint.every=100000",
        "log.validate_every=100000", "log.validate_samples=200",
    ]  # fmt: skip
    pretrain.run(
        load("pretrain", out / "pretrain.yaml", overrides), StartOptions(fresh=True), as_json=False
    )
    say("smoke test 3/3: an evaluation")
    own = _measures_of(proposal)
    name = own[0] if own else "bits_per_byte"
    measure: dict[str, Any] = {"name": name, "data": [sample], "held_out": "10%"}
    if own:
        measure |= {"seq_len": proposal["seq_len"], "max_samples": 200, "store": f"{folder}/stores"}
    overrides = [f"run={folder}/eval", f"model={folder}/pretrain/model"]
    overrides.append(f"measures={json.dumps([measure])}")
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

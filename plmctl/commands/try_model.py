"""``plmctl try``: one or two models in a browser, on this machine.

The page asks by POST, with JSON that ``Question`` describes, and only the page itself may ask. An
answer is lines of JSON: pieces of text as they are generated, and one last line with the answer, or
with what is wrong. The answers are those of the commands ``predict``, ``generate`` and
``neighbours``: their functions are called here. What these would say on stderr is in the last line.
"""

from __future__ import annotations

import select
import shlex
import socket
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict
from functools import cache, cached_property, partial
from http import HTTPStatus
from threading import Lock
from typing import TYPE_CHECKING, Annotated, Any, Literal

from pydantic import Field, ValidationError

from plmctl.commands import generate, predict
from plmctl.commands.board import serve
from plmctl.commands.neighbours import in_plain_types, opened_reader, sentences_of
from plmctl.commands.try_examples import examples_of, text_of_run
from plmctl.config.base import Model
from plmctl.errors import ConfigError, DataError, PlmError
from plmctl.reporting.page_server import TYPES, PageHandler, PageServer, encoded
from plmctl.run.display import collected
from plmctl.run.named_model import named_model

if TYPE_CHECKING:
    from plmctl.evaluation.generation import Decoding
    from plmctl.evaluation.model import LoadedModel
    from plmctl.evaluation.neighbours import VectorReader
    from plmctl.evaluation.scoring import FinetunedModel

Way = Literal["masks", "spans", "continue", "task", "neighbours"]
"""What can be asked of a model."""

_LONGEST = 200_000  # bytes of a question
_SENTENCES = 1000  # that are searched for the uses of a word: more would take minutes
_BATCH_SIZE = 32  # the default of `neighbours`


def run(
    names: Sequence[str], text: Sequence[str], port: int, *, browser: bool, as_json: bool
) -> None:
    """Serve the page until Ctrl-C.

    Args:
        names: One model or two.
        text: Files in which uses of a word are searched; none: the text of the run.
        port: 0: a free one.

    Raises:
        ConfigError: No such model.
        PlmError: The port is in use.
    """
    models = [TriedModel(name, text) for name in names]
    with TryServer(models, port) as server:
        what = " and ".join(model.name for model in models)
        document = {"url": server.url, "models": [model.name for model in models]}
        serve(server, what, document, browser=browser, as_json=as_json)


class Question(Model):
    """What the page asks of a model."""

    model: Annotated[int, Field(ge=0)]
    way: Way
    texts: Annotated[tuple[str, ...], Field(min_length=1, max_length=100)]
    top: Annotated[int, Field(ge=1, le=100)] = 8
    temperature: Annotated[float, Field(ge=0, le=10)] = 0
    """0: the most probable token."""
    top_p: Annotated[float, Field(gt=0, le=1)] = 1
    max_new_tokens: Annotated[int, Field(ge=1, le=2000)] = 64
    seed: Annotated[int, Field(ge=0, lt=1 << 53)] = 42

    def decoding(self) -> Decoding:
        """How the text is generated."""
        from plmctl.evaluation.generation import Decoding

        sampled = self.temperature > 0
        return Decoding(
            self.max_new_tokens,
            temperature=self.temperature if sampled else None,
            top_p=self.top_p if sampled and self.top_p < 1 else None,
            seed=self.seed,
        )


# --- A model, and what it can ---


class TriedModel:
    """A model that answers questions.

    Args:
        name: A run folder, a model folder or a Hub id.
        text: Files in which uses of a word are searched; none: the text of the run.

    Attributes:
        ways: What can be asked of it.
    """

    def __init__(self, name: str, text: Sequence[str]) -> None:
        from plmctl.evaluation.neighbours import reads_both_sides
        from plmctl.evaluation.samples import opened_for_samples
        from plmctl.families.base import family_of

        self.name, self.folder = name, named_model(name)
        self._text = tuple(text)
        self._model = opened_for_samples(self.folder)
        question = predict.question_of(self._model)
        self.ways: list[Way] = [question] if question else []
        if question == "masks" and self._model.tokenizer.mask_token is None:
            self.ways.remove("masks")
        if question == "spans":
            sentinels = bool(self._model.vocab.sentinels)
            self.ways = ["spans", "continue"] if sentinels else ["continue"]
        if reads_both_sides(family_of(self._model.config)):
            self.ways.append("neighbours")
        if not self.ways:
            made_for = (self._model.config.architectures or ["model"])[0]
            raise ConfigError(f"{name}: a {made_for} gives no answer that a page could show")

    def about(self) -> dict[str, Any]:
        """What the page shows of it, and which texts each way has."""
        document: dict[str, Any] = {
            "name": self.name,
            "class": (self._model.config.architectures or [""])[0],
            "ways": self.ways,
            "mask": self._model.tokenizer.mask_token if "masks" in self.ways else None,
        }
        if "task" in self.ways:
            task = self._finetuned.finetuned.task
            fields = {"task": task.config.name, "fields": task.text_columns()}
            document |= {**fields, "takes_more": task.takes_more}
        return document

    def answer(self, question: Question, write: Callable[[str], None]) -> dict[str, Any]:
        """The answer, and the command line that gives the same.

        Args:
            write: Receives pieces of a text as it is generated.

        Raises:
            PlmError: What is wrong with the question.
        """
        way, texts = question.way, list(question.texts)
        if way not in self.ways:
            raise ConfigError("the model cannot do this")
        if way not in ("continue", "neighbours") and not all(map(str.strip, texts)):
            raise DataError("the text is empty")
        if way == "continue":
            return self._continue(texts[0], question, write)
        if way == "neighbours":
            return self._nearest(texts, question.top)
        raw: Mapping[str, Any] = {}
        if way == "task":
            answer, raw = self._of_task(texts, question.top)
        elif way == "spans":
            (answer,) = predict.spans(self._model, texts[:1])
        else:
            (answer,) = predict.masks(self._model, texts[:1], question.top)
        words = ["--", *texts] if any(text.startswith("-") for text in texts) else texts
        command = _line("predict", self.name, "--top", str(question.top), *words)
        return {**answer, "task": raw, "command": command}

    def _of_task(self, texts: list[str], top: int) -> tuple[dict[str, Any], Mapping[str, Any]]:
        columns = self._finetuned.finetuned.task.text_columns()
        answers = predict.task_answers(self._finetuned, texts, top)
        if len(answers) > 1:  # another model beside it reads more
            raise ConfigError(f"{self.name}: requires {' and '.join(columns)}: one text each")
        return answers[0]

    @cached_property
    def examples(self) -> dict[str, Any]:
        """What the run has to try it on, by way; or an error: the page works without examples."""
        try:
            with collected():
                return examples_of(self.folder, self._finetuned if "task" in self.ways else None)
        except PlmError as error:  # such as rows that have been moved
            return {"error": error.message}

    @cached_property
    def _finetuned(self) -> FinetunedModel:
        return predict.opened_for_task(self._model)

    # A text that is continued

    @cached_property
    def _writer(self) -> LoadedModel:
        return generate.opened_to_generate(self.folder, "auto", batch_size=1)

    def _continue(
        self, prompt: str, question: Question, write: Callable[[str], None]
    ) -> dict[str, Any]:
        from plmctl.evaluation.generation import generate_texts

        decoding = question.decoding()
        prompts = generate.encoded_prompts(self._writer, [prompt], decoding)
        streamer = generate.streamer_to(self._writer, write)
        (generated,) = generate_texts(self._writer, prompts, decoding, streamer=streamer)
        options = ["--max-new-tokens", str(decoding.max_new_tokens)]
        for name, value in (("temperature", decoding.temperature), ("top-p", decoding.top_p)):
            options += [f"--{name}", str(value)] if value is not None else []
        options += ["--seed", str(decoding.seed)] if decoding.sampled else []
        command = _line("generate", self.name, "--prompt", prompt, *options)
        return {**asdict(generated), "command": command}

    # The nearest uses of a word

    @cached_property
    def _sentences(self) -> list[str]:
        self._text = self._text or text_of_run(self.folder)
        return sentences_of(self._text, _SENTENCES)

    @cached_property
    def _read(self) -> VectorReader:
        """The reader; what it has read of the text is kept."""
        read = opened_reader(self.folder, self._sentences)
        kept = cache(lambda sentences: read(list(sentences)))
        return lambda sentences: kept(tuple(sentences)) if len(sentences) > 1 else read(sentences)

    def _nearest(self, texts: list[str], top: int) -> dict[str, Any]:
        from plmctl.evaluation.neighbours import find_use, nearest

        word, sentence = texts[0].strip(), texts[1].strip() if len(texts) > 1 else ""
        if not word:
            raise DataError("the text is empty")
        sentences = self._sentences
        use = find_use(word, [sentence] if sentence else sentences)
        uses, unseen = nearest(self._read, use, sentences, top, _BATCH_SIZE)
        options = ["--word", word, *(["--sentence", sentence] if sentence else [])]
        options += ["--top", str(top), "--max-sentences", str(_SENTENCES)]
        return {
            "use": in_plain_types(use),
            "neighbours": list(map(in_plain_types, uses)),
            "sentences": len(sentences),
            "unseen_words": unseen,
            "command": _line("neighbours", self.name, *self._text, *options),
        }


def _line(*words: str) -> str:
    return shlex.join(["plmctl", *words])


# --- The server ---


class TryServer(PageServer):
    """The server of the page; see ``PageServer``."""

    def __init__(self, models: Sequence[TriedModel], port: int) -> None:
        self.models = models
        # One question at a time: transformers loads no two networks at once, and a second one would
        # only wait for the same cores.
        self.lock = Lock()
        super().__init__(_Handler, port)


class _Handler(PageHandler):
    server: TryServer

    def answer(self, name: str, query: Mapping[str, str]) -> None:
        if name in ("", "index.html"):
            self.send_asset("try.html")
        elif name in ("try.css", "try.js"):
            self.send_asset(name)
        elif name == "api/models":
            models = [model.about() for model in self.server.models]
            self.send(encoded({"models": models, "longest": _LONGEST}), TYPES[".json"])
        elif name == "api/examples":
            self.send(encoded([model.examples for model in self.server.models]), TYPES[".json"])
        else:
            self.refuse(HTTPStatus.NOT_FOUND, "no such page")

    def do_POST(self) -> None:
        """Answer a question of the page itself."""
        length = self.headers.get("Content-Length", "")
        if not self.is_for_us() or not self._is_from_the_page():
            self.refuse(HTTPStatus.FORBIDDEN, "only its own page may ask")
        elif self.headers.get_content_type() != "application/json":
            self.refuse(HTTPStatus.UNSUPPORTED_MEDIA_TYPE, "a question is JSON")
        elif not (length.isascii() and length.isdigit()):
            self.refuse(HTTPStatus.LENGTH_REQUIRED, "a question has a length")
        elif len(length) > 9 or int(length) > _LONGEST:
            self.refuse(HTTPStatus.REQUEST_ENTITY_TOO_LARGE, f"at most {_LONGEST} bytes")
        elif self.path != "/api/answer":
            self.refuse(HTTPStatus.NOT_FOUND, "no such page")
        else:
            self._answer_question(self.rfile.read(int(length)))

    def _is_from_the_page(self) -> bool:
        origin = self.headers.get_all("Origin") or []
        return origin == [f"http://{self.headers['Host'].strip()}"]

    def _answer_question(self, body: bytes) -> None:
        try:
            question = Question.model_validate_json(body)
            model = self.server.models[question.model]
        except (ValidationError, IndexError):
            self.refuse(HTTPStatus.BAD_REQUEST, "not a question that the page asks")
            return
        self.send_response(HTTPStatus.OK)
        self.send_header("Content-Type", "application/x-ndjson; charset=utf-8")
        self.send_header("Connection", "close")  # the end of the answer is that of the connection
        self.send_security()
        self.end_headers()
        self.close_connection = True
        with self.server.lock, collected() as notes:
            try:
                document = model.answer(question, partial(self._write, "text"))
                line = encoded({"answer": document, "notes": notes})
            except PlmError as error:
                line = encoded({"error": error.message, "hint": error.hint, "notes": notes})
            except ConnectionError:
                raise
            except Exception as error:  # the page says it, and the next question may be answered
                line = encoded({"error": f"{type(error).__name__}: {error}", "notes": notes})
        self.wfile.write(line + b"\n")

    def _write(self, kind: str, text: str) -> None:
        """Send a piece of a text; a reader who has left the page ends its generation."""
        readable, _, _ = select.select([self.connection], [], [], 0)
        if readable and not self.connection.recv(1, socket.MSG_PEEK):
            raise ConnectionResetError
        if text:
            self.wfile.write(encoded({kind: text}) + b"\n")

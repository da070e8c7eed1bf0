"""``plmctl try``: the answers over HTTP are those of the commands, and who may ask."""

import http.client
import json
import shutil
import socket
import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from plmctl.commands import try_model
from plmctl.commands.try_model import TriedModel, TryServer
from plmctl.reporting.board import Board
from plmctl.reporting.report import write_report
from tests.commands.conftest import Cli, run_main, sentence, write
from tests.commands.test_bad_input import finetune_config, refused
from tests.commands.test_question_answering import config as qa_config
from tests.commands.test_question_answering import squad
from tests.commands.test_tagging import config as tags_config
from tests.commands.test_tagging import tagged

HOSTILE = "<img src=x onerror=document.title='bad'>"
FEW = {"max_new_tokens": 6}


@pytest.fixture(scope="module")
def tuned(world: Path, pretrained: dict[str, Path]) -> Path:
    """Run folders of a classifier, a tagger and a finder of answers, each after a few steps."""
    rows = [tagged(number) for number in range(40)]
    lines = "\n\n".join("\n".join(map(" ".join, zip(*row, strict=True))) for row in rows)
    Path("train.conll").write_text(lines + "\n", encoding="utf-8")
    Path("squad.json").write_text(json.dumps(squad(8, version2=False)))
    configs = {
        "classes": finetune_config(pretrained["bert"]),
        "tags": tags_config(pretrained["bert"]),
        "qa": qa_config(pretrained["bert"]),
    }
    for name, config in configs.items():
        write(f"{name}.yaml", config | {"run": name})
        assert run_main("finetune", f"{name}.yaml", "train.epochs=1") == 0
    return world


@contextmanager
def serving(*models: str, text: tuple[str, ...] = ()) -> Iterator[TryServer]:
    with TryServer([TriedModel(name, text) for name in models], 0) as server:
        threading.Thread(target=server.serve_forever, args=(0.05,), daemon=True).start()
        yield server
        server.shutdown()


def ask(server: TryServer, way: str, *texts: str, model: int = 0, **more: Any) -> dict[str, Any]:
    """The last line of an answer; in ``text`` the pieces before it."""
    body = json.dumps({"model": model, "way": way, "texts": texts, **more})
    status, answer = post(server, body)
    assert status == 200, answer
    *pieces, last = [json.loads(line) for line in answer.splitlines()]
    return {**last, "text": "".join(piece["text"] for piece in pieces)}


def post(server: TryServer, body: str, **headers: str) -> tuple[int, str]:
    host = f"127.0.0.1:{server.server_port}"
    usual = {"Host": host, "Origin": f"http://{host}", "Content-Type": "application/json"}
    connection = http.client.HTTPConnection(host, timeout=60)
    given = {name.replace("_", "-"): value for name, value in headers.items()}
    merged = {name: value for name, value in (usual | given).items() if value != "-"}
    connection.request("POST", "/api/answer", body.encode(), merged)
    answer = connection.getresponse()
    return answer.status, answer.read().decode()


def get(server: TryServer, path: str) -> Any:
    connection = http.client.HTTPConnection("127.0.0.1", server.server_port, timeout=60)
    connection.request("GET", path)
    answer = connection.getresponse()
    assert answer.status == 200
    return json.loads(answer.read())


def answers_of(cli: Cli, *line: str) -> Any:
    code, out, err = cli(*line, "--json")
    assert code == 0, err
    return json.loads(out)


# --- Equal to the commands ---


def test_masks_are_filled_as_by_predict(cli: Cli, pretrained: dict[str, Path]) -> None:
    run = pretrained["bert"].name
    text = "Anna [MASK] Bela at the [MASK] on day 3."
    with serving(run) as server:
        (about,) = get(server, "/api/models")["models"]
        assert (about["ways"], about["mask"]) == (["masks", "neighbours"], "[MASK]")
        answer = ask(server, "masks", text, top=3)["answer"]
        (expected,) = answers_of(cli, "predict", run, text, "--top", "3")["answers"]
        assert answer["answers"] == expected["answers"]
        assert answer["command"] == f"plmctl predict {run} --top 3 '{text}'"
        (example,) = get(server, "/api/examples")[0]["masks"]
        assert "[MASK]" in example["texts"][0]
        assert ask(server, "masks", *example["texts"])["answer"]["answers"]
        near = ask(server, "neighbours", "garden", "", top=3)["answer"]
        line = ("text.txt", "--word", "garden", "--top", "3", "--max-sentences", "1000")
        expected = answers_of(cli, "neighbours", run, *line)
        assert near["neighbours"] == expected["neighbours"]
        again = ask(server, "neighbours", "garden", "", top=3)["answer"]
        assert again["neighbours"] == expected["neighbours"]


@pytest.mark.parametrize("sampled", [False, True])
def test_a_text_is_continued_as_by_generate(
    cli: Cli, pretrained: dict[str, Path], sampled: bool
) -> None:
    run, prompt = pretrained["gpt2"].name, "Anna sees Bela"
    options = ("--temperature", "0.9", "--top-p", "0.8", "--seed", "7") if sampled else ()
    settings = {"temperature": 0.9, "top_p": 0.8, "seed": 7} if sampled else {}
    with serving(run) as server:
        answer = ask(server, "continue", prompt, **FEW, **settings)
        line = ("generate", run, "--prompt", prompt, "--max-new-tokens", "6", *options)
        (expected,) = answers_of(cli, *line)["answers"]
        made = answer["answer"]
        assert [made[key] for key in ("text", "tokens", "ended")] == [
            expected[key] for key in ("text", "tokens", "ended")
        ]
        assert answer["text"] == made["text"]  # the pieces that came before
        assert made["command"].split()[1:3] == ["generate", run]
        assert all(option in made["command"] for option in options)
        (example,) = get(server, "/api/examples")[0]["continue"]
        assert example["texts"][0]


@pytest.mark.parametrize(
    ("run", "texts", "column"),
    [
        ("classes", [sentence(3)], "text"),
        ("tags", [sentence(4)], "tokens"),
        ("qa", ["Where is Anna?", sentence(0) + " " + sentence(1)], "question"),
    ],
)
def test_a_finetuned_model_answers_as_predict(
    cli: Cli, tuned: Path, run: str, texts: list[str], column: str
) -> None:
    with serving(run) as server:
        (about,) = get(server, "/api/models")["models"]
        assert about["ways"] == ["task", "neighbours"]
        assert about["fields"][0] == column
        answer = ask(server, "task", *texts)["answer"]
        (expected,) = answers_of(cli, "predict", run, *texts, "--top", "8")["answers"]
        assert answer["answers"] == expected["answers"]
        Path("one.jsonl").write_text(json.dumps(dict(zip(about["fields"], texts, strict=True))))
        code, out, err = cli("predict", run, "--input", "one.jsonl")
        assert code == 0, err
        row = json.loads(out)
        assert {key: row[key] for key in answer["task"] if key != "id"} == {
            key: value for key, value in answer["task"].items() if key != "id"
        }
        examples = get(server, "/api/examples")[0]["task"]
        assert len(examples) > 1
        assert all(len(one["texts"]) == len(about["fields"]) for one in examples)
        assert all(one["right"] for one in examples)
        assert ask(server, "task", *examples[0]["texts"])["answer"]["answers"]


def test_two_models(cli: Cli, pretrained: dict[str, Path]) -> None:
    runs = [pretrained[name].name for name in ("bert", "gpt2")]
    with serving(*runs) as server:
        assert [one["name"] for one in get(server, "/api/models")["models"]] == runs
        assert ask(server, "masks", "Anna [MASK] Bela")["answer"]["answers"]
        assert ask(server, "continue", "Anna", model=1, **FEW)["answer"]["tokens"]
        assert ask(server, "masks", "Anna [MASK]", model=1)["error"] == "the model cannot do this"


def test_the_board_and_the_report_have_its_command(
    tmp_path: Path, pretrained: dict[str, Path]
) -> None:
    run = pretrained["bert"].name
    page = write_report([Path(run)], tmp_path / "report.html").read_text(encoding="utf-8")
    assert f"plmctl try {run}</code>" in page
    board = Board(Path())
    (id_,) = [row["id"] for row in board.rows()["rows"] if row["name"] == run]
    details = board.details(id_)
    assert details is not None
    assert details["try"] == f"plmctl try {run}"  # named from the working folder


def test_two_models_that_are_asked_at_once_are_loaded_one_after_the_other(
    pretrained: dict[str, Path],
) -> None:
    run = pretrained["gpt2"].name
    with serving(run, run) as server, ThreadPoolExecutor() as pool:
        one, two = pool.map(lambda n: ask(server, "continue", "Anna", model=n, **FEW), (0, 1))
        assert one["answer"] == two["answer"]


# --- What cannot be answered ---


@pytest.mark.parametrize(
    ("texts", "error"),
    [
        (["Anna sees Bela"], "no [MASK] in 'Anna sees Bela'"),
        (["  "], "the text is empty"),
        (["漢字漢字漢字 [MASK] 漢字"], "100.0 % of the characters of the text are unknown"),
    ],
)
def test_what_is_wrong_with_a_text(
    pretrained: dict[str, Path], texts: list[str], error: str
) -> None:
    with serving(pretrained["bert"].name) as server:
        assert error in ask(server, "masks", *texts)["error"]


def test_what_is_said_of_a_text_is_in_the_answer(
    capsys: pytest.CaptureFixture[str], tuned: Path, pretrained: dict[str, Path]
) -> None:
    bert, gpt2 = (pretrained[name].name for name in ("bert", "gpt2"))
    with serving(bert, gpt2) as server:
        capsys.readouterr()
        long = "Anna [MASK] " + "Bela " * 600
        (note,) = ask(server, "masks", long)["notes"]
        assert "cut around their [MASK]" in note
        answer = ask(server, "continue", "Anna " * 1200, model=1, **FEW)
        assert "cut from the left" in answer["notes"][0]
        assert ask(server, "continue", "", model=1, **FEW)["answer"]["tokens"]
    with serving("classes") as server:
        assert "were cut" in ask(server, "task", "Anna " * 100)["notes"][0]
        assert "is in none of" in ask(server, "neighbours", "xyzzy", "")["error"]
    assert "cut" not in capsys.readouterr().err  # the terminal has none of it


def test_a_model_outside_of_a_run_has_no_examples(cli: Cli, pretrained: dict[str, Path]) -> None:
    shutil.copytree(pretrained["bert"] / "model", "alone")
    with serving("alone") as server:
        assert get(server, "/api/examples") == [{}]
        assert ask(server, "neighbours", "garden", "")["error"] == "there is no text to search"
    with serving("alone", text=("text.txt",)) as server:
        assert ask(server, "neighbours", "garden", "")["answer"]["neighbours"]


def test_rows_that_are_gone_are_no_examples(
    tuned: Path, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    run = str(tuned / "classes")
    monkeypatch.chdir(tmp_path)
    with serving(run) as server:
        assert "rows.tsv" in get(server, "/api/examples")[0]["error"]
        assert ask(server, "task", "Anna")["answer"]["answers"]


def test_a_run_without_a_model(cli: Cli, tuned: Path, pretrained: dict[str, Path]) -> None:
    ignore = shutil.ignore_patterns("model")
    shutil.copytree(pretrained["bert"], "no-model", ignore=ignore)
    refused(cli("try", "no-model"), 2, "has no model/ yet", "plmctl export no-model FOLDER")
    shutil.copytree("classes", "several/seed=1")
    shutil.copyfile("classes.yaml", "several/config.yaml")
    refused(cli("predict", "several", "x"), 2, "a folder of several runs", "several/seed=1")
    refused(cli("try", "nowhere/at/all"), 2, "no such folder")


@pytest.mark.parametrize("command", ["predict", "generate", "neighbours"])
def test_a_run_that_has_not_finished_is_said(
    cli: Cli, pretrained: dict[str, Path], command: str
) -> None:
    source = pretrained["gpt2" if command == "generate" else "bert"]
    shutil.copytree(source, command)
    (Path(command) / "status.json").write_text('{"status": "running"}')
    lines = {
        "predict": ["Anna [MASK] Bela"],
        "generate": ["--prompt", "Anna", "--max-new-tokens", "2"],
        "neighbours": ["text.txt", "--word", "garden", "--max-sentences", "5"],
    }
    code, _, err = cli(command, command, *lines[command])
    assert code == 0, err
    assert f"using {command}/model\n" in err
    assert f"{command} has not finished (killed)" in err
    code, _, err = cli(command, str(source), *lines[command])
    assert "has not finished" not in err


def test_eval_says_it_of_a_run_that_has_not_finished(cli: Cli, pretrained: dict[str, Path]) -> None:
    shutil.copytree(pretrained["bert"], "to-eval")
    (Path("to-eval") / "status.json").write_text('{"status": "running"}')
    measures = [{"name": "pseudo_perplexity", "data": ["few.txt"]}]
    Path("few.txt").write_text(sentence(1) + "\n")
    write("few.yaml", {"run": "few-eval", "model": "to-eval", "measures": measures})
    code, out, err = cli("eval", "few.yaml")
    assert code == 0, err
    assert "to-eval has not finished (killed)" in err
    assert "to-eval/model" in out


@pytest.mark.parametrize("name", ["https://example.org/rows.tsv", "hf:rows", "ms:rows"])
def test_examples_are_not_fetched(cli: Cli, tuned: Path, tmp_path: Path, name: str) -> None:
    shutil.copytree("classes", tmp_path / "run")
    config = tmp_path / "run" / "config.yaml"
    config.write_text(config.read_text().replace("rows.tsv", name))
    with serving(str(tmp_path / "run")) as server:
        assert get(server, "/api/examples")[0]["error"] == f"{name}: not on this machine"


# --- Who may ask, and what ---


@pytest.fixture
def server(pretrained: dict[str, Path]) -> Iterator[TryServer]:
    with serving(pretrained["gpt2"].name) as server:
        yield server


QUESTION = {"model": 0, "way": "continue", "texts": ["Anna"], **FEW}


@pytest.mark.parametrize(
    ("headers", "status"),
    [
        ({}, 200),
        ({"Host": "evil.com"}, 403),
        ({"Host": "evil.com", "Origin": "http://evil.com"}, 403),
        ({"Origin": "http://evil.com"}, 403),
        ({"Origin": "null"}, 403),
        ({"Origin": "-"}, 403),
        ({"Origin": "http://127.0.0.1:1"}, 403),
        ({"Content_Type": "text/plain"}, 415),
        ({"Content_Type": "application/x-www-form-urlencoded"}, 415),
    ],
)
def test_only_the_page_may_ask(server: TryServer, headers: dict[str, str], status: int) -> None:
    given = {"Content_Type": "application/json", **headers}
    assert post(server, json.dumps(QUESTION), **given)[0] == status


@pytest.mark.parametrize(
    "change",
    [
        {"model": 1}, {"model": -1}, {"way": "train"}, {"texts": []}, {"texts": "Anna"},
        {"texts": [1]}, {"file": "/etc/passwd"}, {"temperature": -1}, {"temperature": "NaN"},
        {"top_p": 0}, {"top_p": 2}, {"max_new_tokens": 10**9}, {"top": 0}, {"seed": -1},
        {"texts": ["a"] * 101},
    ],
)  # fmt: skip
def test_other_questions_are_refused(server: TryServer, change: dict[str, Any]) -> None:
    assert post(server, json.dumps({**QUESTION, **change})) == (
        400, "not a question that the page asks\n"
    )  # fmt: skip


def test_no_json_and_too_much_of_it_are_refused(server: TryServer) -> None:
    assert post(server, "[" * 100_000)[0] == 400
    assert post(server, '{"texts": ["\\ud800"]}')[0] == 400
    with socket.create_connection(("127.0.0.1", server.server_port), timeout=10) as raw:
        host = f"127.0.0.1:{server.server_port}"
        for length, status in (("200001", b"413"), ("0" * 12 + "9" * 12, b"413"), ("x", b"411")):
            head = (
                f"POST /api/answer HTTP/1.1\r\nHost: {host}\r\nOrigin: http://{host}\r\n"
                f"Content-Type: application/json\r\nContent-Length: {length}\r\n\r\n"
            )
            with socket.create_connection(("127.0.0.1", server.server_port), timeout=10) as raw:
                raw.sendall(head.encode())
                assert raw.recv(100).startswith(b"HTTP/1.1 " + status)


def test_the_page_and_nothing_else(server: TryServer) -> None:
    for path, status in (
        ("/", 200), ("/try.js", 200), ("/try.css", 200), ("/api/models", 200),
        ("/board.js", 404), ("/page.js", 404), ("/api/answer", 404), ("/../x", 404),
    ):  # fmt: skip
        connection = http.client.HTTPConnection("127.0.0.1", server.server_port, timeout=10)
        connection.request("GET", path)
        answer = connection.getresponse()
        assert (answer.status, answer.getheader("X-Frame-Options")) == (status, "DENY")
        policy = str(answer.getheader("Content-Security-Policy"))
        assert policy.startswith(("default-src 'none'", "sandbox; default-src 'none'"))


def test_a_reader_who_leaves_the_page_ends_the_generation(
    server: TryServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    ended = threading.Event()
    own = try_model.TriedModel.answer

    def answer(*arguments: Any) -> Any:
        try:
            return own(*arguments)
        finally:
            ended.set()

    monkeypatch.setattr(try_model.TriedModel, "answer", answer)
    ask(server, "continue", "Anna", **FEW)  # loads the model
    ended.clear()
    host = f"127.0.0.1:{server.server_port}"
    body = json.dumps({**QUESTION, "max_new_tokens": 1000, "temperature": 1})
    began = time.monotonic()
    with socket.create_connection(("127.0.0.1", server.server_port), timeout=30) as raw:
        raw.sendall(
            f"POST /api/answer HTTP/1.1\r\nHost: {host}\r\nOrigin: http://{host}\r\n"
            f"Content-Type: application/json\r\nContent-Length: {len(body)}\r\n\r\n{body}".encode()
        )
        while b'"text"' not in raw.recv(10_000):
            pass
    assert ended.wait(30)
    left = time.monotonic() - began
    began = time.monotonic()
    assert ask(server, "continue", "Anna", max_new_tokens=1000, temperature=1)["answer"]
    assert left < time.monotonic() - began  # the whole text takes longer


def test_names_and_texts_are_only_data(cli: Cli, tuned: Path) -> None:
    shutil.copytree("classes/model", "hostile")
    task = json.loads(Path("hostile/task.json").read_text())
    config = json.loads(Path("hostile/config.json").read_text())
    task["labels"] = [HOSTILE, "b"]
    config |= {"id2label": {"0": HOSTILE, "1": "b"}, "label2id": {HOSTILE: 0, "b": 1}}
    Path("hostile/task.json").write_text(json.dumps(task))
    Path("hostile/config.json").write_text(json.dumps(config))
    with serving("hostile", "qa") as server:
        answer = ask(server, "task", HOSTILE)["answer"]
        assert {one["token"] for one in answer["answers"]} == {HOSTILE, "b"}
        assert "requires text: one text each" in ask(server, "task", "a", "b")["error"]
        assert "question and context" in ask(server, "task", "a", model=1)["error"]

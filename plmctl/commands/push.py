"""``plmctl push``: a model folder to the Hugging Face Hub.

Nothing else of plmctl uploads anything.
"""

from __future__ import annotations

import os
import sys
import warnings
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING

from plmctl import hub
from plmctl.errors import ConfigError, DataError, PlmError
from plmctl.files import is_model
from plmctl.folders import leads_out
from plmctl.reporting.card import Publication, architecture_of, hub_card
from plmctl.run.display import say, show_result

if TYPE_CHECKING:
    from huggingface_hub import HfApi

_CARD = "README.md"
_OF_THE_HUB = {".gitattributes", _CARD}  # in every new repository


@dataclass(frozen=True)
class PushRequest:
    """What to upload, and how.

    Attributes:
        model: A run folder, its ``model/``, or an exported folder.
        repo: ``NAME`` or ``OWNER/NAME``.
        license: A name that the Hub knows.
        checkpoints: Also upload each checkpoint of the run, to a branch.
        replace: Whether another model in the repository is replaced.
    """

    model: str
    repo: str
    languages: Sequence[str] = ()
    license: str | None = None
    evaluations: Sequence[str] = ()
    private: bool = False
    checkpoints: bool = False
    replace: bool = False


@dataclass(frozen=True)
class Upload:
    """A branch and its files.

    Attributes:
        files: Local files by name in the repository.
        card: The text of README.md.
    """

    branch: str
    files: Mapping[str, Path]
    card: str

    @property
    def size(self) -> int:
        """Bytes of all files."""
        return len(self.card.encode()) + sum(path.stat().st_size for path in self.files.values())


def run(request: PushRequest, *, dry_run: bool, yes: bool, as_json: bool) -> None:
    """Upload a model folder with its card.

    Args:
        dry_run: Print the files, their sizes and the card; use no network.

    Raises:
        ConfigError: No model folder, a wrong name, no token or not its right, a repository with
            another model; or nobody can be asked.
        DataError: The weights are damaged.
        PlmError: The Hub cannot be reached, or refuses an upload.
    """
    _check_name(request.repo)
    folder, training = _find(request.model)
    by_branch = _checkpoints(training, request.model) if request.checkpoints else {}
    publication = Publication(
        request.repo,
        request.license,
        tuple(request.languages),
        tuple(Path(run) for run in request.evaluations),
        {branch: step for branch, (step, _) in by_branch.items()},
    )
    main = Upload("main", _files(folder), hub_card(folder, training, publication))
    if dry_run:
        _show_plan(main, by_branch, request, as_json=as_json)
        return
    from huggingface_hub import HfApi

    token = hub.token()
    if not hub.answers():
        raise PlmError(
            f"the Hub ({hub.endpoint()}) cannot be reached",
            "check the network connection; --dry-run shows what would be uploaded without one",
        )
    if hub.is_mirror():
        hub.avoid_xet()
    with _plain_errors(request.repo, token):
        api = HfApi(token=token, library_name="plmctl")
        user = api.whoami()["name"]  # refuses a wrong token
        repo = request.repo if "/" in request.repo else f"{user}/{request.repo}"
        exists = api.repo_exists(repo)
        if exists and not request.replace:
            _check_same(api, repo, main)
    if not yes:
        _ask(main, by_branch, repo, request, exists=exists)
    with _plain_errors(repo, token):
        if not exists:
            api.create_repo(repo, private=request.private, exist_ok=True)
        commits = {"main": _upload(api, repo, main, replace=request.replace)}
    for branch, (step, checkpoint) in by_branch.items():
        from plmctl.commands.export import exported

        assert training is not None  # _checkpoints has refused it
        with exported(training, checkpoint) as exported_folder:
            files = _files(Path(exported_folder))
            card = hub_card(folder, training, publication, step)
            with _plain_errors(repo, token):
                # It starts with the content of main, if there is none of this name.
                api.create_branch(repo, branch=branch, exist_ok=True)
                commits[branch] = _upload(api, repo, Upload(branch, files, card))
    url = f"{hub.endpoint()}/{repo}"
    show_result({"repo": repo, "url": url, "commits": commits}, [], as_json=as_json)
    if not as_json:
        print(url)


# --- What is uploaded ---


def _check_name(repo: str) -> None:
    from huggingface_hub.errors import HFValidationError
    from huggingface_hub.utils import validate_repo_id  # type: ignore[attr-defined]  # not exported by name

    try:
        validate_repo_id(repo)
    except HFValidationError:
        raise ConfigError(
            f"{repo!r} is not a name of a repository on the Hub",
            "write NAME or OWNER/NAME: letters, digits, '-', '_' and '.', as in me/my-bert",
        ) from None


def _find(model: str) -> tuple[Path, Path | None]:
    """The model folder, and the run folder that it belongs to, if it does.

    Raises:
        ConfigError: It is no model folder.
        DataError: Its weights cannot be read.
    """
    place = Path(model)
    if not place.is_dir():
        raise ConfigError(f"{model}: no such folder in {Path.cwd()}", "give a model or run folder")
    folder = place if is_model(place) else place / "model"
    if not is_model(folder):
        hint = "give the folder of a finished run, or one that `plmctl export` wrote"
        if (place / "checkpoints").is_dir():
            hint = f"the run has no model/ yet; export a checkpoint: plmctl export {model} FOLDER"
        elif any(place.glob("*/seed=*/model")):
            hint = f"it has several runs; choose one: {next(iter(sorted(place.glob('*/seed=*'))))}"
        raise ConfigError(f"{model} is not a model folder: no config.json with weights", hint)
    for path in folder.glob("*.safetensors"):
        _check_weights(path)
    parent = folder.resolve().parent
    of_run = folder.resolve().name == "model" and (parent / "config.yaml").is_file()
    return folder, parent if of_run else None


def _check_weights(path: Path) -> None:
    from safetensors import SafetensorError, safe_open

    try:
        with safe_open(path, framework="np") as file:
            file.keys()
    except (OSError, SafetensorError) as error:
        raise DataError(
            f"{path}: the weights cannot be read: {error}", "copy or export the folder again"
        ) from error


def _files(folder: Path) -> dict[str, Path]:
    """The files of a model folder but its card; hidden ones and unfinished ones stay.

    Raises:
        ConfigError: One is a link out of the folder, or leads nowhere: nothing is uploaded.
    """
    paths = []
    for path in sorted(folder.rglob("*")):
        if path.is_symlink() and (leads_out(path, folder) or not path.exists()):
            raise ConfigError(
                f"{path}: a link that leads out of the folder, to {os.readlink(path)}; what it "
                "leads to would be published",
                "remove it, or put the file itself there",
            )
        if path.is_file():
            paths.append(path)
    named = {path.relative_to(folder).as_posix(): path for path in paths}
    return {
        name: path
        for name, path in named.items()
        if name != _CARD and not any(part.startswith(".") for part in Path(name).parts)
    }


def _checkpoints(training: Path | None, model: str) -> dict[str, tuple[int, Path]]:
    """The step and the folder of each checkpoint of a run, by branch."""
    from plmctl.commands.export import saved_checkpoints

    if training is None:
        raise ConfigError(
            f"--checkpoints: {model} is not in a run folder", "give the run folder of a pretraining"
        )
    return {one.name: (one.step, one.path) for one in saved_checkpoints(training)}


def _show_plan(
    main: Upload,
    by_branch: Mapping[str, tuple[int, Path]],
    request: PushRequest,
    *,
    as_json: bool,
) -> None:
    """What an upload would do."""
    sizes = {name: path.stat().st_size for name, path in main.files.items()}
    sizes[_CARD] = len(main.card.encode())
    branches = {branch: step for branch, (step, _) in by_branch.items()}
    document = {
        "repo": request.repo,
        "private": request.private,
        "files": dict(sorted(sizes.items())),
        "bytes": main.size,
        "branches": branches,
        "card": main.card,
    }
    show_result(document, [], as_json=as_json)
    if as_json:
        return
    kind = "private" if request.private else "public"
    print(f"would upload to {hub.endpoint()}/{request.repo} ({kind}), branch main:")
    for name, size in sorted(sizes.items()):
        print(f"  {_size(size):>9}  {name}")
    print(f"  {_size(main.size):>9}  in all")
    for branch, step in branches.items():
        print(f"and branch {branch}: the weights after step {step:,}")
    print(f"\n{_CARD}:\n\n{main.card}", end="")
    for line in _advice(request):
        say(line)


def _advice(request: PushRequest) -> Iterator[str]:
    if request.license is None:
        yield "no --license: without one, others have no right to use the model"
    if not request.languages:
        yield "no --language: the Hub finds models by language, as in --language en"


def _ask(
    main: Upload,
    by_branch: Mapping[str, tuple[int, Path]],
    repo: str,
    request: PushRequest,
    *,
    exists: bool,
) -> None:
    """Ask the user.

    Raises:
        ConfigError: There is no terminal, or the answer is not yes.
    """
    if not sys.stdin.isatty():
        raise ConfigError("nobody can be asked here whether to upload", "add --yes, or --dry-run")
    for line in _advice(request):
        say(line)
    kind = "private" if request.private else "public"
    state = "existing" if exists else f"new {kind}"
    more = f" and {len(by_branch)} branches of checkpoints" if by_branch else ""
    say(
        f"{len(main.files) + 1} files ({_size(main.size)}){more} to the {state} repository "
        f"{hub.endpoint()}/{repo}"
    )
    sys.stderr.write("upload? [y/N] ")
    sys.stderr.flush()
    if sys.stdin.readline().strip().lower() not in ("y", "yes"):
        raise ConfigError("nothing was uploaded")


# --- The repository ---


def _check_same(api: HfApi, repo: str, upload: Upload) -> None:
    """Refuse a repository that has something else than an earlier upload of this model.

    Raises:
        ConfigError: It has other files, or the config of another network.
    """
    from huggingface_hub.hf_api import RepoFile
    from huggingface_hub.utils.sha import git_hash

    entries = api.list_repo_tree(repo, recursive=True)
    there = {entry.path: entry.blob_id for entry in entries if isinstance(entry, RepoFile)}
    others = sorted(set(there) - set(upload.files) - _OF_THE_HUB)
    own = git_hash(upload.files["config.json"].read_bytes())
    if not others and there.get("config.json", own) == own:
        return
    what = f"files that this model has not ({', '.join(others[:5])})" if others else ""
    raise ConfigError(
        f"{repo} exists and has {what or 'a model with another config.json'}",
        "choose another name; or add --replace to replace its content (the repository keeps "
        "its history)",
    )


def _upload(api: HfApi, repo: str, upload: Upload, *, replace: bool = False) -> str:
    """Upload files and card as one commit, which is complete or absent; returns its id."""
    say(
        f"uploading {len(upload.files) + 1} files ({_size(upload.size)}) to "
        f"{hub.endpoint()}/{repo}, branch {upload.branch}"
    )
    with TemporaryDirectory() as staged, warnings.catch_warnings():
        warnings.simplefilter("ignore")  # the Hub's advice on cards
        for name, path in upload.files.items():  # only what was listed, and another README.md
            link = Path(staged, name)
            link.parent.mkdir(parents=True, exist_ok=True)
            link.symlink_to(path.resolve())
        Path(staged, _CARD).write_text(upload.card, encoding="utf-8")
        commit = api.upload_folder(
            repo_id=repo,
            folder_path=staged,
            commit_message=f"{architecture_of(upload.files['config.json'])} by plmctl",
            revision=upload.branch,
            delete_patterns="*" if replace else None,
        )
    return str(commit.oid)


@contextmanager
def _plain_errors(repo: str, token: str) -> Iterator[None]:
    """Errors of the Hub and its library as one plain message, without the token.

    The original error is not chained: with --debug, its text would be shown.
    """
    # HTTPError is that of the library's HTTP client.
    from huggingface_hub.errors import HfHubHTTPError, HTTPError  # type: ignore[attr-defined]  # not listed

    try:
        yield
    except HfHubHTTPError as error:
        code = error.response.status_code
        reason = (error.server_message or str(error)).strip().splitlines()[0]
        reason = reason.replace(token, "(the token)")
        if code == 401:
            refused: PlmError = ConfigError(
                f"the Hub does not accept the token: {reason}",
                "log in again with `hf auth login`, or correct HF_TOKEN",
            )
        elif code == 403:
            refused = ConfigError(
                f"{repo}: the token may not write here: {reason}",
                "make a token with the right to write (huggingface.co/settings/tokens), and check "
                "the owner's name",
            )
        else:
            refused = PlmError(
                f"{repo}: the Hub answers {code}: {reason}",
                "run the same command again: files that are there are not uploaded again",
            )
        raise refused from None
    except (OSError, HTTPError, RuntimeError, ValueError) as error:  # of httpx, Xet, the card
        text = " ".join(str(error).split()).replace(token, "(the token)") or type(error).__name__
        if text.startswith("Invalid metadata"):
            raise ConfigError(
                f"{repo}: the Hub refuses the card: {text}",
                "correct --license, --language or the front matter of README.md",
            ) from None
        raise PlmError(
            f"{repo}: the upload failed: {text}",
            "run the same command again: files that are there are not uploaded again",
        ) from None


def _size(size: float) -> str:
    for unit in ("bytes", "kB", "MB"):
        if size < 1000:
            return f"{size:.0f} {unit}" if unit == "bytes" else f"{size:.1f} {unit}"
        size /= 1000
    return f"{size:.1f} GB"

"""A Hub of one process: the calls that huggingface_hub makes to upload and download, over HTTP."""

import base64
import hashlib
import json
import re
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from threading import Thread
from urllib.parse import unquote, urlsplit

import yaml

WRITE, READ = "hf_write_0123456789", "hf_read_0123456789"


@dataclass
class Repository:
    private: bool = False
    branches: dict[str, dict[str, bytes]] = field(default_factory=lambda: {"main": {}})
    commits: list[tuple[str, str]] = field(default_factory=list)  # branch, message


@dataclass
class Hub:
    """What the stub has, and the requests that it got: method and path."""

    url: str = ""
    repositories: dict[str, Repository] = field(default_factory=dict)
    large: dict[str, bytes] = field(default_factory=dict)
    requests: list[str] = field(default_factory=list)
    fail: str = ""  # the end of a path that is answered 500


def git_id(content: bytes) -> str:
    return hashlib.sha1(b"blob %d\0" % len(content) + content).hexdigest()


@contextmanager
def running() -> Iterator[Hub]:
    hub = Hub()

    class Handler(_Handler):
        state = hub

    with ThreadingHTTPServer(("127.0.0.1", 0), Handler) as server:
        hub.url = f"http://127.0.0.1:{server.server_port}"
        thread = Thread(target=server.serve_forever, daemon=True)
        thread.start()
        try:
            yield hub
        finally:
            server.shutdown()
            thread.join()


class _Handler(BaseHTTPRequestHandler):
    state: Hub
    protocol_version = "HTTP/1.1"

    def log_message(self, format: str, *arguments: object) -> None:
        pass

    def do_HEAD(self) -> None:
        self.do_GET()

    def do_GET(self) -> None:
        path = self._path()
        if path == "/":
            return self._json({})
        if path == "/api/whoami-v2":
            return self._json({"type": "user", "name": "me", "orgs": []}, write=False)
        if match := re.fullmatch(r"/api/models/(\w+/[\w.-]+)/tree/([^/]+)/?", path):
            repo = self._repo(match[1])
            return None if repo is None else self._json(_tree(repo.branches[match[2]]))
        if match := re.fullmatch(r"/api/models/(\w+/[\w.-]+)(?:/revision/([^/]+))?", path):
            repo = self._repo(match[1])
            if repo is not None:
                files = repo.branches[match[2] or "main"]
                siblings = [{"rfilename": name} for name in files]
                self._json({"id": match[1], "sha": _sha(files), "siblings": siblings})
            return None
        if match := re.fullmatch(r"/(\w+/[\w.-]+)/resolve/([^/]+)/(.+)", path):
            return self._file(match[1], match[2], match[3])
        return self._error(404, f"no {path}")

    def do_POST(self) -> None:
        path, body = self._path(), self.rfile.read(int(self.headers.get("Content-Length", 0)))
        if path == "/api/validate-yaml":
            return self._validate(json.loads(body)["content"])
        if not self._may_write():
            return None
        if self.state.fail and path.endswith(self.state.fail):
            return self._error(500, "the disk is full")
        if path == "/api/repos/create":
            wanted = json.loads(body)
            name = f"{wanted.get('organization') or 'me'}/{wanted['name']}"
            if not name.startswith("me/"):
                return self._error(403, "You don't have the rights to create a model here")
            private = wanted.get("visibility") == "private" or bool(wanted.get("private"))
            repo = Repository(private, {"main": {".gitattributes": b"*.safetensors lfs\n"}})
            self.state.repositories[name] = repo
            return self._json({"url": f"{self.state.url}/{name}"})
        if match := re.fullmatch(r"/(\w+/[\w.-]+)\.git/info/lfs/objects/batch", path):
            return self._json(
                {"objects": [self._batch(one) for one in json.loads(body)["objects"]]}
            )
        match = re.fullmatch(r"/api/models/(\w+/[\w.-]+)/(preupload|commit|branch)/([^/]+)", path)
        if match is None:
            return self._error(404, f"no {path}")
        repo = self._repo(match[1])
        if repo is None:
            return None
        branch = unquote(match[3])
        if match[2] == "branch":
            if branch in repo.branches:
                return self._error(409, "Reference already exists")
            repo.branches[branch] = dict(repo.branches["main"])
            return self._json({})
        files = repo.branches[branch]
        if match[2] == "preupload":
            return self._json({"files": [_mode(one, files) for one in json.loads(body)["files"]]})
        return self._commit(repo, branch, files, body)

    def do_PUT(self) -> None:
        content = self.rfile.read(int(self.headers["Content-Length"]))
        oid = self._path().rpartition("/")[2]
        assert hashlib.sha256(content).hexdigest() == oid
        self.state.large[oid] = content
        self._json({})

    def _commit(self, repo: Repository, branch: str, files: dict[str, bytes], body: bytes) -> None:
        message = ""
        for line in map(json.loads, body.splitlines()):
            value = line["value"]
            if line["key"] == "header":
                message = value["summary"]
            elif line["key"] == "file":
                files[value["path"]] = base64.b64decode(value["content"])
            elif line["key"] == "lfsFile":
                files[value["path"]] = self.state.large[value["oid"]]
            else:
                assert line["key"] == "deletedFile", line
                del files[value["path"]]
        repo.commits.append((branch, message))
        oid = _sha(files)
        self._json(
            {"success": True, "commitOid": oid, "commitUrl": f"{self.state.url}/me/x/commit/{oid}"}
        )

    def _batch(self, wanted: dict) -> dict:
        if wanted["oid"] in self.state.large:
            return wanted  # nothing to upload
        href = f"{self.state.url}/lfs/{wanted['oid']}"
        return {**wanted, "actions": {"upload": {"href": href, "header": {}}}}

    def _validate(self, card: str) -> None:
        front = yaml.safe_load(card.split("---\n")[1])
        wrong = [
            {"message": f'"{key}" is not allowed'}
            for key in front
            if key in ("licence", "not-a-key")
        ]
        if front.get("license", "mit") not in ("mit", "cc0-1.0"):
            wrong.append({"message": '"license" must be one of [mit, cc0-1.0]'})
        if wrong:
            return self._json({"errors": wrong, "warnings": []}, code=400)
        return self._json({"errors": [], "warnings": [{"message": "advice on the card"}]})

    def _file(self, name: str, branch: str, path: str) -> None:
        repo = self._repo(name)
        if repo is None:
            return
        shas = {_sha(files): files for files in repo.branches.values()}
        files = repo.branches.get(branch) or shas[branch]
        if path not in files:
            self._error(404, "Entry not found", {"X-Error-Code": "EntryNotFound"})
            return
        headers = {"ETag": f'"{git_id(files[path])}"', "X-Repo-Commit": _sha(files)}
        self._answer(200, files[path], headers)

    def _repo(self, name: str) -> Repository | None:
        repo = self.state.repositories.get(name)
        if repo is None:
            self._error(404, "Repository not found", {"X-Error-Code": "RepoNotFound"})
        return repo

    def _path(self) -> str:
        path = urlsplit(self.path).path
        self.state.requests.append(f"{self.command} {path}")
        return path

    def _may_write(self) -> bool:
        token = self.headers.get("Authorization", "").removeprefix("Bearer ")
        if token not in (WRITE, READ):
            self._error(401, f"Invalid credentials in Authorization header: {token}")
        elif token == READ:
            self._error(403, "You have read access but not the required permissions")
        return token == WRITE

    def _json(self, document: object, *, code: int = 200, write: bool = True) -> None:
        if not write:
            token = self.headers.get("Authorization", "").removeprefix("Bearer ")
            if token not in (WRITE, READ):  # a bad server repeats the token
                self._error(401, f"Invalid credentials: {token}")
                return
        self._answer(code, json.dumps(document).encode(), {"Content-Type": "application/json"})

    def _error(self, code: int, message: str, headers: dict[str, str] | None = None) -> None:
        headers = {"X-Error-Message": message, "Content-Type": "application/json"} | (headers or {})
        self._answer(code, json.dumps({"error": message}).encode(), headers)

    def _answer(self, code: int, content: bytes, headers: dict[str, str]) -> None:
        self.send_response(code)
        for name, value in headers.items():
            self.send_header(name, value)
        self.send_header("Content-Length", str(len(content)))
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(content)


def _sha(files: dict[str, bytes]) -> str:
    parts = [name.encode() + content for name, content in sorted(files.items())]
    return hashlib.sha1(b"".join(parts)).hexdigest()


def _tree(files: dict[str, bytes]) -> list[dict]:
    return [
        {"type": "file", "path": name, "size": len(content), "oid": git_id(content)}
        for name, content in files.items()
    ]


def _mode(wanted: dict, files: dict[str, bytes]) -> dict:
    path = wanted["path"]
    large = path.endswith(".safetensors")
    if path not in files:
        oid = None
    else:
        content = files[path]
        oid = hashlib.sha256(content).hexdigest() if large else git_id(content)
    mode = "lfs" if large else "regular"
    return {"path": path, "uploadMode": mode, "shouldIgnore": False, "oid": oid}

"""A small hub on loopback, since the real one cannot be had in a test.

It speaks what huggingface_hub asks for here and no more: a repository's revisions, the
files of one, and a commit of files that are sent as they are. Run as a process of the
test's own; `serve` is for use in it.
"""

import base64
import contextlib
import hashlib
import http.server
import json
import re
import ssl
import threading
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any
from urllib.parse import unquote

from registry import Pair

REPO = "org/bundles"


@dataclass
class Hub:
    """The one repository that there is."""

    address: str = ""
    commits: dict[str, dict[str, bytes]] = field(default_factory=dict)
    """A commit to its files."""
    head: str = ""
    requests: list[str] = field(default_factory=list)

    def commit(self, files: dict[str, bytes]) -> str:
        """Make a commit of all files and return its name."""
        text = repr((self.head, sorted(files.items()))).encode()
        self.head = hashlib.sha1(text).hexdigest()
        self.commits[self.head] = files
        return self.head

    def at(self, revision: str) -> dict[str, bytes] | None:
        return self.commits.get(self.head if revision == "main" else revision)


@contextlib.contextmanager
def serve(tls: Pair | None = None) -> Iterator[Hub]:
    """Run a hub whose repository is empty, on a free port."""
    hub = Hub()
    hub.commit({"README.md": b"# bundles\n"})

    class Handler(_Handler):
        state = hub

    server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    if tls is not None:
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        context.load_cert_chain(tls.certificate, tls.key)
        server.socket = context.wrap_socket(server.socket, server_side=True)
    scheme = "http" if tls is None else "https"
    hub.address = f"{scheme}://127.0.0.1:{server.server_port}"
    threading.Thread(target=server.serve_forever, daemon=True).start()
    try:
        yield hub
    finally:
        server.shutdown()
        server.server_close()


class _Handler(http.server.BaseHTTPRequestHandler):
    state: Hub

    def do_GET(self) -> None:
        path = unquote(self.path.partition("?")[0])
        self.state.requests.append(f"{self.command} {path}")
        if found := re.fullmatch(rf"/api/models/{REPO}/revision/(.+)", path):
            self._revision(found[1])
        elif found := re.fullmatch(rf"/api/models/{REPO}/tree/([^/]+)(/.*)?", path):
            self._tree(found[1])
        elif found := re.fullmatch(rf"/{REPO}/resolve/([^/]+)/(.+)", path):
            self._file(found[1], found[2])
        else:
            self._send(404, {"error": "no such thing"}, "RepoNotFound")

    do_HEAD = do_GET

    def do_POST(self) -> None:
        path = unquote(self.path.partition("?")[0])
        self.state.requests.append(f"{self.command} {path}")
        body = self.rfile.read(int(self.headers["Content-Length"]))
        if "/preupload/" in path:
            names = [file["path"] for file in json.loads(body)["files"]]
            rows = [
                {"path": name, "uploadMode": "regular", "shouldIgnore": False}
                for name in names
            ]
            self._send(200, {"files": rows})
        elif "/commit/" in path:
            self._commit([json.loads(line) for line in body.splitlines()])
        else:
            self._send(404, {"error": "no such thing"}, "RepoNotFound")

    def _revision(self, revision: str) -> None:
        files = self.state.at(revision)
        if files is None:
            self._send(404, {"error": "no such revision"}, "RevisionNotFound")
            return
        sha = self.state.head if revision == "main" else revision
        siblings = [{"rfilename": name} for name in files]
        self._send(200, {"id": REPO, "sha": sha, "siblings": siblings})

    def _tree(self, revision: str) -> None:
        rows = [
            {"type": "file", "path": name, "size": len(content), "oid": _oid(content)}
            for name, content in (self.state.at(revision) or {}).items()
        ]
        self._send(200, rows)

    def _file(self, revision: str, name: str) -> None:
        content = (self.state.at(revision) or {}).get(name)
        if content is None:
            self._send(404, {"error": "no such file"}, "EntryNotFound")
            return
        self.send_response(200)
        self.send_header("ETag", f'"{_oid(content)}"')
        self.send_header("X-Repo-Commit", revision)
        self.send_header("Content-Length", str(len(content)))
        self.end_headers()
        if self.command == "GET":
            self.wfile.write(content)

    def _commit(self, lines: list[dict[str, Any]]) -> None:
        files = dict(self.state.commits[self.state.head])
        for line in lines:
            match line["key"]:
                case "deletedFile":
                    del files[line["value"]["path"]]
                case "file":
                    content = base64.b64decode(line["value"]["content"])
                    files[line["value"]["path"]] = content
        oid = self.state.commit(files)
        url = f"{self.state.address}/{REPO}/commit/{oid}"
        self._send(200, {"success": True, "commitOid": oid, "commitUrl": url})

    def _send(self, code: int, row: Any, fault: str = "") -> None:
        body = json.dumps(row).encode()
        self.send_response(code)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(body)))
        if fault:
            self.send_header("X-Error-Code", fault)
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(body)

    def log_message(self, *args: object) -> None:
        pass


def _oid(content: bytes) -> str:
    """A blob's name in git."""
    return hashlib.sha1(b"blob %d\0" % len(content) + content).hexdigest()

"""Run as a process: serves a hub on this host, then asks `find_model` for its models.

The hub's address is read when huggingface_hub is imported, hence a process of its own.
stdin is the config that the hub serves; stdout gets a line a model.
"""

import http.server
import json
import os
import sys
import threading

COMMIT = "a" * 40
FAULTS = {
    "no/model": (404, "RepoNotFound"),
    "bare/model": (404, "EntryNotFound"),
    "gated/model": (403, "GatedRepo"),
    "sick/model": (503, ""),
}
CONFIG = sys.stdin.buffer.read()


class Hub(http.server.BaseHTTPRequestHandler):
    def do_GET(self) -> None:
        about = self.path.startswith("/api/")
        model = "/".join(self.path.removeprefix("/api/models").split("/")[1:3])
        code, fault = FAULTS.get(model, (200, ""))
        body = CONFIG
        if about and model in ("bare/model", "gated/model"):
            code = 200
        if about:
            body = json.dumps({"id": model, "sha": COMMIT, "siblings": []}).encode()
        elif self.path.endswith("/hf_quant_config.json") and model == "open/model":
            code, fault = 404, "EntryNotFound"
        self.send_response(code)
        self.send_header("X-Error-Code", fault)
        self.send_header("X-Repo-Commit", COMMIT)
        self.send_header("ETag", f'"{self.path.rpartition("/")[2]}"')
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        if self.command == "GET":
            self.wfile.write(body)

    do_HEAD = do_GET

    def log_message(self, *args: object) -> None:
        pass


def ask(name: str) -> None:
    from flytune.shapes.errors import FlytuneError
    from flytune.shapes.registry import find_model

    try:
        model = find_model(name)
        print(name, model.name, model.quantised)
    except FlytuneError as error:
        print(name, error, error.hint)


def main() -> None:
    server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Hub)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    os.environ["HF_ENDPOINT"] = f"http://127.0.0.1:{server.server_port}"
    for name in ("open", "no", "bare", "gated", "sick", "modelopt"):
        ask(f"{name}/model")
    server.shutdown()
    server.server_close()
    ask("open/model")
    ask("meta-llama/Llama-3.1-8B")


main()

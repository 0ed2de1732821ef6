"""The card of an export, and its upload to a hub that stands in on loopback: the library's own requests, no network."""

import base64
import json
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import pytest
import yaml

from ablate.addons.export.run import export
from ablate.cli import main

huggingface_hub = pytest.importorskip("huggingface_hub")
from export.cases import checkpoint  # noqa: E402

TOKEN = "hf_standin"


class Hub(BaseHTTPRequestHandler):
    """What `create_repo` and `upload_folder` ask for; every file is taken into the commit itself."""

    def do_POST(self):
        body = self.rfile.read(int(self.headers.get("Content-Length", 0)))
        hub = self.server
        hub.asked.append((self.path, self.headers.get("Authorization")))
        if hub.status != 200:
            return self.answer(hub.status, {"error": "You have read access only"})
        if self.path == "/api/repos/create":
            hub.created = json.loads(body)
            return self.answer(200, {"url": f"{hub.address}/me/tiny", "name": "me/tiny"})
        if self.path == "/api/validate-yaml":  # of the card
            return self.answer(200, {"warnings": [], "errors": []})
        if self.path.endswith("/preupload/main"):
            files = [
                {"path": file["path"], "uploadMode": "regular", "shouldIgnore": False}
                for file in json.loads(body)["files"]
            ]
            return self.answer(200, {"files": files})
        for line in map(json.loads, body.splitlines()):
            if line["key"] == "file":
                hub.files[line["value"]["path"]] = base64.b64decode(line["value"]["content"])
        return self.answer(200, {"commitUrl": f"{hub.address}/me/tiny/commit/1", "commitOid": "1", "hookOutput": ""})

    def do_GET(self):
        self.answer(404, {})

    def answer(self, status, content):
        data = json.dumps(content).encode()
        self.send_response(status)
        self.send_header("Content-Length", str(len(data)))
        self.end_headers()
        self.wfile.write(data)

    def log_message(self, *args):
        pass


@pytest.fixture
def hub(monkeypatch):
    server = ThreadingHTTPServer(("127.0.0.1", 0), Hub)
    server.asked, server.files, server.status, server.created = [], {}, 200, None
    server.address = f"http://127.0.0.1:{server.server_port}"
    monkeypatch.setattr("huggingface_hub.constants.ENDPOINT", server.address)
    monkeypatch.setenv("HF_TOKEN", TOKEN)
    monkeypatch.setenv("HF_HUB_DISABLE_XET", "1")
    thread = threading.Thread(target=server.serve_forever, args=(0.01,))
    thread.start()
    yield server
    server.shutdown()
    thread.join()
    server.server_close()


def test_an_export_is_pushed_as_it_lies_in_its_folder(hub, tmp_path, capsys):
    file, _ = checkpoint(tmp_path, {"norm": "mix"})
    folder = tmp_path / "out"
    assert main(["export", str(file), "--to", "safetensors", "--output", str(folder), "--push", "me/tiny"]) == 0
    assert hub.created["name"] == "tiny"
    assert hub.created.get("private", hub.created.get("visibility")) in (True, "private")
    assert hub.files == {path.name: path.read_bytes() for path in folder.iterdir()}
    assert {token for _, token in hub.asked} == {f"Bearer {TOKEN}"}
    assert f"pushed to {hub.address}/me/tiny" in capsys.readouterr().out
    assert TOKEN not in (folder / "README.md").read_text()


def test_a_refusal_of_the_hub_leaves_the_folder(hub, tmp_path, capsys):
    file, _ = checkpoint(tmp_path, {"norm": "pre"})
    hub.status = 403
    folder = tmp_path / "out"
    assert main(["export", str(file), "--to", "safetensors", "--output", str(folder), "--push", "me/tiny"]) == 2
    message = capsys.readouterr().err
    assert f"{folder} is written, but could not be pushed to me/tiny: " in message
    assert f"hf upload me/tiny {folder}" in message
    assert (folder / "model.safetensors").exists()


@pytest.mark.parametrize(
    ("name", "token", "message"), [("a/b/c", TOKEN, "OWNER/NAME"), ("me/tiny", "", "hf auth login")]
)
def test_what_cannot_be_pushed_is_told_before_the_export(name, token, message, hub, tmp_path, monkeypatch, capsys):
    monkeypatch.setattr("huggingface_hub.get_token", lambda: token or None)
    assert main(["export", "no-run", "--to", "hf", "--output", str(tmp_path / "out"), "--push", name]) == 2
    assert message in capsys.readouterr().err
    assert hub.asked == []


@pytest.mark.parametrize("form", ["hf", "safetensors", "consolidated"])
def test_a_card_says_what_the_model_is(form, tmp_path):
    file, model = checkpoint(
        tmp_path, {"norm": "mix", "data.kind": "text", "data.dataset": "owner/name", "data.seq_len": 21}
    )
    export(str(file), form, tmp_path / "out")
    card = (tmp_path / "out" / "README.md").read_text(encoding="utf-8")
    _, facts, text = card.split("---\n", 2)
    facts = yaml.safe_load(facts)
    assert facts["library_name"] == ("transformers" if form == "hf" else "ablate")
    assert facts.get("pipeline_tag") == ("text-generation" if form == "hf" else None)
    assert (facts["tags"], facts["datasets"]) == (["ablate", "mix"], ["owner/name"])
    assert f"| model | llama, 4 layers, width 32, {model.parameter_count():,} parameters |" in text
    assert f"3 updates, {3 * 16 * 21:,} tokens; adamw, learning rate 0.001, schedule cosine, seed 0" in text
    settings = yaml.safe_load(text.partition("```yaml\n")[2].partition("```")[0])
    assert settings["norm"]["kind"] == "mix"

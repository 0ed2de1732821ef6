"""Optuna's dashboard on the studies of a sweep: it shows them, to this machine, and changes none."""

import json

import pytest

from ablate.cli import dashboard, main
from ablate.scheduler.storage import open_storage, storage_url
from ablate.scheduler.studies import list_studies


@pytest.fixture
def ask(swept):
    """ask(path, method, host) -> (status, body)."""
    app = dashboard.build_app("127.0.0.1", None)

    def request(path, method="GET", host="127.0.0.1:5000"):
        told = []
        environ = {
            "REQUEST_METHOD": method, "PATH_INFO": path, "HTTP_HOST": host, "QUERY_STRING": "", "SERVER_NAME": "x",
            "SERVER_PORT": "5000", "SERVER_PROTOCOL": "HTTP/1.1", "wsgi.url_scheme": "http",
        }  # fmt: skip
        body = b"".join(app(environ, lambda status, headers, *rest: told.append(status)))
        return told[0][:3], body.decode()

    return request


def test_the_studies_are_shown(ask):
    status, body = ask("/api/studies")
    known = set(list_studies(open_storage(storage_url())))
    assert status == "200"
    assert {study["study_name"] for study in json.loads(body)["study_summaries"]} == known


def test_nothing_is_changed(ask):
    before = len(list_studies(open_storage(storage_url())))
    for method in ("DELETE", "POST", "PUT"):
        status, body = ask("/api/studies/1", method)
        assert status == "405"
        assert "read-only" in body
    assert len(list_studies(open_storage(storage_url()))) == before


@pytest.mark.parametrize("host", ["evil.example", "evil.example:5000", ""])
def test_no_other_host_is_answered(ask, host):
    assert ask("/api/studies", host=host)[0] == "403"
    assert ask("/api/studies", host="localhost:5000")[0] == "200"


def test_without_studies_the_way_to_one_is_said(store, capsys):
    assert main(["ui", "--studies"]) == 2
    assert "There is no study yet" in capsys.readouterr().err


def test_a_storage_is_refused_where_it_would_not_be_used(store, capsys):
    assert main(["ui", "--storage", "sqlite:///other.db"]) == 2
    assert "needs --studies" in capsys.readouterr().err

"""No password of a storage or a tracking address is in what is printed, stored or on the command line of a child."""

import contextlib
import os
import shlex
import signal
import stat
import sys
import threading
import time
from pathlib import Path

import pytest
import sqlalchemy
import yaml
from forked import start_server

from ablate import tracking
from ablate.cli import main
from ablate.cli.output import repeat_command
from ablate.scheduler.storage import open_storage
from ablate.tracking.databases import add_driver

PASSWORD = "ge%40heimlich%20wort"  # an @ and a blank, as an address has them
MARK = "heimlich"  # in each form of it
SWEEP = {
    "name": "secret",
    "arms": {"pre": {"norm": "pre"}, "post": {"norm": "post"}},
    "search": {"optimizer.lr": [1e-3]},
    "sampler": "grid",
}


@pytest.fixture
def addresses(postgres, store, tmp_path, monkeypatch, tiny_settings):
    """(of the storage, of MLflow's database), both with the password; the server takes any."""
    start_server()  # of workers, before it could inherit the address of this test
    with_password = [postgres.database().replace("postgres@", f"postgres:{PASSWORD}@") for _ in range(2)]
    storage, uri = (address.replace("+psycopg2", "") for address in with_password)
    monkeypatch.setenv("MLFLOW_TRACKING_URI", uri)
    monkeypatch.chdir(tmp_path)
    (tmp_path / "secret.yaml").write_text(yaml.safe_dump({**SWEEP, "experiment": tiny_settings}))
    (store / "mlflow.db").unlink()  # of the fixture
    return storage, uri


def list_cells(url):
    """Everything that the tables of a database hold, as text."""
    engine = sqlalchemy.create_engine(add_driver(url))
    with engine.connect() as connection:
        for table in sqlalchemy.inspect(engine).get_table_names():
            for row in connection.execute(sqlalchemy.text(f'SELECT * FROM "{table}"')):
                yield f"{table}: {tuple(row)}"
    engine.dispose()


def list_children(parent):
    """The command lines of the processes that descend from `parent`."""
    found = {}
    for folder in Path("/proc").glob("[0-9]*"):
        with contextlib.suppress(OSError):
            above = int((folder / "stat").read_text().rpartition(")")[2].split()[1])
            found[int(folder.name)] = above, (folder / "cmdline").read_text().replace("\0", " ")
    descended = {parent}
    while more := {pid for pid, (above, _) in found.items() if above in descended} - descended:
        descended |= more
    return [found[pid][1] for pid in descended - {parent}]


def test_the_verbs_that_take_addresses(addresses, store, tmp_path, capfd):
    storage, uri = addresses
    for words in (
        ["sweep", "secret.yaml", "--dry-run"],
        ["sweep", "secret.yaml"],
        ["sweep", "secret.yaml", "trainer.max_steps=7"],  # refused: another sweep of that name
        ["status", "secret"],
        ["status", "--json"],
        ["status", "nosuch"],
        ["report", "secret"],
        ["report", "secret", "--json"],
        ["evaluate", "sweep:nosuch", "--tasks", "piqa"],
        ["align", "sweep:nosuch/pre", "--method", "dpo", "--pairs", "none.json"],
    ):
        assert main([*words, "--storage", storage]) in (0, 2)
    printed = capfd.readouterr()
    assert "Traceback" not in printed.err
    assert "secret was started with another sweep file" in printed.err
    assert MARK not in printed.out + printed.err
    for file in store.rglob("*"):
        assert MARK not in file.name
        assert not file.is_file() or MARK.encode() not in file.read_bytes(), file
    cells = [cell for url in (storage, uri) for cell in list_cells(url)]
    assert len(cells) > 100
    assert not [cell for cell in cells if MARK in cell]


def test_the_command_lines_of_mlflows_server(addresses, capfd, monkeypatch):
    tracking.client()
    seen = []

    def look_then_stop():
        deadline = time.monotonic() + 120
        while not any("uvicorn" in line or "gunicorn" in line for line in seen) and time.monotonic() < deadline:
            seen[:] = list_children(os.getpid())
            time.sleep(0.5)
        os.kill(os.getpid(), signal.SIGTERM)  # Ctrl-C is ignored by what runs in the background

    from cli.test_ui import free_port

    watcher = threading.Thread(target=look_then_stop)
    watcher.start()
    with contextlib.suppress(KeyboardInterrupt):
        assert main(["ui", "--port", str(free_port())]) == 0
    watcher.join()
    assert any("mlflow server" in line for line in seen)
    assert not [line for line in seen if MARK in line]
    assert MARK not in "".join(capfd.readouterr())


@pytest.mark.parametrize(
    "form", ["postgresql://me:{}@nowhere.invalid/db", "postgresql://nowhere.invalid/db?password={}"]
)
@pytest.mark.parametrize("password", ["geheim", "ge%40heim", "ge%20heim", "ge:heim", "12:heim"])
def test_a_server_that_is_away(store, form, password, capfd, monkeypatch):
    address = form.format(password)
    assert main(["status", "--storage", address]) == 2
    monkeypatch.setenv("MLFLOW_TRACKING_URI", address)
    tracking.client.cache_clear()
    assert main(["ui"]) == 2
    monkeypatch.setenv("MLFLOW_TRACKING_URI", f"http://me:{password}@127.0.0.1:9")
    tracking.client.cache_clear()
    assert main(["ui"]) == 2
    with pytest.raises(SystemExit):
        main(["list", "norms", "--storage", "postgresql://me:geheim@host/db"])
    told = "".join(capfd.readouterr())
    assert told.count("cannot be used") == 3
    assert "nowhere.invalid" in told
    assert MARK not in told


def test_the_command_that_goes_on(monkeypatch):
    words = ["ablate", "sweep", "my sweep.yaml", "--storage", "postgresql://me:geheim@host/db", "--fresh"]
    monkeypatch.setattr(sys, "argv", words)
    command = shlex.split(repeat_command("sweep"))
    assert command == ["ablate", "sweep", "my sweep.yaml", "--storage", "postgresql://me:***@host/db"]
    monkeypatch.setattr(sys, "argv", ["ablate", "sweep", "a.yaml", "--storage=postgresql://me:ge%40heim@host/db"])
    assert MARK not in repeat_command("sweep")


def test_stores_are_for_their_user_alone(tmp_path, monkeypatch):
    monkeypatch.setenv("ABLATE_STORE", str(tmp_path / "mine"))
    monkeypatch.delenv("MLFLOW_TRACKING_URI", raising=False)
    tracking.client.cache_clear()
    before = os.umask(0)
    try:
        tracking.client()
        tracking.open_folder("runs")
        open_storage(f"sqlite:///{tmp_path}/mine/optuna.db")
        open_storage(f"sqlite:///{tmp_path}/elsewhere.db")
    finally:
        os.umask(before)
        tracking.client.cache_clear()
    modes = {path.name: stat.S_IMODE(path.stat().st_mode) for path in tmp_path.rglob("*")}
    assert {modes[name] for name in ("mine", "runs")} == {0o700}
    databases = {name: mode for name, mode in modes.items() if ".db" in name and not name.endswith(".lock")}
    assert {"mlflow.db", "optuna.db", "elsewhere.db"} <= set(databases)
    assert set(databases.values()) == {0o600}

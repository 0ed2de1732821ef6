"""A small sweep, and a PostgreSQL server of the tests' own, where Debian's package is installed."""

import os
import shutil
import socket
import subprocess
import tempfile
from pathlib import Path

import pytest
import sqlalchemy
from scheduler.small import run_here, spec_tree, table

from ablate.sweeps.spec.sweep import Sweep

USER = "postgres"  # who runs it where the tests are root, which PostgreSQL refuses


class Postgres:
    """A server on a free port of the loopback, with its files in a temporary folder."""

    def __init__(self, programs: Path) -> None:
        self.programs, self.databases = programs, 0
        self.root = os.getuid() == 0
        self.folder = Path(tempfile.mkdtemp(prefix="ablate-postgres-"))
        if self.root:
            shutil.chown(self.folder, USER, USER)
        with socket.socket() as probe:
            probe.bind(("127.0.0.1", 0))
            self.port = probe.getsockname()[1]
        self._run("initdb", "--no-sync", "--auth=trust", f"--username={USER}", f"--pgdata={self.data}")
        self.control("start")

    @property
    def data(self):
        return self.folder / "data"

    def control(self, what):
        """start, stop or restart, and wait for it; `restart` is that of an administrator who waits for nobody."""
        options = f"-p {self.port} -c listen_addresses=127.0.0.1 -c fsync=off -k {self.folder}"
        log = self.folder / "log"
        self._run("pg_ctl", what, "--wait", "--mode=fast", f"--pgdata={self.data}", f"--log={log}", "-o", options)

    def database(self):
        """The URL of a new, empty database."""
        self.databases += 1
        name = f"ablate{self.databases}"
        address = f"postgresql+psycopg2://{USER}@127.0.0.1:{self.port}"
        engine = sqlalchemy.create_engine(f"{address}/postgres", isolation_level="AUTOCOMMIT")
        with engine.connect() as connection:
            connection.execute(sqlalchemy.text(f"CREATE DATABASE {name}"))
        engine.dispose()
        return f"{address}/{name}"

    def close(self):
        self.control("stop")
        shutil.rmtree(self.folder)

    def _run(self, program, *arguments):
        command = [str(self.programs / program), *arguments]
        if self.root:
            command = ["setpriv", f"--reuid={USER}", f"--regid={USER}", "--clear-groups", *command]
        done = subprocess.run(command, cwd=self.folder, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True)
        assert done.returncode == 0, done.stderr


@pytest.fixture(scope="session")
def postgres():
    """A PostgreSQL server."""
    pytest.importorskip("psycopg2")
    on_path = shutil.which("initdb")
    folders = (
        [Path(on_path).resolve().parent] if on_path else sorted(Path("/usr/lib/postgresql").glob("*/bin"), reverse=True)
    )
    programs = next((f for f in folders if (f / "initdb").exists() and (f / "pg_ctl").exists()), None)
    if programs is None:
        pytest.skip("PostgreSQL is not installed: apt-get install postgresql")
    if os.getuid() == 0 and not shutil.which("setpriv"):
        pytest.skip("PostgreSQL cannot run as root, and there is no setpriv to become another user")
    server = Postgres(programs)
    yield server
    server.close()


@pytest.fixture
def spec(tiny_settings):
    def build(**more):
        return Sweep.from_tree(spec_tree(tiny_settings, **more))

    return build


UNDISTURBED = []


@pytest.fixture
def undisturbed(store, spec):
    """The table of the sweep that nobody disturbs, which is run once for all tests."""
    if not UNDISTURBED:
        UNDISTURBED.append(table(run_here(spec(name="undisturbed"))))
    return UNDISTURBED[0]


DEADLY = """
import os, signal
from pathlib import Path
from typing import Literal
import torch
from ablate.norms import NormLayer, norm_layers

class Layer(torch.nn.Module):
    def forward(self, x):
        marker = Path(__file__).with_suffix(".reached")
        if torch.is_grad_enabled() and x.requires_grad and not marker.exists():
            if "SIGNAL" == "STOP":
                marker.touch()
            os.kill(os.getpid(), signal.SIGSIGNAL)
        return x

@norm_layers.register
class Deadly(NormLayer):
    kind: Literal["deadly"] = "deadly"

    def build(self, dim):
        return Layer()
"""


@pytest.fixture
def deadly(tmp_path, registries):
    """deadly(signal): a plugin with the norm layer `deadly`, which sends its process that signal in its first update:
    KILL, or STOP, which only the first process gets."""

    def write(name):
        file = tmp_path / "deadly.py"
        file.write_text(DEADLY.replace("SIGNAL", name))
        return str(file)

    return write

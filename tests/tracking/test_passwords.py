"""`redact`: no password of an address is in what is left of a text, and the rest of it is."""

import pytest

from ablate.config.errors import StoreError
from ablate.tracking import databases, redact, tracking_uri
from ablate.tracking.databases import add_driver, remember_address

FORMS = [
    "postgresql://me:{}@host:5432/db",
    "postgresql://:{}@host/db",
    "postgres://me:{}@host",
    "mysql+pymysql://me:{}@host/db?charset=utf8",
    "postgresql://me@host/db?sslmode=require&password={}",
    "mysql://host/db?passwd={}&charset=utf8",
    "http://me:{}@host:5000",
    "https://:{}@host/mlflow",
]
PASSWORDS = ["geheim", "ge:heim", "12:heim", "ge%40heim", "ge%20heim", "ge%2Fheim", "ge?heim", "ge'heim", 'ge"im']


@pytest.fixture(autouse=True)
def _forget(monkeypatch):
    monkeypatch.setattr(databases, "_passwords", set())


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("password", PASSWORDS)
def test_no_address_that_was_given_is_shown_with_its_password(form, password):
    address = remember_address(form.format(password))
    for text in (address, f"The storage {address} cannot be used: it is away.", f"('{address}', 3) of me@example.org"):
        shown = redact(text)
        assert password not in shown
        assert not {"heim", "geheim", "im"} & set(shown.replace("@", " ").split())
        assert "***" in shown
        assert ("host" in shown) == ("host" in text)
        assert redact(shown) == shown
    assert redact(address) == form.format("***")


@pytest.mark.parametrize(
    "address",
    [form.format(password) for form in FORMS for password in ("ge@heim", "@geheim", "ge heim", "12 heim")]
    + [form.format(password) for form in (*FORMS[:4], *FORMS[6:]) for password in ("ge/heim", "12/heim")]
    + [f"{address}/db" for address in ("postgresql//me:geheim@host", "postgresql:/me:geheim@host", "me:geheim@host")],
)
def test_a_malformed_address_is_refused_and_not_shown(address, monkeypatch):
    with pytest.raises(StoreError, match=r"The address of the Optuna storage is malformed: .* as %40") as caught:
        add_driver(address)
    assert "heim" not in str(caught.value)
    monkeypatch.setenv("MLFLOW_TRACKING_URI", address)
    with pytest.raises(StoreError, match="The address of the MLflow store is malformed"):
        tracking_uri()


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("password", PASSWORDS)
def test_no_other_address_is_either(form, password):
    assert redact(f"see {form.format(password)} there") == f"see {form.format('***')} there"


def test_what_a_driver_makes_of_an_address():
    add_driver("postgresql://me:ein%20langes%20Wort@host/db")
    assert redact("password ein langes Wort of me is wrong") == "password *** of me is wrong"
    assert redact("password ein%20langes%20Wort of me is wrong") == "password *** of me is wrong"
    assert redact("postgresql+psycopg2://me:se%40cret%3Aword@host/db") == "postgresql+psycopg2://me:***@host/db"


@pytest.mark.parametrize(
    "text",
    [
        "http://127.0.0.1:5000/#/experiments/own@2",
        "MLflow http://host:5000 of own@2",
        "postgresql://host:5432/db of own@2: it is away",
        "postgresql://me@host/db of own@2",
        "sqlite:////home/me/a:b@c.db",
        "s3://bucket/a@b/c:d",
        "no address: me@example.org",
        "postgresql of the user postgres",
    ],
)
def test_what_has_no_password_stays(text):
    remember_address("postgresql://postgres:postgres@host/postgres")  # which is hidden where it is one
    assert redact(text) == text


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("x" * 300_000, None),
        ("http://host/" + "?" * 300_000, None),
        ("://" * 100_000, None),
        ("http://me:" + "a " * 150_000, None),
        ("http://me:" + "1" * 300_000, None),
        ("+." * 150_000, None),
        ("://me:a b\n" * 30_000, None),
        ("x" * 300_000 + " postgresql://me:geheim@host", "x" * 300_000 + " postgresql://me:***@host"),
        ("http://h/" + "?" * 300_000 + "&token=geheim", "http://h/" + "?" * 300_000 + "&token=***"),
        ("http://h/?a b?password=ge?heim&x=1", "http://h/?a b?password=ge?heim&x=1"),
        ("http://h/?a?password=ge?heim&x=1", "http://h/?a?password=***&x=1"),
    ],
)
def test_its_time_is_linear(text, shown):
    """Where it is quadratic, as it was, each takes minutes to hours."""
    assert redact(text) == (text if shown is None else shown)

"""`redact`: no password of an address is in what is left of a text, and the rest of it is."""

import pytest

from ablate.tracking import databases, redact
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
PASSWORDS = [
    "geheim",
    "ge:heim",
    "ge@heim",
    "@geheim",
    "ge heim",
    "12 heim",
    "ge/heim",
    "ge%40heim",
    "ge'heim",
    'ge"im',
]


@pytest.fixture(autouse=True)
def _forget(monkeypatch):
    monkeypatch.setattr(databases, "_addresses", set())


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


@pytest.mark.parametrize("form", ["postgresql//me:{}@host/db", "postgresql:/me:{}@host", "me:{}@host/db"])
@pytest.mark.parametrize("password", PASSWORDS)
def test_of_a_misspelt_address_all_in_front_of_the_host_is_hidden(form, password):
    address = remember_address(form.format(password))
    shown = redact(f"Could not parse {address}.")
    assert shown.startswith("Could not parse ***@host")
    assert "heim" not in shown


@pytest.mark.parametrize("form", FORMS[:4])
@pytest.mark.parametrize("password", [*PASSWORDS[:5], *PASSWORDS[6:]])
def test_no_other_address_is_either(form, password):
    assert redact(f"see {form.format(password)} there") == f"see {form.format('***')} there"


def test_what_a_driver_makes_of_an_address():
    add_driver("postgresql://me:se@cret:word@host/db")
    for text in (
        'could not translate host name "cret:word@host" to address',
        "invalid literal for int() with base 10: 'word@host'",
        "postgresql+psycopg2://me:se%40cret%3Aword@host/db",
    ):
        assert not {"cret", "word"} & set(redact(text).replace("@", " ").replace(":", " ").replace('"', " ").split())
    remember_address("postgresql://me:ein%20langes%20Wort@host/db")
    assert redact("password ein langes Wort of me is wrong") == "password *** of me is wrong"


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

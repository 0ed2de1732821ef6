"""What README, AGENTS, CONTRIBUTING and docs/ say works as written: commands, files, links, and the site they make."""

import ast
import json
import re
import shlex
import shutil
from pathlib import Path

import pytest
import yaml

from ablate.cli import build_parser, main
from ablate.config.yaml import parse_overrides
from ablate.experiment.tree import Experiment
from ablate.sweeps.spec.files import load_sweeps
from ablate.sweeps.spec.library import find_sweep_file
from ablate.sweeps.spec.sweep import Sweep
from docs.pages import BUILT, verbs
from docs.pages.notebook import build_notebook

ROOT = Path(__file__).parents[1]
DOCS = ROOT / "docs"
PAGES = [*(ROOT / name for name in ("README.md", "AGENTS.md", "CONTRIBUTING.md")), *sorted(DOCS.rglob("*.md"))]
TEXTS = {str(page.relative_to(ROOT)): page.read_text(encoding="utf-8") for page in PAGES}
BUILT_TEXTS = {  # examples of --help, and the commands of the papers' tables, which the site has on pages of its own
    "reference/cli.md": verbs.build_page(),
    "papers.md": "".join(
        "```bash\n" + "".join(f"{command}\n" for command in part.get("commands", ())) + "```\n"
        for paper in yaml.safe_load((DOCS / "papers.yaml").read_text(encoding="utf-8"))
        for part in paper["parts"]
    ),
}
BLOCK = re.compile(r"^```(\w*)(?: title=\"([^\"]+)\")?\n(.*?)^```$", re.M | re.S)
COMMAND = re.compile(r"^(?:\$ )?(?:torchrun .* -m )?(ablate [a-z]+(?: .*)?)$")


def list_blocks(text, language=None):
    """(language, title, body) of the blocks of a page."""
    return [found for found in BLOCK.findall(text) if language in (None, found[0])]


def list_lines(text, *languages):
    """The lines of the blocks in these languages, those that end in a backslash with what follows."""
    bodies = [body for language, _, body in list_blocks(text) if language in languages]
    indented = re.findall(r"^    (.*)$", re.sub(BLOCK, "", text), re.M)
    return [line for body in bodies for line in re.sub(r"\\\n\s*", "", body).splitlines()] + indented


def list_commands(*languages):
    texts = {**TEXTS, **BUILT_TEXTS}
    lines = ((page, COMMAND.match(line)) for page, text in texts.items() for line in list_lines(text, *languages))
    return list(dict.fromkeys((page, found.group(1)) for page, found in lines if found))


COMMANDS = list_commands("bash")
PLACEHOLDERS = ("FILE.yaml", "my.yaml", "experiment.yaml")
"""Sweep files of whoever reads, in AGENTS and in --help."""


def parse(command):
    """What the command line makes of a command."""
    words = shlex.split(command.partition(" > ")[0], comments=True)
    given, rest = build_parser().parse_known_args(words[1:])
    assert not rest or (hasattr(given, "words") and not any(word.startswith("-") for word in rest)), rest
    if rest:
        given.words += rest
    return given


def test_docs_stay_small():
    """What is committed: 5 MB, 70,000 words."""
    files = [file for file in DOCS.rglob("*") if file.is_file() and "__pycache__" not in file.parts]
    assert sum(file.stat().st_size for file in files) <= 5_000_000
    assert sum(len(text.split()) for page, text in TEXTS.items() if page.startswith("docs/")) <= 70_000


def test_how_to_pages_are_few_and_short():
    pages = {Path(page).stem: text for page, text in TEXTS.items() if page.startswith("docs/how-to/")}
    del pages["index"]  # the list of them
    assert len(pages) <= 20
    assert [name for name, text in pages.items() if len(text.split()) > 600] == []


def test_there_are_commands():
    assert len(COMMANDS) > 150
    assert {page for page, _ in COMMANDS} >= {"README.md", "AGENTS.md", "docs/tutorial.md", "docs/how-to/sweep.md"}


@pytest.fixture
def example_files(registries, tmp_path, monkeypatch):
    """write(page): the current folder has the files that a page shows with a title, and the two that several use."""
    monkeypatch.chdir(tmp_path)

    def write(page):
        (tmp_path / "sweeps").symlink_to(ROOT / "sweeps")
        for text in (TEXTS["docs/how-to/extend.md"], TEXTS["docs/how-to/sweep.md"], TEXTS.get(page, "")):
            for _, title, body in list_blocks(text):
                if title:
                    (tmp_path / title).parent.mkdir(exist_ok=True)
                    (tmp_path / title).write_text(body, encoding="utf-8")

    return write


@pytest.mark.parametrize(("page", "command"), COMMANDS, ids=[f"{page}: {command[:60]}" for page, command in COMMANDS])
def test_commands_are_understood(page, command, example_files):
    """Each is parsed, its settings are validated, and its sweep is read as the verb would read it. FOLDER is that of a
    page."""
    example_files(page)
    given = parse(command.replace("FOLDER/", f"{(ROOT / page).parent}/"))
    words = [*filter(None, [getattr(given, "file", None), *getattr(given, "words", [])])]
    named = words[0] if words and "=" not in words[0] else None
    if given.verb in ("sweep", "plan") and named and named not in PLACEHOLDERS:
        file, part = find_sweep_file(named)
        size, factor = getattr(given, "size", None) or part, getattr(given, "scale", 1.0)
        load_sweeps(file, parse_overrides(words[1:]), size=size, factor=factor)
    elif given.verb in ("train", "config", "plan") and not getattr(given, "resume", None):
        Experiment.from_mapping(parse_overrides(words[bool(named) :]))


@pytest.mark.parametrize(("page", "command"), list_commands("text"))
def test_commands_in_examples_of_output_are_parsed(page, command):
    parse(command)


@pytest.mark.parametrize("page", ["docs/how-to/train.md", "docs/tutorial.md"])
def test_the_example_of_mistakes_is_what_is_printed(page, capsys):
    (body,) = [body for language, _, body in list_blocks(TEXTS[page]) if "optimizer.lrr" in body]
    command, _, printed = body.partition("\n")
    assert main(shlex.split(command)[2:]) == 2
    assert capsys.readouterr().err == printed


@pytest.mark.parametrize(("page", "title", "body"), [
    (page, title, body) for page, text in TEXTS.items() for _, title, body in list_blocks(text, "yaml")
])  # fmt: skip
def test_yaml_is_a_sweep_or_parts_of_one(page, title, body, example_files):
    example_files(page)
    if title:
        assert load_sweeps(title)[0].name.startswith(Path(title).stem)  # of a file with sizes, NAME-SIZE
    for part in re.split(r"\n(?=\S)", body):  # a key may stand there several times, as alternatives
        assert set(yaml.safe_load(part) or {}) <= set(Sweep.model_fields), part


@pytest.mark.parametrize("page", [page for page, text in TEXTS.items() if "```python" in text])
def test_python_is_python(page):
    for _, _, body in list_blocks(TEXTS[page], "python"):
        ast.parse(body)


@pytest.mark.parametrize("page", [page for page, text in TEXTS.items() if 'my_norm.py"' in text])
def test_a_norm_of_ones_own_is_one(page, example_files):
    example_files(page)
    kinds = re.findall(r'kind: Literal\["(\w+)"\]', Path("my_norm.py").read_text())
    for family in ("llama", "vit"):
        experiment = Experiment.from_mapping({"plugins": "my_norm.py", "model": family, "norm": kinds[0]})
        assert experiment.norm.kind == kinds[0]


def test_the_notebook_runs(store, tmp_path, monkeypatch, capsys):
    """Its code cells in one namespace, as a kernel would run them."""
    monkeypatch.chdir(tmp_path)
    notebook = json.loads(build_notebook(DOCS / "how-to" / "python.md"))
    namespace = {"__name__": "notebook"}
    for cell in notebook["cells"]:
        if cell["cell_type"] == "code":
            exec("".join(cell["source"]), namespace)
    told = capsys.readouterr().out
    assert "norm.alpha: must be less than or equal to 1 (given: 1.5)" in told
    assert "completed 20 " in told
    assert re.search(r"^update 1/20: loss \d", told, re.M)
    assert "sweep from-python: 2 arms, runs of 20 updates" in told
    assert len(re.findall(r"^\[[1-4]/4\] (pre|post) .* completed, val/loss ", told, re.M)) == 4
    assert len(re.findall(r"^(pre|post) [01] \{'optimizer.lr': 0.0", told, re.M)) == 4
    assert namespace["trained"].run_id == namespace["result"].run_id
    assert (namespace["findings"].folder / "report.html").exists()
    again = namespace["sweep"](namespace["spec"], progress=False)
    assert [*again.runs] == [*namespace["record"].runs]
    assert capsys.readouterr().out == ""


def test_the_images_of_the_tutorial_can_be_trained_on(example_files, tmp_path):
    example_files("docs/tutorial.md")
    exec((tmp_path / "write_digits.py").read_text(), {})
    data = Experiment.from_mapping({"model": "vit-digits", "data": "image_folder", "data.root": "digits"}).data
    assert data.load(tmp_path / "cache").classes == 10


@pytest.mark.parametrize("page", TEXTS)
def test_links_lead_somewhere(page):
    """Those between pages of docs/, with their anchors, are checked by the strict build too."""
    for target in re.findall(r"\]\(([^)#]+)[^)]*\)", re.sub(BLOCK, "", TEXTS[page])):
        assert target.startswith("https://") or (ROOT / page).parent.joinpath(target).exists(), target


@pytest.mark.parametrize("page", TEXTS)
def test_what_else_can_be_run_exists(page):
    """Targets of make, benchmarks with their options, extras."""
    text = TEXTS[page]
    targets = re.findall(r"^([a-z]+):", (ROOT / "Makefile").read_text(), re.M)
    for target in [*re.findall(r"`make ([a-z]+)", text), *re.findall(r"^ *make ([a-z]+)", text, re.M)]:
        assert target in targets
    sources = "".join(file.read_text() for file in (ROOT / "benchmarks").glob("*.py"))
    for file, options in re.findall(r"python (benchmarks/\w+\.py)([^`\n]*)", text):
        assert (ROOT / file).exists()
        assert all(f'"{option}"' in sources for option in re.findall(r"--[a-z-]+", options)), options
    extras = re.findall(r"^([a-z]+) = \[", (ROOT / "pyproject.toml").read_text(), re.M)
    assert set(re.findall(r"ablate\[(\w+)\]", text)) <= set(extras)


def test_paths_of_pages_in_the_code_exist():
    """CHANGELOG may name pages that have moved."""
    folders = [ROOT / name for name in ("ablate", "benchmarks", "sweeps", "tests")]
    files = [file for folder in folders for file in folder.rglob("*") if file.suffix in (".py", ".yaml", ".j2")]
    for file in [
        *files,
        *(ROOT / name for name in ("README.md", "AGENTS.md", "CONTRIBUTING.md")),
        ROOT / "Makefile",
        ROOT / "pyproject.toml",
    ]:
        for path in re.findall(r"\bdocs/[\w/-]+\.(?:md|png|ipynb)", file.read_text(encoding="utf-8")):
            assert (ROOT / path).exists(), f"{file}: {path}"


def test_the_site_is_built_without_a_warning_and_loads_nothing_from_elsewhere(tmp_path, monkeypatch):
    monkeypatch.setenv("NO_MKDOCS_2_WARNING", "1")
    commands, config = pytest.importorskip("mkdocs.commands.build"), pytest.importorskip("mkdocs.config")
    pytest.importorskip("material")
    pytest.importorskip("mkdocstrings")
    site = tmp_path / "site"
    commands.build(config.load_config(str(ROOT / "mkdocs.yml"), site_dir=str(site)))  # strict: warnings are errors
    pages = [page for page in site.rglob("*.html") if page.name != "404.html"]
    sources = [page for page in DOCS.rglob("*.md") if page.name != "notes.md"]  # those are parts of pages
    assert len(pages) == len(sources) + sum(file.endswith(".md") for file in BUILT)
    python = (site / "reference" / "python.html").read_text(encoding="utf-8")
    assert 'id="ablate.train"' in python
    assert "A run that diverges, is pruned or is interrupted is a result" in python
    for page in pages:
        text = page.read_text(encoding="utf-8")
        loaded = re.findall(r"<(?:script|img|iframe)[^>]* src=\"?([^\s\">]+)|<link[^>]* href=\"?([^\s\">]+)", text)
        assert not [address for pair in loaded for address in pair if "//" in address], page.name
        assert "javascripts/iframe-worker.js" in text, page.name
    name, _, index = (site / "search" / "search_index.js").read_text(encoding="utf-8").partition(" = ")
    assert name == "var __index"  # the search of a page from a file reads this script
    assert {"how-to/sweep.html", "reference/cli.html"} <= {entry["location"] for entry in json.loads(index)["docs"]}
    shutil.rmtree(site)

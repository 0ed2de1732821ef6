"""Questions of SQuAD: two forms, and what cannot be scored."""

import pytest

from ablate.addons.papers.spans.squad import SpanQuestion, flatten_articles, parse_questions
from ablate.config.errors import DataError

CONTEXT = "Denver beat Carolina 24-10 in Santa Clara."


def row(name="a", question="Who won?", context=CONTEXT, text=("Denver",), start=(0,), **more):
    return {
        "id": name,
        "question": question,
        "context": context,
        "answers": {"text": [*text], "answer_start": [*start]},
        **more,
    }


def test_the_two_forms_are_the_same_questions():
    qas = [
        {"id": "a", "question": "Who won?", "answers": [{"text": "Denver", "answer_start": 0}]},
        {
            "id": "b",
            "question": "Where?",
            "answers": [{"text": "Santa Clara", "answer_start": 30}, {"text": "in Santa Clara", "answer_start": 27}],
        },
    ]
    articles = [{"title": "t", "paragraphs": [{"context": CONTEXT, "qas": qas}]}]
    hub = [row(), row("b", "Where?", text=("Santa Clara", "in Santa Clara"), start=(30, 27))]
    expected = [
        SpanQuestion("a", "Who won?", CONTEXT, ("Denver",), (0,)),
        SpanQuestion("b", "Where?", CONTEXT, ("Santa Clara", "in Santa Clara"), (30, 27)),
    ]
    assert parse_questions(flatten_articles(articles), "a file") == parse_questions(hub, "a file") == expected


FAULTS = {
    "an answer beyond the context: w ('Denver' at 40 of 42 characters)": row("w", start=(40,)),
    "an answer beyond the context: w ('Denver' at -6 of 42 characters)": row("w", start=(-6,)),
    "an answer that is not at its answer_start: w ('Denver'; at 1 is 'enver ')": row("w", start=(1,)),
    "an answer that is not at its answer_start: w ('denver'; at 0 is 'Denver')": row("w", text=("denver",)),
    "no answer: w": row("w", text=(), start=()),
    "is_impossible, which SQuAD v1.1 does not have: w": row("w", text=(), start=(), is_impossible=True),
    "an answer without text, or without a whole number as answer_start: w": row("w", text=("",)),
    "answers that are not two lists of equal length, text and answer_start: w": row("w", start=(0, 1)),
    "no text in question and context: w": row("w", " ", ""),
    "the id of an earlier question: a": row("a"),
}


@pytest.mark.parametrize("text", FAULTS)
def test_a_question_that_cannot_be_scored_is_told_with_its_id(text):
    with pytest.raises(DataError) as error:
        parse_questions([row(), FAULTS[text]], "squad under here")
    assert str(error.value) == (
        f"1 of the 2 questions of squad under here cannot be scored. Correct or remove them.\n1 with {text}"
    )


def test_all_faults_are_told_at_once_and_counted():
    rows = [row("good"), *(row(f"none{n}", text=(), start=()) for n in range(5)), row("late", start=(99,))]
    with pytest.raises(DataError) as error:
        parse_questions(rows, "a file")
    assert str(error.value).splitlines() == [
        "6 of the 7 questions of a file cannot be scored. Correct or remove them.",
        "5 with no answer: none0, none1, none2 and 2 more",
        "1 with an answer beyond the context: late ('Denver' at 99 of 42 characters)",
    ]


def test_no_questions():
    with pytest.raises(DataError, match="no questions in a file"):
        parse_questions([], "a file")


@pytest.mark.parametrize(
    "article", ["text", {"title": "t"}, {"paragraphs": [{"qas": [{}]}]}, {"paragraphs": [{"context": "c", "qas": [1]}]}]
)
def test_articles_of_another_form(article):
    with pytest.raises(ValueError, match="article 2 of its data is not in the form of SQuAD"):
        list(flatten_articles([{"paragraphs": []}, article]))

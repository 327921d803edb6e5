"""What a row's outcome means, and the closed set of names for why there is no answer."""

import itertools

import pytest

from dagster_llmbatch.core.plan import TOO_LARGE
from dagster_llmbatch.core.verdicts import ANSWER, ERROR_NAMES, STATUSES, judge
from dagster_llmbatch.providers.contract import ErrorCategory, OutcomeKind
from dagster_llmbatch.schemas.output import OutputSchema

CATEGORIES = {category.value for category in ErrorCategory}
SCHEMA = {"type": "object", "properties": {"n": {"type": "integer"}}, "required": ["n"], "additionalProperties": False}
TEXTS = [None, "", '{"n": 1}', '```json\n{"n": 1}\n```', "prose", '{"n": "x"}']


def test_every_name_is_in_the_set_and_every_name_of_the_set_is_given() -> None:
    """Over all kinds of outcomes, texts and reasons for not sending a row, nothing else and nothing less."""
    validate = OutputSchema.compile(SCHEMA).validator()
    problems = [None, f"{TOO_LARGE}: 9 bytes", "KeyError"]
    kinds = [None, *(kind.value for kind in OutcomeKind)]
    names = set()
    for problem, kind, text in itertools.product(problems, kinds, TEXTS):
        found = judge(validate, problem, kind, text, None, None, None)
        names.add(found.name)
        assert found.status in STATUSES
        assert (found.answer is None) == (found.status != "succeeded") == (found.category in CATEGORIES)
        assert found.name is not None or found.answer is not None
    assert names - {None} == ERROR_NAMES


@pytest.mark.parametrize(
    ("message", "code", "said"),
    [("too fast", "rate", "too fast"), (None, "rate", "rate"), (None, None, "provider_error")],
)
def test_a_providers_error_is_a_reason(message: "str | None", code: "str | None", said: str) -> None:
    """Its words, else its code, else the kind; its category is kept."""
    validate = OutputSchema.compile(SCHEMA).validator()
    found = judge(validate, None, "provider_error", None, "rate_limit", message, code)
    assert (found.status, found.error, found.category) == ("review", said, "rate_limit")


def test_an_answer_is_what_validates() -> None:
    """The columns in the schema's order, and `fenced` where it stood in a fence."""
    validate = OutputSchema.compile(SCHEMA).validator()
    plain, fenced = (judge(validate, None, ANSWER, text, None, None, None) for text in TEXTS[2:4])
    assert (plain.answer, plain.name, fenced.answer, fenced.name) == ([1], None, [1], "fenced")

"""The published rows: what validated them, and batches whose answers were mostly in vain."""

import logging
from dataclasses import replace
from typing import Any

import pytest
from pydantic import BaseModel, ConfigDict, field_validator

from dagster_llmbatch.core.advance import Published, Waiting, advance
from dagster_llmbatch.schemas.output import OutputSchema
from dagster_llmbatch_tests.core.workplace import Shop, Triage, table


class Strict(BaseModel):
    """Triage with any category, and with a rule that no JSON Schema holds."""

    model_config = ConfigDict(extra="forbid")
    category: str
    urgent: bool

    @field_validator("category")
    @classmethod
    def never(cls, value: str) -> str:
        raise ValueError(f"SECRET {value}")


def published_with(shop: Shop, asked: Any, today: Any) -> Published:
    """Submit with one output type, publish with another."""
    entry, _ = shop.open("r1", output=OutputSchema.compile(asked))
    assert isinstance(advance(entry.id, shop.work, run_id="r1", output=OutputSchema.compile(asked)), Waiting)
    shop.simulator.clock.advance(100)
    found = advance(entry.id, shop.work, run_id="r1", output=OutputSchema.compile(today))
    assert isinstance(found, Published)
    return found


def said(caplog: pytest.LogCaptureFixture, what: str) -> "list[str]":
    """The warnings that contain a text."""
    return [r.getMessage() for r in caplog.records if r.levelno == logging.WARNING and what in r.getMessage()]


@pytest.mark.parametrize(
    ("asked", "today", "validated", "stored"),
    [
        (Triage, Triage, True, False),
        (None, None, False, False),
        (Triage, Strict, False, True),
        (Strict, Triage, False, True),
        (Triage, None, False, True),
    ],
    ids=["the same type", "text", "a type with validators since", "validators are gone", "text since"],
)
def test_validated_says_that_the_type_itself_judged(
    shop: Shop, caplog: pytest.LogCaptureFixture, asked: Any, today: Any, validated: bool, stored: bool
) -> None:
    """Answers read by the stored JSON Schema succeed and are not called validated: that is a warning and a note."""
    published = published_with(shop, asked, today)
    found = shop.results(published)
    assert set(found.column("llm_status").to_pylist()) == {"succeeded"}
    assert set(found.column("llm_validated").to_pylist()) == {validated}
    warned = said(caplog, "the output type changed")
    assert len(warned) == stored
    assert all(line.startswith("triage, partition d1: ") for line in warned)
    assert (published.entry.summary or {})["stored_schema"] is stored


def test_rows_without_an_answer_are_never_validated(shop: Shop) -> None:
    """Failed and sent in vain: false, beside the validated ones."""
    kinds = ["refuse", "wrong_schema", "error_400", "fence"]
    entry, _ = shop.open("r1", table(5, lambda i: f"[[sim:{kinds[i]}]]" if i < len(kinds) else "plain"))
    found = shop.results(shop.finish(entry, "r1"))
    assert found.column("llm_validated").to_pylist() == [False, False, False, True, True]


@pytest.mark.parametrize(("wrong", "warns"), [(0, False), (3, False), (4, True), (6, True)])
def test_a_batch_of_mostly_invalid_answers_is_a_warning(
    shop: Shop, caplog: pytest.LogCaptureFixture, wrong: int, warns: bool
) -> None:
    """More than half: one line with the batch's id, the counts and what is wrong first, and without the answer."""
    entry, _ = shop.open("r1", table(6, lambda i: "[[sim:wrong_schema]]" if i < wrong else "plain"))
    published = shop.finish(entry, "r1")
    found = shop.results(published)
    lines = said(caplog, "answers are not valid")
    assert len(lines) == warns
    if warns:
        assert lines[0].startswith(f"batch {published.batches[0].batch_id}: {wrong} of 6 answers are not valid")
        assert found.column("llm_error").to_pylist()[0] in lines[0]
        assert "(schema_mismatch)" in lines[0]
        assert found.column("llm_raw").to_pylist()[0] not in lines[0]


def test_each_batch_is_judged_by_itself(shop: Shop, caplog: pytest.LogCaptureFixture) -> None:
    """Two of three in one batch, none in the other; what the provider refused is no answer and does not count."""
    shop.work = replace(shop.work, policy=replace(shop.work.policy, max_requests_per_batch=3))
    marks = {0: "[[sim:prose]]", 1: "[[sim:error_400]]", 3: "[[sim:prose]]"}
    entry, _ = shop.open("r1", table(6, lambda i: marks.get(i, "plain")))
    shop.finish(entry, "r1")
    assert said(caplog, "answers are not valid") == []
    marks |= {2: "[[sim:prose]]"}
    entry, _ = shop.open("r2", table(6, lambda i: marks.get(i, "plain")))
    published = shop.finish(entry, "r2")
    (line,) = said(caplog, "answers are not valid")
    assert line == (
        f"batch {published.batches[0].batch_id}: 2 of 2 answers are not valid, and all are paid for. "
        "The first: the answer is not JSON (not_json)."
    )

"""A batch of OpenRouter's carries no name of ours: it is proven by the custom ids in its results, or waited for."""

from typing import Any

import httpx
import pytest

from dagster_llmbatch.errors import (
    BatchUnprovenError,
    QuotaExhaustedError,
)
from dagster_llmbatch.providers.contract import (
    BatchState,
    BatchStatus,
    Search,
    Uploaded,
)
from dagster_llmbatch_tests.providers.openrouter_traffic import MISSING, NOW, Api, batch, result

OURS = ("llmb-1", "llmb-2")
SEARCH = Search("k", Uploaded({"request_bytes": "9"}), NOW, OURS, known=("batch-known",))


class Account:
    """An account's batches, newest first: listed without their results, and read one by one."""

    def __init__(self, *batches: "dict[str, Any]", hidden: "tuple[str, ...]" = ()) -> None:
        self._batches = {b["id"]: b for b in batches}
        self._hidden = hidden
        self.api = Api(self._answer)

    def _answer(self, request: httpx.Request) -> httpx.Response:
        batch_id = request.url.path.removeprefix("/api/v1/batches").strip("/")
        if not batch_id:
            listed = [{**b, "results": None} for b in self._batches.values()]
            return httpx.Response(200, json={"object": "list", "data": listed, "has_more": False})
        found = None if batch_id in self._hidden else self._batches.get(batch_id)
        return httpx.Response(404, json=MISSING) if found is None else httpx.Response(200, json=found)

    def find(self) -> "BatchStatus | None":
        return self.api.provider.find(SEARCH)

    def read(self) -> "list[str]":
        """Ids of the batches that were read."""
        return [r.url.path.rsplit("/", 1)[1] for r in self.api.requests[1:]]


def ended(batch_id: str, *ids: str, status: str = "completed", **fields: Any) -> "dict[str, Any]":
    """A batch that ended with results for these custom ids."""
    return batch(id=batch_id, status=status, results=[result(i) for i in ids], **fields)


def test_a_batch_is_proven_by_its_results() -> None:
    """Among batches of our size the one whose results have our custom ids; a stranger is told apart."""
    account = Account(ended("batch-x", "other-1", "other-2"), ended("batch-y", "llmb-2"))
    found = account.find()
    assert found is not None
    assert (found.handle.batch_id, found.state) == ("batch-y", BatchState.COMPLETED)
    listed = account.api.requests[0].url
    assert listed.path == "/api/v1/batches"
    assert int(listed.params["created_after"]) <= NOW
    assert account.read() == ["batch-x", "batch-y"]


def test_nothing_is_nothing() -> None:
    """No batch, or strangers only."""
    assert Account().find() is None
    assert Account(ended("batch-x", "other-1")).find() is None


@pytest.mark.parametrize(
    "other",
    [
        batch(id="batch-known"),
        batch(endpoint="/v1/responses"),
        batch(request_counts={"total": 3}),
        batch(created_at=NOW - 1000),
    ],
    ids=["recorded", "endpoint", "size", "older"],
)
def test_what_cannot_be_ours_is_not_read(other: "dict[str, Any]") -> None:
    """Known batches, other endpoints and sizes, and older ones are passed over."""
    account = Account(other)
    assert account.find() is None
    assert account.read() == []


@pytest.mark.parametrize(
    "fields",
    [
        {},
        {"model": "somebody/else"},
        {"status": "validating", "request_counts": {"total": 0}},
        {"request_counts": None},
        {"endpoint": None, "created_at": None},
        {"status": "never_met"},
        {"created_at": NOW - 200},
        {"status": "completed"},
        {"status": "completed", "results": [{"x": 1}]},
    ],
    ids=str,
)
def test_a_batch_that_may_be_ours_is_waited_for(fields: "dict[str, Any]") -> None:
    """While it runs, or shows nothing that proves whose it is, nothing is bought again: whatever its model is called."""
    with pytest.raises(BatchUnprovenError):
        Account(batch(**fields)).find()


def test_a_listed_batch_that_cannot_be_read_is_waited_for() -> None:
    """Reading lags behind the list, or the other way round."""
    with pytest.raises(BatchUnprovenError):
        Account(ended("batch-x", "llmb-1"), hidden=("batch-x",)).find()


def test_a_proof_beats_a_doubt() -> None:
    """One that runs does not hide the one that is ours."""
    found = Account(batch(id="batch-x"), ended("batch-y", "llmb-1")).find()
    assert found is not None
    assert found.handle.batch_id == "batch-y"
    with pytest.raises(BatchUnprovenError):
        Account(ended("batch-z", "other-1"), batch(id="batch-x")).find()


@pytest.mark.parametrize("status", ["failed", "expired", "cancelled"])
def test_an_end_without_results_leaves_nothing_to_find(status: str) -> None:
    """Whose it is makes no difference: it has no answer that could be collected."""
    assert Account(batch(status=status)).find() is None
    assert Account(ended("batch-y", "llmb-1", status=status)).find() is not None


def test_withheld_results_stop_the_search() -> None:
    """Without credit nobody can tell: a person must act, and nothing is bought."""
    account = Account(ended("batch-x", "llmb-1"))
    answer = account._answer
    api = Api(lambda r: answer(r) if r.url.path.endswith("/batches") else httpx.Response(402, json={}))
    with pytest.raises(QuotaExhaustedError):
        api.provider.find(SEARCH)


def test_a_search_without_a_time_asks_for_all() -> None:
    """OpenRouter refuses times before 1970, which the allowance for clocks that differ would make of 0."""
    account = Account()
    assert account.api.provider.find(Search("k", Uploaded(), 0.0, OURS)) is None
    assert account.api.requests[0].url.params["created_after"] == "0"

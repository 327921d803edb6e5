"""Servers that speak OpenAI's API (vLLM, Ollama, LiteLLM, Groq, ...): configuration, and the shapes they answer in."""

import json
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import httpx
import pytest

from dagster_llmbatch.errors import (
    AmbiguousCreateError,
    ConfigurationError,
    NotBatchCapableError,
    ProviderError,
    ProviderMismatchError,
    TransientProviderError,
)
from dagster_llmbatch.providers.content import PartKind
from dagster_llmbatch.providers.contract import (
    BatchHandle,
    BatchState,
    BatchStatus,
    ErrorCategory,
    Outcome,
    OutcomeKind,
    RequestTemplate,
    Search,
    Uploaded,
)
from dagster_llmbatch.providers.limits import LIMITS
from dagster_llmbatch.providers.openai import KEY, OpenAIBatchProvider
from dagster_llmbatch.providers.openai_batches import PAGE, read_batch
from dagster_llmbatch.providers.openai_requests import CHAT, RESPONSES

TEMPLATE = RequestTemplate("llama-3.3-70b-versatile")
UPLOADED = Uploaded({"input_file_id": "file-in"})
Answer = Callable[[httpx.Request], httpx.Response]


class Server:
    """A compatible server called `groq` over a function that answers its requests, which are noted."""

    def __init__(self, answer: Answer, **options: Any) -> None:
        self.requests: list[httpx.Request] = []
        self._answer = answer
        given = {"base_url": "https://groq.test/openai/v1", "name": "groq", "endpoint": CHAT, **options}
        self.provider = OpenAIBatchProvider(
            api_key="none", transport=httpx.MockTransport(self._handle), sleep=lambda seconds: None, **given
        )

    def _handle(self, request: httpx.Request) -> httpx.Response:
        request.read()
        self.requests.append(request)
        return self._answer(request)


def always(content: Any, status: int = 200) -> Answer:
    """The same JSON answer to everything."""
    return lambda request: httpx.Response(status, json=content)


def handle(name: str = "groq") -> BatchHandle:
    """A batch's handle, with what the create call knew."""
    return BatchHandle(name, "batch_1", {"input_file_id": "file-in"})


# Configuration


def test_the_name_stands_in_handles() -> None:
    """A batch belongs to the server it was sent to; one of OpenAI's is not looked for there."""
    server = Server(always({"id": "batch_1", "status": "validating"}))
    created = server.provider.create(Path("unused"), UPLOADED, template=TEMPLATE, external_key="k")
    assert created.handle == handle()
    assert server.provider.status(created.handle).handle.provider == "groq"
    with pytest.raises(ProviderMismatchError):
        server.provider.status(handle("openai"))
    assert server.provider.name == "groq"


@pytest.mark.parametrize(
    ("answer", "kind"),
    [
        (always({}, 400), ProviderError),
        (always({}, 500), AmbiguousCreateError),
        (always({"status": "validating"}), AmbiguousCreateError),
    ],
    ids=["refused", "unclear", "no id"],
)
def test_the_name_stands_in_errors(answer: Answer, kind: "type[ProviderError]") -> None:
    """Nobody is told that OpenAI failed."""
    with pytest.raises(kind) as caught:
        Server(answer).provider.create(Path("unused"), UPLOADED, template=TEMPLATE, external_key="k")
    assert caught.value.provider == "groq"
    assert str(caught.value).startswith("groq:")


def test_the_endpoint_decides_address_and_parts() -> None:
    """Calls go below the base address; chat takes no document by URL; limits are OpenAI's otherwise."""
    server = Server(always({"choices": []}))
    server.provider.complete(TEMPLATE, "Hi")
    assert str(server.requests[0].url) == "https://groq.test/openai/v1/chat/completions"
    parts = frozenset(PartKind) - {PartKind.DOCUMENT_URL}
    assert server.provider.limits == replace(LIMITS["openai"], batch_parts=parts, realtime_parts=parts)
    assert Server(always({}), endpoint=RESPONSES).provider.limits == LIMITS["openai"]
    with pytest.raises(ConfigurationError, match="/v1/embeddings"):
        Server(always({}), endpoint="/v1/embeddings")


def test_no_key_is_no_header() -> None:
    """An empty key sends no malformed header."""
    asked: list[httpx.Request] = []

    def answer(request: httpx.Request) -> httpx.Response:
        asked.append(request)
        return httpx.Response(200, json={"choices": []})

    OpenAIBatchProvider(api_key="", transport=httpx.MockTransport(answer)).complete(TEMPLATE, "Hi")
    assert "authorization" not in asked[0].headers


STATUS = BatchStatus(handle(), BatchState.COMPLETED, "completed", result_refs={"output_file_id": "o"})
BATCH_CALLS: "dict[str, Callable[[OpenAIBatchProvider, Path], Any]]" = {
    "upload": lambda p, path: p.upload(path, external_key="k"),
    "create": lambda p, path: p.create(path, UPLOADED, template=TEMPLATE, external_key="k"),
    "find": lambda p, path: p.find(Search("k", UPLOADED, 0, ())),
    "status": lambda p, path: p.status(handle()),
    "outcomes": lambda p, path: list(p.outcomes(STATUS)),
    "cancel": lambda p, path: p.cancel(handle()),
    "delete": lambda p, path: p.delete_files(STATUS),
}


@pytest.mark.parametrize("call", BATCH_CALLS.values(), ids=BATCH_CALLS)
def test_a_server_without_batches_is_asked_for_none(
    call: "Callable[[OpenAIBatchProvider, Path], Any]", tmp_path: Path
) -> None:
    """Every batch call is refused before anything is sent."""
    lines = tmp_path / "lines"
    lines.write_bytes(b"{}\n")
    server = Server(always({"id": "x", "data": []}), batches=False)
    with pytest.raises(NotBatchCapableError, match="groq"):
        call(server.provider, lines)
    assert server.requests == []
    assert server.provider.limits.batch_parts == frozenset()


def test_a_server_without_batches_answers_in_realtime() -> None:
    """Rows can still be asked one by one, and fingerprinted."""
    server = Server(always({"choices": [{"message": {"content": "yes"}, "finish_reason": "stop"}]}), batches=False)
    assert server.provider.complete(TEMPLATE, "Hi").text == "yes"
    assert server.provider.encoder(TEMPLATE).identity
    assert server.provider.limits.realtime_parts


# Batch objects and lists


@pytest.mark.parametrize(
    ("fields", "expected"),
    [
        ({"request_counts": None}, {"total": None, "completed": None}),
        ({"status": "COMPLETED"}, {"state": BatchState.COMPLETED, "provider_state": "COMPLETED"}),
        ({"created_at": "2026-11-30T10:00:00Z"}, {"created_at": None}),
        ({"errors": [{"code": "c", "message": "m"}]}, {"error_code": "c", "error_message": "m"}),
        ({"errors": {"data": []}}, {"error_code": None}),
        ({"errors": {"object": "list"}}, {"error_code": None}),
        ({"errors": ["broken"]}, {"error_message": "broken"}),
        ({"errors": "broken"}, {"error_message": None}),
        ({"metadata": "llmb-1"}, {"state": BatchState.RUNNING}),
        ({"output_file_id": 17}, {"result_refs": {"output_file_id": "17"}}),
    ],
    ids=str,
)
def test_batch_objects(fields: "dict[str, Any]", expected: "dict[str, Any]") -> None:
    """An object in another shape is read as far as it goes, and keeps the file that we know of."""
    server = Server(always({"status": "in_progress", **fields}))
    status = server.provider.status(handle())
    assert status.handle == handle()
    assert {name: getattr(status, name) for name in expected} == expected


def listed(count: int, **fields: Any) -> "list[dict[str, Any]]":
    """Batches of somebody else."""
    return [{"id": f"batch_{n}", "created_at": 1_000_000 - n, **fields} for n in range(count)]


def find(*pages: Any) -> "tuple[BatchStatus | None, int]":
    """(what is found, calls) on a server that gives these pages, the last for ever."""
    left: Iterator[Any] = iter(pages)
    last = pages[-1]
    server = Server(lambda request: httpx.Response(200, json=next(left, last)))
    return server.provider.find(Search("k", UPLOADED, 990_000, ())), len(server.requests)


MINE = {"id": "batch_mine", "metadata": {KEY: "k"}}


@pytest.mark.parametrize(
    ("page", "found"),
    [
        ({}, False),
        ({"data": None}, False),
        ({"data": {}}, False),
        ({"data": [None, {"status": "completed"}, MINE]}, True),
        ({"data": [{"id": "x", "metadata": None}, MINE]}, True),
        ({"data": [{"id": "x", "metadata": ["k"]}, {"id": "y", "input_file_id": "file-in"}]}, True),
    ],
    ids=["empty", "null", "object", "without ids", "null metadata", "by file"],
)
def test_lists(page: "dict[str, Any]", found: bool) -> None:
    """Entries without an id are passed over; nothing there is not found."""
    assert (find(page)[0] is not None) is found


def test_a_full_page_without_has_more_has_more() -> None:
    """The next page is read; the search ends where a server gives the same page again."""
    assert find({"data": listed(PAGE)}, {"data": [MINE]})[0] is not None
    assert find({"data": listed(PAGE)}) == (None, 2)
    assert find({"data": listed(3)}) == (None, 1)


@pytest.mark.parametrize(
    "first",
    [
        [{"id": "a", "created_at": 1}, {"id": "b", "created_at": 2}],
        [{"id": "a"}, {"id": "b"}],
        [{"id": "a", "created_at": "2020-01-01"}],
    ],
    ids=["oldest first", "no times", "text times"],
)
def test_a_list_in_another_order_is_read_to_its_end(first: Any) -> None:
    """Only a list that is newest first says by an old batch that there is nothing more to find."""
    assert find({"data": first, "has_more": True}, {"data": [MINE], "has_more": False})[0] is not None


def test_a_list_that_is_newest_first_is_not_read_to_its_end() -> None:
    """Batches older than our create call end the search."""
    old = [{"id": "a", "created_at": 900_000}, {"id": "b", "created_at": 800_000}]
    assert find({"data": old, "has_more": True}, {"data": [MINE]}) == (None, 1)


def test_a_create_that_echoes_nothing_keeps_the_file() -> None:
    """The input file is known from the upload: it can be deleted."""
    server = Server(always({"id": "batch_1", "status": "validating", "input_file_id": None}))
    created = server.provider.create(Path("unused"), UPLOADED, template=TEMPLATE, external_key="k")
    server.provider.delete_files(created)
    assert server.requests[-1].url.path == "/openai/v1/files/file-in"


def test_an_upload_that_names_no_file_may_be_repeated(tmp_path: Path) -> None:
    """Nothing was bought yet."""
    lines = tmp_path / "lines"
    lines.write_bytes(b"{}\n")
    assert Server(always({"id": "f"})).provider.upload(lines, external_key="k").refs == {"input_file_id": "f"}
    with pytest.raises(TransientProviderError):
        Server(always({"object": "file"})).provider.upload(lines, external_key="k")


def test_files_without_fields() -> None:
    """A batch with neither file has no results and nothing is asked for."""
    server = Server(always({}))
    assert list(server.provider.outcomes(read_batch({"id": "b", "status": "completed"}, "groq"))) == []
    assert server.requests == []


# Replies


def reply(body: Any, status: int = 200) -> Outcome:
    """The outcome of a realtime reply, which is also that of a row with it."""
    row = {"custom_id": "", "response": {"status_code": status, "body": body}}
    found = list(
        Server(lambda request: httpx.Response(200, content=json.dumps(row).encode())).provider.outcomes(STATUS)
    )
    if status == 200:
        assert [Server(always(body)).provider.complete(TEMPLATE, "Hi")] == found
    return found[0]


def chat(message: Any, **fields: Any) -> "dict[str, Any]":
    """A chat completion."""
    return {"model": "m", "choices": [{"index": 0, "message": message, "finish_reason": "stop"}], **fields}


YES = {"role": "assistant", "content": "yes"}
TOKENS = {"prompt_tokens": 5, "completion_tokens": 2}


@pytest.mark.parametrize(
    ("usage", "counts"),
    [
        (TOKENS, (5, 2, None)),
        ({**TOKENS, "prompt_tokens_details": None, "completion_tokens_details": None}, (5, 2, None)),
        ({**TOKENS, "prompt_tokens_details": {"cached_tokens": 3}}, (5, 2, 3)),
        ({**TOKENS, "prompt_tokens_details": {"cached_tokens": None}}, (5, 2, None)),
        ({**TOKENS, "prompt_tokens_details": {"cached_tokens": "3"}}, (5, 2, None)),
        ({**TOKENS, "prompt_tokens_details": [1]}, (5, 2, None)),
        ({"prompt_tokens": 5.0, "completion_tokens": "2"}, (5, None, None)),
        ({**TOKENS, "queue_time": 0.02, "total_time": 0.5}, (5, 2, None)),
        ({**TOKENS, "cost": {"total_cost": 0.1}}, (5, 2, None)),
        ({}, (None, None, None)),
        (None, (None, None, None)),
        ("none", (None, None, None)),
    ],
    ids=str,
)
def test_usage_costs_no_answer(usage: Any, counts: "tuple[int | None, ...]") -> None:
    """Tokens are read as far as they are numbers; the answer is kept in every case, and no cost is made up."""
    found = reply(chat(YES, usage=usage))
    assert (found.kind, found.text, found.cost_usd) == (OutcomeKind.ANSWER, "yes", None)
    assert (found.input_tokens, found.output_tokens, found.cached_tokens) == counts


@pytest.mark.parametrize(
    "body",
    [
        chat(YES, model=None),
        chat(YES, model=["m"]),
        chat(YES, status=0),
        chat({**YES, "refusal": False}),
        chat({**YES, "tool_calls": None, "reasoning_content": "hm"}),
        {"choices": [{"message": YES, "finish_reason": None}]},
        {"choices": [{"message": YES, "finish_reason": {"type": "stop"}}]},
        {"choices": [{"message": YES}, None]},
        chat({"content": [{"type": "text", "text": "y"}, None, {"type": "text", "text": "es"}]}),
        chat(YES, error=None),
    ],
    ids=str,
)
def test_odd_fields_cost_no_answer(body: Any) -> None:
    """What stands beside the text may have any shape."""
    assert (reply(body).kind, reply(body).text) == (OutcomeKind.ANSWER, "yes")


@pytest.mark.parametrize(
    ("body", "code", "category"),
    [
        ({"error": {"message": "m", "type": "BadRequestError", "code": 400}}, "400", ErrorCategory.CLIENT_ERROR),
        ({"error": {"message": "m", "code": 429}}, "429", ErrorCategory.RATE_LIMIT),
        ({"error": "boom", "choices": []}, "error_in_reply", ErrorCategory.SERVER_ERROR),
        ({"choices": [{"error": {"code": 502, "message": "m"}}]}, "502", ErrorCategory.SERVER_ERROR),
        (
            {"choices": [{"message": {"content": "ha"}, "finish_reason": "error"}]},
            "finish_error",
            ErrorCategory.SERVER_ERROR,
        ),
        ({"choices": None}, "no_body", ErrorCategory.UNKNOWN),
        ({"object": "chat.completion"}, "no_body", ErrorCategory.UNKNOWN),
    ],
    ids=["numeric code", "numeric rate", "text", "in a choice", "half a text", "null", "nothing"],
)
def test_errors_inside_successes(body: Any, code: str, category: ErrorCategory) -> None:
    """HTTP 200 is not an answer where an error or nothing stands inside."""
    found = reply(body)
    assert (found.kind, found.error_code, found.error_category) == (OutcomeKind.PROVIDER_ERROR, code, category)
    assert found.retryable is (category is not ErrorCategory.CLIENT_ERROR)
    assert found.text is None


def test_an_error_that_was_billed_keeps_its_tokens() -> None:
    """Half a text was paid for."""
    body = {"choices": [{"message": {"content": "ha"}, "finish_reason": "error"}], "usage": TOKENS}
    assert reply(body).output_tokens == 2


@pytest.mark.parametrize("error", [{"code": "content_filter"}, {"type": "content_policy_violation"}], ids=str)
def test_a_stopped_prompt_is_a_refusal(error: "dict[str, Any]") -> None:
    """Hosts with a filter of their own answer with an error; nothing will come of asking again."""
    found = reply({"error": {"message": "m", **error}}, 400)
    assert (found.kind, found.error_category, found.retryable) == (OutcomeKind.REFUSAL, ErrorCategory.REFUSED, False)


def test_a_reply_that_is_no_row_says_so() -> None:
    """JSON without any shape we know is an outcome, not a crash."""
    found = Server(always({"choices": [17], "error": None, "usage": 3, "output": "x"})).provider.complete(
        TEMPLATE, "Hi"
    )
    assert (found.kind, found.retryable) == (OutcomeKind.PROVIDER_ERROR, True)
    assert found.error_code == "unreadable_reply"

"""The resource without an asset: submit, status, results, cancel and complete, with handles that survive JSON."""

import json
from collections.abc import Callable, Iterator
from typing import Any, Literal

import pytest
from pydantic import BaseModel

from dagster_llmbatch import LLMBatchResource, LLMRequest
from dagster_llmbatch.errors import (
    AmbiguousCreateError,
    ConfigurationError,
    InputError,
    MissingApiKeyError,
    ProviderMismatchError,
)
from dagster_llmbatch.providers.contract import BatchHandle
from dagster_llmbatch.simulator.server import SimulatorServer

MODELS = {
    "openai": "openai:gpt-5-mini",
    "anthropic": "anthropic:claude-haiku-4-5",
    "gemini": "gemini:gemini-2.5-flash",
    "openrouter": "openrouter:z-ai/glm-5.3",
}
every_provider = pytest.mark.parametrize("provider", list(MODELS))


class Mood(BaseModel):
    mood: Literal["good", "bad"]
    score: int


@pytest.fixture
def simulator() -> "Iterator[SimulatorServer]":
    """A simulator whose clock stands until a test moves it."""
    with SimulatorServer(frozen=True) as server:
        yield server


@pytest.fixture
def resource(simulator: SimulatorServer) -> LLMBatchResource:
    """A resource that reaches every provider at the simulator."""
    reached: dict[str, Any] = {
        name: {"api_key": f"sk-{name}", "base_url": address} for name, address in simulator.addresses.items()
    }
    return LLMBatchResource(**reached)


def requests(provider: str, count: int = 4, output: Any = Mood) -> "list[LLMRequest]":
    """Requests that differ in their prompts."""
    return [LLMRequest(f"q-{i}", f"How is day {i}?", MODELS[provider], output=output) for i in range(count)]


def ended(simulator: SimulatorServer) -> None:
    """Let every batch come to its end."""
    simulator.clock.advance(1000)


@every_provider
def test_a_batch_from_submit_to_results(simulator: SimulatorServer, resource: LLMBatchResource, provider: str) -> None:
    """Every request has its validated answer under its own id; the handle went through JSON in between."""
    simulator.store.batch_seconds = 100
    handle = resource.submit(requests(provider))
    stored = json.dumps(handle.to_json())
    again = BatchHandle.from_json(json.loads(stored))
    assert again == handle
    assert resource.status(again).progress in ("pending", "processing")
    ended(simulator)
    status = resource.status(again)
    assert (status.progress, status.state.ended) == ("completed", True)
    found = {result.custom_id: result for result in resource.results(again, output=Mood)}
    assert sorted(found) == [f"q-{i}" for i in range(4)]
    for result in found.values():
        assert (result.status, result.validated, result.error) == ("succeeded", True, None)
        assert result.value is not None
        assert set(result.value) == {"mood", "score"}
        assert result.outcome.input_tokens
    assert simulator.book.requests == 4
    assert simulator.book.batches == 1


@every_provider
def test_without_an_output_type_nothing_is_validated(
    simulator: SimulatorServer, resource: LLMBatchResource, provider: str
) -> None:
    """Schemas do not travel with a handle: the text is there, and is not called validated."""
    handle = resource.submit(requests(provider))
    ended(simulator)
    for result in resource.results(handle):
        assert (result.status, result.validated) == ("succeeded", False)
        assert result.value is not None
        assert set(result.value) == {"text"}


def test_output_types_by_custom_id(simulator: SimulatorServer, resource: LLMBatchResource) -> None:
    """One request's type validates its answer alone."""
    handle = resource.submit(requests("openai", 2))
    ended(simulator)
    found = {r.custom_id: r for r in resource.results(handle, outputs={"q-1": Mood})}
    assert [found[f"q-{i}"].validated for i in range(2)] == [False, True]


@every_provider
def test_one_realtime_call(simulator: SimulatorServer, resource: LLMBatchResource, provider: str) -> None:
    """The same request at once: a validated value, tokens and the model's name."""
    (request,) = requests(provider, 1)
    found = resource.complete(request)
    assert (found.custom_id, found.status, found.validated) == ("q-0", "succeeded", True)
    assert found.outcome.output_tokens
    assert simulator.book.batches == 0
    assert simulator.book.requests == 1


@pytest.mark.parametrize("provider", ["openai", "gemini"])
def test_the_same_key_again_takes_the_same_batch(
    simulator: SimulatorServer, resource: LLMBatchResource, provider: str
) -> None:
    """A second submit with the external key of the first, after a crash or a lost answer, buys nothing."""
    simulator.faults.add("create", "drop_after")
    with pytest.raises(AmbiguousCreateError):
        resource.submit(requests(provider), external_key="mine-1")
    first = resource.submit(requests(provider), external_key="mine-1")
    assert resource.submit(requests(provider), external_key="mine-1") == first
    assert simulator.book.batches == 1


@pytest.mark.parametrize("provider", ["openai", "anthropic", "gemini"])
def test_cancel(simulator: SimulatorServer, resource: LLMBatchResource, provider: str) -> None:
    """A cancelled batch ends, and its requests are failed with the reason."""
    simulator.store.batch_seconds = 10_000
    handle = resource.submit(requests(provider))
    resource.cancel(handle)
    ended(simulator)
    assert resource.status(handle).state.ended
    assert {result.status for result in resource.results(handle, output=Mood)} <= {"failed"}
    assert simulator.book.requests == 0


@pytest.mark.parametrize(
    ("asked", "message"),
    [
        ([], "no requests"),
        ([LLMRequest("a b", "x", MODELS["openai"])], "custom_id 'a b'"),
        ([LLMRequest("a" * 65, "x", MODELS["openai"])], "1 to 64"),
        ([LLMRequest("a", "x", MODELS["openai"])] * 2, "given twice"),
        ([LLMRequest("a", "x", MODELS["openai"]), LLMRequest("b", "x", "openai:gpt-5-nano")], "2 groups"),
        ([LLMRequest("a", "x", MODELS["openai"]), LLMRequest("b", "x", MODELS["anthropic"])], "batched at anthropic"),
    ],
)
def test_what_is_no_batch_is_refused(
    simulator: SimulatorServer, resource: LLMBatchResource, asked: "list[LLMRequest]", message: str
) -> None:
    """Before anything is sent, with what to do."""
    with pytest.raises(InputError, match=message):
        resource.submit(asked)
    assert simulator.book.calls.total() == 0


def test_results_before_the_end(simulator: SimulatorServer, resource: LLMBatchResource) -> None:
    """A batch that runs has none yet, and says in which state it is."""
    simulator.store.batch_seconds = 100
    handle = resource.submit(requests("openai"))
    with pytest.raises(InputError, match="validating"):
        list(resource.results(handle))


@every_provider
def test_a_batch_is_never_asked_for_elsewhere(resource: LLMBatchResource, provider: str) -> None:
    """A client refuses the handle of another provider."""
    other = BatchHandle("somewhere", "batch_1")
    client = resource.provider(provider)
    with pytest.raises(ProviderMismatchError, match="submitted to somewhere"):
        client.status(other)
    with pytest.raises(ProviderMismatchError):
        client.cancel(other)
    client.close()


@every_provider
def test_a_provider_without_a_key(provider: str) -> None:
    """It says which variable to set."""
    with pytest.raises(ConfigurationError) as caught:
        LLMBatchResource().submit(requests(provider))
    assert isinstance(caught.value, MissingApiKeyError)
    assert "_API_KEY" in str(caught.value)


@every_provider
def test_keys_are_in_no_text(resource: LLMBatchResource, provider: str) -> None:
    """Neither the resource's nor a client's text shows the key, nor does a handle."""
    client = resource.provider(provider)
    for text in (repr(resource), str(resource), repr(client), repr(vars(client))):
        assert f"sk-{provider}" not in text
    client.close()


def waiting(simulator: SimulatorServer, waited: "list[float]") -> "Callable[[float], None]":
    """A sleep that moves the simulator's clock, and remembers."""

    def sleep(seconds: float) -> None:
        waited.append(seconds)
        simulator.clock.advance(seconds)

    return sleep


@every_provider
def test_a_batch_in_one_call(simulator: SimulatorServer, resource: LLMBatchResource, provider: str) -> None:
    """run_batch submits, polls by the intervals, and gives validated results in the order of the requests."""
    simulator.store.batch_seconds = 200
    waited: list[float] = []
    asked = requests(provider)[::-1]
    found = resource.run_batch(asked, external_key="mine-1", sleep=waiting(simulator, waited))
    assert [result.custom_id for result in found] == ["q-3", "q-2", "q-1", "q-0"]
    assert {(result.status, result.validated) for result in found} == {("succeeded", True)}
    assert waited == [60.0, 90.0, 135.0]
    assert simulator.book.batches == 1


@pytest.mark.parametrize("provider", ["openai", "gemini"])
def test_a_call_that_was_cut_off_comes_again(
    simulator: SimulatorServer, resource: LLMBatchResource, provider: str
) -> None:
    """The same key finds the batch that is out, whether the create's answer was lost or the wait broke off."""
    simulator.store.batch_seconds = 200
    simulator.faults.add("create", "drop_after")
    with pytest.raises(AmbiguousCreateError):
        resource.run_batch(requests(provider), external_key="mine-1")

    def broken(_: float) -> None:
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        resource.run_batch(requests(provider), external_key="mine-1", sleep=broken)
    found = resource.run_batch(requests(provider), external_key="mine-1", sleep=waiting(simulator, []))
    assert {result.status for result in found} == {"succeeded"}
    assert simulator.book.batches == 1


def test_every_request_of_a_call_has_a_result(simulator: SimulatorServer, resource: LLMBatchResource) -> None:
    """A request that came back with nothing is failed with the reason, and no cost."""
    simulator.faults.add_rows("missing", containing="day 2")
    first, second, third = resource.run_batch(
        requests("openai", 3), external_key="mine-1", sleep=waiting(simulator, [])
    )
    assert (first.status, second.status) == ("succeeded", "succeeded")
    assert (third.custom_id, third.status, third.error, third.cost_usd) == (
        "q-2",
        "failed",
        "missing_from_results",
        0.0,
    )


def test_a_batch_refused_as_a_whole_fails_each_request(simulator: SimulatorServer, resource: LLMBatchResource) -> None:
    """The provider's code is each request's reason."""
    asked = [LLMRequest("a", "x", "openai:no-such-model-1"), LLMRequest("b", "y", "openai:no-such-model-1")]
    found = resource.run_batch(asked, external_key="mine-1", sleep=waiting(simulator, []))
    assert [result.status for result in found] == ["failed"] * 2
    assert found[0].error
    assert found[0].error == found[1].error != "missing_from_results"

"""What the resource's fields lead to, and what it may change while a batch is out."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import dagster as dg
import pytest

from dagster_llmbatch import LLMBatchResource, LLMRequest
from dagster_llmbatch.core.advance import Published, Waiting, advance, claim
from dagster_llmbatch.core.plan import plan_rows
from dagster_llmbatch.core.poll import handle_of
from dagster_llmbatch.core.recipe import Policy
from dagster_llmbatch.core.results import read_results
from dagster_llmbatch.errors import LLMBatchError
from dagster_llmbatch.simulator.server import SimulatorServer
from dagster_llmbatch_tests.core.workplace import KEY, MODELS, recipe, table

every_provider = pytest.mark.parametrize("provider", list(MODELS))


@pytest.fixture
def simulator() -> "Iterator[SimulatorServer]":
    """A simulator whose clock stands until a test moves it."""
    with SimulatorServer(frozen=True, batch_seconds=100) as server:
        yield server


def reach(simulator: SimulatorServer, *names: str, key: str = "sk-test", **others: Any) -> LLMBatchResource:
    """A resource with these providers at the simulator."""
    given: dict[str, Any] = {name: {"api_key": key, "base_url": simulator.addresses[name]} for name in names}
    return LLMBatchResource(**given, **others)


@pytest.mark.parametrize(
    ("field", "value", "rule"),
    [
        ("max_requests_per_batch", 2, "max_requests_per_batch"),
        ("max_attempts", 1, "max_attempts"),
        ("on_reclaim", "resubmit", "on_reclaim"),
        ("poll_interval", 7.0, "poll_first"),
        ("poll_backoff", 2.5, "poll_factor"),
        ("poll_interval_max", 900.0, "poll_max"),
    ],
)
def test_each_field_is_the_rule_it_names(field: str, value: Any, rule: str) -> None:
    """It changes that rule and no other; left out, each rule has its own default."""
    known = vars(LLMBatchResource().policy())
    assert known == vars(Policy())
    given: dict[str, Any] = {field: value}
    assert vars(LLMBatchResource(**given).policy()) == {**known, rule: value}


def test_a_partition_is_worked_on_by_these_rules(tmp_path: Path) -> None:
    """What runs and ticks work with has the resource's own rules."""
    resource = LLMBatchResource(max_requests_per_batch=2, max_attempts=1, on_reclaim="resubmit", poll_interval=7)
    with dg.DagsterInstance.local_temp(str(tmp_path)) as instance, resource.workplace(instance) as work:
        assert work.policy == resource.policy()


def test_a_first_interval_above_the_longest_is_kept() -> None:
    """A poll interval is never cut down to the default of the longest."""
    policy = LLMBatchResource(poll_interval=1800).policy()
    assert (policy.next_poll(None), policy.next_poll(1800)) == (1800, 1800)


def test_a_slow_http_call_does_not_cost_the_lease() -> None:
    """An owner may be silent for longer than its calls may take."""
    assert LLMBatchResource(request_timeout=600).policy().lease > 600


@every_provider
def test_a_key_may_change_while_a_batch_is_out(
    simulator: SimulatorServer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, provider: str
) -> None:
    """Sent with one key, which is revoked then: whoever comes with the new key polls and collects."""
    old, new = (reach(simulator, provider, key=key) for key in ("sk-old", "sk-new"))
    now = simulator.clock.now
    with dg.DagsterInstance.local_temp(str(tmp_path)) as instance:
        with old.workplace(instance, now=now) as work:
            client = work.provider_of(provider)
            asked = recipe(provider=provider, model=MODELS[provider])
            plan = plan_rows(
                table(3), recipe=asked, provider=client, segments=work.segments, namespace="default", partition=""
            )
            entry, _ = claim(KEY, plan, run_id="r1", lineage=("r1",), ledger=work.ledger, now=now())
            assert isinstance(advance(entry.id, work, run_id="r1"), Waiting)
            handle = handle_of(work.ledger.batches(entry.id)[0])
        monkeypatch.setattr("dagster_llmbatch.simulator.calls.WRONG_KEY", "sk-old")
        simulator.clock.advance(1000)
        with pytest.raises(LLMBatchError, match="key"):
            old.status(handle)
        with new.workplace(instance, now=now) as work:
            published = advance(entry.id, work, run_id="r1")
            assert isinstance(published, Published)
            assert published.entry.results_segment
            found = read_results(work.segments, published.entry.results_segment).read_all()
    assert found.column("llm_status").to_pylist() == ["succeeded"] * 3
    assert len(list(new.results(handle))) == 3
    assert simulator.book.batches == 1


def test_a_batch_is_read_where_it_was_sent(simulator: SimulatorServer) -> None:
    """Configured to send a model elsewhere from now on: a handle still leads to the provider it came from."""
    before = reach(simulator, "openai", "openrouter")
    asked = [LLMRequest(f"q-{i}", "How is it?", "openai:gpt-5-mini") for i in range(2)]
    handle = before.submit(asked)
    after = reach(simulator, "openai", "openrouter", models={"openai:gpt-5-mini": {"batch_provider": "openrouter"}})
    simulator.clock.advance(1000)
    assert after.status(handle).progress == "completed"
    assert {result.status for result in after.results(handle)} == {"succeeded"}
    assert after.submit(asked).provider == "openrouter"
    assert [create["provider"] for create in simulator.book.creates] == ["openai", "openrouter"]

"""The line over the wire: rows, generations, crashes and waves, counted at the simulator."""

from contextlib import closing
from dataclasses import replace
from pathlib import Path

import pyarrow as pa
import pytest

from dagster_llmbatch.core.advance import Published, Waiting, claim
from dagster_llmbatch.core.decide import Claim
from dagster_llmbatch.core.plan import plan_rows
from dagster_llmbatch.errors import AmbiguousCreateError, InputError, RejectedError
from dagster_llmbatch.ledger.records import BatchPhase, EntryState
from dagster_llmbatch.schemas.output import OutputSchema
from dagster_llmbatch.simulator.server import SimulatorServer
from dagster_llmbatch_tests.core.workplace import KEY, MODELS, Shop, recipe, table


def test_one_row_out_per_row_in_in_input_order(shop: Shop) -> None:
    """Shuffled results come back in input order, with kept columns and typed answers."""
    entry, how = shop.open("r1", table(200))
    assert how is Claim.NEW
    found = shop.results(shop.finish(entry, "r1"))
    assert found.column("id").to_pylist() == list(range(200))
    assert found.schema.field("id").type == pa.int64()
    assert set(found.column("llm_status").to_pylist()) == {"succeeded"}
    assert set(found.column("category").to_pylist()) <= {"bug", "billing"}
    assert shop.simulator.book.requests == 200


def test_every_fault_is_a_row_with_its_reason(shop: Shop) -> None:
    """Refused, truncated, empty, fenced, prose, wrong, error and missing rows each get their own outcome."""
    kinds = [
        "refuse",
        "truncate",
        "empty",
        "fence",
        "prose",
        "wrong_schema",
        "error_400",
        "duplicate",
        "stranger",
        "crlf",
    ]
    rows = table(len(kinds) + 1, lambda i: f"[[sim:{kinds[i]}]] {i}" if i < len(kinds) else "plain")
    entry, _ = shop.open("r1", rows)
    found = shop.results(shop.finish(entry, "r1"))
    verdicts = dict(
        zip(found.column("llm_row_id").to_pylist(), found.column("llm_error_name").to_pylist(), strict=True)
    )
    statuses = found.column("llm_status").to_pylist()
    assert verdicts == {
        "0": "refusal",
        "1": "truncated",
        "2": "empty",
        "3": "fenced",
        "4": "not_json",
        "5": "schema_mismatch",
        "6": "provider_error",
        **{str(i): None for i in range(7, 11)},
    }
    assert statuses == ["failed"] * 3 + ["succeeded"] + ["failed"] * 2 + ["review"] + ["succeeded"] * 4
    assert found.column("llm_raw").to_pylist()[4] is not None
    assert found.column("llm_refusal").to_pylist()[0] == "I cannot help with that."


def test_line_separators_inside_answers_end_no_line(shop: Shop) -> None:
    """U+2028 in an answer does not split its row."""
    entry, _ = shop.open("r1", table(3, lambda i: f"[[sim:separator]] {i}"), output=OutputSchema.compile(None))
    published = shop.finish(entry, "r1")
    assert published.entry.summary is not None
    assert published.entry.summary["succeeded"] == 3
    assert any("\u2028" in text for text in shop.results(published).column("text").to_pylist())


def test_missing_and_expired_rows_go_again_with_a_new_custom_id(shop: Shop) -> None:
    """Rows without a result are sent again, at most max_attempts times, and only they."""
    shop.simulator.faults.add_rows("missing", containing="ticket 3")
    entry, _ = shop.open("r1")
    published = shop.finish(entry, "r1")
    found = shop.results(published)
    assert found.column("llm_attempts").to_pylist() == [1, 1, 1, 3, 1, 1]
    assert found.column("llm_status").to_pylist()[3] == "review"
    assert shop.simulator.book.batches == 3
    assert max(shop.simulator.book.paid.values()) == 1


def test_answers_of_an_expired_batch_are_kept(shop: Shop) -> None:
    """A batch that expires half done gives its answers; the rest alone is sent again."""
    shop.simulator.store.batch_seconds = 1e9
    entry, _ = shop.open("r1", table(10))
    assert isinstance(shop.advance(entry, "r1"), Waiting)
    shop.simulator.store.expire(next(iter(shop.simulator.store.batches)), 0.6)
    shop.simulator.store.batch_seconds = 0
    found = shop.results(shop.finish(entry, "r1"))
    assert sorted(found.column("llm_attempts").to_pylist()) == [1] * 6 + [2] * 4
    assert shop.simulator.book.requests == 10


def test_a_full_queue_consumes_no_attempt(shop: Shop) -> None:
    """A batch failed for a full queue is sent again later, however often, and nothing is lost."""
    shop.simulator.store.token_limit = 0
    entry, _ = shop.open("r1")
    for _ in range(4):
        found = shop.advance(entry, "r1")
        assert isinstance(found, Waiting)
        shop.simulator.clock.advance(max(1.0, found.until - shop.work.now()))
    shop.simulator.store.token_limit = None
    published = shop.finish(entry, "r1")
    assert set(shop.results(published).column("llm_status").to_pylist()) == {"succeeded"}
    assert shop.simulator.book.requests == 6


@pytest.mark.parametrize(("fault", "value"), [("drop_after", 0), ("status_after", 500), ("status_after", 408)])
def test_a_lost_create_response_buys_one_batch(shop: Shop, fault: str, value: float) -> None:
    """The create was accepted and its answer lost: the batch is found and adopted."""
    shop.simulator.faults.add("create", fault, value)
    entry, _ = shop.open("r1")
    published = shop.finish(entry, "r1")
    assert shop.simulator.book.batches == 1
    assert shop.simulator.book.requests == 6
    assert set(shop.results(published).column("llm_status").to_pylist()) == {"succeeded"}


def test_list_lag_after_a_lost_response_is_waited_for(shop: Shop) -> None:
    """The batch shows in the list only later: nothing is bought before it was looked for again."""
    shop.simulator.store.list_lag = 30
    shop.simulator.faults.add("create", "drop_after")
    entry, _ = shop.open("r1")
    shop.finish(entry, "r1")
    assert shop.simulator.book.batches == 1


@pytest.mark.parametrize(("fault", "value"), [("drop_before", 0), ("status_before", 503), ("status_before", 429)])
def test_a_create_that_was_not_accepted_is_made_once(shop: Shop, fault: str, value: float) -> None:
    """The create failed before it was accepted: the same intent is bought, once."""
    shop.simulator.faults.add("create", fault, value)
    entry, _ = shop.open("r1")
    shop.finish(entry, "r1")
    assert shop.simulator.book.batches == 1


def test_a_refused_create_says_so_and_can_be_repeated(shop: Shop) -> None:
    """A 401 at create is an error that spends nothing; the next run buys the same intent once."""
    shop.simulator.faults.add("create", "status_before", 401)
    entry, _ = shop.open("r1")
    with pytest.raises(RejectedError, match="API key"):
        shop.advance(entry, "r1")
    shop.finish(entry, "r2")
    assert shop.simulator.book.batches == 1


class _Killed(BaseException):
    """Stands for kill -9: nothing of ours may catch it."""


def _kill_at(shop: Shop, monkeypatch: pytest.MonkeyPatch, owner: object, name: str, *, after: bool) -> None:
    real = getattr(owner, name)

    def dying(*args: object, **kwargs: object) -> object:
        if after:
            real(*args, **kwargs)
        raise _Killed

    monkeypatch.setattr(owner, name, dying)


@pytest.mark.parametrize(
    ("part", "name", "after"),
    [
        ("ledger", "record_intent", False),
        ("ledger", "record_intent", True),
        ("provider", "upload", True),
        ("ledger", "record_upload", True),
        ("provider", "create", True),
        ("ledger", "record_handle", False),
        ("ledger", "record_handle", True),
        ("ledger", "record_collected", False),
        ("ledger", "record_collected", True),
        ("ledger", "publish", False),
        ("ledger", "publish", True),
    ],
)
def test_a_crash_at_any_step_pays_once(
    shop: Shop, monkeypatch: pytest.MonkeyPatch, part: str, name: str, after: bool
) -> None:
    """A run that dies there leaves the partition to the next one, which pays for nothing twice."""
    with monkeypatch.context() as patch:
        # a killed process releases no lease: it runs out
        patch.setattr(type(shop.ledger), "release", lambda *_args: None)
        _kill_at(shop, patch, shop.work.ledger if part == "ledger" else shop.provider, name, after=after)
        entry, _ = shop.open("r1")
        with pytest.raises(_Killed):
            shop.finish(entry, "r1")
    entry, how = shop.open("r2")
    assert how in (Claim.ATTACH, Claim.NEW)
    if entry.generation == 1:
        published = shop.finish(entry, "r2")
        assert set(shop.results(published).column("llm_status").to_pylist()) == {"succeeded"}
        assert shop.simulator.book.batches == 1
        assert shop.simulator.book.requests == 6
    else:  # published before it died: another run buys again, a retry replays
        assert (name, after) == ("publish", True)
        replay, how = shop.open("r3", lineage=("r2",))
        assert how is Claim.CONTINUE
        assert replay.id == entry.id


def test_a_second_click_attaches(shop: Shop) -> None:
    """Another run with equal rows while a batch is out waits for it; both publish the same, one batch is bought."""
    first, _ = shop.open("r1")
    assert isinstance(shop.advance(first, "r1"), Waiting)
    second, how = shop.open("r2")
    assert (how, second.id) == (Claim.ATTACH, first.id)
    one, two = shop.finish(first, "r1"), shop.finish(second, "r2")
    assert one.entry.results_segment == two.entry.results_segment
    assert two.replayed
    assert shop.simulator.book.batches == 1


def test_a_retry_of_a_published_run_replays(shop: Shop) -> None:
    """The same run, or its retry, buys nothing after publication; another run is a new purchase."""
    entry, _ = shop.open("r1")
    shop.finish(entry, "r1")
    again, how = shop.open("r1b", lineage=("r1",))
    assert (how, again.id) == (Claim.CONTINUE, entry.id)
    assert shop.finish(again, "r1b").replayed
    assert shop.simulator.book.batches == 1
    other, how = shop.open("r2")
    assert (how, other.generation) == (Claim.NEW, 2)


def test_an_edited_row_is_bought_alone(shop: Shop) -> None:
    """An edit while a batch is out waits for it, keeps its answers and buys the edited row."""
    shop.simulator.store.batch_seconds = 1000
    first, _ = shop.open("r1")
    shop.advance(first, "r1")
    second, how = shop.open("r2", table(6, lambda i: f"ticket {i}" + (" edited" if i == 2 else "")))
    assert (how, second.generation) == (Claim.QUEUE, 2)
    assert isinstance(shop.advance(second, "r2"), Waiting)
    assert shop.simulator.book.batches == 1
    published = shop.finish(second, "r2")
    assert shop.results(published).column("llm_lane").to_pylist() == ["reused"] * 2 + ["batch"] + ["reused"] * 3
    assert shop.simulator.book.requests == 7
    # the first run, woken later, follows the generation that took its place
    late = shop.advance(first, "r1")
    assert isinstance(late, Published)
    assert late.entry.id == second.id


def test_a_changed_kept_column_buys_nothing(shop: Shop) -> None:
    """Columns that the prompt does not name may change while a batch is out: the answers stay."""
    first, _ = shop.open("r1")
    shop.advance(first, "r1")
    second, how = shop.open("r2", table().append_column("note", pa.array(["new"] * 6)))
    assert how is Claim.QUEUE
    found = shop.results(shop.finish(second, "r2"))
    assert found.column("note").to_pylist() == ["new"] * 6
    assert shop.simulator.book.batches == 1


def test_an_owner_slower_than_its_lease_buys_nothing(shop: Shop, monkeypatch: pytest.MonkeyPatch) -> None:
    """Its lease runs out during the upload, another run takes over: the slow one stops before the paid call."""
    entry, _ = shop.open("r1")
    real = shop.provider.upload
    taken = []

    def slow(*args: object, **kwargs: object) -> object:
        found = real(*args, **kwargs)  # pyright: ignore[reportArgumentType]
        if not taken:
            taken.append("once")
            shop.simulator.clock.advance(shop.work.policy.lease + 1)
            other, _ = shop.open("r2")
            assert isinstance(shop.advance(other, "r2"), Waiting)
        return found

    monkeypatch.setattr(shop.provider, "upload", slow)
    assert isinstance(shop.advance(entry, "r1"), Waiting)
    assert shop.simulator.book.batches == 1


def test_no_rows_is_an_empty_table_with_the_right_schema(shop: Shop) -> None:
    """An empty input publishes at once, with every column, and calls nobody."""
    entry, _ = shop.open("r1", table(0))
    empty = shop.advance(entry, "r1")
    assert isinstance(empty, Published)
    assert shop.simulator.book.calls.total() == 0
    full = shop.results(shop.finish(shop.open("r2")[0], "r2"))
    assert shop.results(empty).schema == full.schema


def test_an_oversized_row_fails_alone(shop: Shop, monkeypatch: pytest.MonkeyPatch) -> None:
    """A row over the provider's limit is never sent; the others are."""
    limits = type(shop.provider.limits)(2, 3000, 86400, 1, 1, "test", "test")
    monkeypatch.setattr(type(shop.provider), "limits", limits)
    entry, _ = shop.open("r1", table(5, lambda i: "x" * 4000 if i == 2 else f"ticket {i}"))
    found = shop.results(shop.finish(entry, "r1"))
    assert found.column("llm_error_name").to_pylist() == [None, None, "row_too_large", None, None]
    assert shop.simulator.book.batches == 2


@pytest.mark.parametrize(
    ("rows", "message"),
    [
        (pa.table({"id": [1, None], "body": ["a", "b"]}), "row numbers from 0: \\[1\\]"),
        (pa.table({"id": ["x", "x", "y"], "body": ["a", "b", "c"]}), "\\['x'\\]"),
        (pa.table({"id": [1], "bodi": ["a"]}), "Did you mean 'bodi'"),
        (pa.table({"nr": [1], "body": ["a"]}), "no column \\['id'\\]"),
        (pa.table({"id": [1], "body": ["a"], "urgent": [True]}), "fields of the output"),
        (pa.table({"id": [1.5], "body": ["a"]}), "must be integers or text"),
    ],
)
def test_bad_input_is_refused_before_any_call(shop: Shop, rows: pa.Table, message: str) -> None:
    """Null and repeated ids, missing and clashing columns are errors that say where, and nothing is sent or kept."""
    with pytest.raises(InputError, match=message):
        shop.open("r1", rows)
    assert shop.simulator.book.calls.total() == 0
    assert shop.ledger.latest_entry(KEY) is None


def test_failed_validation_of_a_batch_is_every_rows_reason(shop: Shop) -> None:
    """A batch refused as a whole leaves each row for review with the provider's code, and is not sent again."""
    entry, _ = shop.open("r1", model="no-such-model-1")
    published = shop.finish(entry, "r1")
    found = shop.results(published)
    assert set(found.column("llm_status").to_pylist()) == {"review"}
    assert set(found.column("llm_error_category").to_pylist()) == {"client_error"}
    assert shop.simulator.book.batches == 1
    assert published.entry.state is EntryState.PUBLISHED


def test_a_stored_model_schema_validates_after_the_code_changed(shop: Shop) -> None:
    """Another output type by the time of collection: the answers are read by the schema they were asked with."""
    entry, _ = shop.open("r1")
    shop.advance(entry, "r1")
    from dagster_llmbatch.core.advance import advance

    shop.simulator.clock.advance(100)
    found = advance(entry.id, shop.work, run_id="r1", output=OutputSchema.compile(None))
    assert isinstance(found, Published)
    assert set(shop.results(found).column("llm_status").to_pylist()) == {"succeeded"}
    assert "category" in shop.results(found).column_names


def test_costs_add_up_over_attempts(shop: Shop) -> None:
    """Each paid outcome is priced once, also when results are collected again."""
    shop.simulator.faults.add_rows("missing", containing="ticket 3")
    entry, _ = shop.open("r1")
    found = shop.finish(entry, "r1")
    summary = found.entry.summary
    assert summary is not None
    assert sum(shop.results(found).column("llm_input_tokens").is_valid().to_pylist()) == 5
    assert summary["cost_usd"] == pytest.approx(summary["tokens"]["input_tokens"] + summary["tokens"]["output_tokens"])


def test_ambiguous_is_retryable() -> None:
    """An unclear create is worth another run: it looks before it buys."""
    assert AmbiguousCreateError.retryable
    assert BatchPhase.UPLOADED.value == "uploaded"


def test_a_batch_holds_no_more_requests_than_configured(simulator: SimulatorServer, tmp_path: Path) -> None:
    """Two requests a batch: five rows are three batches, and each row has its answer once."""
    with closing(Shop(simulator, tmp_path, max_requests_per_batch=2)) as shop:
        entry, _ = shop.open("r1", table(5))
        published = shop.finish(entry, "r1")
        assert sorted(batch.request_count for batch in published.batches) == [1, 2, 2]
        found = shop.results(published)
    assert found.column("id").to_pylist() == list(range(5))
    assert found.column("llm_status").to_pylist() == ["succeeded"] * 5
    assert (simulator.book.batches, simulator.book.requests) == (3, 5)


def test_with_one_attempt_nothing_is_sent_again(simulator: SimulatorServer, tmp_path: Path) -> None:
    """max_attempts=1: a row without a result goes to review after its only send."""
    simulator.faults.add_rows("missing", containing="ticket 3")
    with closing(Shop(simulator, tmp_path, max_attempts=1)) as shop:
        entry, _ = shop.open("r1")
        found = shop.results(shop.finish(entry, "r1"))
    assert found.column("llm_attempts").to_pylist() == [1] * 6
    assert found.column("llm_status").to_pylist() == ["succeeded"] * 3 + ["review"] + ["succeeded"] * 2
    assert found.column("llm_error_category").to_pylist()[3] == "missing"
    assert simulator.book.batches == 1


def test_what_was_paid_for_earlier_is_not_counted_again(shop: Shop) -> None:
    """Answers taken over from an older generation cost nothing in the newer one: its cost and tokens are of what it bought."""
    shop.simulator.store.batch_seconds = 1000
    first, _ = shop.open("r1")
    shop.advance(first, "r1")
    second, _ = shop.open("r2", table(6, lambda i: f"ticket {i}" + (" edited" if i == 2 else "")))
    published = shop.finish(second, "r2")
    costs = shop.results(published).column("llm_cost_usd").to_pylist()
    assert costs[2] > 0
    assert costs[:2] + costs[3:] == [0.0] * 5
    summary = published.entry.summary
    assert summary is not None
    assert summary["cost_usd"] == pytest.approx(costs[2])
    tokens = {
        name: shop.results(published).column(f"llm_{name}")[2].as_py() for name in ("input_tokens", "output_tokens")
    }
    assert {name: summary["tokens"][name] for name in tokens} == tokens


def test_a_batch_is_asked_for_where_it_was_sent(shop: Shop, tmp_path: Path) -> None:
    """Configured to go elsewhere while a batch is out: it is finished at the old provider, and only new rows go to the new."""
    (tmp_path / "other").mkdir()
    with closing(Shop(shop.simulator, tmp_path / "other", provider="openrouter")) as other:
        first, _ = shop.open("r1")
        shop.advance(first, "r1")
        shop.simulator.clock.advance(100)
        clients = {client.name: client for client in (shop.provider, other.provider)}
        work = replace(shop.work, provider_of=clients.__getitem__)
        plan = plan_rows(
            table(),
            recipe=recipe(provider="openrouter", model=MODELS["openrouter"]),
            provider=other.provider,
            segments=work.segments,
            namespace=KEY.namespace,
            partition=KEY.partition_key,
        )
        second, how = claim(KEY, plan, run_id="r2", lineage=("r2",), ledger=shop.ledger, now=work.now())
        assert how is Claim.QUEUE
        shop.work = work
        published = shop.finish(second, "r2")
    assert set(shop.results(published).column("llm_provider").to_pylist()) == {"openrouter"}
    assert [create["provider"] for create in shop.simulator.book.creates] == ["openai", "openrouter"]
    old = shop.ledger.batches(first.id)
    assert [(batch.provider, batch.phase) for batch in old] == [("openai", BatchPhase.COLLECTED)]


def test_what_takes_another_generations_place_cancels_nothing(shop: Shop) -> None:
    """Edited rows supersede a partition whose batch is out: it runs to its end, and no provider is asked to stop anything."""
    shop.simulator.store.batch_seconds = 1000
    first, _ = shop.open("r1")
    shop.advance(first, "r1")
    second, _ = shop.open("r2", table(6, lambda i: f"edited {i}"))
    shop.finish(second, "r2")
    assert shop.ledger.entry(first.id).state is EntryState.SUPERSEDED
    assert shop.simulator.book.calls["cancel"] == 0
    assert shop.simulator.book.requests == 12


def test_edits_while_edits_wait_lose_no_answer(shop: Shop) -> None:
    """A third generation behind a second that has begun nothing yet: the first one's answers are still kept."""
    shop.simulator.store.batch_seconds = 1000
    first, _ = shop.open("r1")
    shop.advance(first, "r1")
    for number in (1, 2):
        edited = table(6, lambda i, n=number: f"ticket {i}" + (" edited" if i < n else ""))
        entry, how = shop.open(f"e{number}", edited)
        assert how is Claim.QUEUE
        assert isinstance(shop.advance(entry, f"e{number}"), Waiting)
    published = shop.finish(entry, "e2")
    assert shop.results(published).column("llm_status").to_pylist() == ["succeeded"] * 6
    assert shop.simulator.book.requests == 6 + 2
    assert shop.advance(first, "r1").entry.id == published.entry.id

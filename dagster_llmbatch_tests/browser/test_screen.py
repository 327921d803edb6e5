"""What a user sees in Dagster's UI of one partition, from the submitted batch to the finished table."""

import re

import pytest
from playwright.sync_api import expect

from dagster_llmbatch.simulator.server import SimulatorServer
from dagster_llmbatch_tests.browser.conftest import BATCH_SECONDS
from dagster_llmbatch_tests.browser.screen import Screen
from dagster_llmbatch_tests.daemon.harness import DagsterHome
from dagster_llmbatch_tests.daemon.scenes import finished, waiting

pytestmark = [pytest.mark.daemon, pytest.mark.slow, pytest.mark.xdist_group("daemon")]

DOT, LINE = 2, 100
"""Pixel columns that a plot of one point, and of several, has at least."""


def test_a_partition_from_waiting_to_materialized(
    home: DagsterHome, simulator: SimulatorServer, screen: Screen
) -> None:
    """In progress and plotted while the batch is out; materialized with its summary, numbers and check after it."""
    run = home.launch(["tickets", "triage"], "d00")
    continuation = str(waiting(home, run)["id"])
    for share, done in ((0.12, 0.0), (0.29, 20.0), (0.46, 40.0), (0.63, 60.0)):
        come_to(share, simulator)
        home.wait(lambda done=done: percent_done(home) == done, 60, f"an observation of {done} %")
    sees_a_waiting_partition(screen, continuation)
    sees_a_suspended_run(screen, run, continuation)
    sees_progress(screen)
    come_to(1.1, simulator)
    assert finished(home, {"id": continuation}) == "SUCCESS"
    sees_a_materialized_partition(screen, continuation)
    sees_two_successful_runs(screen, run, continuation)
    sees_plots_of_materializations(screen)
    sees_the_check_passed(screen)


def come_to(share: float, simulator: SimulatorServer) -> None:
    """Move time to where the only batch has this share of its seconds behind it."""
    (batch,) = simulator.store.batches.values()
    simulator.clock.advance(batch.created_at + share * BATCH_SECONDS - simulator.clock.now())


def percent_done(home: DagsterHome) -> "float | None":
    """What the sensor reported last."""
    entries = home.observations("triage")[0]["metadataEntries"]
    return next((e["floatValue"] for e in entries if e["label"] == "llmbatch/percent_done"), None)


def sees_a_waiting_partition(screen: Screen, continuation: str) -> None:
    """In progress: neither failed nor materialized, with the run that stands for it and how far it is."""
    with screen.open("/assets/triage?view=partitions&partition=d00") as page:
        for count in ("Materializing (1)", "Materialized (0)", "Failed (0)", "Missing (59)"):
            screen.shows(count)
        expect(page.get_by_role("button", name=re.compile(r"View all historical events \([1-9]"))).to_be_visible()
        screen.lacks("Materialized")
        screen.lacks("Failed")
    with screen.open("/assets/triage?view=overview") as page:
        expect(page.get_by_role("link", name=continuation[:8])).to_be_visible()
        screen.says("llmbatch/state", "in_progress")
        screen.says("llmbatch/percent_done", "60")
    with screen.open("/assets/triage?view=checks"):
        screen.shows("Running")


def sees_a_suspended_run(screen: Screen, run: str, continuation: str) -> None:
    """Two runs: one that ended well, and one that is suspended and says for what."""
    with screen.open("/runs"):
        screen.shows("In progress (1)")
        expect(screen.run(continuation)).to_contain_text("Suspended")
        expect(screen.run(run)).to_contain_text("Success")
        screen.lacks("Failure")
    with screen.open(f"/runs/{continuation}") as page:
        screen.shows("Suspended")
        expect(page.get_by_text(f"Waits for the LLM batches of run {run}")).to_be_visible()
    with screen.open("/locations/__repository__@shop/sensors/llm_batch_sensor") as page:
        page.get_by_role("button", name="0 runs requested", exact=True).first.click()
        expect(page.get_by_text("1 batch pending; triage d00")).to_contain_text("in_progress 3/5")


def sees_progress(screen: Screen) -> None:
    """A plot of progress over time that rises from left to right."""
    with screen.open("/assets/triage?view=overview"):
        screen.plots("Events")
        for label in ("llmbatch/percent_done", "llmbatch/requests_completed"):
            heights = screen.plotted(label, columns=LINE)
            assert heights[-1] - heights[0] > 0.2, f"{label} does not rise: {heights}"
        screen.plotted("llmbatch/requests", columns=LINE)


def sees_a_materialized_partition(screen: Screen, continuation: str) -> None:
    """Green, with the summary as formatted text and the numbers."""
    with screen.open("/assets/triage?view=partitions&partition=d00") as page:
        for count in ("Materialized (1)", "Materializing (0)", "Failed (0)", "Missing (59)"):
            screen.shows(count)
        screen.shows("Materialized")
        expect(page.get_by_role("link", name=continuation[:8])).to_be_visible()
        summary = screen.entry("llmbatch/summary")
        expect(summary.locator("strong")).to_have_text("5 rows")
        expect(summary).to_contain_text("5 succeeded, 0 failed, 0 for review.")
        expect(summary.locator("li").first).to_have_text("model gpt-5-mini at openai, 1 batch in 1 wave, generation 1")
        screen.says("dagster/row_count", "5")
        screen.says("llmbatch/succeeded", "5")
        for tokens in ("input", "output"):
            screen.says(f"llmbatch/{tokens}_tokens", re.compile(r"^[1-9]\d*$"))
        cost = screen.says("llmbatch/cost_usd", re.compile(r"^0\.0*[1-9]\d*$"))
        expect(summary.locator("li").last).to_have_text(f"cost: {cost} USD")
    with screen.open("/assets/triage?view=overview"):
        screen.shows("Row count")
        screen.shows("llm_status")


def sees_two_successful_runs(screen: Screen, run: str, continuation: str) -> None:
    """Nothing is suspended any more."""
    with screen.open("/runs"):
        screen.shows("In progress (0)")
        expect(screen.run(continuation)).to_contain_text("Success")
        expect(screen.run(run)).to_contain_text("Success")
        screen.lacks("Suspended")


def sees_plots_of_materializations(screen: Screen) -> None:
    """Rows, cost and tokens by partition."""
    with screen.open("/assets/triage?view=overview"):
        screen.plots("Partitions")
        for label in ("dagster/row_count", "llmbatch/cost_usd", "llmbatch/input_tokens", "llmbatch/output_tokens"):
            screen.plotted(label, columns=DOT)


def sees_the_check_passed(screen: Screen) -> None:
    """The check says of how many rows it speaks."""
    with screen.open("/assets/triage?view=checks") as page:
        expect(page.get_by_text("validation_failure_rate", exact=True).first).to_be_visible()
        screen.shows("Passed")
        screen.shows("0.0% of 5 rows have no valid answer (warns above 5.0%, fails above 50.0%).")

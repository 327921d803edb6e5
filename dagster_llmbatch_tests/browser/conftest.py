"""A headless Chromium on a deployment of the shop, and a simulator whose time a test moves."""

import os
import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest
from playwright.sync_api import sync_playwright

from dagster_llmbatch.simulator.server import SimulatorServer
from dagster_llmbatch_tests.browser.screen import Screen
from dagster_llmbatch_tests.daemon.deployment import SHOP, home
from dagster_llmbatch_tests.daemon.harness import DagsterHome

__all__ = ["home"]

BATCH_SECONDS = 100.0
ARGUMENTS = [
    "--no-sandbox",
    "--disable-gpu",
    "--disable-quic",
    "--no-first-run",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
]


@pytest.fixture(scope="module")
def simulator() -> "Iterator[SimulatorServer]":
    """A simulator whose batches come further only when a test moves the clock."""
    with SimulatorServer(batch_seconds=BATCH_SECONDS, frozen=True) as server:
        yield server


@pytest.fixture(scope="module")
def shop() -> str:
    """The shop, polling every second for as long as a batch is out."""
    interval = "poll_interval=0.5"
    source = SHOP.read_text()
    assert source.count(interval) == 1
    return source.replace(interval, f"{interval}, poll_interval_max=1")


@pytest.fixture(scope="module")
def chromium() -> str:
    """The browser's path. Only outside CI may it be missing."""
    found = shutil.which("chromium")
    if found is None:
        reason = "there is no chromium on the PATH: install the package chromium"
        if os.environ.get("CI"):
            pytest.fail(reason)
        pytest.skip(reason)
    return found


@pytest.fixture
def screen(chromium: str, home: DagsterHome, tmp_path: Path) -> "Iterator[Screen]":
    """The deployment's UI in a browser."""
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=chromium, args=ARGUMENTS)
        page = browser.new_page(viewport={"width": 1400, "height": 1600})
        yield Screen(page, f"http://127.0.0.1:{home.port}", tmp_path)
        browser.close()

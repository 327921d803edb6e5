"""What a user sees of Dagster: pages, rows of tables, and plots."""

import re
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from playwright.sync_api import Error, Locator, Page, expect

TIMEOUT = 60_000.0
"""Milliseconds that something may take to show on a busy machine."""
LINE_HEIGHTS = """([canvas, columns]) => {
    const { width, height } = canvas;
    const { data } = canvas.getContext("2d").getImageData(0, 0, width, height);
    const heights = [];
    for (let x = 0; x < width; x++) {
        const inked = [];
        for (let y = 0; y < height; y++) {
            const [red, green, blue, alpha] = data.subarray(4 * (y * width + x));
            if (alpha > 128 && blue > 150 && blue - green > 80 && blue - red > 80) inked.push(y);
        }
        if (inked.length) heights.push(1 - (inked[0] + inked.at(-1)) / 2 / height);
    }
    return heights.length >= columns && heights;
}"""
"""How high the line is in each pixel column that has it, 0 to 1. Axes and labels are grey, the line is blue."""


class Screen:
    """Dagster's UI in a browser. What does not show in time fails with a screenshot."""

    def __init__(self, page: Page, address: str, folder: Path) -> None:
        page.set_default_timeout(TIMEOUT)
        expect.set_options(timeout=TIMEOUT)
        self.page = page
        self._address = address
        self._folder = folder

    @contextmanager
    def open(self, path: str) -> "Iterator[Page]":
        """Open a page; where what is looked for on it is not there, the failure names a screenshot."""
        try:
            self.page.goto(self._address + path)
            yield self.page
        except (AssertionError, Error) as error:
            picture = self._folder / (re.sub(r"\W+", "-", path.strip("/")) + ".png")
            self.page.screenshot(path=picture, full_page=True)
            raise AssertionError(f"{path} does not show what it should; screenshot: {picture}\n{error}") from error

    def shows(self, text: str) -> None:
        """Exactly this text is on the page, once."""
        expect(self.page.get_by_text(text, exact=True)).to_be_visible()

    def lacks(self, text: str) -> None:
        """This text is nowhere. Said of a page that shows what it is about already."""
        expect(self.page.get_by_text(text, exact=True)).to_have_count(0)

    def run(self, run_id: str) -> Locator:
        """A run's line in the table of runs."""
        links = self.page.locator(f'a[href="/runs/{run_id}"]')
        both = (
            self.page.locator("div")
            .filter(has=links.filter(has_text=run_id[:8]))
            .filter(has=links.filter(has_text="View"))
        )
        return both.last

    def entry(self, label: str) -> Locator:
        """The line of a metadata label."""
        return self.page.locator("tr").filter(has=self.page.get_by_text(label, exact=True))

    def says(self, label: str, value: "str | re.Pattern[str]") -> str:
        """Beside a metadata label there is this value; returns it as it is written."""
        found = self.entry(label).get_by_text(value, exact=True)
        expect(found).to_be_visible()
        return found.inner_text()

    def plots(self, axis: str) -> None:
        """Switch the asset's metadata from the table to plots over "Partitions" or "Events"."""
        self.page.get_by_role("button", name="Plots").click()
        self.page.get_by_role("button").filter(has_text=axis).click()

    def plotted(self, label: str, *, columns: int) -> "list[float]":
        """How high a label's line is from left to right, once it fills so many pixel columns."""
        heading = self.page.get_by_text(label, exact=True)
        expect(heading).to_be_visible()
        heading.scroll_into_view_if_needed()
        canvas = heading.locator("xpath=../..").locator("canvas")
        expect(canvas).to_be_visible()
        drawn = self.page.wait_for_function(LINE_HEIGHTS, arg=[canvas.element_handle(), columns])
        return drawn.json_value()

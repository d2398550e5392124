"""The dashboard as people meet it: a real browser, a real service, nothing from the network."""

from __future__ import annotations

import re
import shutil
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

import pytest
from playwright.sync_api import Browser, Locator, Page, expect, sync_playwright

from remat.client import Client
from remat_solver.errors import InfeasibleBudget
from tests.integration.solver_service import SolverService
from tests.integration.training_graphs import ENDLESS, QUICK_OPS, tangle, uneven_chain

PATIENCE_MS = 300_000
"""For what must happen; how fast is not this test's business."""
expect.set_options(timeout=PATIENCE_MS)
ADMIN_KEY = "the operator's own key, long enough"
BROWSERS = ("chromium", "chromium-browser", "google-chrome", "google-chrome-stable")


@dataclass
class Tab:
    """A page of a service, and whatever went wrong on it."""

    page: Page
    url: str
    complaints: list[str] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.page.set_default_timeout(PATIENCE_MS)
        self.page.on("pageerror", lambda error: self.complaints.append(f"script: {error}"))
        self.page.on("console", lambda said: self._hear(said.type, said.text))
        self.page.on("request", lambda request: self._see(request.url))

    def open(self, path: str) -> None:
        """Loads a page of the service."""
        self.page.goto(self.url + path)

    def row_link(self, name: str) -> Locator:
        """The link with this name in a table."""
        return self.page.get_by_role("row").get_by_role("link", name=name, exact=True).first

    def _hear(self, kind: str, text: str) -> None:
        if kind in ("error", "warning"):
            self.complaints.append(f"{kind}: {text}")

    def _see(self, address: str) -> None:
        if not address.startswith(self.url):
            self.complaints.append(f"asked another server: {address}")


@pytest.fixture(scope="module")
def browser() -> Iterator[Browser]:
    program = next((found for name in BROWSERS if (found := shutil.which(name))), None)
    assert program, "Chromium is missing: install it (apt-get install chromium), or run scripts/setup as root."
    with sync_playwright() as playwright:
        launched = playwright.chromium.launch(
            executable_path=program, args=["--no-sandbox", "--disable-gpu", "--disable-dev-shm-usage"]
        )
        yield launched
        launched.close()


@pytest.fixture
def tab(browser: Browser, service: SolverService) -> Iterator[Tab]:
    with browser.new_context(viewport={"width": 1280, "height": 900}) as context:
        opened = Tab(context.new_page(), service.url)
        yield opened
        assert opened.complaints == []


@pytest.fixture
def addresses(client: Client) -> list[str]:
    """A page of each kind with something on it."""
    graph = uneven_chain(QUICK_OPS, name="shown in a browser")
    solve = client.submit(graph, budget_fraction=0.7)
    while not (found := client.get(solve.id, wait_s=30)).is_over:
        pass
    assert found.state == "done"
    client.frontier(graph, 3, gap=1.0)
    with pytest.raises(InfeasibleBudget):
        client.solve(uneven_chain(QUICK_OPS, name="never fits"), budget_bytes=5000)
    return ["", "/solves", f"/solves/{solve.id}", f"/solves/{solve.id}/plan", "/keys", "/sign-in"]


def test_pages_are_whole_at_both_widths(tab: Tab, addresses: list[str]) -> None:
    tab.open("/dashboard/solves?kind=frontier")
    frontier = tab.row_link("shown in a browser").get_attribute("href")
    tab.open("/dashboard/solves?state=failed")
    failed = tab.row_link("never fits").get_attribute("href")
    assert frontier is not None
    assert failed is not None
    for width in (1280, 800):
        tab.page.set_viewport_size({"width": width, "height": 900})
        for path in [*(f"/dashboard{address}" for address in addresses), frontier, failed]:
            tab.open(path)
            expect(tab.page.locator("h1")).to_be_visible()
            for chart in tab.page.locator("[data-chart]").all():
                expect(chart.locator("canvas")).to_be_visible()
                assert re.search("table|log", str(chart.get_attribute("aria-label")))
            too_wide = tab.page.evaluate("document.documentElement.scrollWidth - document.documentElement.clientWidth")
            assert too_wide == 0, f"{path} at {width}"


def test_every_chart_has_a_table_with_its_figures(tab: Tab, addresses: list[str]) -> None:
    tab.open(f"/dashboard{addresses[3]}")
    for summary, region in [
        ("Memory over time as a table", "Memory over time, plan"),
        ("Recomputations in order, as a table", "Recomputations in order"),
    ]:
        tab.page.get_by_text(summary).click()
        expect(tab.page.get_by_role("region", name=region).get_by_role("row").nth(1)).to_be_visible()
    expect(tab.page.get_by_role("region", name="What is recomputed").get_by_role("row").nth(1)).to_be_visible()


def test_a_point_of_a_frontier_leads_to_its_plan(tab: Tab, addresses: list[str]) -> None:
    del addresses
    tab.open("/dashboard/solves?kind=frontier")
    tab.row_link("shown in a browser").click()
    over = tab.page.locator(".u-over")
    over.hover()
    over.click()
    expect(tab.page.get_by_role("heading", name="Plan for shown in a browser")).to_be_visible()
    assert "/plans/" in tab.page.url


def test_everything_is_reached_by_keyboard(tab: Tab, addresses: list[str]) -> None:
    del addresses
    tab.open("/dashboard/solves?kind=frontier")
    keyboard = tab.page.keyboard
    keyboard.press("Tab")
    assert focused(tab.page) == "Skip to the content"
    reached = tab_until(tab.page, "shown in a browser")
    for name in ("Remat", "Overview", "Solves", "Keys", "any", "Show"):
        assert any(name in one for one in reached), (name, reached)
    keyboard.press("Enter")
    expect(tab.page.get_by_role("heading", name="Points")).to_be_visible()
    tab_until(tab.page, "MiB")
    keyboard.press("Enter")
    expect(tab.page.get_by_role("heading", name="The proof")).to_be_visible()
    tab_until(tab.page, "Memory over time as a table")
    keyboard.press("Enter")
    expect(tab.page.get_by_role("region", name="Memory over time, plan")).to_be_visible()


def test_a_solve_is_followed_and_stopped_from_its_page(tab: Tab, client: Client) -> None:
    solve = client.submit(tangle(2), **ENDLESS)
    tab.open(f"/dashboard/solves/{solve.id}")
    tab.page.evaluate("window.sameDocument = true")
    expect(tab.page.locator("#log")).to_contain_text("best plan")
    assert tab.page.evaluate("window.sameDocument")
    expect(tab.page.locator("[data-chart=progress] canvas")).to_be_visible()
    tab.page.get_by_role("button", name="Stop and keep the best plan").click()
    tab.page.get_by_role("link", name="Look at the plan").click()
    expect(tab.page.get_by_role("heading", name="The proof")).to_be_visible()
    assert client.get(solve.id).state == "done"


def test_cancelling_asks_first(tab: Tab, client: Client) -> None:
    solve = client.submit(tangle(3), **ENDLESS)
    tab.open(f"/dashboard/solves/{solve.id}")
    questions: list[str] = []

    def decline(dialog: object) -> None:
        questions.append(dialog.message)  # type: ignore[attr-defined]
        dialog.dismiss()  # type: ignore[attr-defined]

    tab.page.once("dialog", decline)
    tab.page.locator("#cancel").click()
    assert questions == ["Cancel it, and keep nothing?"]
    assert client.get(solve.id).state in ("queued", "running")
    tab.page.once("dialog", lambda dialog: dialog.accept())
    tab.page.locator("#cancel").click()
    expect(tab.page.locator(".state.cancelled")).to_be_visible()
    assert client.get(solve.id).state == "cancelled"


def test_signing_in_behind_a_path(browser: Browser, tmp_path: Path) -> None:
    service = SolverService(tmp_path, "--require-keys", "--root-path", "/remat", REMAT_ADMIN_KEY=ADMIN_KEY)
    service.start()
    try:
        with browser.new_context() as context:
            tab = Tab(context.new_page(), service.url)
            tab.open("/remat/dashboard/keys")
            tab.page.get_by_label("API key").fill(ADMIN_KEY)
            tab.page.keyboard.press("Enter")
            expect(tab.page.get_by_role("heading", name="API keys")).to_be_visible()
            tab.page.get_by_label("Name").fill("a team")
            tab.page.get_by_role("button", name="Make the key").click()
            assert re.fullmatch(r"rmt_\S+", tab.page.get_by_label("The key", exact=True).input_value())
            tab.page.once("dialog", lambda dialog: dialog.accept())
            tab.page.get_by_role("button", name="Revoke a team").click()
            expect(tab.page.locator(".state.revoked")).to_be_visible()
            tab.page.get_by_role("button", name="Sign out").click()
            expect(tab.page.get_by_role("heading", name="Sign in")).to_be_visible()
            assert tab.complaints == []
    finally:
        service.stop()


def focused(page: Page) -> str:
    """The words on whatever has the focus."""
    return str(page.evaluate("(document.activeElement.innerText || document.activeElement.value || '').trim()"))


def tab_until(page: Page, words: str) -> list[str]:
    """Presses Tab until what has the focus is named so; what was passed on the way."""
    passed = []
    for _ in range(40):
        page.keyboard.press("Tab")
        name = focused(page)
        if words in name and page.evaluate("document.activeElement.matches('a, button, summary')"):
            return passed
        passed.append(name)
    raise AssertionError(f"{words!r} is not reached by Tab; passed {passed}")

"""The report in a real Chromium: drawn, quiet, sortable, copyable, themed, printable; the live page follows."""

from __future__ import annotations

import base64
from pathlib import Path

import pytest

from storage.records import StudyState
from storage.store import Store
from sweep.report.live import dashboard, serve
from tests.browser import Driver, complaints, drawn, needs_browser, until
from tests.report_tests.made import EVIL, make

pytestmark = [needs_browser, pytest.mark.slow]


@pytest.fixture
def opened(browser: Driver, page: Path) -> Driver:
    """The page at its usual size. It is loaded once: each test sets what it depends on."""
    _look(browser, 1200, "light")
    if browser.current_url != page.as_uri():
        browser.get(page.as_uri())
    until(lambda: drawn(browser))
    return browser


def _look(browser: Driver, width: int, scheme: str) -> None:
    feature = {"name": "prefers-color-scheme", "value": scheme}
    browser.execute_cdp_cmd("Emulation.setEmulatedMedia", {"features": [feature]})
    metrics = {"width": width, "height": 900, "deviceScaleFactor": 1, "mobile": width < 600}
    browser.execute_cdp_cmd("Emulation.setDeviceMetricsOverride", metrics)


def _column(browser: Driver, number: int) -> list[str]:
    script = f"return [...document.querySelectorAll('#arms-table tbody tr')].map(r => r.cells[{number}].dataset.v)"
    found: list[str] = browser.execute_script(script)
    return found


class TestReport:
    def test_draws_every_plot_without_a_complaint(self, opened: Driver) -> None:
        script = "return [...document.querySelectorAll('.plot')].map(p => p.querySelectorAll('.trace, .point').length)"
        counts = opened.execute_script(script)
        assert len(counts) >= 7
        assert all(count > 0 for count in counts)
        assert complaints(opened) == []

    def test_nothing_from_outside_ran(self, opened: Driver) -> None:
        assert opened.execute_script("return window.hacked === undefined")
        assert EVIL in opened.execute_script("return document.getElementById('arms-table').textContent")
        legends = opened.execute_script("return [...document.querySelectorAll('.key')].map(k => k.textContent).join()")
        assert "<script>" in legends  # the drafter's name stands in the legend as text
        assert opened.execute_script("return document.querySelectorAll('.plot script').length") == 0

    def test_its_policy_forbids_connections(self, opened: Driver) -> None:
        script = (
            "const done = arguments[0];fetch('http://127.0.0.1:9/').then(() => done('reached'), e => done(e.message));"
        )
        assert opened.execute_async_script(script) != "reached"
        blocked = complaints(opened)
        assert any("Content Security Policy" in entry["message"] for entry in blocked)

    def test_sorts_both_ways(self, opened: Driver) -> None:
        opened.execute_script("document.querySelectorAll('#arms-table th button')[5].click()")
        rising = [float(value) for value in _column(opened, 5) if value]
        assert rising == sorted(rising)
        assert len(rising) == 4
        opened.execute_script("document.querySelectorAll('#arms-table th button')[5].click()")
        assert [float(value) for value in _column(opened, 5) if value] == rising[::-1]
        assert _column(opened, 5)[-1] == ""  # what has no figure stands last either way

    def test_a_key_hides_and_shows_its_trace(self, opened: Driver) -> None:
        key = "document.querySelector('.key[data-plot=concurrency]')"
        shown = "return document.querySelectorAll('#concurrency .trace').length"
        before = opened.execute_script(shown)
        opened.execute_script(f"{key}.click()")
        until(lambda: opened.execute_script(shown) == before - 1)
        assert opened.execute_script(f"return {key}.getAttribute('aria-pressed')") == "false"
        opened.execute_script(f"{key}.click()")
        until(lambda: opened.execute_script(shown) == before)

    def test_filters(self, opened: Driver) -> None:
        opened.execute_script(
            "const box = document.getElementById('filter');"
            "box.value = 'good 3/1'; box.dispatchEvent(new Event('input'))"
        )
        assert opened.execute_script("return document.getElementById('shown').textContent") == "1 of 6 arms"
        opened.execute_script(
            "document.getElementById('filter').value = '';"
            "const list = document.getElementById('verdict-filter');"
            "list.value = 'launch_oom'; list.dispatchEvent(new Event('change'))"
        )
        assert opened.execute_script("return document.getElementById('shown').textContent") == "1 of 6 arms"

    def test_copies_the_command(self, opened: Driver) -> None:
        grant = {"permissions": ["clipboardReadWrite", "clipboardSanitizedWrite"]}
        opened.execute_cdp_cmd("Browser.grantPermissions", grant)
        opened.execute_cdp_cmd("Page.bringToFront", {})
        opened.execute_script("document.querySelector('.copy').click()")
        until(lambda: opened.execute_script("return document.querySelector('.copy').textContent") == "Copied")
        read = "const done = arguments[0]; navigator.clipboard.readText().then(done, e => done(String(e)))"
        text = opened.execute_async_script(read)
        assert text == opened.execute_script("return document.getElementById('command-text').textContent")
        assert "sglang.launch_server" in text

    def test_follows_the_theme(self, opened: Driver) -> None:
        ground = "return getComputedStyle(document.body).backgroundColor"
        ink = "return document.getElementById('pareto').layout.font.color"
        light = (opened.execute_script(ground), opened.execute_script(ink))
        _look(opened, 1200, "dark")
        until(lambda: opened.execute_script(ink) != light[1])
        assert opened.execute_script(ground) != light[0]

    def test_fits_a_phone(self, opened: Driver) -> None:
        _look(opened, 390, "light")
        # Plots follow a change of width a moment later.
        until(lambda: opened.execute_script("return document.documentElement.scrollWidth") <= 390)
        assert opened.execute_script("return document.getElementById('pareto')._fullLayout.width") < 390

    def test_no_interval_is_broken_on_a_phone(self, opened: Driver) -> None:
        """At the widths of phones: at some of them the interval stands at the end of a line."""

        def lines() -> set[int]:
            found: set[int] = set()
            for width in range(320, 460, 4):
                _look(opened, width, "light")
                count = "[...document.querySelectorAll('.verdict .whole')].map(e => e.getClientRects().length)"
                found |= set(opened.execute_script(f"return {count}"))
            return found

        assert lines() == {1}
        style = "document.querySelectorAll('.whole').forEach(e => e.style.whiteSpace = '{}')"
        opened.execute_script(style.format("normal"))
        assert max(lines()) > 1  # else nothing here would have been broken
        opened.execute_script(style.format(""))

    def test_prints_in_light_and_within_the_page(self, opened: Driver) -> None:
        _look(opened, 1200, "dark")
        widths = (
            "window.wide = 0; window.addEventListener('beforeprint', () => { window.wide = Math.max(...[...document"
        )
        widths += (
            ".querySelectorAll('.plot')].map(p => p.layout.width)); window.shade = document.getElementById('pareto')"
        )
        opened.execute_script(widths + ".layout.font.color; })")
        made = opened.execute_cdp_cmd("Page.printToPDF", {"paperWidth": 8.27, "paperHeight": 11.69})
        assert base64.b64decode(made["data"]).startswith(b"%PDF")
        assert 0 < opened.execute_script("return window.wide") <= 700
        assert opened.execute_script("return window.shade") == "#1b1f24"


class TestLive:
    def test_follows_the_study(self, browser: Driver, tmp_path: Path) -> None:
        with Store.open(f"sqlite:///{tmp_path / 'live.db'}") as store:
            study = make(store)
            store.set_state(study.id, StudyState.RUNNING)
            with serve(store, study.id) as url:
                browser.get(url)
                until(lambda: drawn(browser))
                heading = "return document.querySelector('h1').textContent"
                assert "this page follows it" in browser.execute_script(heading)
                assert complaints(browser) == []
                store.set_state(study.id, StudyState.FINISHED)
                until(lambda: "finished" in browser.execute_script(heading))

    def test_dashboard_shows_the_study(self, browser: Driver, store: Store) -> None:
        pytest.importorskip("optuna_dashboard", reason="needs the extra `dashboard`")
        with dashboard(store, store.study("night")) as url:
            assert url is not None
            browser.get(url)
            until(lambda: "night" in browser.execute_script("return document.body.textContent"))

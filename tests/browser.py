"""A real headless Chromium for tests of pages, and what may be asked of a page of ours in it.

Needs Debian's chromium and chromium-driver (apt); tests that use it are skipped with that reason where they are not.
"""

from __future__ import annotations

import os
import shutil
import time
from collections.abc import Callable, Iterator
from typing import Any

import pytest

BROWSER = shutil.which("chromium") or shutil.which("chromium-browser")
DRIVER = shutil.which("chromedriver")
needs_browser = pytest.mark.skipif(
    BROWSER is None or DRIVER is None, reason="needs a browser: apt-get install chromium chromium-driver"
)

Driver = Any  # selenium is imported only where it is used


@pytest.fixture(scope="module")
def browser(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Driver]:
    from selenium import webdriver
    from selenium.webdriver.chrome.options import Options
    from selenium.webdriver.chrome.service import Service

    options = Options()
    options.binary_location = str(BROWSER)
    profile = tmp_path_factory.mktemp("profile")
    words = ["--headless=new", "--disable-gpu", "--disable-dev-shm-usage", f"--user-data-dir={profile}"]
    if os.geteuid() == 0:
        words.append("--no-sandbox")  # Chromium refuses to run as root with it
    for word in words:
        options.add_argument(word)
    options.set_capability("goog:loggingPrefs", {"browser": "ALL"})
    driver = webdriver.Chrome(options=options, service=Service(str(DRIVER)))
    yield driver
    driver.quit()


def drawn(browser: Driver) -> bool:
    script = "return [...document.querySelectorAll('.plot')].every(p => p.dataset.drawn === '1')"
    return bool(browser.execute_script(script))


def until(condition: Callable[[], bool], seconds: float = 20.0) -> None:
    end = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < end, "did not happen in time"
        time.sleep(0.1)  # polling a page in another process


def complaints(browser: Driver) -> list[dict[str, Any]]:
    return [entry for entry in browser.get_log("browser") if entry["level"] in ("SEVERE", "WARNING")]

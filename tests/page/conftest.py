"""One browser and one canned daemon for all tests of the live page."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import pytest
from page_browser import emulate, start
from page_daemon import CannedDaemon
from selenium import webdriver
from selenium.webdriver.common.by import By
from selenium.webdriver.support.ui import WebDriverWait


class Page:
    """The live page as a reader has it in front of them."""

    def __init__(self, driver: webdriver.Chrome, daemon: CannedDaemon) -> None:
        self.driver = driver
        self.daemon = daemon

    def open(self, make: Callable[[float], dict[str, Any]], **look: Any) -> None:
        """Open the page on that state, and wait until it is drawn."""
        self.daemon.make, self.daemon.fault = make, None
        emulate(self.driver, **look)
        self.driver.get("about:blank")
        for kind in ("browser", "performance"):
            self.driver.get_log(kind)  # what an earlier test left
        self.daemon.asked.clear()
        self.driver.get(self.daemon.url)
        self.until("return document.querySelector('[data-live]') !== null")

    def js(self, script: str, *arguments: Any) -> Any:
        return self.driver.execute_script(script, *arguments)

    def until(self, script: str, *arguments: Any, seconds: float = 10) -> Any:
        """Wait until the script returns something true, and return that."""
        wait = WebDriverWait(self.driver, seconds, poll_frequency=0.1)
        return wait.until(lambda d: d.execute_script(script, *arguments), script)

    def until_asked(self, times: int = 1) -> None:
        """Wait for that many further answers to be drawn."""
        before = len(self.daemon.asked)
        WebDriverWait(self.driver, 20, poll_frequency=0.05).until(lambda _: len(self.daemon.asked) >= before + times)
        self.js("return new Promise(done => setTimeout(done, 150))")

    def text(self, css: str = "main") -> str:
        """The visible text, with ordinary spaces."""
        return self.driver.find_element(By.CSS_SELECTOR, css).text.replace("\u00a0", " ")

    def texts(self, css: str) -> list[str]:
        return [e.text.replace("\u00a0", " ") for e in self.driver.find_elements(By.CSS_SELECTOR, css)]

    def tile(self, label: str) -> str:
        """What the tile with that label shows, on one line."""
        for text in self.texts(".tile"):
            if text.startswith(f"{label}\n"):
                return text.removeprefix(f"{label}\n").replace("\n", " ")
        raise AssertionError(f"no tile {label!r} among {self.texts('.tile dt')}")

    def click(self, css: str) -> None:
        self.driver.find_element(By.CSS_SELECTOR, css).click()

    def console(self) -> list[str]:
        """Messages of the console that are warnings or worse."""
        return [e["message"] for e in self.driver.get_log("browser") if e["level"] in ("WARNING", "SEVERE")]


@pytest.fixture(scope="session")
def daemon() -> Iterator[CannedDaemon]:
    canned = CannedDaemon()
    yield canned
    canned.close()


@pytest.fixture(scope="session")
def driver() -> Iterator[webdriver.Chrome]:
    browser = start()
    yield browser
    browser.quit()


@pytest.fixture
def page(driver: webdriver.Chrome, daemon: CannedDaemon) -> Page:
    return Page(driver, daemon)

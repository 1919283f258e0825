"""Take pictures of a live page for the README: ``python tests/page/take_pictures.py URL OUT``.

URL is a running daemon (``llmobs run``), OUT a folder; it gets live-page.png and live-page-phone.png. ``--states``
instead takes every canned state, light, dark and phone, to look at while changing the page (URL is then ignored).
"""

from __future__ import annotations

import argparse
import time
from pathlib import Path

from page_browser import emulate, picture, start
from selenium.webdriver.common.by import By
from selenium.webdriver.support.ui import WebDriverWait

DESKTOP = 1280
PHONE = 390


def load(driver, url: str) -> None:
    driver.get(url)
    WebDriverWait(driver, 20).until(lambda d: d.find_elements(By.CSS_SELECTOR, "[data-live]"))
    time.sleep(0.7)  # bars glide to their first value


def for_readme(driver, url: str, out: Path) -> None:
    emulate(driver, width=DESKTOP, height=900)
    load(driver, url)
    picture(driver, out / "live-page.png", width=DESKTOP, tallest=1400)
    emulate(driver, width=PHONE, height=844, dark=True)
    load(driver, url)
    picture(driver, out / "live-page-phone.png", width=PHONE, tallest=1400)


def every_state(driver, out: Path) -> None:
    from page_daemon import CannedDaemon
    from page_states import ALL

    daemon = CannedDaemon()
    try:
        for name, make in ALL.items():
            daemon.make = make
            for look, options in {
                "light": {"width": DESKTOP},
                "dark": {"width": DESKTOP, "dark": True},
                "phone": {"width": 360, "height": 740},
            }.items():
                emulate(driver, **options)
                load(driver, daemon.url)
                picture(driver, out / f"{name}-{look}.png", width=options["width"], tallest=2600)
    finally:
        daemon.close()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("url", nargs="?", default="http://127.0.0.1:9401/")
    parser.add_argument("out", type=Path)
    parser.add_argument("--states", action="store_true", help="every canned state, light, dark and phone")
    options = parser.parse_args()
    options.out.mkdir(parents=True, exist_ok=True)
    driver = start()
    try:
        if options.states:
            every_state(driver, options.out)
        else:
            for_readme(driver, options.url, options.out)
    finally:
        driver.quit()


if __name__ == "__main__":
    main()

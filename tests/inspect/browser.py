"""A headless Chromium that looks at HTML files: what it logs, what it asks for, what it shows.

Tests get one by the fixture `browser` of conftest.py, and skip where there is none.
"""

from __future__ import annotations

import json
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

NEXT_STEP = (
    "next: pip install -e '.[notebooks]', and as root apt-get install chromium chromium-driver"
)
_SWITCHES = (
    "--headless=new",
    "--no-sandbox",
    "--disable-gpu",
    "--disable-quic",
    "--no-first-run",
    "--disable-sync",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-dev-shm-usage",
    "--window-size=1400,1000",
)


def missing() -> str:
    """Why there is no browser; "" where there is one."""
    try:
        import selenium  # noqa: F401
    except ImportError:
        return f"selenium is not installed; {NEXT_STEP}"
    absent = [name for name in ("chromium", "chromedriver") if shutil.which(name) is None]
    return f"there is no {' and no '.join(absent)}; {NEXT_STEP}" if absent else ""


class Browser:
    """One window. Each `open` forgets what was logged before."""

    def __init__(self, driver: Any) -> None:
        self.driver = driver

    def open(self, path: Path, *, dark: bool = False) -> None:
        """Shows a file to a reader whose system is light or dark."""
        scheme = {"name": "prefers-color-scheme", "value": "dark" if dark else "light"}
        self.driver.execute_cdp_cmd("Emulation.setEmulatedMedia", {"features": [scheme]})
        self.driver.get("about:blank")
        self.logged("browser"), self.logged("performance")
        self.url = path.as_uri()
        self.driver.get(self.url)

    def logged(self, kind: str) -> list[dict[str, Any]]:
        """What was logged since the last call."""
        found: list[dict[str, Any]] = self.driver.get_log(kind)
        return found

    def errors(self) -> list[str]:
        """What the console says, warnings too."""
        return [entry["message"] for entry in self.logged("browser")]

    def requests(self) -> list[str]:
        """What was asked for beside the file itself."""
        messages = [json.loads(entry["message"])["message"] for entry in self.logged("performance")]
        asked = [
            message["params"]["request"]["url"]
            for message in messages
            if message["method"] == "Network.requestWillBeSent"
        ]
        return [url for url in asked if url != self.url and not url.startswith("data:")]

    def run(self, script: str, *arguments: Any) -> Any:
        """The value of JavaScript, as of a function's body."""
        return self.driver.execute_script(script, *arguments)

    def count(self, selector: str) -> int:
        """Of elements that are there, seen or not."""
        return int(self.run("return document.querySelectorAll(arguments[0]).length", selector))

    def seen(self, selector: str) -> int:
        """Of elements that take place on the page."""
        script = (
            "return [...document.querySelectorAll(arguments[0])]"
            ".filter(each => each.getClientRects().length).length"
        )
        return int(self.run(script, selector))

    def search(self, text: str, view: int = 0) -> str:
        """Types into the search box of a view; what it says it has found."""
        boxes = self.driver.find_elements("css selector", ".sj-search")
        boxes[view].clear()
        boxes[view].send_keys(text)
        self.run("arguments[0].dispatchEvent(new Event('input'))", boxes[view])
        script = (
            "const [view, done] = arguments; setTimeout(() =>"
            " done(document.querySelectorAll('.sj-count')[view].textContent), 250)"
        )
        return str(self.driver.execute_async_script(script, view))

    def press(self, key: str) -> None:
        """Enter or Escape, in the first search box."""
        from selenium.webdriver.common.keys import Keys

        box = self.driver.find_element("css selector", ".sj-search")
        box.send_keys(getattr(Keys, key.upper()))

    def click(self, selector: str, at: int = 0) -> None:
        self.driver.find_elements("css selector", selector)[at].click()


@contextmanager
def started(profile: Path) -> Iterator[Browser]:
    """A new browser with an empty profile, which is gone afterwards."""
    from selenium import webdriver
    from selenium.webdriver.chrome.options import Options
    from selenium.webdriver.chrome.service import Service

    options = Options()
    options.binary_location = shutil.which("chromium") or ""
    for switch in (*_SWITCHES, f"--user-data-dir={profile}"):
        options.add_argument(switch)
    options.set_capability("goog:loggingPrefs", {"browser": "ALL", "performance": "ALL"})
    driver = webdriver.Chrome(options=options, service=Service(shutil.which("chromedriver")))
    try:
        yield Browser(driver)
    finally:
        driver.quit()

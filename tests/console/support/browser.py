"""Debian's Chromium on the console: pages that must have no error, no finding of axe-core, and a picture kept"""

from __future__ import annotations

import os
import re
import shutil
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import pytest
from playwright.sync_api import Browser, BrowserContext, Page, sync_playwright

ROOT = Path(__file__).resolve().parents[3]
AXE = ROOT / ".venv/npm/axe.min.js"
PICTURES = "DELAY_CONSOLE_PICTURES"
"""The folder that pictures are kept in, and DID; without it they go to the test's temporary folder."""
DID = "did.txt"  # each page that was looked at, and each change that was asked for
SLOW_MS = 30_000
WAIT_S = 60.0
FLAGS = [
    "--no-sandbox",
    "--disable-gpu",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
]


def what_lacks() -> str:
    """Why there can be no browser tests; empty when there can."""
    if shutil.which("chromium") is None:
        return "there is no chromium: apt-get install chromium"
    if not AXE.is_file() or not (ROOT / "node/delayconsole/vendor/htmx.min.js").is_file():
        return "what pages run in browsers is missing: make assets"
    return ""


@contextmanager
def chromium() -> Iterator[Browser]:
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=shutil.which("chromium"), args=FLAGS)
        yield browser
        browser.close()


class ConsoleBrowser:
    """One signed-in browser window. link: as `delayctl console` prints it."""

    def __init__(self, browser: Browser, link: str, pictures: Path, **options: Any) -> None:
        self.base = link.partition("/sign-in")[0]
        self.pictures = pictures
        self._scheme = options.get("color_scheme", "light")
        self.context: BrowserContext = browser.new_context(viewport={"width": 1360, "height": 900}, **options)
        self.context.set_default_timeout(SLOW_MS)
        self.page: Page = self.context.new_page()
        self.errors: list[str] = []
        self.page.on("pageerror", lambda error: self.errors.append(str(error)))
        self.page.on("console", lambda it: self.errors.append(it.text) if it.type == "error" else None)
        self.page.on("request", lambda it: self.note(f"asked   {path_of(it.url)}") if it.method == "POST" else None)
        self.page.on("dialog", lambda dialog: self.errors.append(f"a script asked: {dialog.message}"))
        self.page.goto(link)
        if "/sign-in?" in link:
            assert "messages wait" in self.text(), "a link leads to the wheel"

    def open(self, path: str, status: int = 200) -> Page:
        answer = self.page.goto(self.base + path)
        assert answer is not None
        assert answer.status == status, self.page.inner_text("main")
        if status != 200:
            self.errors = [it for it in self.errors if "Failed to load resource" not in it]
        return self.page

    def check(self, name: str) -> None:
        """No script failed or was refused, axe-core finds nothing, and a picture is kept by this name."""
        self.page.screenshot(path=self.pictures / f"{name}.png", full_page=True)
        assert self.errors == [], f"{name}: errors in the browser"
        self.page.evaluate(AXE.read_text())
        for scheme in ("dark" if self._scheme == "light" else "light", self._scheme):
            self.page.emulate_media(color_scheme=scheme)
            found = self.page.evaluate(
                "async () => (await axe.run()).violations.map(it => [it.id, it.help, it.nodes.map(n => n.html)])"
            )
            assert found == [], f"{name}: axe-core, {scheme}"
        self.note(f"looked  {path_of(self.page.url)}: no error, axe-core finds nothing in light and dark; {name}.png")

    def note(self, what: str) -> None:
        with (self.pictures / DID).open("a") as file:
            file.write(what + "\n")

    def text(self) -> str:
        """What is in the page, once all of it is loaded, with its blanks as one."""
        self.page.wait_for_load_state()
        return re.sub(r"\s+", " ", self.page.inner_text("main"))

    def confirm(self, question: str, *commands: str) -> str:
        """Reads the question and its command, says yes; what was done."""
        asked = self.text()
        assert question in asked
        for command in commands:
            assert command in asked
        self.page.click("button[name=confirmed]")
        return self.text()

    def command(self) -> str:
        """What the page says does the same in a terminal."""
        return self.page.inner_text(".command code")

    def close(self) -> None:
        self.context.close()


def until(holds: Callable[[], bool], what: str, wait_s: float = WAIT_S) -> None:
    end_s = time.monotonic() + wait_s
    while not holds():
        assert time.monotonic() < end_s, what
        time.sleep(0.1)


def path_of(url: str) -> str:
    return urlsplit(url).path


def kept_pictures(temporary: Path) -> Path:
    folder = Path(os.environ.get(PICTURES) or temporary)
    folder.mkdir(parents=True, exist_ok=True)
    return folder


def needs_browser() -> pytest.MarkDecorator:
    """Skips, with the reason; on CI the lack is a failure."""
    return pytest.mark.skipif(bool(what_lacks()) and not os.environ.get("CI"), reason=what_lacks())

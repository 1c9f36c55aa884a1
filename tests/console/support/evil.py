"""Texts that become markup or run where they are not escaped, and what is seen of it in a browser."""

from __future__ import annotations

import pytest

from tests.console.support.browser import ConsoleBrowser

TEXTS = (
    "<script>window.ran=1</script></script><img src=x onerror=window.ran=2><!--><script>window.ran=3</script>-->",
    '"><svg onload=window.ran=4>\' onfocus=\'window.ran=5\' autofocus x=\'" onmouseover="window.ran=6" x="',
    "javascript:window.ran=7//{{ 7*191 }}{% for it in [1] %}{{ cycler.__init__ }}{% endfor %}&lt;b&gt;",
    '" hx-get="/nodes" hx-trigger="load" hx-on:click="window.ran=8" x="',
)
MARKUP = (
    "main script:not(#picture), main img, main svg:not(.strip), main iframe, main style, [onerror], [onload], "
    "[onfocus], [onmouseover], [hx-get]:not(#live), [hx-trigger]:not(#live), [autofocus], [style*='position:fixed'], "
    "a[href^='javascript:' i]"
)
every = pytest.mark.parametrize("text", TEXTS, ids=("markup", "attributes", "link and template", "htmx"))


def harmless(seen: ConsoleBrowser, *texts: str) -> None:
    """All of these are in the page as text, and no part of one is markup or has run."""
    seen.page.wait_for_load_state()
    page, shown = seen.page, seen.page.inner_text("main")
    for text in texts:
        assert text in shown, shown
    assert "1337" not in shown, "no template is filled in twice"
    page.mouse.move(300, 200)
    for at in page.locator("main input:visible, main a:visible, main button:visible").all()[:10]:
        at.focus()
    assert page.evaluate("window.ran ?? null") is None
    assert page.locator(MARKUP).count() == 0
    assert seen.errors == [], seen.errors

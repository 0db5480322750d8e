"""Look at each page of the built documentation in Chromium, wide and narrow.

usage: python scripts/look_at_pages.py SITE [PICTURES] [--demo FOLDER]

It ends with 1, and says where, if a page scrolls sideways, if a table or a line of prose is wider
than its column, or if the console reports an error; and if Chromium is missing. A picture of each
page goes to PICTURES.
"""

from __future__ import annotations

import argparse
import functools
import http.server
import shutil
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from playwright.sync_api import Page, sync_playwright

WIDTHS = (1250, 400)

TOO_WIDE = """() => {
  const found = [], width = document.documentElement.clientWidth;
  if (document.documentElement.scrollWidth > width) {
    found.push(`the page is ${document.documentElement.scrollWidth} wide`);
  }
  const column = document.querySelector("article") || document.body;
  const right = column.getBoundingClientRect().right + 1;
  const chosen = "table:not(.highlighttable), th, td, p, li, h1, h2, h3, h4, :not(pre) > code";
  for (const element of column.querySelectorAll(chosen)) {
    if (element.closest("pre") || !element.getClientRects().length) continue;
    const sideways = element.scrollWidth > element.clientWidth + 1 && element.clientWidth > 0;
    const beyond = [...element.getClientRects()].some((r) => r.right > right);
    if (sideways || beyond) {
      const text = element.textContent.trim().slice(0, 60);
      found.push(`${element.tagName.toLowerCase()} is too wide: ${text}`);
    }
  }
  return found;
}"""


class Quiet(http.server.SimpleHTTPRequestHandler):
    def log_message(self, *_: object) -> None: ...


@contextmanager
def served(folder: Path) -> Iterator[str]:
    handler = functools.partial(Quiet, directory=str(folder))
    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), handler) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        yield f"http://127.0.0.1:{server.server_address[1]}"
        server.shutdown()


def look(page: Page, address: str, picture: Path) -> list[str]:
    """Open a page and take its picture; return what is wrong with it."""
    found: list[str] = []
    page.on("console", lambda m: found.append(m.text) if m.type == "error" else None)
    page.on("pageerror", lambda error: found.append(str(error)))
    page.goto(address, wait_until="load")
    found += page.evaluate(TOO_WIDE)
    picture.parent.mkdir(parents=True, exist_ok=True)
    page.screenshot(path=picture, full_page=True)
    return found


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("site", type=Path)
    parser.add_argument("pictures", type=Path, nargs="?", default=Path("site_pictures"))
    parser.add_argument("--demo", type=Path, help="the folder of `dort-rewriter demo`")
    options = parser.parse_args()
    browser_path = shutil.which("chromium") or shutil.which("google-chrome")
    if browser_path is None:
        print("Chromium is needed.", file=sys.stderr)
        return 1
    folders = [options.site] + ([options.demo] if options.demo else [])
    wrong = looked_at = 0
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=browser_path, args=["--no-sandbox"])
        for folder in folders:
            files = sorted(p for p in folder.rglob("*.html") if p.name != "404.html")
            if not files:
                print(f"No page in {folder}.", file=sys.stderr)
                return 1
            with served(folder) as address:
                for file in files:
                    name = file.relative_to(folder).as_posix()
                    title = name.removesuffix("/index.html").replace("/", ".")
                    for width in WIDTHS:
                        page = browser.new_page(viewport={"width": width, "height": 900})
                        picture = options.pictures / str(width) / f"{title}.png"
                        for what in look(page, f"{address}/{name}", picture):
                            print(f"{name} at {width}: {what}")
                            wrong += 1
                        page.close()
                        looked_at += 1
        browser.close()
    print(f"{looked_at} pages looked at, {wrong} faults; pictures in {options.pictures}.")
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())

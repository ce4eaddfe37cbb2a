"""The picture of a circuit's page in the docs: what `graphcircuits localize` writes, in Chromium.

python -m benchmarks.screenshot [--case ib-13] [--dark] [--out docs/figures/first-circuit.png]

Needs the Chromium that `make browser` installs. Nothing is fetched: the page is one file.
"""

import argparse
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

WIDTH, HEIGHT = 1240, 860
BROWSERS = ("chromium", "chromium-browser", "google-chrome")


def main() -> None:
    from playwright.sync_api import sync_playwright

    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n")[0])
    parser.add_argument("--case", default="ib-13")
    parser.add_argument("--dark", action="store_true")
    parser.add_argument("--out", type=Path, default=Path("docs/figures/first-circuit.png"))
    given = parser.parse_args()
    found = next(filter(None, map(shutil.which, BROWSERS)), None)
    if found is None:
        sys.exit("no Chromium is installed; install it with: make browser")
    with tempfile.TemporaryDirectory() as folder, sync_playwright() as playwright:
        page = Path(folder) / "circuit.html"
        words = ["-m", "graphcircuits.cli", "localize", given.case, "--html", str(page)]
        subprocess.run([sys.executable, *words], check=True, stdout=subprocess.DEVNULL)
        browser = playwright.chromium.launch(executable_path=found, args=["--no-sandbox"])
        scheme = "dark" if given.dark else "light"
        context = browser.new_context(
            viewport={"width": WIDTH, "height": HEIGHT}, color_scheme=scheme, offline=True
        )
        shown = context.new_page()
        shown.goto(page.as_uri())
        shown.wait_for_function("window.graphcircuits?.firstPaint > 0")
        shown.screenshot(path=given.out)
        browser.close()
    print(f"wrote {given.out}")


if __name__ == "__main__":
    main()

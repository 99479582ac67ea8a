"""The pictures of the README, made from a real run: ``python docs/images/make.py``; two minutes, and a chromium.

Runs the study of ``make demo`` and writes beside this file what a terminal and a browser show of it: ``best.svg`` (what
the command printed, drawn by rich) and ``report.png``. With a database's URL, its newest study is shown instead.
"""

from __future__ import annotations

import contextlib
import os
import re
import shutil
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from rich import _export_format
from rich.console import Console
from rich.text import Text

HERE = Path(__file__).parent
SWEEP = (sys.executable, "-m", "sweep")
COLUMNS = 176  # of the terminal: the table's own width
WIDTH, HEIGHT = 1120, 1180  # pixels of the report's picture
# rich names a font on a server of others; readers' own monospaced font will do.
SVG = re.sub(r"@font-face \{\{.*?\}\}\s*|<!--.*?-->\s*", "", _export_format.CONSOLE_SVG_FORMAT, flags=re.DOTALL)


def terminal(*command: str, columns: int) -> str:
    """What the command writes on a terminal of that width, with its colours."""
    ours, theirs = os.openpty()
    env = {**os.environ, "COLUMNS": str(columns), "LINES": "50", "TERM": "xterm-256color"}
    with subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=theirs, stderr=theirs, env=env) as process:
        os.close(theirs)
        said = b""
        with contextlib.suppress(OSError):  # EIO: the other end has closed
            while piece := os.read(ours, 65536):
                said += piece
    os.close(ours)
    if process.returncode:
        raise SystemExit(said.decode())
    return said.decode().replace("\r\n", "\n")


def draw(name: str, command: str, said: str, columns: int) -> None:
    with Path(os.devnull).open("w") as nowhere:
        console = Console(record=True, width=columns, file=nowhere, force_terminal=True, color_system="truecolor")
        console.print(Text(f"$ {command}", style="bold"))
        console.print(Text.from_ansi(said.rstrip("\n")))
        svg = console.export_svg(title="specsweep", code_format=SVG, unique_id=name)
    (HERE / f"{name}.svg").write_text(svg, encoding="utf-8")


def photograph(page: Path, target: Path) -> None:
    """The top of the page as a browser shows it."""
    from selenium import webdriver
    from selenium.webdriver.chrome.service import Service

    options = webdriver.ChromeOptions()
    options.binary_location = str(shutil.which("chromium"))
    words = ["--headless=new", "--disable-gpu", "--disable-dev-shm-usage", "--hide-scrollbars"]
    for word in [*words, *(["--no-sandbox"] if os.geteuid() == 0 else [])]:
        options.add_argument(word)
    driver = webdriver.Chrome(options=options, service=Service(str(shutil.which("chromedriver"))))
    try:
        look = {"width": WIDTH, "height": HEIGHT, "deviceScaleFactor": 1, "mobile": False}
        driver.execute_cdp_cmd("Emulation.setDeviceMetricsOverride", look)
        driver.get(page.as_uri())
        script = "return [...document.querySelectorAll('.plot')].every(p => p.dataset.drawn === '1')"
        while not driver.execute_script(script):
            time.sleep(0.1)  # polling a page in another process
        driver.save_screenshot(str(target))
    finally:
        driver.quit()


def main() -> None:
    with tempfile.TemporaryDirectory() as folder:
        db = sys.argv[1] if len(sys.argv) > 1 else f"sqlite:///{folder}/sweep.db"
        if len(sys.argv) == 1:
            subprocess.run([*SWEEP, "start", "eagle3", "--simulate", "--db", db], check=True, cwd=folder)
        draw("best", "sweep best", terminal(*SWEEP, "best", "--db", db, columns=COLUMNS), COLUMNS)
        page = Path(folder, "report.html")
        subprocess.run([*SWEEP, "report", "-o", str(page), "--db", db], check=True)
        photograph(page, HERE / "report.png")


if __name__ == "__main__":
    main()

"""Find a Chromium for the browser tests, or install one.

python tools/fetch_chromium.py        prints the program's path
"""

import os
import shutil
import subprocess
import sys
from pathlib import Path

NAMES = ("chromium", "chromium-browser", "google-chrome")


def find() -> str | None:
    """The path of an installed Chromium: the system's, else playwright's."""
    for name in NAMES:
        if path := shutil.which(name):
            return path
    try:
        from playwright.sync_api import sync_playwright
    except ImportError:
        return None
    with sync_playwright() as playwright:
        path = playwright.chromium.executable_path
    return path if Path(path).is_file() else None


def fetch() -> str:
    """Find it, else install the system's package if possible, else playwright's build."""
    path = find()
    for command in () if path else _installers():
        if subprocess.run(command, stdout=subprocess.DEVNULL, check=False).returncode == 0 and (path := find()):
            break
    if path is None:
        sys.exit("no Chromium for the browser tests: install one, as with 'apt-get install chromium', and try again")
    return path


def _installers() -> list[list[str]]:
    """Commands that install a Chromium, cheapest first; apt may need to update its package lists."""
    playwright = [sys.executable, "-m", "playwright", "install", "--with-deps", "chromium"]
    root = [] if os.geteuid() == 0 else ["sudo", "-n"]
    if shutil.which("apt-get") is None or (root and shutil.which("sudo") is None):
        return [playwright]
    apt = [*root, "env", "DEBIAN_FRONTEND=noninteractive", "apt-get", "-q", "-y"]
    install = [*apt, "install", "--no-install-recommends", "chromium"]
    return [install, [*apt, "update"], install, playwright]


if __name__ == "__main__":
    print(fetch())

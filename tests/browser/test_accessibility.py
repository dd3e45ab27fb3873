"""The check itself: it finds a grave fault, and passes a sound page."""

import pytest
from accessibility import accessibility_faults

pytestmark = pytest.mark.xdist_group("browser")


def test_the_check_finds_what_is_wrong(chromium):
    page = chromium.new_page()
    page.set_content("<html lang='en'><title>A</title><main><h1>A</h1><label>Name <input></label></main></html>")
    assert accessibility_faults(page) == []
    page.set_content("<html lang='en'><title>A</title><main><h1>A</h1><input></main></html>")
    [fault] = accessibility_faults(page)
    assert fault.startswith("label: ")
    page.close()

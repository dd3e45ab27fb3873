"""The check itself: it finds a grave fault, and passes a sound page."""

from accessibility import accessibility_faults


def test_the_check_finds_what_is_wrong(chromium):
    page = chromium.new_page()
    page.set_content("<html lang='en'><title>A</title><main><h1>A</h1><label>Name <input></label></main></html>")
    assert accessibility_faults(page) == []
    page.set_content("<html lang='en'><title>A</title><main><h1>A</h1><input></main></html>")
    [fault] = accessibility_faults(page)
    assert fault.startswith("label: ")
    dark = "<style>@media (prefers-color-scheme: dark) { h1 { color: #888; background: #999 } }</style>"
    page.set_content(f"<html lang='en'><title>A</title>{dark}<main><h1>A title</h1></main></html>")
    [fault] = accessibility_faults(page)
    assert fault.startswith("color-contrast: ")
    assert ": dark: <h1>" in fault
    assert not page.evaluate("matchMedia('(prefers-color-scheme: dark)').matches"), "it is as before"
    page.close()

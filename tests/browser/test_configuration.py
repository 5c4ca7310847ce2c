"""The configuration in the browser: out as a file, in after a look at the differences, and not over newer changes."""

from __future__ import annotations

from pathlib import Path

import pytest
import yaml
from playwright.sync_api import Page, expect

from tests.browser.stage import KEYS, PROVIDER_KEY, Site, Visits, overflows, run_inside

START = "/admin/configuration/"
MODEL = """\
models:
  - name: {name}
    stall_seconds: {stall}
    routes: [{{provider: acme, upstream_model: plain}}]
"""
CHANGE = "from streaming.models import Model\nModel.objects.create(name={name!r})"


def choose(page: Page, folder: Path, name: str, stall: int) -> str:
    """Look at a file that sets one model; returns the file's name."""
    path = folder / f"{name}-{stall}.yaml"
    path.write_text(MODEL.format(name=name, stall=stall))
    page.goto(START)
    page.locator("input[type=file]").set_input_files(path)
    page.locator("form[enctype] button[type=submit]").click()
    return path.name


def stall_of(site: Site, name: str) -> list[int]:
    return [
        row[0] for row in site.installation.query(f"SELECT stall_seconds FROM streaming_model WHERE name = '{name}'")
    ]


def cells(page: Page, name: str) -> list[list[str]]:
    """The preview's rows about a model: field, before, after."""
    rows = page.get_by_role("row", name=f"model {name}")
    return [row.locator("td").all_inner_texts() for row in rows.all()]


def test_export_has_all_but_secrets(operator: Page) -> None:
    operator.goto(START)
    with operator.expect_download() as download:
        operator.get_by_role("link", name="Download", exact=True).click()
    text = download.value.path().read_text()
    assert {"acme"} <= {provider["name"] for provider in yaml.safe_load(text)["providers"]}
    assert not [secret for secret in (PROVIDER_KEY, *KEYS.values()) if secret in text]


def test_import_shows_differences_first(operator: Page, site: Site, tmp_path: Path) -> None:
    file = choose(operator, tmp_path, "imported", 90)
    expect(operator.get_by_text(f"{file} would make")).to_be_visible()
    assert ["", "", "newly created"] in cells(operator, "imported")
    assert stall_of(site, "imported") == []
    operator.get_by_role("button", name="Apply").click()
    expect(operator.get_by_text(f"{file} is applied.")).to_be_visible()
    assert stall_of(site, "imported") == [90]

    choose(operator, tmp_path, "imported", 75)
    assert cells(operator, "imported") == [["stall_seconds", "90", "75"]]
    operator.get_by_role("link", name="Cancel").click()
    expect(operator).to_have_url(f"{site.url}{START}")
    assert stall_of(site, "imported") == [90]


@pytest.mark.parametrize(("theme", "width"), [("light", 1440), ("dark", 390)])
def test_faults_stand_by_their_lines(operator: Page, tmp_path: Path) -> None:
    choose(operator, tmp_path, "imported", 0)
    expect(operator.get_by_role("alert")).to_contain_text("cannot be applied. Nothing was changed.")
    expect(operator.get_by_role("row", name="stall_seconds")).to_contain_text("3")
    expect(operator.get_by_role("button", name="Apply")).to_have_count(0)
    assert not overflows(operator)


@pytest.mark.parametrize("language", ["zh-hant"])
def test_changed_database_refuses_the_file(operator: Page, visit: Visits, site: Site, tmp_path: Path) -> None:
    file = choose(operator, tmp_path, "outrun", 80)
    expect(operator.get_by_text(f"{file} 會造成")).to_be_visible()
    run_inside(site.installation, CHANGE.format(name="meanwhile"))
    operator.get_by_role("button", name="套用").click()
    expect(operator.get_by_text("資料庫自預覽後已有變更。這是新的預覽；沒有套用任何內容。")).to_be_visible()
    assert stall_of(site, "outrun") == []
    assert [fault for fault in visit.faults if "409" not in fault] == []
    visit.faults.clear()  # the refusal is a 409
    operator.get_by_role("button", name="套用").click()
    expect(operator.get_by_text(f"已套用 {file}。")).to_be_visible()
    assert stall_of(site, "outrun") == [80]


def test_others_do_not_get_in(visit: Visits) -> None:
    for user in ("finance", "nobody"):
        page = visit(user)
        page.goto("/admin/")
        expect(page.get_by_role("link", name="Configuration")).to_have_count(0)
        assert [page.request.get(f"{START}{way}").status for way in ("", "export/", "apply/")] == [403] * 3

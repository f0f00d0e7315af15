"""The console before a gateway that asks for an API key."""

import msgspec
import pytest
from playwright.async_api import expect

from services.gateway.settings import GatewaySettings
from shared.database.key_store import create_key
from shared.database.schema import open_database
from shared.text import TextModel
from tests.support.browser import NewPage, check_accessibility
from tests.support.gateway import running
from tests.support.postgres import PostgresServer
from tests.support.scheduler import AnsweringScheduler

pytestmark = [pytest.mark.browser, pytest.mark.slow]


async def test_the_key_is_requested_once_per_tab(
    settings: GatewaySettings,
    text: TextModel,
    scheduler: AnsweringScheduler,
    postgres: PostgresServer,
    new_page: NewPage,
) -> None:
    engine = open_database(postgres.url)
    _, secret = await create_key(engine, "alice", None, None, 0)
    await engine.dispose()
    asking = msgspec.structs.replace(settings, auth=True, database_url=postgres.url)
    async with running(asking, text) as gateway, new_page(gateway.url, expected="401") as page:
        dialog = page.get_by_role("dialog", name="API key")
        await check_accessibility(page)
        await dialog.get_by_label("Key").fill("dls-…")  # as a masked one is copied
        await page.keyboard.press("Enter")
        await expect(dialog).to_contain_text("That key was refused.")
        await check_accessibility(page)
        await dialog.get_by_label("Key").fill(secret)
        await page.keyboard.press("Enter")
        await expect(dialog).to_be_hidden()
        await expect(page.locator("#status")).to_have_text("Ready")
        await page.reload()
        await page.get_by_role("button", name="Run both").click()
        await expect(page.get_by_label("Reply of run A")).to_have_text("The answer is 29.")

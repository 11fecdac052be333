"""The page in a real browser: headless Chromium types, chooses, listens and stops."""

import os
import shutil
import threading

import pytest
from playwright.sync_api import expect, sync_playwright
from server_tools import SineEngine, serving, until

CHROMIUM = next(filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome"))), None)
# Chromium runs without a sound card: its clock goes on as if there were one.
FLAGS = ["--no-sandbox", "--autoplay-policy=no-user-gesture-required", "--disable-dev-shm-usage"]


@pytest.fixture(scope="module")
def browser():
    if CHROMIUM is None:
        if os.environ.get("TTS_TEST_BROWSER"):
            pytest.fail("TTS_TEST_BROWSER is set, and there is no Chromium")
        pytest.skip("needs Chromium")
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=CHROMIUM, args=FLAGS)
        yield browser
        browser.close()


@pytest.fixture
def page(browser):
    page = browser.new_page()
    page.set_default_timeout(20_000)
    page.faults, page.asked = [], []
    page.on("pageerror", lambda error: page.faults.append(str(error)))
    page.on("request", lambda request: page.asked.append(request.url))
    yield page
    assert not page.faults
    page.close()


@pytest.fixture
def server():
    with serving(SineEngine()) as running:
        yield running


def test_typing_and_listening(server, page):
    page.goto(server.url)
    page.wait_for_selector("#voice option[value=high]", state="attached")
    page.get_by_label("Text").fill("one two three four five")
    page.get_by_label("Voice").select_option("high")
    page.get_by_role("button", name="Speak").click()
    expect(page.get_by_role("status")).to_have_text("Spoken: 0.40 s")
    assert page.get_by_role("button", name="Stop").is_disabled()
    assert all(url.startswith(server.url) for url in page.asked)  # nothing from elsewhere


def test_listening_while_it_streams_and_stopping(server, page):
    server.engine.gate = threading.Semaphore(5)
    page.goto(server.url)
    page.get_by_label("Text").fill("word " * 100)
    page.get_by_role("button", name="Speak").click()
    expect(page.get_by_role("status")).to_have_text("Speaking, 0.4 s so far")
    page.get_by_role("button", name="Stop").click()
    until(lambda: not server.service.worker._jobs)
    assert page.get_by_role("status").text_content() == "Stopped"
    server.engine.gate = None
    page.get_by_label("Text").fill("again and again")
    page.get_by_role("button", name="Speak").click()
    expect(page.get_by_role("status")).to_have_text("Spoken: 0.24 s")


def test_an_error_is_shown(server, page):
    page.goto(server.url)
    page.get_by_label("Text").fill("…")
    page.get_by_role("button", name="Speak").click()
    expect(page.get_by_role("status")).to_contain_text("Error: nothing to speak")


def test_a_key_is_asked_for(page):
    with serving(SineEngine(), api_key="s3cret") as server:
        page.goto(server.url)
        page.get_by_label("Key of this server").fill("s3cret")
        page.get_by_label("Key of this server").press("Tab")
        page.wait_for_selector("#voice option[value=high]", state="attached")
        page.get_by_label("Text").fill("one")
        page.get_by_role("button", name="Speak").click()
        expect(page.get_by_role("status")).to_have_text("Spoken: 0.08 s")

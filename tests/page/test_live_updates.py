"""The live page over time: updates in place, many targets, and a daemon that goes away."""

from __future__ import annotations

import time
from typing import Any

import page_states as states
import pytest
from selenium.webdriver.common.by import By
from selenium.webdriver.common.keys import Keys

pytestmark = pytest.mark.needs("chromium", "chromedriver")

_COUNT_CHANGES = """
window.changes = {nodes: 0, all: 0};
new MutationObserver(list => list.forEach(m => {
  window.changes.all += 1;
  if ([...m.addedNodes, ...m.removedNodes].some(n => n.nodeType === 1)) window.changes.nodes += 1;
})).observe(document.querySelector('main'), {subtree: true, childList: true, attributes: true, characterData: true});
"""


def running(value: int, **changes: Any) -> Any:
    return lambda now: states.state(now, [states.target(now, engines=[states.engine(now, running=value)], **changes)])


def test_a_new_number_appears_without_a_reload_in_the_same_element(page: Any) -> None:
    """The text changes in place: the element is the same one, and the reader's place is kept."""
    page.open(running(7))
    page.js("window.kept = document.querySelector('.tile .value'); document.querySelector('.toggle').focus();")
    page.daemon.make = running(8)
    page.until("return window.kept.isConnected && window.kept.textContent === '8'")
    assert page.js("return document.activeElement === document.querySelector('.toggle')")


def test_an_unchanged_fleet_causes_no_change_of_elements(page: Any) -> None:
    """With 200 targets and the same answer again, no element is added, removed or moved."""
    frozen = states.fleet(states.now())
    page.open(lambda _: frozen)
    page.js(_COUNT_CHANGES)
    page.until_asked(2)
    assert page.js("return window.changes") == {"nodes": 0, "all": 0}


def test_a_change_of_state_is_announced_and_moves_up_with_its_focus(page: Any) -> None:
    """A screen reader hears the change; the target moves before the healthy ones and keeps the keyboard focus."""
    names = [f"t{i}" for i in range(8)]
    page.open(lambda now: states.state(now, [states.target(now, name) for name in names]))
    assert page.texts(".name") == names
    page.js("document.querySelectorAll('.toggle')[5].focus()")
    page.daemon.make = lambda now: states.state(
        now, [states.target(now, name, state="dead" if name == "t5" else "ready") for name in names]
    )
    page.until("return document.getElementById('announce').textContent === 't5 is now Dead'")
    assert page.texts(".name")[0] == "t5"
    assert page.js("return document.activeElement.textContent").endswith("t5")
    assert page.driver.title == "1 of 8 in trouble · llmobs"


def test_a_target_that_leaves_disappears(page: Any) -> None:
    """Targets come and go with the state; what stays keeps its element."""
    page.open(lambda now: states.state(now, [states.target(now, "a"), states.target(now, "b")]))
    page.js("window.kept = [...document.querySelectorAll('.name')].find(n => n.textContent === 'b')")
    page.daemon.make = lambda now: states.state(now, [states.target(now, "b"), states.target(now, "c")])
    page.until("return [...document.querySelectorAll('.name')].map(n => n.textContent).join() === 'b,c'")
    assert page.js("return window.kept.isConnected")


def test_a_lost_daemon_is_said_with_the_age_and_comes_back(page: Any) -> None:
    """A banner says the connection is lost and how old the page is; it goes when the daemon answers again."""
    page.open(running(7))
    page.daemon.fault = "down"
    page.until("return !document.getElementById('lost').hidden")
    assert page.text("#lost-what") == "Connection to llmobs lost: it cannot be reached."
    time.sleep(1.2)
    shown = page.text("#lost-when")
    assert shown.startswith("What is shown is ")
    assert "Next try in" in shown
    assert page.text(".state").startswith("last known:")
    assert page.text("#connection-text") == "not connected"
    assert page.driver.title == "Connection lost · llmobs"
    page.daemon.fault = None
    page.click("#lost-retry")
    page.until("return document.getElementById('lost').hidden")
    assert page.text(".state") == "Ready"
    assert page.driver.title == "Ready · chat-prod-a · llmobs"


@pytest.mark.parametrize(
    ("fault", "words"),
    [
        (503, "it answered with HTTP status 503"),
        (401, "it answered with HTTP status 401"),
        ("garbage", "its answer could not be understood"),
        ("hang", "it gave no answer within 5 s"),
    ],
    ids=["503", "401", "garbage", "hang"],
)
def test_the_banner_names_the_reason(page: Any, fault: str | int, words: str) -> None:
    """An error status, an answer that is no state, and silence are told apart."""
    page.open(running(7))
    page.daemon.fault = fault
    page.until("return !document.getElementById('lost').hidden", seconds=12)
    assert page.text("#lost-what") == f"Connection to llmobs lost: {words}."


def test_a_daemon_that_does_not_answer_is_asked_less_often(page: Any) -> None:
    """Back-off: after three failures the next question waits longer than the usual two seconds."""
    page.open(running(7))
    page.daemon.fault = 503
    page.until_asked(3)
    before = len(page.daemon.asked)
    time.sleep(4)
    assert len(page.daemon.asked) == before


def test_a_hidden_tab_asks_nothing(page: Any) -> None:
    """Behind another tab the page rests, and asks at once when it is looked at again."""
    page.open(running(7))
    page.driver.switch_to.new_window("tab")
    try:
        time.sleep(0.5)
        before = len(page.daemon.asked)
        time.sleep(3)
        assert len(page.daemon.asked) == before
    finally:
        page.driver.close()
        page.driver.switch_to.window(page.driver.window_handles[0])
    page.until_asked()


def test_two_hundred_targets_are_a_list_with_a_filter(page: Any) -> None:
    """Trouble comes first; a filter by text and by state narrows the list and says how many are left."""
    page.open(states.fleet)
    assert [text.replace("\n", " ") for text in page.texts(".summary .count")] == [
        "1 dead", "1 stalled", "1 livelock", "2 unreachable", "1 starting", "1 sleeping", "193 ready",
    ]  # fmt: skip
    words = page.js("return [...document.querySelectorAll('.word')].map(w => w.textContent)")
    assert words[:5] == ["Dead", "Stalled", "Livelock", "Unreachable", "Unreachable"]
    search = page.driver.find_element(By.ID, "filter")
    search.send_keys("pool=b 11")
    assert page.texts(".name") == ["vllm-011", "vllm-111", "vllm-113", "vllm-115", "vllm-117", "vllm-119"]
    assert page.text(".tools [role=status]") == "6 of 200 targets"
    search.send_keys(Keys.CONTROL, "a")
    search.send_keys(Keys.BACKSPACE)
    page.click(".count[data-state=unreachable]")
    assert page.texts(".name") == ["vllm-040", "vllm-041"]
    page.click(".count[data-state=unreachable]")
    assert page.js("return document.querySelectorAll('.name').length") == 200


def test_order_by_waiting_puts_the_longest_queue_first(page: Any) -> None:
    """The chosen order holds across updates, and targets whose queue is not known come last."""
    page.open(states.fleet)
    page.driver.find_element(By.CSS_SELECTOR, "#order option[value=waiting]").click()
    page.until_asked()
    shown = page.js("return [...document.querySelectorAll('.cells div:nth-child(2) dd')].map(d => d.textContent)")
    known = [int(text) for text in shown if text != "–"]
    assert known == sorted(known, reverse=True)
    assert shown[len(known) :] == ["–"] * (200 - len(known))
    assert 0 < len(known) < 200


def test_details_open_by_keyboard_and_ask_for_their_history_only(page: Any) -> None:
    """Enter opens a target; from then on the page asks for that one's history and draws it."""
    page.open(states.fleet)
    page.until_asked()
    assert page.daemon.asked[-1] == "history="
    toggle = page.driver.find_elements(By.CSS_SELECTOR, ".toggle")[1]
    assert toggle.get_attribute("aria-expanded") == "false"
    toggle.send_keys(Keys.ENTER)
    assert toggle.get_attribute("aria-expanded") == "true"
    page.until_asked()
    assert page.daemon.asked[-1] == "history=vllm-003"
    page.until("return document.querySelector('.target[data-open] .line')?.hasAttribute('d')")
    assert page.text(".target[data-open] .word") == "Stalled"
    toggle.send_keys(Keys.SPACE)
    assert toggle.get_attribute("aria-expanded") == "false"

"""The live page for everybody: axe-core's rules, contrast, small screens, dark mode, keyboard, less motion."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import axe_core_python
import page_states as states
import pytest
from selenium.webdriver.common.by import By
from selenium.webdriver.common.keys import Keys

pytestmark = pytest.mark.needs("chromium", "chromedriver")

_AXE = (Path(axe_core_python.__file__).parent / "axe.min.js").read_text()
_RULES = {"type": "tag", "values": ["wcag2a", "wcag2aa", "wcag21a", "wcag21aa", "best-practice"]}


def few(now: float) -> states.State:
    """A fleet small enough that axe is quick, large enough to be folded and to have a filter."""
    return states.fleet(now, 20)


MAKERS = [*(make for make in states.ALL.values() if make is not states.fleet), few]

#: Every visible text with its colour and the colours behind it, from itself outwards.
_TEXTS = """
return [...document.querySelectorAll('body *')].filter(e =>
  [...e.childNodes].some(n => n.nodeType === 3 && n.data.trim()) && e.checkVisibility() &&
  !e.closest('.hidden, .skip, option, noscript')).map(e => {
    const behind = [];
    for (let a = e; a; a = a.parentElement) behind.push(getComputedStyle(a).backgroundColor);
    return [e.textContent.trim().slice(0, 40), e.className, getComputedStyle(e).color, behind];
  });
"""


def _rgba(text: str) -> tuple[float, ...]:
    numbers = [float(n) for n in re.findall(r"[\d.]+", text)]
    return (*numbers[:3], numbers[3] if len(numbers) > 3 else 1.0)


def _luminance(colour: tuple[float, ...]) -> float:
    channels = [c / 255 for c in colour[:3]]
    linear = [c / 12.92 if c <= 0.04045 else ((c + 0.055) / 1.055) ** 2.4 for c in channels]
    return 0.2126 * linear[0] + 0.7152 * linear[1] + 0.0722 * linear[2]


def contrast(colour: str, behind: list[str]) -> float:
    """WCAG contrast of a text colour on the first opaque colour behind it."""
    ground = next(c for c in map(_rgba, behind) if c[3] == 1)
    light, dark = sorted((_luminance(_rgba(colour)), _luminance(ground)), reverse=True)
    return (light + 0.05) / (dark + 0.05)


def test_the_measure_of_contrast_is_right() -> None:
    """Black on white is 21:1, and the grey that is known to be just too light fails."""
    assert contrast("rgb(0, 0, 0)", ["rgba(0, 0, 0, 0)", "rgb(255, 255, 255)"]) == pytest.approx(21)
    assert contrast("rgb(119, 119, 119)", ["rgb(255, 255, 255)"]) < 4.5


def check(page: Any) -> None:
    """No violation of WCAG 2.1 A/AA or best practice by axe-core, and 4.5:1 for every visible text."""
    page.js(_AXE)
    result = page.driver.execute_async_script(
        "const done = arguments[arguments.length - 1]; axe.run(document, {runOnly: arguments[0]}).then(done)", _RULES
    )
    found = [(v["id"], [n["html"][:120] for n in v["nodes"]][:3]) for v in result["violations"]]
    assert found == []
    assert len(result["passes"]) > 15
    faint = [
        (text, name, round(ratio, 2))
        for text, name, colour, behind in page.js(_TEXTS)
        if (ratio := contrast(colour, behind)) < 4.5
    ]
    assert faint == []


@pytest.mark.parametrize("make", MAKERS, ids=lambda make: make.__name__)
@pytest.mark.parametrize("dark", [False, True], ids=["light", "dark"])
def test_axe_finds_nothing_and_all_text_has_contrast(page: Any, make: Any, dark: bool) -> None:
    """In every state, light and dark, axe-core and the contrast measure find nothing."""
    page.open(make, dark=dark, reduced_motion=True)
    check(page)
    assert page.console() == []


@pytest.mark.parametrize("make", states.ALL.values(), ids=states.ALL)
def test_nothing_is_wider_than_a_phone(page: Any, make: Any) -> None:
    """At 360 pixels there is no sideways scrolling, and no text is cut off at the edge."""
    page.open(make, width=360, height=740)
    assert page.js("return document.documentElement.scrollWidth") == 360
    wide = page.js(
        "return [...document.querySelectorAll('body *')].filter(e => e.checkVisibility()"
        " && !e.closest('.hidden, .skip, svg') && e.getBoundingClientRect().right > 360.5)"
        ".map(e => e.className || e.tagName)"
    )
    assert wide == []


def test_dark_and_light_follow_the_reader(page: Any) -> None:
    """The ground is dark in dark mode and light in light mode."""
    grounds = []
    for dark in (False, True):
        page.open(states.healthy, dark=dark)
        grounds.append(_luminance(_rgba(page.js("return getComputedStyle(document.body).backgroundColor"))))
    assert grounds[0] > 0.8
    assert grounds[1] < 0.05


def test_the_state_is_large_and_never_told_by_colour_alone(page: Any) -> None:
    """The word is at least 48 pixels high on a desktop, and every state has a word and a picture of its own."""
    words = ("starting", "ready", "sleeping", "stalled", "livelock", "dead", "unreachable")
    page.open(lambda now: states.state(now, [states.target(now)]))
    assert page.js("return parseFloat(getComputedStyle(document.querySelector('.state')).fontSize)") >= 48
    page.open(lambda now: states.state(now, [states.target(now, word, state=word) for word in words]))
    assert sorted(page.texts(".word")) == sorted(word.capitalize() for word in words)
    pictures = page.js("return [...document.querySelectorAll('.target .icon path')].map(p => p.getAttribute('d'))")
    assert len(set(pictures)) == len(words)


def test_everything_that_can_be_operated_is_reached_by_tab(page: Any) -> None:
    """Tab goes through links, filter, order and targets, each with a visible outline."""
    page.open(lambda now: states.fleet(now, 8))
    body = page.driver.find_element(By.TAG_NAME, "body")
    reached = []
    for _ in range(40):
        body = page.driver.switch_to.active_element
        body.send_keys(Keys.TAB)
        tag, name, outline = page.js(
            "const e = document.activeElement; return [e.tagName, e.id || e.className || e.textContent,"
            " getComputedStyle(e).outlineStyle]"
        )
        if tag == "BODY":
            break
        assert outline != "none", name
        reached.append(name)
    assert reached[0] == "skip"
    labels = page.js("return ['filter', 'order'].map(id => document.getElementById(id).labels[0]?.textContent)")
    assert labels == ["Filter", "Order"]
    assert {"filter", "order"} <= set(reached)
    assert reached.count("toggle") == 8


def test_less_motion_is_respected(page: Any) -> None:
    """With reduced motion asked for, bars do not glide."""
    durations = []
    for reduced in (False, True):
        page.open(states.healthy, reduced_motion=reduced)
        durations.append(page.js("return getComputedStyle(document.querySelector('.part')).transitionDuration"))
    assert durations == ["0.4s", "0s"]


def test_every_sparkline_has_a_text(page: Any) -> None:
    """Each picture of the history is named, with its range and its last value."""
    page.open(states.healthy)
    labels = page.js("return [...document.querySelectorAll('.spark svg')].map(s => s.getAttribute('aria-label'))")
    assert len(labels) == 9 + 2 * 4
    assert all(re.search(r"last 10 minutes: lowest .+, highest .+, last .+", label) for label in labels)


@pytest.mark.parametrize("dark", [False, True], ids=["light", "dark"])
def test_a_lost_connection_is_accessible_too(page: Any, dark: bool) -> None:
    """The banner and the page below it pass axe-core and keep their contrast."""
    page.open(states.healthy, dark=dark, reduced_motion=True)
    page.daemon.fault = 503
    page.until("return !document.getElementById('lost').hidden")
    check(page)


@pytest.mark.parametrize("dark", [False, True], ids=["light", "dark"])
def test_a_chosen_filter_is_accessible_too(page: Any, dark: bool) -> None:
    """With a state picked, a target opened and nothing left by the filter, the rules still hold."""
    page.open(few, dark=dark, reduced_motion=True)
    page.click(".count[data-state=ready]")
    page.click(".toggle")
    check(page)
    page.driver.find_element(By.ID, "filter").send_keys("nothing is called like this")
    assert page.text("#targets-body .empty") == "No target passes the filter."
    check(page)

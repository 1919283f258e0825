"""The text formats: whatever Prometheus' own parser reads, we read the same."""

from __future__ import annotations

import math
import string

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from prometheus_client.openmetrics.parser import text_string_to_metric_families as parse_openmetrics
from prometheus_client.parser import text_string_to_metric_families as parse_text

from llmobs.engine import text
from llmobs.engine.page import PageReader
from llmobs.errors import TargetError
from tests.engine.conftest import captured, one

LABEL_VALUES = st.text(st.characters(codec="utf-8", exclude_characters="\r\x00\x0b\x0c\x1c\x1d\x1e\x85\u2028\u2029"))


def escaped(value: str) -> str:
    return value.replace("\\", r"\\").replace("\n", r"\n").replace('"', r"\"")


def page_of(value: str, labels: str = "") -> str:
    return f'vllm:num_requests_running{{model_name="m",engine="0"{labels}}} {value}\n'


def try_to_read(reader: PageReader, page: str) -> None:
    try:
        reader.read(page, taken_at=0, wall_time=0, version="0.32.0")
    except TargetError as error:
        assert error.reason in ("parse", "empty", "too_large")  # noqa: PT017


@given(LABEL_VALUES, st.floats())
def test_reads_every_label_value_and_number_as_prometheus_does(value: str, number: float) -> None:
    """Escapes, braces, commas, spaces, hashes and non-ASCII text come out as Prometheus' parser gives them."""
    line = f'x_total{{a="{escaped(value)}",b="}} 1 # {{"}} {number!r}\n'
    (family,) = parse_text(line)
    (theirs,) = family.samples
    found = text.sample(line.rstrip("\n"))
    assert found is not None
    series, ours = found
    assert text.series(series) == (theirs.name, theirs.labels)
    assert ours == theirs.value or (math.isnan(ours) and math.isnan(theirs.value))


@pytest.mark.parametrize(
    ("line", "value"),
    [
        ("a 1", 1.0),
        ("a\t1", 1.0),
        ("a 1.5e+09", 1.5e9),
        ("a +Inf", math.inf),
        ("a -Inf", -math.inf),
        ("a 1 1700000000000", 1.0),
        ("a 1 1700000000.123", 1.0),
        ('a_bucket{le="0.1"} 3 # {trace_id="abc"} 0.05 1.7e9', 3.0),
        ('a_bucket{le="0.1"} 3 1.7e9 # {trace_id="}"} 0.05', 3.0),
        ("a{} 2", 2.0),
        ('a{x="1",} 2', 2.0),
        ("a 1\r", 1.0),
    ],
)
def test_reads_what_the_formats_allow(line: str, value: float) -> None:
    """Timestamps, exemplars, tabs, trailing commas and Windows line ends are read past."""
    found = text.sample(line)
    assert found is not None
    assert found[1] == value


@pytest.mark.parametrize(
    "line",
    ["", "a", "a b", "1a 2", 'a{x="1} 2', 'a{x="1"', "a 1_0", "a 1 2 3 4", "{} 1", "<html>", "\x00\x01 1", "a 0x10"],
)
def test_a_broken_line_is_no_sample(line: str) -> None:
    """What is no sample is None, never an exception and never a number."""
    assert text.sample(line) is None


def test_a_broken_series_is_none() -> None:
    """A label without quotes makes the series unreadable."""
    assert text.series('a{x=1,y="2"}') is None


@given(st.text(st.sampled_from(string.printable), max_size=300))
def test_no_text_raises_anything_but_a_target_error(junk: str) -> None:
    """Whatever stands on a page, reading it ends in a snapshot or a TargetError."""
    reader = PageReader()
    for page in (junk, page_of("1") + junk, junk + "\n" + page_of("1")):
        try_to_read(reader, page)


@settings(max_examples=60, deadline=None)
@given(st.data())
def test_a_damaged_real_page_raises_nothing_but_a_target_error(data: st.DataObject) -> None:
    """A real page with bytes replaced, cut out or doubled is read as far as it goes."""
    page = captured("vllm-0.32-single-small-load")
    at = data.draw(st.integers(0, len(page)))
    length = data.draw(st.integers(0, 4000))
    junk = data.draw(st.text(max_size=50))
    reader = PageReader()
    for text_of_page in (page, page[:at] + junk + page[at + length :], page[:at], page):
        try_to_read(reader, text_of_page)


@pytest.mark.parametrize("name", ["vllm-0.32-single", "vllm-0.32-single-small-load", "vllm-0.32-multiprocess"])
def test_every_sample_of_a_real_page_is_read_as_prometheus_reads_it(name: str) -> None:
    """Line by line, the captured pages give the same series and values as Prometheus' parser."""
    page = captured(name)
    theirs = {(s.name, frozenset(s.labels.items())): s.value for f in parse_text(page) for s in f.samples}
    ours = {}
    for line in page.splitlines():
        if line and not line.startswith("#"):
            found = text.sample(line)
            assert found is not None
            apart = text.series(found[0])
            assert apart is not None
            ours[apart[0], frozenset(apart[1].items())] = found[1]
    assert ours == theirs


def test_openmetrics_pages_are_read() -> None:
    """Exemplars, `# EOF`, units and `_created` of an OpenMetrics page do not disturb its values."""
    page = (
        "# TYPE vllm:prompt_tokens counter\n# UNIT vllm:prompt_tokens tokens\n"
        'vllm:prompt_tokens_total{engine="0",model_name="m"} 7 # {trace_id="a"} 1 1.7e9\n'
        'vllm:prompt_tokens_created{engine="0",model_name="m"} 1.7e9\n'
        "# TYPE vllm:time_to_first_token_seconds histogram\n"
        'vllm:time_to_first_token_seconds_bucket{engine="0",le="0.5",model_name="m"} 2 # {trace_id="a b } c"} 0.2\n'
        'vllm:time_to_first_token_seconds_bucket{engine="0",le="+Inf",model_name="m"} 3\n'
        'vllm:time_to_first_token_seconds_count{engine="0",model_name="m"} 3\n'
        'vllm:time_to_first_token_seconds_sum{engine="0",model_name="m"} 1.25\n# EOF\n'
    )
    list(parse_openmetrics(page.replace("# UNIT vllm:prompt_tokens tokens\n", "")))
    engine = one(page)
    assert engine.prompt_tokens == 7
    assert engine.time_to_first_token is not None
    assert engine.time_to_first_token.counts == (2, 3)
    assert engine.time_to_first_token.sum == 1.25


def test_windows_line_ends_are_read() -> None:
    """A proxy that rewrites line ends costs nothing."""
    assert one(page_of("3").replace("\n", "\r\n")).running == 3


def test_a_last_line_without_its_end_is_left_out() -> None:
    """A page cut in the middle of a number does not show the number's beginning."""
    engine = one('vllm:num_requests_waiting{model_name="m"} 2\nvllm:num_requests_running{model_name="m"} 12')
    assert engine.running is None
    assert engine.waiting == 2


@pytest.mark.parametrize("value", ["NaN", "+Inf", "-Inf", "-3", "1_0", "many"])
def test_what_is_no_number_of_requests_is_absent(value: str) -> None:
    """NaN, infinities, negative and malformed values are absent, on a first page and on a later one."""
    waiting = 'vllm:num_requests_waiting{model_name="m",engine="0"} 1\n'
    assert one(waiting + page_of(value)).running is None
    assert one(waiting + page_of("4"), waiting + page_of(value)).running is None


def test_timestamps_that_come_and_go_are_read_past() -> None:
    """A page with timestamps, then one without, then one with them again give the right values."""
    pages = [page_of("1 1700000000000"), page_of("2"), page_of("3 1700000005000")]
    assert [one(*pages[: i + 1]).running for i in range(3)] == [1, 2, 3]

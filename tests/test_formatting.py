import pytest

from plmctl.formatting import format_duration, format_value


@pytest.mark.parametrize(
    ("seconds", "shown"),
    [
        (0.4, "0:00"),
        (221, "3:41"),
        (59.6, "1:00"),
        (7421, "2:03:41"),
        (3 * 86400 + 4 * 3600 + 59, "3d 04h"),
        (float("nan"), "-"),
        (float("inf"), "-"),
    ],
)
def test_durations_read_as_a_clock(seconds, shown):
    assert format_duration(seconds) == shown


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (None, "-"),
        (1234567, "1,234,567"),
        (31002.34, "31,002"),
        (123.456, "123.5"),
        (400.0, "400"),
        (72.0, "72.00"),
        (0.7234567, "0.723"),
        (-0.5, "-0.500"),
        (0.0003, "3.00e-04"),
        (0.0, "0.000"),
        (float("nan"), "-"),
        ("wordpiece", "wordpiece"),
        (True, "True"),
    ],
)
def test_numbers_read_as_people_write_them(value, text):
    assert format_value(value) == text

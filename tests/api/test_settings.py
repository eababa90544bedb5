"""What functions of astitch.jit ask of the program around them."""

from __future__ import annotations

import html

import pytest

from astitch.api.settings import Settings, read_settings, write_mark
from astitch.api.transformation import Report


@pytest.mark.parametrize(
    ("asked", "tune"),
    [
        ([None], None),
        ([True], True),
        ([False], False),
        ([None, False], False),
        ([False, True], True),
    ],
)
def test_a_program_is_tuned_as_its_functions_ask(
    asked: list[bool | None], tune: bool | None
) -> None:
    assert read_settings(write_mark(Settings(tune=wish)) for wish in asked).tune is tune


def test_a_notebook_shows_the_report_as_it_prints() -> None:
    left = Report((), 0, {"a <while> of its own": 1})
    assert left._repr_html_() == f"<pre>{html.escape(str(left))}</pre>"
    assert "&lt;while&gt;" in left._repr_html_()

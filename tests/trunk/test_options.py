"""Options that somebody wrote: what is of another kind than the function takes is told before anything runs."""

from typing import Any, Literal

import pytest

from envgym.options import wrong_option


def make(  # noqa: PLR0913  # one parameter for each kind
    task: object, *, tries: int = 3, rate: float = 0.5, hops: int | None = None, checked: bool = False,
    name: str = "", which: Literal["a", 1] = "a", many: list[int] | int = 1, anything: Any = None,
) -> None:  # fmt: skip
    """Take options."""


@pytest.mark.parametrize(
    ("name", "value", "must"),
    [
        ("tries", "three", "a whole number"), ("tries", 2.5, "a whole number"), ("tries", True, "a whole number"),
        ("tries", None, "a whole number"), ("tries", [1], "a whole number"), ("rate", "high", "a number"),
        ("rate", True, "a number"), ("hops", "all", "a whole number or null"), ("checked", "no", "true or false"),
    ],
)  # fmt: skip
def test_a_value_of_another_kind_is_told_with_its_name_and_what_it_must_be(
    name: str, value: object, must: str
) -> None:
    told = wrong_option("--env-option", {name: value}, make, skip=1)
    assert told == f"--env-option.{name} = {value!r}: it must be {must}"


@pytest.mark.parametrize(
    "options",
    [
        {"tries": 5, "rate": 1, "hops": None, "checked": True}, {"hops": 2, "rate": 0.1, "checked": 1}, {"name": 7},
        {"which": 2}, {"many": "x"}, {"anything": "x"}, {"tries": object()},
    ],
)  # fmt: skip
def test_what_fits_and_what_an_annotation_does_not_decide_is_left_to_the_function(options: dict[str, Any]) -> None:
    assert wrong_option("--env-option", options, make, skip=1) is None

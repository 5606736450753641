"""How messages name exceptions of other code, whose text may hold a value of the data."""

import pandas as pd
import pytest

from wardround.core.errors import name_of


def missing_field(content: dict[str, int]) -> int:
    return content["split_sizes"]


def missing_level(content: dict[str, int], level: str) -> int:
    return content[level]


def test_a_key_that_the_program_looks_for_is_named_and_one_from_the_data_is_not() -> None:
    with pytest.raises(KeyError) as named:
        missing_field({})
    assert name_of(named.value) == "KeyError 'split_sizes'"
    with pytest.raises(KeyError) as column:
        pd.DataFrame({"a": [1]})["site"]
    assert name_of(column.value) == "KeyError 'site'"
    level = "".join(["Mrs ", "Miller"])  # as a file has it: no function knows this name
    with pytest.raises(KeyError) as of_data:
        missing_level({}, level)
    assert name_of(of_data.value) == "KeyError"
    with pytest.raises(KeyError) as number:
        {8: 1}[7]
    assert name_of(number.value) == "KeyError"
    assert name_of(ValueError("anybody")) == "ValueError"

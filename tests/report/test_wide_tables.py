"""Table 1 where there are many hospitals: a terminal shows what fits and says how much is left out."""

from wardround.report.render.table import make_table


def test_the_first_columns_of_a_table_keep_its_lines() -> None:
    table = make_table("wide", "Wide", {f"h{n}": None for n in range(50)}, [list(range(50)), list(range(50, 100))])
    few = table.first_columns(10)
    assert few.columns == tuple(f"h{n}" for n in range(10))
    assert few.rows == [list(range(10)), list(range(50, 60))]
    assert table.first_columns(60) == table

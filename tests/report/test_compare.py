"""Runs side by side."""

import json
from pathlib import Path
from typing import Any

import pandas as pd
import pytest
from sklearn.metrics import roc_auc_score

import wardround
from tests.report.test_report import small
from wardround.core.errors import RunError


@pytest.fixture(scope="module")
def runs(tmp_path_factory: pytest.TempPathFactory) -> list[wardround.StudyRun]:
    out = tmp_path_factory.mktemp("runs")
    longer = {"training.rounds": 6}
    return [wardround.run_study(small("short"), out), wardround.run_study(small("short"), out, changes=longer)]


def test_what_differs_and_the_paired_difference(runs: list[wardround.StudyRun]) -> None:
    comparison = wardround.compare_runs([run.folder for run in runs])
    settings, figures, paired = comparison.tables
    assert [row[0] for row in settings.rows] == ["training.rounds"]
    assert [row[0] for row in figures.rows] == ["fedavg", "local"]
    for arm, _, difference, _, seeds in paired.rows:
        means = []
        for run in runs:
            table = pd.read_parquet(run.folder / "predictions.parquet")
            table = table[table["arm"] == arm]
            sites = table.groupby(["seed", "site"])[["label", "score"]]
            means.append(sites.apply(lambda rows: roc_auc_score(rows["label"], rows["score"])).mean())
        assert difference == pytest.approx(means[1] - means[0])
        assert seeds == 2


def test_other_test_rows_are_not_paired(runs: list[wardround.StudyRun], tmp_path: Path) -> None:
    other: dict[str, Any] = {"seeds": {"first": 9, "count": 2}, "reference": "fedavg"}
    stranger = wardround.run_study(small("stranger", evaluation=other), tmp_path)
    comparison = wardround.compare_runs([runs[0].folder, stranger.folder])
    assert [table.name for table in comparison.tables] == ["settings", "figures"]
    assert comparison.notes[0] == f"A is {runs[0].folder.name}"
    assert "B: some arms were tested on other rows than in A" in comparison.notes[2]


def test_bad_input_is_refused(runs: list[wardround.StudyRun], tmp_path: Path) -> None:
    for given in ([runs[0].folder], [runs[0].folder, runs[0].folder]):
        with pytest.raises(RunError, match="needs two runs or more, found 1"):
            wardround.compare_runs(given)
    with pytest.raises(RunError, match=r"has no results\.json"):
        wardround.compare_runs([runs[0].folder, tmp_path])


def test_the_command_writes_tables(runs: list[wardround.StudyRun], tmp_path: Path) -> None:
    from tests.cli.test_commands import wardround as command

    done = command("compare", *(run.folder for run in runs), "--out", tmp_path / "new" / "tables")
    assert done.returncode == 0, done.stderr
    assert "What differs in the studies" in done.stdout
    assert (tmp_path / "new" / "tables" / "figures.csv").is_file()
    as_json = json.loads(command("compare", *(run.folder for run in runs), "--json").stdout)
    assert set(as_json["tables"]) == {"settings", "figures", "paired"}

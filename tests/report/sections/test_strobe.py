"""The STROBE checklist of a study without arms says what the run knows, and leaves the rest to the authors."""

from pathlib import Path

from wardround.report import read_evidence
from wardround.report.sections.appendix.strobe import strobe
from wardround.runs.catalog import find_study
from wardround.runs.execute import run_study
from wardround.runs.folder import RunFolder


def test_items_that_the_run_knows(tmp_path: Path) -> None:
    for name in ("heart-table-one", "heart-regression"):
        run_study(find_study(name), tmp_path / name)
        (folder,) = (tmp_path / name).iterdir()
        items = {number: answer for number, _, answer in strobe(read_evidence(RunFolder(folder)))}
        assert len(items) == 22
        assert items["5"] == "4 hospitals: cleveland, hungarian, switzerland, va"
        if name == "heart-table-one":
            assert items["13"] == "patients: 920 rows of 920 patients"
            assert "Table 1" in items["14"]
            assert items["16"] == ""
        else:
            assert "disease: 865 rows" in items["13"]
            assert "random effects (REML)" in items["12"]
        assert not any(items[number] for number in ("1", "2", "9", "18", "20", "22"))

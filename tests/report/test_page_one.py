"""Page one and the hospitals' pages, as text: what they say in each kind of study, and what they never say."""

import json
import re
import shutil
from collections.abc import Mapping
from io import StringIO
from pathlib import Path
from typing import Any

import pytest
from rich.console import Console
from typer.testing import CliRunner

import wardround
from tests.evaluation.deployed_summaries import as_deployed
from tests.report.front_studies import front_study, study_of
from tests.report.test_deployed import ACROSS, LATE, PRESENT
from tests.report.test_report import Page, page_of, small
from tests.report_consistency import contradictions
from tests.representatives import represented
from wardround.cli.main import app
from wardround.cli.studies.render_run import _show_sites_and_variants
from wardround.core.errors import RunError
from wardround.report import Evidence, read_evidence
from wardround.report.sections.front.board import MEAN, MOST_LINES, forest, levels, took_part
from wardround.report.sections.front.forest import forest_of
from wardround.runs.folder import RunFolder

KINDS = ["gain", "loss", "one seed", "numbers", "nobody alone"]


@pytest.fixture(scope="module", params=represented(KINDS, by=["gain", "numbers", "nobody alone"]))
def folder(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Path:
    place = tmp_path_factory.mktemp("front")
    run = wardround.run_study(front_study(place / "data", request.param), place / "runs")
    wardround.build_report(run.folder)
    return run.folder


@pytest.fixture(scope="module")
def gain(tmp_path_factory: pytest.TempPathFactory) -> Path:
    place = tmp_path_factory.mktemp("gain")
    return wardround.run_study(front_study(place / "data", "gain"), place / "runs").folder


def evidence_of(folder: Path) -> Evidence:
    return read_evidence(RunFolder(folder))


def test_nothing_contradicts_page_one(folder: Path) -> None:
    results = json.loads((folder / "results.json").read_text(encoding="utf-8"))
    html = (folder / "report.html").read_text(encoding="utf-8")
    assert contradictions(results, html) == []
    decision = results["decision"]
    told = {tuple(entry[key] for key in ("arm", "site")): entry for entry in _of_primary(results)}
    for site, own in decision["sites"].items():
        if own["comparison"] is not None:
            assert _same(own["comparison"], told[decision["arm"], site])
    if decision["mean"] is not None:
        assert _same(decision["mean"], told[decision["arm"], None])
        (sentence,) = [entry for entry in results["answer"] if entry["about"] == "alone"]
        assert sentence["numbers"][0]["arm"] == decision["arm"]
        assert sentence["numbers"][0]["difference"] == decision["mean"]["difference"]


def _of_primary(results: Mapping[str, Any]) -> list[Any]:
    alone = [entry for entry in results["site_differences"] if entry["kind"] == "alone"]
    return [entry for entry in (*results["benefit"], *alone) if entry["metric"] == results["primary_metric"]]


def _same(ours: Mapping[str, Any], theirs: Mapping[str, Any]) -> bool:
    return all(ours[key] == theirs[key] for key in ("difference", "interval", "p_value", "comparisons", "verdict"))


def test_a_sentence_in_words_that_contradicts_its_interval_is_found() -> None:
    for sentence in (
        "Joining helped: 12 more in 1,000 pairs (95 % CI: 3 fewer to 40 more).",
        "It is not shown that it is better: 2.1 days less (95 % CI: 3.1 days less to 1.0 days less).",
    ):
        assert len(contradictions({}, f"<p>{sentence}</p>")) == 1, sentence


def test_page_one_comes_first_and_has_its_parts(folder: Path) -> None:
    html = (folder / "report.html").read_text(encoding="utf-8")
    page = page_of(folder)
    assert page.ids[0] == "front"
    assert page.ids.index("hospital-pages") < page.ids.index("answer") < page.ids.index("results")
    last = [page.ids.index(name) for name in ("privacy", "design", "limits", "methods", "checklist", "cost", "study")]
    assert last == sorted(last)
    front = html[html.index('<section id="front">') : html.index('<section id="hospital-pages">')]
    text = Page(front).text
    for part in ("Who took part", "Patients", "What left the hospitals", "Privacy", "What to do next."):
        assert part in text
    jargon = re.search(r"\barms?\b", text)
    assert jargon is None or text.index("way of training") < jargon.start()
    assert not re.findall(r"\b(nan|None|NaN)\b", text)


def test_without_anybody_alone_page_one_compares_what_there_is(tmp_path: Path) -> None:
    study = front_study(tmp_path / "data", "nobody alone")
    study["evaluation"]["reference"] = "fedavg"
    evidence = evidence_of(wardround.run_study(study, tmp_path / "runs").folder)
    drawn = forest(evidence)
    assert drawn is not None
    assert [line.name for line in drawn.lines] == ["fedprox"]


def test_one_hospital_s_page_names_no_other(gain: Path) -> None:
    path = wardround.build_report(gain, site="hospital-02")
    assert path == gain / "report-site-hospital-02.html"
    text = Page(path.read_text(encoding="utf-8")).text
    assert "hospital-02" in text
    assert not any(f"hospital-0{number}" in text for number in (1, 3, 4, 5))
    assert not (gain / "report.html").exists()  # nothing else is made


def test_the_command_writes_one_page_or_says_which_hospitals_there_are(gain: Path) -> None:
    made = CliRunner().invoke(app, ["report", str(gain), "--site", "hospital-03", "--json"])
    assert json.loads(made.output)["report"] == str(gain / "report-site-hospital-03.html")
    refused = CliRunner().invoke(app, ["report", str(gain), "--site", "hospital-3"])
    assert refused.exit_code != 0
    with pytest.raises(RunError, match=r"has no hospital 'hospital-3'\s+Did you mean 'hospital-"):
        wardround.build_report(gain, site="hospital-3")


def test_a_run_of_an_earlier_version_has_a_report_without_page_one(gain: Path, tmp_path: Path) -> None:
    shutil.copytree(gain, tmp_path / "old")
    (tmp_path / "old" / "audit.jsonl").unlink()
    path = tmp_path / "old" / "results.json"
    results = json.loads(path.read_text(encoding="utf-8"))
    del results["decision"]
    path.write_text(json.dumps(results))
    wardround.build_report(tmp_path / "old")
    ids = page_of(tmp_path / "old").ids
    assert "front" not in ids
    assert "answer" in ids
    with pytest.raises(RunError, match="earlier version"):
        wardround.build_report(tmp_path / "old", site="hospital-02")


def test_across_hospitals_it_says_who_was_there(tmp_path: Path) -> None:
    made = wardround.run_study(ACROSS, tmp_path)
    told = as_deployed(made, ACROSS, tmp_path / "told" / "across")
    results = told.read_json("results.json")
    for others, words in ((PRESENT, "All that were invited"), (PRESENT | {"va": LATE}, "Who did not: see above")):
        told.write_json("results.json", {**results, "participation": others})
        evidence = evidence_of(told.path)
        assert words in took_part(evidence)
        drawn = forest(evidence)
        assert drawn is not None
        assert {line.name: line.text for line in drawn.lines}["switzerland"] == "no result"


def test_of_very_many_hospitals_the_smallest_differences_are_folded(gain: Path) -> None:
    evidence = evidence_of(gain)
    decision = json.loads(json.dumps(evidence.decision))
    (name, own), *_ = decision["sites"].items()
    many = {f"{name}-{number}": json.loads(json.dumps(own)) for number in range(80)}
    for number, entry in enumerate(many.values()):
        entry["comparison"] |= {"difference": 0.001 * number, "interval": [-0.1, 0.2], "verdict": "no evidence"}
    many[f"{name}-0"]["comparison"] |= {"interval": [0.0001, 0.2], "verdict": "gains"}
    crowded = Evidence(
        {**evidence.results, "decision": {**decision, "sites": many}}, evidence.study, evidence.environment
    )
    drawn = forest(crowded)
    assert drawn is not None
    names = [line.name for line in drawn.lines]
    assert len(names) == MOST_LINES
    assert names[0] == f"{name}-0"
    assert names[-1] == MEAN
    assert f"{name}-1" not in names
    assert "21 hospitals" in drawn.folded


def test_marks_stand_where_the_ticks_say_and_long_lines_are_cut_with_an_arrow(gain: Path) -> None:
    measure = evidence_of(gain).headline.measure
    entry = {"interval": [-0.04, 0.06], "difference": 0.01, "verdict": "no evidence"}
    wide = {"interval": [-0.9, 0.9], "difference": 0.02, "verdict": "no evidence"}
    entries: dict[str, Any] = {f"h{number}": entry for number in range(20)} | {"wide": wide, "none": None}
    drawn = forest_of(entries, {}, measure)
    assert drawn.ticks == {"-40": pytest.approx(50 / 3), "0": 50.0, "+40": pytest.approx(250 / 3)}
    usual, cut, none = drawn.lines[0], drawn.lines[-2], drawn.lines[-1]
    assert (usual.low, usual.middle, usual.high) == pytest.approx((50 / 3, 50 + 25 / 3, 100.0))
    assert (cut.low, cut.high, cut.cut_low, cut.cut_high) == (0.0, 100.0, True, True)
    assert cut.text == "+20 (-900 to +900)"
    assert (none.text, none.middle) == ("no result", None)


def test_of_few_hospitals_no_line_is_cut_that_is_hardly_longer_than_the_others(gain: Path) -> None:
    measure = evidence_of(gain).headline.measure
    mean = {"interval": [-0.057, 0.078], "difference": 0.011, "verdict": "no evidence"}
    own = {"interval": [-0.028, 0.03], "difference": 0.001, "verdict": "no evidence"}
    drawn = forest_of({"own": own, "mean": mean}, {}, measure)
    assert not any(line.cut_low or line.cut_high for line in drawn.lines)


def test_the_predictions_themselves_are_told_where_the_answer_is_a_difference_of_them(folder: Path) -> None:
    evidence = evidence_of(folder)
    told = levels(evidence)
    if evidence.decision["why_not"] is not None:
        assert told == ""
        return
    metric = evidence.headline.metric
    both = [evidence.arms[evidence.decision[which]]["within_sites"][metric]["mean"] for which in ("arm", "alone")]
    assert both[0] - both[1] == pytest.approx(evidence.decision["mean"]["difference"])
    assert [evidence.headline.text(value) in told for value in both] == [True, True]


def test_a_hospital_without_a_group_that_is_large_enough_says_so_once(tmp_path: Path) -> None:
    run = wardround.run_study(study_of(tmp_path / "data", "few", hospitals=2, patients=40, seeds=2), tmp_path)
    path = wardround.build_report(run.folder, site="hospital-01")
    text = Page(path.read_text(encoding="utf-8")).text
    assert "Groups by sex and age are not shown: each has too few test records here." in text
    assert "too few" not in text.replace("too few test records", "")


def test_few_patients_are_counted_on_neither_page(tmp_path: Path) -> None:
    study = small("few", evaluation={"seeds": {"count": 2}, "reference": "fedavg"})
    run = wardround.run_study(study, tmp_path)
    results = json.loads((run.folder / "results.json").read_text(encoding="utf-8"))
    site = next(iter(results["sites"][0]["sites"]))
    classes = results["sites"][0]["sites"][site]["classes"]
    classes[list(classes)[1]] = 3
    evidence = Evidence(results, RunFolder(run.folder).read_study(), evidence_of(run.folder).environment)
    drawn = forest(evidence)
    assert drawn is not None
    assert {line.name: line.size for line in drawn.lines}[site].endswith(" / –")


def test_fifty_hospitals_stay_below_three_megabytes_and_nothing_is_left_out_unsaid(tmp_path: Path) -> None:
    run = wardround.run_study(study_of(tmp_path / "data", "many", hospitals=50, patients=40, seeds=2), tmp_path)
    path = wardround.build_report(run.folder)
    assert path.stat().st_size < 3_000_000
    (header, *rows) = (run.folder / "tables" / "hospitals.csv").read_text(encoding="utf-8").splitlines()
    assert header.split(",")[1::3] == [f"hospital-{number:02}" for number in range(1, 51)]
    assert len(rows) == 3
    text = page_of(run.folder).text
    for sentence in (
        "Hospitals with a panel of their own are drawn up to 12; a table has all 50.",
        "Hospitals under every arm are drawn up to 20; a table has all 50.",
        "Sites with their rows of each class are drawn up to 20; a table has all 50.",
        "Distributions of columns are drawn for all rows, and for the first 12 of 50 sites.",
    ):
        assert sentence in text
    assert not (run.folder / "figures" / "hospitals.svg").exists()
    assert not (run.folder / "figures" / "benefit.svg").exists()
    printed = StringIO()
    _show_sites_and_variants(Console(file=printed, width=120), read_evidence(RunFolder(run.folder)))
    assert "Each of the 50 sites: in results.json, and in the report's tables/hospitals.csv." in printed.getvalue()

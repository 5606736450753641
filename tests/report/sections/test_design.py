"""The two drawings of a study: every site or group of them is named, and what is sent is what was measured."""

import itertools
from copy import deepcopy
from dataclasses import replace
from pathlib import Path
from typing import Any

import matplotlib as mpl
import pytest
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure

from tests.report.private_study import PRIVATE
from tests.report.sections.test_approaches import STUDY as WAYS
from tests.representatives import represented
from tests.runs.test_hierarchical_studies import FIFTY
from wardround.report import Evidence, read_evidence
from wardround.report.render.sketch import width_of, wrap
from wardround.report.render.style import STYLE
from wardround.report.sections.design.exchange import exchanges_of, update_numbers
from wardround.report.sections.design.federation import federation
from wardround.report.sections.design.pipeline import pipeline, stages_of
from wardround.runs.execute import run_study
from wardround.runs.folder import RunFolder

FLAT: dict[str, Any] = {
    "name": "flat",
    "data": {"source": "heart", "hospitals": ["cleveland"], "missing": "drop", "categories": "codes"},
    "sites": {"partition": "age-windows"},
    "training": {"rounds": 2, "local_epochs": 3, "batch_size": 16, "lr": 0.05},
    "evaluation": {"seeds": {"first": 1, "count": 2}, "reference": "fedavg"},
    "arms": [
        {"algorithm": "fedavg"},
        {"algorithm": "fedprox", "mu": [0.0, 0.1]},
        {"algorithm": "scaffold"},
        {"algorithm": "fednova"},
        {"algorithm": "local"},
        {"algorithm": "pooled"},
    ],
}
MANY: dict[str, Any] = {
    "name": "many",
    "data": {"source": "synthetic", "count": 50, "largest": 60, "features": 5, "classes": 2},
    "training": {"rounds": 1},
    "evaluation": {"seeds": {"first": 1, "count": 1}},
    "arms": [{"algorithm": "fedavg"}, {"algorithm": "local"}, {"algorithm": "pooled"}],
}
LONG_NAMES: dict[str, Any] = {
    **FIFTY,
    "name": "long",
    "training": {**FIFTY["training"], "rounds": 2, "local_epochs": 1},
    "topology": {
        **FIFTY["topology"],
        "regions": {
            f"a-region-with-a-very-long-name-{n:02}": [f"site-{n:02}", f"site-{n + 25:02}"] for n in range(1, 26)
        },
    },
    "arms": [{"name": f"an-arm-with-a-long-name-{n}", "algorithm": "fedavg"} for n in range(8)],
}
SUMMED: dict[str, Any] = {
    **FLAT,
    "name": "summed",
    "data": {"source": "heart"},
    "sites": {"partition": "by-hospital"},
    "privacy": {"secure_sum": {"threshold": 3}},
    "arms": [{"algorithm": "fedavg"}, {"algorithm": "local"}, {"algorithm": "pooled"}],
}
STUDIES = {
    "summed": SUMMED,
    "flat": FLAT,
    "many": MANY,
    "ways": WAYS,
    "fifty": FIFTY,
    "long": LONG_NAMES,
    "private": PRIVATE,
}


class Studies(dict[str, Evidence]):
    """Each is run when a test first asks for it."""

    def __init__(self, ways_folder: Path, out: Path) -> None:
        super().__init__()
        self.ways_folder, self.out = ways_folder, out

    def __missing__(self, name: str) -> Evidence:
        raw = STUDIES[name]
        self[name] = read_evidence(RunFolder(self.ways_folder if raw is WAYS else _run(raw, self.out)))
        return self[name]


@pytest.fixture(scope="module")
def studies(ways_folder: Path, tmp_path_factory: pytest.TempPathFactory) -> Studies:
    return Studies(ways_folder, tmp_path_factory.mktemp("runs"))


def _run(raw: dict[str, Any], out: Path) -> Path:
    return run_study({**raw, "evaluation": {**raw["evaluation"], "attack": "none"}}, out=out).folder


def drawn(evidence: Evidence, draw: Any) -> Figure:
    with mpl.rc_context(STYLE):
        figure = draw(evidence)
    assert isinstance(figure, Figure)
    return figure


def text_of(evidence: Evidence, draw: Any) -> str:
    return " ".join(text.get_text() for text in drawn(evidence, draw).axes[0].texts)


@pytest.mark.parametrize(
    ("draw", "name"),
    represented(
        itertools.product([federation, pipeline], STUDIES),
        by=[(federation, "many"), (federation, "fifty"), (pipeline, "flat")],
    ),
)
def test_all_text_is_inside_the_figure_and_none_is_over_another(
    studies: dict[str, Evidence], name: str, draw: Any
) -> None:
    figure = drawn(studies[name], draw)
    canvas = FigureCanvasAgg(figure)
    with mpl.rc_context(STYLE):
        canvas.draw()  # type: ignore[no-untyped-call]
    boxes = [text.get_window_extent() for text in figure.axes[0].texts if text.get_text()]
    page = figure.bbox
    assert all(b.x0 >= 0 and b.y0 >= 0 and b.x1 <= page.x1 and b.y1 <= page.y1 for b in boxes)
    for box, other in itertools.combinations(boxes, 2):
        apart = box.x1 <= other.x0 + 1 or other.x1 <= box.x0 + 1 or box.y1 <= other.y0 + 3 or other.y1 <= box.y0 + 3
        assert apart, "two texts overlap"
    assert figure.get_figheight() < 14, "too tall for a page"


def test_a_flat_federation_names_its_sites_and_what_each_update_is(studies: dict[str, Evidence]) -> None:
    evidence = studies["flat"]
    text = text_of(evidence, federation)
    for site, counts in evidence.results["sites"][0]["sites"].items():
        assert f"{site} {counts['train']} training rows stay here" in text
    assert "Sites and one coordinator, 2 rounds Arms: fedavg, fedprox (2 arms), scaffold and fednova" in text
    # 13 columns and an intercept; SCAFFOLD sends its control as well, FedNova its number of steps
    assert "its update of 14 parameters (28 in scaffold and 15 in fednova)" in text
    assert "to each site: the shared model, 14 parameters" in text
    train = sum(counts["train"] for counts in evidence.results["sites"][0]["sites"].values())
    assert f"one model learns from {train} of them" in text
    assert "Nothing is sent" in text


def test_an_update_is_measured_by_what_was_sent(studies: dict[str, Evidence]) -> None:
    evidence = studies["flat"]
    for arm, numbers in {"fedavg": 14, "fedprox[mu=0.1]": 14, "scaffold": 28, "fednova": 15}.items():
        cost = evidence.arms[arm]["cost"]
        assert cost["updates"] == 2 * 4  # rounds x sites
        assert cost["bytes_up"] == 4 * numbers * cost["updates"]
        assert update_numbers(evidence, arm) == numbers
    assert update_numbers(evidence, "local") == 0  # nothing is sent
    results = deepcopy(dict(evidence.results))
    results["arms"]["fedavg"]["model"] = None
    unknown = replace(evidence, results=results)
    assert update_numbers(unknown, "fedavg") is None
    assert "from each site: its update " in text_of(unknown, federation)


def test_many_sites_are_put_together_and_none_is_lost(studies: dict[str, Evidence]) -> None:
    evidence = studies["many"]
    text = text_of(evidence, federation)
    sites = evidence.results["sites"][0]["sites"]
    names = list(sites)
    for first in range(0, 50, 7):
        group = names[first : first + 7]
        rows = sum(sites[name]["train"] for name in group)
        if len(group) > 1:
            assert f"{group[0]} to {group[-1]} {rows} training rows stay at {len(group)} sites" in text
        else:
            assert f"{group[0]} {rows} training rows stay here" in text
    assert "50 sites, site-01 to site-50" in text_of(evidence, pipeline)


def test_every_way_of_exchange_has_a_panel(studies: dict[str, Evidence]) -> None:
    evidence = studies["ways"]
    ways = [(way.kind, way.arms) for way in exchanges_of(evidence)]
    assert ways == [
        ("flat", ("fedavg", "fedprox")),
        ("flat", ("private",)),
        ("vertical", ("vertical",)),
        ("hierarchical", ("hierarchical",)),
        ("pooled", ("pooled",)),
        ("local", ("local",)),
    ]
    text = text_of(evidence, federation)
    size = evidence.arms["private"]["model"]["shared_parameters"]
    assert f"its update of {size} parameters, trained on clipped and noised gradients of patients, masked" in text
    assert text.count("masked") == 1, "only the arm with a secure sum is masked"
    assert "sees the sum of the updates and no single one" in text
    assert "clinic its own columns stay here: age, sex, cp" in text
    assert "laboratory its own columns stay here: chol, fbs" in text
    assert "to clinic: an embedding of each row" in text
    assert "back: its gradient" in text
    for region, sites in {"europe": "hungarian, switzerland", "america": "cleveland, va"}.items():
        train = evidence.arms["hierarchical"]["topology"]["regions"][region]["train"]
        assert f"{sites} {train} training rows stay at 2 sites" in text
    assert "averages the regions' models after every 2 rounds" in text
    assert f"up: the region's model, {size} parameters" in text


@pytest.mark.slow
def test_regions_beyond_a_dozen_are_put_together(studies: dict[str, Evidence]) -> None:
    text = text_of(studies["long"], federation).replace(" ", "")
    for number in range(1, 12):
        assert f"a-region-with-a-very-long-name-{number:02}" in text
    assert "14moreregions" in text


def test_regions_have_their_sites_and_rows(studies: dict[str, Evidence]) -> None:
    regions = studies["fifty"].arms["fedavg"]["topology"]["regions"]
    shown = text_of(studies["fifty"], federation)
    for name, region in regions.items():
        assert f"{region['train']:,} training rows stay at {len(region['sites'])} sites" in shown
        assert f" {name} averages its sites" in shown
        assert ", ".join(region["sites"][:3]) in shown


@pytest.mark.slow
def test_arms_that_differ_in_epsilon_alone_share_a_panel(studies: dict[str, Evidence]) -> None:
    evidence = studies["private"]
    ways = [way.arms for way in exchanges_of(evidence)]
    assert ("closed[epsilon=1.0]", "closed[epsilon=8.0]", "ends") in ways
    words = {stage.name: stage.text for stage in stages_of(evidence)}["protection"]
    assert (
        "closed (2 arms) and ends: each patient's gradient is cut to a length of 1 and gets noise (epsilon 1, 8 and 2)"
        in words
    )
    assert "summed: updates are masked, so that only their sum can be read." in words
    assert "open" not in words
    assert (
        "alone: each patient's gradient is cut to a length of 1 and gets noise (epsilon 2)." in words
    )  # nothing to mask


def test_where_nothing_is_summed_nothing_is_masked(studies: dict[str, Evidence]) -> None:
    """The study asks for a secure sum in every arm, and two of them have no coordinator."""
    words = {stage.name: stage.text for stage in stages_of(studies["summed"])}["protection"]
    assert words == "fedavg: updates are masked, so that only their sum can be read."
    assert text_of(studies["summed"], federation).count("masked") == 1


def test_the_way_of_a_row_tells_what_the_study_does(studies: dict[str, Evidence]) -> None:
    evidence = studies["flat"]
    stages = {stage.name: stage.text for stage in stages_of(evidence)}
    assert list(stages) == [
        *("source", "cleaning", "partition", "split", "scaling", "local training", "aggregation", "evaluation")
    ]
    assert stages["source"] == "heart: cleveland."
    assert stages["cleaning"] == (
        "Rows with gaps are left out; 297 rows remain; categories as their codes, 13 columns in all."
    )
    assert stages["partition"] == (
        "age-windows: rows of site-01 95, site-02 83, site-03 44, site-04 71.\nA patient can be at several sites."
    )
    assert (
        stages["split"]
        == "234 training rows and 59 test rows with the first seed; drawn anew with each of 2 seeds, by patient."
    )
    assert stages["scaling"].startswith("Each site scales its columns by itself, fitted on training rows")
    assert stages["local training"] == (
        "logistic, 14 shared parameters: 3 local epochs a round, batches of 16, sgd with learning rate 0.05."
    )
    assert "fedavg, fedprox (2 arms), scaffold and fednova: updates of 14 parameters" in stages["aggregation"]
    assert stages["evaluation"] == "Every arm predicts the same test rows, 2 seeds; compared with fedavg."
    shared = sum(leak["rows"] for leak in evidence.results["leakage"][""].values())
    assert f"59 test rows; {shared:.1f} are also training rows of some site, on average" in text_of(evidence, pipeline)


def test_a_split_that_is_given_or_stays_is_not_called_drawn_anew(studies: dict[str, Evidence]) -> None:
    evidence = studies["flat"]
    for change, words in (
        ({"split": "given"}, "as the source gives it"),
        ({"vary": ["batches"]}, "drawn once, by patient"),
    ):
        study = {**evidence.study, "evaluation": {**evidence.study["evaluation"], **change}}
        stages = {stage.name: stage.text for stage in stages_of(replace(evidence, study=study))}
        assert stages["split"].endswith(f"with the first seed; {words}.")


def test_regions_and_parties_are_in_the_way_of_a_row(studies: dict[str, Evidence]) -> None:
    stages = {stage.name: stage.text for stage in stages_of(studies["ways"])}
    assert "In hierarchical: 2 regions, europe and america." in stages["partition"]
    assert "In vertical: columns are held by clinic and laboratory." in stages["partition"]
    assert "vertical: parties' embeddings are joined at clinic" in stages["aggregation"]
    assert "are averaged in each region, then the regions' models" in stages["aggregation"]
    assert "private: each patient's gradient is cut to a length of 1 and gets noise (epsilon 8)" in stages["protection"]


def test_text_is_wrapped_at_its_measured_width() -> None:
    lines = wrap("a hospital whose name is averyverylongwordthatfitsnowhere indeed", 1.0)
    assert all(width_of(line.text) <= 1.0 for line in lines)
    assert "".join(line.text for line in lines).replace(" ", "") == (
        "ahospitalwhosenameisaveryverylongwordthatfitsnowhereindeed"
    )

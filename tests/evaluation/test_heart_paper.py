"""The heart paper's claims: all that it prints is in the shipped study, and the documentation says what a run says."""

import re
from pathlib import Path
from typing import Any

import pytest

import wardround
from wardround.evaluation.answer import claim_words
from wardround.evaluation.claims.verdicts import FORMULAS
from wardround.report import read_evidence
from wardround.report.sections.claims import claim_count_table
from wardround.runs.folder import RunFolder
from wardround.study.claims import Claim

ROOT = Path(__file__).parents[2]
HOW_TO = (ROOT / "docs" / "how-to" / "check-a-published-claim.md").read_text(encoding="utf-8")
README = (ROOT / "README.md").read_text(encoding="utf-8")
PROX = "fedprox[mu=0.05]"
Key = tuple[str, str, str, str, str]  # metric, statistic, site, arm, against


def key(metric: str, arm: str = "", statistic: str = "mean", site: str = "", against: str = "") -> Key:
    return metric, statistic, site, arm, against


# as the paper prints them; per cent where it does
PRINTED: dict[Key, float] = {
    **{
        key("accuracy", arm): value
        for arm, value in {
            "pooled": 83.33,
            "local": 78.45,
            "fedavg": 84.58,  # and mu 0 in its table of mu
            "fedprox[mu=0.01]": 84.72,
            PROX: 85.00,
            "fedprox[mu=0.1]": 84.12,
            "fedprox[mu=0.5]": 81.25,
            "scaffold": 84.2,
            "fednova": 84.5,
            "clustered": 83.8,
        }.items()
    },
    **{
        key("accuracy", arm, "sd"): value
        for arm, value in {
            "pooled": 1.2,
            "local": 3.8,
            "fedavg": 1.5,
            "fedprox[mu=0.01]": 1.4,
            PROX: 1.1,
            "fedprox[mu=0.1]": 1.6,
            "fedprox[mu=0.5]": 2.1,
        }.items()
    },
    **{
        key(metric, arm): value
        for arm, pair in {
            "pooled": (0.891, 0.824),
            "local": (0.832, 0.771),
            "fedavg": (0.902, 0.838),
            PROX: (0.908, 0.847),
        }.items()
        for metric, value in zip(("auc", "f1"), pair, strict=True)
    },
    **{
        key("rounds", f"fedprox[mu={mu}]"): value
        for mu, value in {"0.0": 22, "0.01": 20, "0.05": 18, "0.1": 15, "0.5": 12}.items()
    },
    **{
        key("accuracy", arm, site=f"site-0{number}"): value
        for number, pair in enumerate(((82.5, 86.3), (78.2, 84.7), (74.8, 83.2), (76.3, 85.8)), 1)
        for arm, value in zip(("local", PROX), pair, strict=True)
    },
    key("accuracy", "local", "spread"): 3.21,
    key("accuracy", PROX, "spread"): 1.42,
    key("accuracy", PROX, "spread", against="local"): -56,
    key("accuracy", PROX, against="fedavg"): 0.42,
    key("accuracy", PROX, against="pooled"): 1.67,
    key("t", PROX, against="pooled"): 2.84,
    key("p_value", PROX, against="pooled"): 0.0026,
    key("interval_low", PROX, against="pooled"): 0.89,
    key("interval_high", PROX, against="pooled"): 2.45,
    key("weight_change", PROX, against="fedavg"): -35,
    key("seconds", PROX, against="fedavg"): 1.071,
    key("bytes", PROX): 12_500_000,
    key("rows"): 293,
    key("gini"): 0.235,
    **{key("age", site=f"site-0{n}"): age for n, age in enumerate((56.6, 52.3, 49.8, 45.2), 1)},
    key("age", statistic="range"): 18.0,
    **{key("prevalence", site=f"site-0{n}"): rate for n, rate in enumerate((54.5, 64.4, 42.9, 38.8), 1)},
    key("prevalence", statistic="lowest"): 33.8,
    key("prevalence", statistic="highest"): 60.0,
    key("js", statistic="lowest"): 0.089,
    key("js", statistic="highest"): 0.125,
    key("js"): 0.098,
    key("mmd"): 0.156,
    key("mmd", statistic="highest"): 0.234,
}
PER_CENT = ("accuracy", "weight_change", "prevalence", "interval_low", "interval_high")


@pytest.fixture(scope="module")
def claims() -> tuple[Claim, ...]:
    return wardround.load_study("heart-fedprox")[0].claims


def test_every_figure_of_the_paper_is_a_claim_about_its_own_protocol(claims: tuple[Claim, ...]) -> None:
    claimed_figures: dict[Key, float | None] = {}
    for claim in claims:
        assert all(arm.endswith("@fixed") for arm in (*claim.arms, *claim.against)), claim.text
        arms, against = ("".join(arm.removesuffix("@fixed") for arm in names) for names in (claim.arms, claim.against))
        place = claim.metric, claim.statistic, claim.site, arms, against
        assert place not in claimed_figures, f"twice: {claim.text}"
        scale = 100 if claim.metric in PER_CENT else 1
        claimed_figures[place] = None if claim.published is None else scale * claim.published
    assert claimed_figures == {place: pytest.approx(value) for place, value in PRINTED.items()}


def test_what_is_given_twice_or_follows_from_others_is_looked_at(claims: tuple[Claim, ...]) -> None:
    by_text = {claim.text: claim for claim in claims}
    assert set(by_text["Hospitals that train alone reach 78.45 % on average"].stated.values()) == {0.7845, 0.9165}
    spread = by_text["The SD over hospitals is 3.21 points when each trains alone"]
    assert set(spread.stated.values()) == {0.0321, 0.0523}
    assert FORMULAS["sd"].compute(spread.given[0]) == pytest.approx(0.0334, abs=5e-5)
    with_prox = by_text["The SD over hospitals is 1.42 points with FedProx"]
    assert FORMULAS["sd"].compute(with_prox.given[0]) == pytest.approx(0.0137, abs=5e-5)
    less = by_text["The SD over hospitals is 56 % less with FedProx"]
    assert FORMULAS["change"].compute([3.21, 1.42]) == pytest.approx(less.stated["from 3.21 to 1.42 points"], abs=5e-3)
    assert FORMULAS["change"].compute([5.23, 1.42]) == pytest.approx(less.stated["from 5.23 to 1.42 points"], abs=5e-3)


def test_its_t_is_neither_that_of_its_means_nor_of_its_interval(claims: tuple[Claim, ...]) -> None:
    (t,) = (claim for claim in claims if claim.metric == "t")
    from_means, from_interval = (FORMULAS[f].compute(v) for f, v in zip(t.formulas, t.given, strict=True))
    assert (round(from_means, 2), round(from_interval, 2)) == (7.25, 4.25)
    against_fedavg = FORMULAS["t"].compute([85.00, 1.1, 50, 84.58, 1.5, 50])
    assert f"there its means and SDs give t = {against_fedavg:.2f}" in " ".join(HOW_TO.split())


def test_the_documentation_counts_the_claims_of_the_study(claims: tuple[Claim, ...]) -> None:
    groups = {claim.group for claim in claims}
    assert "" not in groups
    assert f"writes down {len(claims)} figures of the paper, under {['eight'][len(groups) - 8]} subjects" in " ".join(
        HOW_TO.split()
    )
    assert re.findall(r"Of (\d+) published claims", README) == [str(len(claims))]


def quoted(page: str) -> list[tuple[str, str]]:
    """Claims with verdicts, as a page quotes them."""
    blocks = "\n".join(re.findall(r"```text\n(.*?)```", page, flags=re.DOTALL))
    return re.findall(r"^(\S.*\(arXiv:.*\))\n  (\S.*)$", blocks, flags=re.MULTILINE)


@pytest.mark.slow
def test_the_documentation_quotes_what_a_run_says(tmp_path: Path) -> None:
    folder = wardround.run_study("heart-fedprox", tmp_path).folder
    evidence = read_evidence(RunFolder(folder))
    claims: list[dict[str, Any]] = evidence.results["claims"]
    verdicts = {f"{claim['text']} ({claim['source']})": claim["verdict"] for claim in claims}
    for page in (HOW_TO, README):
        for claim, verdict in quoted(page):
            assert verdicts[claim] == verdict
        assert claim_words(claims) in page
    assert len(quoted(HOW_TO)) > 20
    counts = claim_count_table(evidence)
    assert counts is not None
    for row in counts.shown():
        assert f"| {' | '.join(row)} |" in HOW_TO

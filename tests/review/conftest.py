"""A bundle of one hospital, its rows with their outcomes, and a list made of them."""

from pathlib import Path

import pandas as pd
import pytest

import wardround
from tests.bundles.conftest import hearts
from wardround.bundles import Bundle, load_bundle, make_bundle
from wardround.data.sources.heart import COLUMNS, read_hospital
from wardround.review.make import make_list

SITE = "hungarian"


def rows_of(hospital: str) -> pd.DataFrame:
    """As a hospital's file, sorted by outcome."""
    table = read_hospital(hospital)
    table["outcome"] = (table.pop("num") > 0).map({True: "disease", False: "no disease"})
    for column in COLUMNS:
        if column.kind == "categorical":
            codes = table[column.name].map(lambda code: str(int(code)), na_action="ignore")
            table[column.name] = codes.astype(object)
    table["note"] = "SECRET-NOTE"
    return table.sort_values("outcome").reset_index(drop=True)


@pytest.fixture(scope="session")
def heart_run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    arms = [{"name": "fedavg", "algorithm": "fedavg"}, {"name": "local", "algorithm": "local"}]
    return wardround.run_study(hearts(arms=arms), tmp_path_factory.mktemp("runs")).folder


@pytest.fixture(scope="session")
def bundle(heart_run: Path, tmp_path_factory: pytest.TempPathFactory) -> Bundle:
    return load_bundle(make_bundle(heart_run, arm="fedavg", site=SITE, out=tmp_path_factory.mktemp("b") / "bundle"))


@pytest.fixture(scope="session")
def data(tmp_path_factory: pytest.TempPathFactory) -> Path:
    file = tmp_path_factory.mktemp("data") / "hungarian.csv"
    rows_of(SITE).to_csv(file, index=False)
    return file


@pytest.fixture(scope="session")
def reading_list(bundle: Bundle, data: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Nobody may change it."""
    return make_list(bundle, data, out=tmp_path_factory.mktemp("list") / "list", truth="outcome", cases=30)

"""A hospital that looks before it joins is told of a column of its own file that tells the outcome."""

from pathlib import Path

import numpy as np
import pytest

from tests.deployment.federation_fixtures import site_file
from tests.deployment.vertical_federation import HEADS, document, own_file, write
from wardround.core.errors import CheckError
from wardround.core.health import Condition
from wardround.data.checks.before_training import refuse_errors
from wardround.deployment import preflight
from wardround.deployment.site.answering import disclosable
from wardround.deployment.vertical.party_plan import own_vertical_plan
from wardround.runs.catalog import load_study

MESSAGE = "column 'discharge' alone tells 'yes' from the rest: area under the ROC curve 1.000"


def test_a_look_before_joining_names_the_column(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    rng = np.random.default_rng(0)
    died = rng.random(200) < 0.4
    words = np.where(died, "morgue", rng.choice(["home", "clinic"], 200))
    columns = zip(rng.normal(60, 9, 200), words, died, strict=True)
    rows = [f"{age:.1f},{to},{'yes' if dead else 'no'}" for age, to, dead in columns]
    (tmp_path / "rows.csv").write_text("age,discharge,died\n" + "\n".join(rows) + "\n")
    site = site_file(tmp_path, f'source = "csv"\nfile = "{tmp_path / "rows.csv"}"\ntarget = "died"')
    content = {"name": "deaths", "data": {"source": "at-sites"}, "arms": [{"algorithm": "fedavg"}]}
    study = load_study(content)[0]
    monkeypatch.setattr("wardround.deployment.join.read_key", lambda path: None)
    monkeypatch.setattr("wardround.deployment.join.read_public_key", lambda content, path: None)
    monkeypatch.setattr("wardround.deployment.join.approvals_of", lambda site: {study.hash: None})
    monkeypatch.setattr("wardround.deployment.join.approved_study", lambda site, study_hash, families: study)
    monkeypatch.setattr(
        "wardround.deployment.join.connection_to", lambda address, ca: Condition("connection", True, "")
    )
    by_name = {condition.name: condition for condition in preflight(site)}
    assert not by_name["target-leak"].ok
    assert by_name["target-leak"].needed
    assert by_name["target-leak"].state.startswith(MESSAGE)
    assert "morgue" not in by_name["target-leak"].state + by_name["target-leak"].remedy
    assert "one-site" not in by_name  # a hospital is always alone with its rows


def test_the_holder_of_the_labels_looks_at_its_own_columns_and_tells_others_nothing(tmp_path: Path) -> None:
    files = write(tmp_path / "data")
    lines = files["clinic"].read_text().splitlines()
    planted = [f"{line.rpartition(',')[0]},{int(line.endswith('yes'))},{line.rpartition(',')[2]}" for line in lines[1:]]
    head = HEADS["clinic"].replace(",sick", ",discharge,sick")
    # twice the patients, so that there are enough rows of the rarer class
    again = [f"Q{line[1:]}".replace(".", ".1", 1) for line in planted]
    files["clinic"].write_text("\n".join([head, *planted, *again]) + "\n")
    study, families = load_study(document(files))
    plan = own_vertical_plan(study, families, "clinic", own_file("clinic", files["clinic"]).load())
    (leak,) = [own_notice for own_notice in plan.own_notices() if own_notice.code == "target-leak"]
    assert (leak.columns, leak.classes, leak.counts["auc"]) == (("discharge",), ("yes",), 1.0)
    with pytest.raises(CheckError) as refused:
        refuse_errors([leak])
    notice = disclosable("cedar", refused.value)
    assert (notice.code, notice.details) == ("site-fails-check", {"check": "target-leak"})

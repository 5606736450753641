"""`site.toml`: every key checked, the key file's permissions too, and a hospital's own rows under its own name."""

import tomllib
from pathlib import Path
from typing import Any

import pytest

from tests.deployment.federation_fixtures import SITES, kits, site_file
from wardround.core.errors import DataError, DeployError, WardroundError
from wardround.data.sources import Source
from wardround.data.sources.csv.hospital_files import csv
from wardround.deployment import Policy, SiteFile, open_source
from wardround.deployment.provisioning.site_file import hospital_source
from wardround.runs.catalog import families

ROWS = "age,died\n40,yes\n50,no\n60,yes\n45,no\n"


def test_defaults_stand_beside_the_file(tmp_path: Path) -> None:
    site = site_file(tmp_path / "north")
    folder = tmp_path / "north"
    assert (site.name, site.coordinator, site.sites) == ("north", "127.0.0.1:9090", ())
    assert (site.ca, site.key) == (folder / "ca.pem", folder / "site.key")
    assert (site.coordinator_key, site.state, site.approved) == (
        folder / "coordinator.pub",
        folder / "state",
        folder / "approved",
    )
    assert site.policy == Policy()


def test_the_folder_will_do_as_well(tmp_path: Path) -> None:
    assert SiteFile.load(site_file(tmp_path).path.parent) == SiteFile.load(tmp_path / "site.toml")


def test_paths_are_relative_to_the_file_or_absolute(tmp_path: Path) -> None:
    site = site_file(tmp_path / "north")
    (tmp_path / "elsewhere").mkdir()
    text = site.path.read_text().replace("[data]", f'state = "../kept"\napproved = "{tmp_path}/elsewhere"\n[data]')
    site.path.write_text(text)
    loaded = SiteFile.load(site.path)
    assert (loaded.state, loaded.approved) == (tmp_path / "kept", tmp_path / "elsewhere")


@pytest.mark.parametrize(
    ("old", "new", "problem"),
    [
        ("coordinator =", "cordinator =", "Did you mean 'coordinator'"),
        ('coordinator = "127.0.0.1:9090"\n', "", "coordinator: missing"),
        ('"127.0.0.1:9090"', '"127.0.0.1"', "not an address"),
        ('"127.0.0.1:9090"', '"host:70000"', "not an address"),
        ('"127.0.0.1:9090"', '"https://host:9090"', "not an address"),
        ('"north"', '"../north"', "not a usable name"),
        ('"north"', "7", "expected a text"),
        ("[policy]", 'sites = ["a"]\n[policy]', "data: sites"),
        ("[policy]", "[policy]\nleast_site = 3", "Did you mean 'least_sites'"),
        ("[policy]", "[policy]\nleast_sites = 0", "out of range"),
        ("[policy]", '[policy]\ndays = ["monday"]', "Did you mean 'mon'"),
        ("[policy]", '[policy]\nhours = "8-18"', "no hours of a day"),
        ("[policy]", "[policy]\nmost_epsilon = 0", "out of range"),
        ("[data]", "[dta]", "Did you mean 'data'"),
        ('name = "north"', 'name = "north"\nsites = ["south", "east"]', "not among the sites"),
        ('name = "north"', "name = ", "not valid TOML"),
    ],
)
def test_what_is_wrong_is_said_with_its_key(tmp_path: Path, old: str, new: str, problem: str) -> None:
    site = site_file(tmp_path)
    site.path.write_text(site.path.read_text().replace(old, new, 1))
    with pytest.raises(DeployError, match=problem):
        open_source(SiteFile.load(site.path), families())


def test_a_file_that_is_not_there_is_said_to_be_a_site_file(tmp_path: Path) -> None:
    with pytest.raises(DeployError, match="path of a site file"):
        SiteFile.load(tmp_path / "site.toml")


@pytest.mark.parametrize("mode", [0o640, 0o644, 0o602])
def test_a_key_that_others_may_use_is_refused(tmp_path: Path, mode: int) -> None:
    site = site_file(tmp_path)
    site.key.chmod(mode)
    with pytest.raises(DeployError, match="chmod 600"):
        SiteFile.load(site.path)


@pytest.mark.parametrize("file", ["ca.pem", "coordinator.pub", "site.key"])
def test_the_kits_files_must_be_there(tmp_path: Path, file: str) -> None:
    site = site_file(tmp_path)
    (tmp_path / file).unlink()
    with pytest.raises(DeployError, match=file):
        SiteFile.load(site.path)


def test_a_template_that_is_not_filled_in_says_which_value(tmp_path: Path) -> None:
    kits_dir = kits(tmp_path / "kits")
    path = kits_dir / "sites" / "north" / "site.toml"
    with pytest.raises(DeployError, match="data: file: is not filled in"):
        open_source(SiteFile.load(path), families())
    (path.parent / "rows.csv").write_text(ROWS)
    path.write_text(path.read_text().replace("FILL IN: the path of your CSV file", "rows.csv"))
    with pytest.raises(DeployError, match="data: target: is not filled in"):
        open_source(SiteFile.load(path), families())
    path.write_text(path.read_text().replace("FILL IN: the column to predict", "died"))
    assert open_source(SiteFile.load(path), families()).load().hospitals == ("north",)


def test_own_file_is_found_beside_the_site_file(tmp_path: Path) -> None:
    site = site_file(tmp_path, 'source = "csv"\nfile = "rows.csv"\ntarget = "died"\npositive = "yes"')
    (tmp_path / "rows.csv").write_text(ROWS)
    records = open_source(site, families()).load()
    assert records.hospitals == ("north",)
    assert (len(records), records.classes) == (4, ("no", "yes"))


def test_another_sources_hospital_bears_the_sites_name(tmp_path: Path) -> None:
    records = open_source(site_file(tmp_path), families()).load()
    assert (records.hospitals, len(records)) == (("north",), 200)


def test_of_several_hospitals_a_site_takes_its_own_rows(tmp_path: Path) -> None:
    site = site_file(tmp_path, 'source = "heart"')
    with pytest.raises(DataError, match="none of them is called 'north'"):
        open_source(site, families()).load()
    site.path.write_text(site.path.read_text().replace('"north"', '"va"'))
    records = open_source(SiteFile.load(site.path), families()).load()
    assert (records.hospitals, len(records)) == (("va",), 200)


@pytest.mark.parametrize(
    ("data", "problem"),
    [
        ('file = "rows.csv"', "source: missing"),
        ('source = "cvs"', "Did you mean 'csv'"),
        ('source = "at-sites"', "has no rows"),
        ('source = "csv"\ntarget = "died"', "file: missing"),
        ('source = "csv"\ntarget = "died"\nfiles = { north = "rows.csv" }', "Did you mean 'file'"),
        ('source = "csv"\ntarget = "died"\nfile = "rows.csv"\nscale = "none"', "scale: no such setting"),
        ('source = "csv"\ntarget = "died"\nfile = "rows.csv"\npatient = "died"', "patient: this is the target"),
        ('source = "heart"\nhospitals = ["Va"]', "not a possible value"),
    ],
)
def test_wrong_data_tables_are_refused_before_anything_is_read(tmp_path: Path, data: str, problem: str) -> None:
    with pytest.raises(WardroundError, match=problem) as refused:
        open_source(site_file(tmp_path, data), families())
    assert refused.value.exit_code == DeployError.exit_code
    assert "site.toml: data" in refused.value.where


# --- words and columns of a hospital's own ---

OWN = 'source = "csv"\nfile = "rows.csv"\ntarget = "died"\nclasses = ["alive", "dead"]\n'


def test_a_hospital_says_what_its_words_mean(tmp_path: Path) -> None:
    site = site_file(tmp_path, f'{OWN}[data.labels]\nyes = "dead"\nno = "alive"')
    (tmp_path / "rows.csv").write_text(ROWS)
    records = open_source(site, families()).load()
    assert (records.classes, records.target.tolist()) == (("alive", "dead"), [1, 0, 1, 0])
    assert records.vocabulary == {"north": {"yes": "dead", "no": "alive"}}
    assert records.recorded == {"north": ("age",)}


def test_words_that_are_not_the_studys_are_asked_for(tmp_path: Path) -> None:
    site = site_file(tmp_path, OWN)
    (tmp_path / "rows.csv").write_text(ROWS)
    with pytest.raises(DataError, match=r"'no', 'yes'.*\n.*in a site file: \[data.labels\]"):
        open_source(site, families()).load()


@pytest.mark.parametrize(
    ("data", "problem"),
    [
        (f'{OWN}[data.labels.north]\nyes = "dead"', "expected a text"),
        (f'{OWN}[data.labels]\nyes = "died"', "'died' is not one of the study's classes"),
        (f'{OWN}[data.labels]\nyes = "FILL IN: its class"', "labels: yes: is not filled in"),
        (f'{OWN}targets = {{ north = "died" }}', "Did you mean 'target'"),
        (f'{OWN}patients = {{ north = "id" }}', "Did you mean 'patient'"),
    ],
)
def test_settings_of_several_hospitals_are_not_for_one(tmp_path: Path, data: str, problem: str) -> None:
    with pytest.raises(DeployError, match=problem) as refused:
        open_source(site_file(tmp_path, data), families())
    assert "site.toml: data" in refused.value.where


def csv_kits(folder: Path, **data: Any) -> Path:
    files = {name: str(folder / f"{name}.csv") for name in SITES}
    return kits(folder / "kits", data={"source": "csv", "files": files, "target": "died", **data})


def test_a_kit_has_what_the_study_knows_of_this_hospital(tmp_path: Path) -> None:
    words = {"1": "alive", "0": "dead"}
    kits_dir = csv_kits(
        tmp_path,
        classes=["alive", "dead"],
        targets={"south": "outcome"},
        patient="mrn",
        patients={"east": "case"},
        labels={"south": words},
        types={"ward": "categorical"},
        columns="own",
        schema="common",
    )
    data = {name: tomllib.loads((kits_dir / "sites" / name / "site.toml").read_text())["data"] for name in SITES}
    assert {name: table["target"] for name, table in data.items()} == {
        "north": "died",
        "south": "outcome",
        "east": "died",
    }
    assert {name: table["patient"] for name, table in data.items()} == {"north": "mrn", "south": "mrn", "east": "case"}
    assert data["south"]["labels"] == words
    assert "labels" not in data["north"]
    assert not {"targets", "patients", "files"} & {key for table in data.values() for key in table}
    assert all(table["types"] == {"ward": "categorical"} for table in data.values())


@pytest.mark.parametrize("task", ["regression", {"kind": "count", "exposure": "months"}], ids=["word", "table"])
def test_a_kit_says_that_a_number_is_predicted(tmp_path: Path, task: Any) -> None:
    """The same task at a hospital that has a name of its own for the column, with its public range."""
    kits_dir = csv_kits(tmp_path, target="stay", targets={"south": "los"}, task=task, ranges={"stay": [0, 90]})
    opened = {}
    for name, column in (("north", "stay"), ("south", "los")):
        path = kits_dir / "sites" / name / "site.toml"
        text = path.read_text()
        assert "labels" not in text  # which speak of classes
        (path.parent / "rows.csv").write_text(f"age,{column},months\n40,3,12\n50,9,6\n60,4,12\n")
        path.write_text(text.replace("FILL IN: the path of your CSV file", "rows.csv"))
        opened[name] = open_source(SiteFile.load(path), families()).load().task
    assert opened["north"].public_range == (0, 90)
    assert opened["north"].options == opened["south"].options
    assert (opened["north"].names, opened["south"].names) == (("stay",), ("los",))
    elsewhere = kits(tmp_path / "elsewhere", data={"source": "at-sites", "task": task})
    data = tomllib.loads((elsewhere / "sites" / "north" / "site.toml").read_text())["data"]
    assert data["task"] == task


def test_the_example_of_labels_can_be_used_as_it_stands(tmp_path: Path) -> None:
    path = csv_kits(tmp_path, classes=["alive", "dead"]) / "sites" / "north" / "site.toml"
    (path.parent / "rows.csv").write_text(ROWS)
    text = path.read_text().replace("FILL IN: the path of your CSV file", "rows.csv")
    assert text.count("# [data.labels]") == 1
    path.write_text(text)
    with pytest.raises(DataError, match="'no', 'yes'"):
        open_source(SiteFile.load(path), families()).load()
    for example, word in (("your word for alive", "no"), ("your word for dead", "yes")):
        text = text.replace(f'# "{example}"', f'"{word}"')
    path.write_text(text.replace("# [data.labels]", "[data.labels]"))
    assert open_source(SiteFile.load(path), families()).load().target.tolist() == [1, 0, 1, 0]


# --- a hospital's file without keys ---


def test_a_hospitals_file_needs_no_more_than_a_name_and_its_data(tmp_path: Path) -> None:
    (tmp_path / "rows.csv").write_text(ROWS)
    path = tmp_path / "hospital.toml"
    path.write_text('name = "west"\n[data]\nsource = "csv"\nfile = "rows.csv"\ntarget = "died"\n')
    name, source = hospital_source(path, families())
    records = source.load()
    assert (name, records.hospitals, len(records)) == ("west", ("west",), 4)


def test_a_whole_site_file_will_do_and_its_keys_are_not_looked_for(tmp_path: Path) -> None:
    site = site_file(tmp_path, policy="least_sites = 3")
    for file in (site.ca, site.key, site.coordinator_key):
        file.unlink()
    for path in (site.path, tmp_path):
        name, source = hospital_source(path, families())
        assert (name, source.load().hospitals) == ("north", ("north",))


def test_another_sources_only_hospital_bears_the_name_in_every_table(tmp_path: Path) -> None:
    """Its columns and words are looked up by its name."""

    def own() -> Source:
        records = csv({"elsewhere": tmp_path / "rows.csv"}, "died").load()
        return Source(lambda: records)

    (tmp_path / "rows.csv").write_text(ROWS)
    path = tmp_path / "hospital.toml"
    path.write_text('name = "west"\n[data]\nsource = "own"\n')
    records = hospital_source(path, families(sources={"own": own}))[1].load()
    assert records.recorded == {"west": ("age",)}
    assert records.vocabulary == {"west": {"yes": "yes", "no": "no"}}


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        ('[data]\nsource = "heart"', "name: missing"),
        ('name = "west"', "data: missing"),
        ('name = "west"\ndata = 7', "expected a table"),
        ('name = "../west"\n[data]\nsource = "heart"', "not a usable name"),
        ('name = "west"\n[data]\nsource = "haert"', "Did you mean 'heart'"),
        ('name = "west"\n[data]\nsource = "csv"\nfile = "FILL IN"', "data: file: is not filled in"),
        ("name = ", "not valid TOML"),
    ],
)
def test_a_hospitals_file_that_is_wrong(tmp_path: Path, text: str, problem: str) -> None:
    path = tmp_path / "hospital.toml"
    path.write_text(text)
    with pytest.raises(DeployError, match=problem) as refused:
        hospital_source(path, families())
    assert "hospital.toml" in refused.value.where


def test_a_hospitals_file_that_is_not_there(tmp_path: Path) -> None:
    with pytest.raises(DeployError, match="hospital's file with its `name` and `\\[data\\]`"):
        hospital_source(tmp_path / "gone.toml", families())

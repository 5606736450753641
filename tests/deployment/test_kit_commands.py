"""`wardround provision` and `wardround approve`, as a person or a script meets them."""

import io
import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from tests.deployment.federation_fixtures import SITES
from wardround.cli.main import main
from wardround.deployment import CoordinatorKit

STUDY = """name = "trial"
question = "Does it help?"
[data]
source = "at-sites"
[training]
rounds = 10
[[arms]]
algorithm = "fedavg"
[[arms]]
algorithm = "local"
[quick]
"training.rounds" = 2
"""


class Shell:
    def __init__(self, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
        self.monkeypatch, self.capsys = monkeypatch, capsys

    def __call__(self, *arguments: str | Path) -> tuple[int, str, str]:
        self.monkeypatch.setattr(sys, "argv", ["wardround", *map(str, arguments)])
        try:
            main()
            code = 0
        except SystemExit as stopped:
            code = stopped.code if isinstance(stopped.code, int) else 0
        shown = self.capsys.readouterr()
        return code, shown.out, shown.err

    def json(self, *arguments: str | Path) -> Any:
        code, out, err = self(*arguments, "--json")
        assert code == 0, err + out
        return json.loads(out)


@pytest.fixture
def wardround(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Shell:
    return Shell(monkeypatch, capsys)


@pytest.fixture
def kits(tmp_path: Path, wardround: Shell) -> Path:
    (tmp_path / "study.toml").write_text(STUDY)
    new = ("provision", "new", tmp_path / "study.toml", "--sites", ",".join(SITES), "--out", tmp_path / "kits")
    network = wardround.json(*new, "--host", "a.example.org", "--host", "10.0.0.5", "--port", "9443")
    assert list(network["sites"]) == list(SITES)
    assert (network["hosts"], network["port"]) == (["a.example.org", "10.0.0.5"], 9443)
    return tmp_path / "kits"


def test_new_says_what_to_keep_and_what_to_give_away(tmp_path: Path, wardround: Shell) -> None:
    (tmp_path / "study.toml").write_text(STUDY)
    new = ("provision", "new", tmp_path / "study.toml", "--sites", "north, south", "--out", tmp_path / "kits")
    code, out, _ = wardround(*new, "--quick", "--set", "evaluation.test_share=0.3")
    assert code == 0
    kit = CoordinatorKit.load(tmp_path / "kits")
    assert f"keep         {kit.path}" in out
    assert f"give away    {tmp_path / 'kits' / 'sites' / 'south'}" in out
    assert kit.hash in out
    assert kit.hosts == ("127.0.0.1", "localhost")
    study = (kit.path / "study.toml").read_text()
    assert "rounds = 2" in study
    assert "test_share = 0.3" in study
    code, _, err = wardround(*new)
    assert code == 8
    assert "exists already" in err


def test_an_undeployable_study_has_the_exit_code_of_a_study(tmp_path: Path, wardround: Shell) -> None:
    new = ("provision", "new", "heart-hospitals", "--sites", "cleveland,va", "--out", tmp_path / "kits")
    code, _, err = wardround(*new)
    assert code == 3
    assert "all rows at one place is what a deployment avoids" in err
    assert not list(tmp_path.iterdir())


def test_revoke(kits: Path, wardround: Shell) -> None:
    code, out, _ = wardround("provision", "revoke", "south", "--kit", kits / "coordinator", "--reason", "key lost")
    assert code == 0
    assert "south is revoked" in out
    assert "north, east" in out
    done = wardround.json("provision", "revoke", "east", "--kit", kits / "coordinator")
    assert list(done["revoked"]) == ["south", "east"]
    code, _, err = wardround("provision", "revoke", "west", "--kit", kits / "coordinator")
    assert code == 8
    assert "no site is called 'west'" in err


def test_approve_shows_the_study_in_words_and_records(kits: Path, wardround: Shell) -> None:
    site = kits / "sites" / "north"
    here = ("approve", site / "study.toml", "--site", site / "site.toml", "--name", "Dr. A. Example")
    shown = wardround.json(*here)
    assert shown["recorded"] is False
    assert not (site / "approved").exists()
    code, out, _ = wardround(*here, "--yes")
    assert code == 0
    expected = ("Does it help?", "north, south, east", "fedavg, local", "logistic", "10 rounds", "20 seeds", "Hash:")
    for words in (*expected, "Leaves the hospital", "Stays at the hospital", "all 3 hospitals", "5 patients"):
        assert words in out, words
    assert shown["study"]["hash"] in out
    assert "nothing against it" in out
    assert (site / "approved" / f"{shown['study']['hash']}.toml").is_file()


def test_nobody_says_yes(kits: Path, wardround: Shell, monkeypatch: pytest.MonkeyPatch) -> None:
    site = kits / "sites" / "north"
    here = ("approve", site / "study.toml", "--site", site, "--name", "Dr. A. Example")
    for answer in ("n\n", "\n", ""):
        monkeypatch.setattr(sys, "stdin", io.StringIO(answer))
        code, _, err = wardround(*here)
        assert code == 8
        assert "nothing was recorded" in err
        assert not (site / "approved").exists()
    monkeypatch.setattr(sys, "stdin", io.StringIO("y\n"))
    assert wardround(*here)[0] == 0
    assert (site / "approved").exists()


def test_what_the_policy_refuses_is_said_all_at_once(kits: Path, wardround: Shell) -> None:
    path = kits / "sites" / "north" / "site.toml"
    path.write_text(path.read_text().replace("most_rounds = 1000", "most_rounds = 9\nsecure_aggregation = true"))
    code, out, _ = wardround("approve", path.parent / "study.toml", "--site", path, "--name", "Dr. A.", "--yes")
    assert code == 0
    assert "refuses it, approved or not" in out
    assert "10 rounds are more than the 9" in out
    assert "requires secure aggregation" in out


def test_withdraw_by_file_or_by_hash(kits: Path, wardround: Shell) -> None:
    site = kits / "sites" / "north"
    here = ("--site", site / "site.toml", "--name", "Dr. A. Example", "--yes")
    study = wardround.json("approve", site / "study.toml", *here)["study"]["hash"]
    assert wardround.json("approve", study[:12], "--withdraw", *here)["study"]["hash"] == study
    assert not (site / "approved" / f"{study}.toml").exists()
    code, _, err = wardround("approve", site / "study.toml", "--withdraw", *here)
    assert code == 8
    assert "not approved" in err


def test_help_stays_light() -> None:
    code = (
        "import sys; sys.argv = ['wardround', '--help']\n"
        "from wardround.cli.main import app\n"
        "try: app()\n"
        "except SystemExit: pass\n"
        "assert not {'torch', 'flwr', 'cryptography', 'numpy'} & set(sys.modules)"
    )
    subprocess.run([sys.executable, "-c", code], check=True, timeout=60, stdout=subprocess.DEVNULL)

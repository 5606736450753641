"""The study file: what is right parses to one typed value, what is wrong says where, what and what to do."""

import tomllib
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import tomli_w

from wardround.core.errors import StudyError
from wardround.models import Model, ModelBuilder, Shape
from wardround.models.logistic import logistic
from wardround.runs.catalog import families, load_study, parse_change
from wardround.study.parser import parse_study
from wardround.study.schema import Study, Training
from wardround.tasks import class_task

GOOD = """
name = "heart"
question = "Does it help?"
[data]
source = "heart"
hospitals = ["cleveland"]
[sites]
partition = "dirichlet"
count = 4
[training]
rounds = 7
lr = 0.1
lr_decay = { factor = 0.95, every = 10, minimum = 0.001 }
[evaluation]
seeds = { first = 42, count = 3 }
reference = "fedavg"
[[arms]]
algorithm = "fedavg"
[[arms]]
name = "prox"
algorithm = "fedprox"
mu = [0.5, 1]
"sites.alpha" = [10, 0.1]
[quick]
"evaluation.seeds.count" = 1
[quick.training]
rounds = 2
"""


def parsed(text: str = GOOD, **options: Any) -> Study:
    return parse_study(tomllib.loads(text), families(), "study.toml", **options)


def message(text: str, **options: Any) -> str:
    with pytest.raises(StudyError) as error:
        parsed(text, **options)
    return str(error.value)


def test_a_good_study_parses_with_its_defaults() -> None:
    study = parsed()
    assert study.arms[0].training == Training(rounds=7, lr=0.1, lr_decay=study.arms[0].training.lr_decay)
    assert study.arms[0].sites.options == {"count": 4, "alpha": 0.5, "smallest": 10}
    assert list(study.evaluation.seeds) == [42, 43, 44]
    assert study.arms[0].preparation.missing == "median"
    assert study.arms[0].preparation.indicator is True


def test_a_list_is_a_sweep_named_with_sorted_keys_and_numbers_as_python_prints_them() -> None:
    names = [arm.name for arm in parsed().arms]
    assert names == [
        "fedavg",
        "prox[alpha=10.0,mu=0.5]",
        "prox[alpha=10.0,mu=1.0]",
        "prox[alpha=0.1,mu=0.5]",
        "prox[alpha=0.1,mu=1.0]",
    ]
    arm = parsed().arm("prox[alpha=0.1,mu=1.0]")
    assert (arm.family, arm.algorithm.options["mu"], arm.sites.options["alpha"]) == ("prox", 1.0, 0.1)


def test_overrides_reach_nested_tables_and_may_name_another_member() -> None:
    text = GOOD + '[[arms]]\nname = "slow"\nalgorithm = "fedavg"\ntraining.stragglers.share = 0.9\n'
    text += '"training.stragglers.policy" = ["drop", "keep"]\n"sites.partition" = "iid"\n'
    arm = parsed(text).arm("slow[policy=keep]")
    assert arm.training.stragglers is not None
    assert arm.training.stragglers.share == 0.9
    assert (arm.sites.name, arm.sites.options) == ("iid", {"count": 4})  # alpha was dirichlet's, count is known to both


def test_a_setting_that_is_a_list_is_swept_by_a_list_of_lists() -> None:
    text = GOOD + '[[arms]]\nname = "net"\nalgorithm = "fedavg"\n"model.kind" = "mlp"\n"model.hidden" = '
    assert parsed(text + "[8, 4]\n").arm("net").model.options["hidden"] == (8, 4)
    assert parsed(text + "[[8], [8, 4]]\n").arm("net[hidden=8x4]").model.options["hidden"] == (8, 4)


def test_quick_and_set_apply_before_parsing_and_set_wins() -> None:
    quick = parsed(quick=True)
    assert (quick.arms[0].training.rounds, quick.evaluation.seeds.count) == (2, 1)
    changed = parsed(quick=True, changes={"training.rounds": 4})
    assert changed.arms[0].training.rounds == 4
    assert len({parsed().hash, quick.hash, changed.hash}) == 3


def test_another_member_drops_what_the_study_says_of_the_old_one_and_keeps_what_both_know() -> None:
    """`count` is known to both partitions, `alpha` is the Dirichlet's; `hospitals` are names to the heart source, and a
    number to the phantom.
    """
    text = GOOD.replace("count = 4", "count = 4\nalpha = 0.3").replace('"sites.alpha" = [10, 0.1]\n', "")
    changed = parsed(text, changes={"data.source": "phantom", "sites.partition": "specialty", "data.rows": 300})
    assert changed.data.name == "phantom"
    assert (changed.data.options["rows"], changed.data.options["hospitals"]) == (300, 4)
    for arm in changed.arms:
        assert (arm.sites.name, arm.sites.options["count"]) == ("specialty", 4)
        assert "alpha" not in arm.sites.options
    model = parsed(text + '[model]\nkind = "logistic"\nl2 = 0.5\n', changes={"model.kind": "mlp"})
    assert model.arms[0].model.name == "mlp"
    assert "l2" not in model.arms[0].model.options


def test_the_same_member_named_again_drops_nothing() -> None:
    assert parsed(changes={"data.source": "heart", "sites.partition": "dirichlet"}).hash == parsed().hash
    with pytest.raises(StudyError, match="hosptials: no such setting"):
        parsed(GOOD.replace("hospitals", "hosptials"), changes={"data.source": "heart"})


def test_what_is_common_to_all_sources_stays_when_the_source_changes() -> None:
    text = GOOD.replace('hospitals = ["cleveland"]', 'hospitals = ["cleveland"]\nscale = "federated"')
    changed = parsed(text, changes={"data.source": "phantom"})
    assert {arm.preparation.scale for arm in changed.arms} == {"federated"}


def test_the_quick_block_says_nothing_of_a_member_that_was_replaced() -> None:
    text = GOOD.replace("[quick]\n", '[quick]\n"data.hospitals" = ["va"]\n"data.scale" = "none"\n"sites.alpha" = 3\n')
    text = text.replace('"sites.alpha" = [10, 0.1]\n', "")
    quick = parsed(text, quick=True)
    assert list(quick.data.options["hospitals"]) == ["va"]
    assert quick.arms[0].sites.options["alpha"] == 3
    changed = parsed(text, quick=True, changes={"data.source": "phantom", "sites.partition": "iid"})
    assert changed.data.name == "phantom"
    assert changed.arms[0].sites.name == "iid"
    assert changed.arms[0].preparation.scale == "none"  # which any source may stand beside
    assert changed.arms[0].training.rounds == 2


def test_an_unknown_member_is_named_and_nothing_is_dropped_for_it() -> None:
    with pytest.raises(StudyError, match="'phanton' is not known"):
        parsed(changes={"data.source": "phanton"})


def test_an_arm_and_a_variant_may_name_another_member_too() -> None:
    text = GOOD + '[[variants]]\nname = "even"\narms = ["fedavg"]\n"sites.partition" = "iid"\n'
    text = text.replace("count = 4", "count = 4\nalpha = 0.3")
    text = text.replace('"sites.alpha" = [10, 0.1]\n', '"sites.partition" = ["iid", "specialty"]\n')
    study = parsed(text)
    named = {arm.name: arm.sites for arm in study.arms}
    assert named["fedavg@even"].name == "iid"
    assert named["prox[mu=1.0,partition=specialty]"].name == "specialty"
    assert all(choice.options["count"] == 4 for choice in named.values())
    assert named["fedavg"].options["alpha"] == 0.3


def test_set_takes_toml_values_and_bare_words() -> None:
    assert parse_change("training.rounds=5") == ("training.rounds", 5)
    assert parse_change("data.scale=none") == ("data.scale", "none")
    assert parse_change('data.hospitals=["va"]') == ("data.hospitals", ["va"])
    with pytest.raises(StudyError, match="not of the form key=value"):
        parse_change("training.rounds")


@pytest.mark.parametrize(
    ("old", "new", "expected"),
    [
        ("rounds = 7", "ruonds = 7", "study.toml: training: ruonds: no such setting\n  Did you mean 'rounds'?"),
        ("count = 4", "cuont = 4", "study.toml: sites: cuont: no such setting\n  Did you mean 'count'?"),
        ("[sites]", "[sitse]", "study.toml: sitse: no such setting\n  Did you mean 'sites'?"),
        ("rounds = 7", 'rounds = "7"', "training: rounds: expected a whole number, found '7'"),
        ("rounds = 7", "rounds = true", "training: rounds: expected a whole number"),
        ("rounds = 7", "rounds = 0", "training: rounds: 0 is out of range\n  Write a number that is at least 1."),
        ("lr = 0.1", "lr = 0", "training: lr: 0.0 is out of range\n  Write a number that is above 0."),
        ("lr = 0.1", "lr = nan", "training: lr: nan is not a finite number"),
        ("factor = 0.95, every", "every", "training: lr_decay: factor: missing\n  Add `factor = ...`"),
        (
            'source = "heart"',
            "",
            "study.toml: data: source: missing\n"
            "  Possible values: at-sites, chest-xray, csv, csv-parties, fashion-mnist, heart",
        ),
        ('"heart"\nhosp', '"hart"\nhosp', "data: source: 'hart' is not known\n  Did you mean 'heart'?"),
        ('["cleveland"]', '["clevland"]', "data: hospitals[0]: 'clevland' is not a possible value\n  Did you mean"),
        ('["cleveland"]', '"cleveland"', "data: hospitals: expected a list, found 'cleveland'"),
        ('"dirichlet"', '"dirichlett"', "sites: partition: 'dirichlett' is not known\n  Did you mean 'dirichlet'?"),
        ('"fedprox"', '"fedporx"', "arms: prox: algorithm: 'fedporx' is not known\n  Did you mean 'fedprox'?"),
        ("mu = [0.5, 1]", "muu = 1", "arms: prox: muu: no such setting\n  Did you mean 'mu'?"),
        ("mu = [0.5, 1]", "mu = []", "arms: prox: mu: an empty list sweeps over nothing"),
        ("mu = [0.5, 1]", "mu = [-1]", "mu: -1.0 is out of range"),
        ('"sites.alpha"', '"sites.alhpa"', "arms: prox: sites.alhpa: no such setting\n  Did you mean 'sites.alpha'?"),
        ('reference = "fedavg"', 'reference = "fedavgg"', "reference: no arm is called 'fedavgg'\n  Did you mean"),
        ('name = "prox"', 'name = "a/b"', "arms: a/b: name: 'a/b' is not a usable name"),
        ('name = "heart"\n', "", "study.toml: name: missing"),
        ("[training]", "training = 3\n[other]", "study.toml: other: no such setting"),
    ],
)
def test_a_wrong_study_says_where_what_and_what_to_do(old: str, new: str, expected: str) -> None:
    assert old in GOOD
    assert expected in message(GOOD.replace(old, new, 1))


def test_other_wrong_studies() -> None:
    assert "two arms are called 'fedavg'" in message(GOOD + '[[arms]]\nalgorithm = "fedavg"\n')
    assert "arms: missing" in message('name = "a"\n[data]\nsource = "heart"\n')
    assert "leave no training rows" in message(GOOD.replace("[evaluation]", "[evaluation]\nvalidation_share = 0.9"))
    assert "has no [quick] block" in message(GOOD.split("[quick]")[0], quick=True)
    assert "traning.rounds: no such setting\n  Did you mean 'training'?" in message(GOOD, changes={"traning.rounds": 1})
    assert "stragglers: policy: missing" in message(GOOD.replace("lr = 0.1", "lr = 0.1\nstragglers = { share = 0.5 }"))


def test_the_resolved_study_reads_back_to_the_same_study() -> None:
    for quick in (False, True):
        study = parsed(quick=quick)
        again = parsed(tomli_w.dumps(dict(study.resolved)))
        assert again == study
        assert again.hash == study.hash


def test_the_hash_ignores_paths_and_device_and_nothing_else(tmp_path: Path) -> None:
    text = (
        'name = "a"\n[data]\nsource = "csv"\ntarget = "y"\nfiles = { north = "%s" }\n[[arms]]\nalgorithm = "fedavg"\n'
    )
    here, there = parsed(text % "a.csv", base=tmp_path), parsed(text % "/elsewhere/b.csv")
    assert here.data.options["files"]["north"] == tmp_path / "a.csv"
    assert here.hash == there.hash
    assert parsed(text.replace("north", "south") % "a.csv").hash != here.hash
    assert parsed().hash == parsed(changes={"training.device": "cpu"}).hash
    assert parsed().hash != parsed(changes={"training.lr": 0.2}).hash
    assert parsed().hash != parsed(changes={"evaluation.test_share": 0.3}).hash


def test_what_a_seed_does_not_vary_stays_as_the_first_seed_made_it() -> None:
    evaluation = parsed(changes={"evaluation.vary": ["batches"]}).evaluation
    assert evaluation.seed_for("batches", 44) == 44
    assert evaluation.seed_for("split", 44) == 42


def test_the_learning_rate_decays_in_steps_down_to_its_minimum() -> None:
    training = parsed().arms[0].training
    assert [training.lr_in(r) for r in (0, 9, 10, 20)] == pytest.approx([0.1, 0.1, 0.095, 0.09025])
    assert training.lr_in(100_000) == 0.001


@pytest.mark.parametrize("algorithm", ["scaffold", "fednova"])
def test_an_optimiser_that_an_algorithm_is_not_sound_with_is_refused(algorithm: str) -> None:
    raw = {
        "name": "a",
        "data": {"source": "heart"},
        "training": {"optimiser": "adam"},
        "arms": [{"algorithm": algorithm}],
    }
    with pytest.raises(StudyError, match=f"{algorithm} is not sound with local adam"):
        load_study(raw)


def test_scaffold_refuses_momentum_and_allows_weight_decay() -> None:
    raw: dict[str, Any] = {"name": "a", "data": {"source": "heart"}, "arms": [{"algorithm": "scaffold"}]}
    load_study({**raw, "training": {"weight_decay": 0.1}})
    with pytest.raises(StudyError, match="not sound with local momentum"):
        load_study({**raw, "training": {"momentum": 0.9}})


def test_a_users_own_model_comes_in_as_an_object_and_cannot_replace_a_shipped_one() -> None:
    def mine(l2: float = 0.0, extra: int = 3) -> ModelBuilder:
        return logistic(l2)

    raw = {"name": "a", "data": {"source": "heart"}, "model": {"kind": "mine"}, "arms": [{"algorithm": "fedavg"}]}
    study, known = load_study(raw, models={"mine": mine})
    assert study.arms[0].model.options == {"l2": 0.0, "extra": 3}
    assert isinstance(known.models["mine"]()(Shape((4,), class_task(2))), Model)
    with pytest.raises(StudyError, match="'mine' is not known"):
        load_study(raw)
    with pytest.raises(StudyError, match="shipped name"):
        load_study(raw, models={"logistic": mine})


def test_a_model_from_an_installed_package_is_imported_only_when_named(monkeypatch: pytest.MonkeyPatch) -> None:
    loaded: list[str] = []

    class Offered:
        name = "theirs"

        def load(self) -> Callable[..., ModelBuilder]:
            loaded.append(self.name)
            return logistic

    monkeypatch.setattr(
        "wardround.core.registry.entry_points", lambda group: [Offered()] if group.endswith("models") else []
    )
    raw = {"name": "a", "data": {"source": "heart"}, "arms": [{"algorithm": "fedavg"}]}
    load_study(raw)
    assert loaded == []
    study, _ = load_study({**raw, "model": {"kind": "theirs", "l2": 0.5}})
    assert loaded == ["theirs"]
    assert study.arms[0].model.options["l2"] == 0.5


@pytest.mark.parametrize(
    ("content", "expected"),
    [
        (b"name = ", "is not valid TOML"),
        (b"\xff\xfe", "is not UTF-8 text"),
    ],
)
def test_an_unreadable_file_is_one_clear_error(tmp_path: Path, content: bytes, expected: str) -> None:
    path = tmp_path / "s.toml"
    path.write_bytes(content)
    with pytest.raises(StudyError, match=expected):
        load_study(path)


def test_a_missing_file_names_the_nearest_shipped_study(tmp_path: Path) -> None:
    with pytest.raises(StudyError, match="Did you mean 'heart-fedprox'"):
        load_study("heart-fedporx")
    with pytest.raises(StudyError, match="no such file"):
        load_study(tmp_path / "none.toml")

"""`[model] start_from` in a study file: what may be written, and how its digest becomes part of the study."""

from pathlib import Path
from typing import Any

import pytest

from wardround.core.errors import StudyError
from wardround.runs.catalog import families
from wardround.study.parser import parse_study
from wardround.study.schema import StartFrom, Study
from wardround.study.starting import with_digests, without_sources

FAMILIES = families()
OLD = {"run": "old", "arm": "fedavg"}


def study(start: Any = None, arms: list[dict[str, Any]] | None = None, **changes: Any) -> Study:
    model = {"kind": "logistic", **({} if start is None else {"start_from": start}), **changes.pop("model", {})}
    document = {"name": "later", "data": {"source": "heart"}, "model": model, "arms": arms or [{"algorithm": "fedavg"}]}
    return parse_study({**document, **changes}, FAMILIES, "study", Path("/studies"))


def digested(parsed: Study, digest: str = "") -> Study:
    return with_digests(parsed, lambda source: digest or f"digest of {source.arm}")


def start_of(parsed: Study, arm: str) -> StartFrom:
    source = parsed.arm(arm).start.start_from
    assert source is not None
    return source


@pytest.mark.parametrize(
    ("start", "problem"),
    [
        ({"run": "old"}, r"start_from: arm: missing"),
        ({"arm": "fedavg"}, "`arm` and `seed` are those of a run"),
        ({"bundle": "b", "seed": 3}, "`arm` and `seed` are those of a run"),
        ({"bundle": "b", **OLD}, "a run and a bundle are named"),
        ({}, "names neither a run nor a bundle"),
        ({"run": "old", "arms": "fedavg"}, "start_from: arms: no such setting"),
        ({"run": "old", "arm": "fedavg", "seed": -1}, "is out of range"),
        ("old", "expected a table"),
    ],
)
def test_what_cannot_be_meant_is_refused(start: Any, problem: str) -> None:
    with pytest.raises(StudyError, match=problem):
        study(start)


def test_weights_and_start_from_exclude_each_other() -> None:
    with pytest.raises(StudyError, match="`weights` and `start_from` both say where training begins"):
        study(OLD, model={"kind": "cnn", "weights": "w.safetensors"})


def test_paths_begin_at_the_study_file_and_are_absolute_in_the_resolved_study() -> None:
    source = start_of(study(OLD), "fedavg")
    assert source.run == Path("/studies/old").resolve()
    assert digested(study(OLD)).resolved["model"]["start_from"]["run"] == str(source.run)


def test_the_hash_knows_the_content_and_not_the_path() -> None:
    one = digested(study(OLD), "d1")
    assert one.hash == digested(study({"run": "/elsewhere", "arm": "other", "seed": 7}), "d1").hash
    assert one.hash == digested(study({"bundle": "b"}), "d1").hash
    assert one.hash != digested(study(OLD), "d2").hash
    assert len({one.hash, study().hash, study(OLD).hash}) == 3


def test_a_study_without_it_keeps_its_hash_and_its_resolved_form() -> None:
    assert "start" not in str(study().resolved)
    plain = study()
    assert digested(plain) is plain


def test_the_resolved_study_reads_back_with_nothing_to_read() -> None:
    arms: list[dict[str, Any]] = [
        {"algorithm": "fedavg"},
        {"name": "anew", "algorithm": "fedavg", "model.start_from": "off"},
        {"algorithm": "fedprox", "mu": [0.1, 1.0], "model": {"start_from": {"arm": "other"}}},
    ]
    known = digested(study(OLD, arms))
    assert known.arm("anew").start.start_from is None
    assert start_of(known, "fedprox[mu=1.0]").digest == "digest of other"

    def unread(source: StartFrom) -> str:
        raise AssertionError("its digest is known")

    again = with_digests(parse_study(known.resolved, FAMILIES, "study", Path("/run")), unread)
    assert again.hash == known.hash
    assert again.arms == known.arms
    told = parse_study(without_sources(known.resolved), FAMILIES)
    assert told.hash == known.hash
    assert "/studies" not in str(told.resolved)
    assert not start_of(told, "fedavg").is_named


def test_one_entry_starts_from_one_model() -> None:
    arms = [{"algorithm": "fedavg", "model.start_from.arm": ["a", "b"]}]
    with pytest.raises(StudyError, match="arms of one entry start from several models"):
        digested(study(OLD, arms))


def test_a_variant_may_train_from_the_beginning() -> None:
    variants = [{"name": "anew", "model.start_from": "off"}]
    known = digested(study(OLD, variants=variants))
    assert known.arm("fedavg@anew").start.start_from is None
    assert parse_study(known.resolved, FAMILIES).hash == known.hash
    arms = [{"algorithm": "fedavg", "model.start_from.arm": "b"}]
    with pytest.raises(StudyError, match=r"in an \[\[arms\]\] table and in a \[\[variants\]\] table"):
        digested(study(OLD, arms, variants=[{"name": "other", "model.start_from.seed": 3}]))


def test_quick_and_set_may_change_it() -> None:
    document = {
        "name": "later",
        "data": {"source": "heart"},
        "model": {"start_from": OLD},
        "arms": [{"algorithm": "fedavg"}],
        "quick": {"model": {"start_from": {"run": "small"}}},
    }
    quick = parse_study(document, FAMILIES, quick=True)
    assert start_of(quick, "fedavg").where.endswith("/small")
    changed = parse_study(document, FAMILIES, changes={"model.start_from.arm": "fedprox"})
    assert start_of(changed, "fedavg").arm == "fedprox"
    assert parse_study(document, FAMILIES, changes={"model.start_from": "off"}).arms[0].start.start_from is None

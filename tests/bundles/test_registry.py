"""A registry: what is in it is what its log says, and whatever is done to either shows."""

import json
import os
from collections.abc import Callable
from pathlib import Path
from shutil import copytree, rmtree
from typing import Any

import pytest

from tests.bundles.untrained_bundles import write_bundle
from wardround.bundles import Registry, find_bundle, load_bundle
from wardround.bundles.registry import registry as registries
from wardround.bundles.registry.registry import default_name, listing, parse_name
from wardround.core.errors import BundleError
from wardround.runs.audit import AuditLog
from wardround.runs.audit import verify as verify_log


@pytest.fixture
def registry(tmp_path: Path) -> Registry:
    """heart with two versions, of which the first is in use; lung with one that is not."""
    empty_registry = Registry(tmp_path / "registry")
    for number in (1, 2):
        empty_registry.add(write_bundle(tmp_path / f"made-{number}", weights=number), "heart", by="Ada")
    empty_registry.add(write_bundle(tmp_path / "made-3", weights=3), "lung", by="Ada")
    empty_registry.promote("heart@1", by="Grace", reason="trial is over")
    return empty_registry


def events(registry: Registry) -> list[dict[str, Any]]:
    return [json.loads(line) for line in registry.log.read_bytes().splitlines()]


def in_order(registry: Registry) -> bool:
    verification = registry.verify()
    return not verification.problems and not verification.leftovers


def test_versions_are_counted_and_bundles_are_as_they_were(registry: Registry, tmp_path: Path) -> None:
    entries = registry.entries()
    assert list(entries) == ["heart", "lung"]
    assert [version.version for version in entries["heart"].versions] == [1, 2]
    assert (entries["heart"].in_use, entries["lung"].in_use) == (1, None)
    for number in (1, 2):
        stored, source = tmp_path / "registry" / "heart" / str(number), tmp_path / f"made-{number}"
        assert sorted(path.name for path in stored.iterdir()) == sorted(path.name for path in source.iterdir())
        assert all((stored / path.name).read_bytes() == path.read_bytes() for path in source.iterdir())
        assert load_bundle(stored).id == load_bundle(source).id == entries["heart"].versions[number - 1].id
    assert in_order(registry)
    assert (registry.verify().versions, registry.verify().entries) == (3, 4)


def test_every_change_is_an_event_of_one_chain(registry: Registry) -> None:
    registry.promote("heart@2", by="Grace")
    registry.withdraw("heart", by="Ada", reason="recalled")
    changes = [(event["event"], event["detail"]["name"], event["detail"]["version"]) for event in events(registry)]
    assert changes == [
        ("bundle added", "heart", 1),
        ("bundle added", "heart", 2),
        ("bundle added", "lung", 1),
        ("bundle promoted", "heart", 1),
        ("bundle promoted", "heart", 2),
        ("bundle withdrawn", "heart", 2),
    ]
    first, second = (event["detail"] for event in events(registry)[3:5])
    assert (first["instead_of"], first["by"], first["reason"]) == (None, "Grace", "trial is over")
    assert (second["instead_of"], second["reason"]) == (1, None)
    assert verify_log(registry.log).broken is None
    assert [event["event"] for event in registry.history("lung")] == ["bundle added"]
    assert registry.entries()["heart"].in_use is None


def test_the_state_is_what_the_log_gives_and_nothing_else(registry: Registry, tmp_path: Path) -> None:
    """A copy of the folder is the same registry; its log cut after the second line is the registry of that moment."""
    copy = Registry(copytree(registry.path, tmp_path / "copy"))
    assert {name: entry.in_use for name, entry in copy.entries().items()} == {"heart": 1, "lung": None}
    lines = copy.log.read_bytes().splitlines(keepends=True)
    copy.log.write_bytes(b"".join(lines[:2]))
    assert {name: (len(e.versions), e.in_use) for name, e in copy.entries().items()} == {"heart": (2, None)}
    assert copy.verify().problems == ("lung/1 is not in the log",)  # so a cut line shows, if a bundle came with it
    lost = registry.verify(head="f" * 64).problems
    assert lost == ("audit.jsonl: the head ffffffffffff... is of no line: the log was cut off or written anew",)
    assert not registry.verify(head=events(registry)[1]["hash"]).problems


def test_the_same_bundle_is_not_added_twice_under_one_name(registry: Registry, tmp_path: Path) -> None:
    again = write_bundle(tmp_path / "again", weights=1, made="2027-01-01T00:00:00+00:00")  # the time is no part of it
    with pytest.raises(BundleError, match="is there already, as heart@1"):
        registry.add(again, "heart")
    assert registry.add(again, "other").label == "other@1"
    assert len(events(registry)) == 5


def test_the_default_name_is_the_bundles_own(registry: Registry, tmp_path: Path) -> None:
    added = registry.add(write_bundle(tmp_path / "new", name="heart-fedprox-mu-0.1-north"))
    assert added.label == "heart-fedprox-mu-0.1-north@1"
    assert default_name({"name": "../_a b"}) == "a-b"
    assert default_name({"name": "/"}) == "bundle"
    assert default_name({"name": "x" * 200}) == "x" * 150


@pytest.mark.parametrize("name", ["../x", "a/b", "", ".", "..", ".hidden", "a b", "a@1", "x" * 151, "audit.jsonl", "ä"])
def test_a_name_that_is_no_name_is_refused_before_anything_is_written(name: str, tmp_path: Path) -> None:
    registry = Registry(tmp_path / "registry")
    with pytest.raises(BundleError, match="is not a name for a bundle"):
        registry.add(write_bundle(tmp_path / "made"), name)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["made"]


def test_names_that_differ_by_case_only_are_refused(registry: Registry, tmp_path: Path) -> None:
    with pytest.raises(BundleError, match="differs from heart by upper and lower case only"):
        registry.add(write_bundle(tmp_path / "new", weights=9), "Heart")


@pytest.mark.parametrize(
    ("text", "parts"), [("heart", ("heart", None)), ("heart@2", ("heart", 2)), ("h.1-b_c@10", ("h.1-b_c", 10))]
)
def test_names_with_versions(text: str, parts: tuple[str, int | None]) -> None:
    assert parse_name(text) == parts


@pytest.mark.parametrize(
    "text", ["heart@", "heart@x", "heart@-1", "heart@1.0", "heart@²", "heart@1@2", "heart@9999999999"]
)
def test_versions_that_are_none(text: str) -> None:
    with pytest.raises(BundleError, match="names no version"):
        parse_name(text)


@pytest.mark.parametrize(
    ("call", "problem"),
    [
        (lambda r: r.promote("heart"), "names no version"),
        (lambda r: r.promote("heart@1"), "is in use already"),
        (lambda r: r.promote("heart@3"), "there is no such version"),
        (lambda r: r.promote("heart@0"), "there is no such version"),
        (lambda r: r.promote("haert@1"), "has no bundle called 'haert'"),
        (lambda r: r.withdraw("lung"), "is not in use"),
        (lambda r: r.withdraw("heart@2"), "is not in use"),
        (lambda r: r.find("lungs"), "has no bundle called 'lungs'"),
        (lambda r: r.add(r.path), "is not a bundle"),
        (lambda r: Registry(r.path / "nowhere").promote("heart@1"), "there is no such registry"),
        (lambda r: Registry(r.path / "nowhere").verify(), "there is no such folder"),
    ],
)
def test_what_cannot_be_done_is_refused_and_leaves_no_event(
    call: Callable[[Registry], object], problem: str, registry: Registry
) -> None:
    before = registry.log.read_bytes()
    with pytest.raises(BundleError, match=problem):
        call(registry)
    assert registry.log.read_bytes() == before
    assert in_order(registry)


def test_a_wrong_name_comes_with_the_right_one(registry: Registry) -> None:
    with pytest.raises(BundleError, match="Did you mean 'heart'"):
        registry.find("haert")
    assert registry.find("heart").version == 1  # in use
    assert registry.find("lung").version == 1  # the newest
    assert registry.find("heart@2").version == 2


# ---- tampering


def changed_byte(file: Path) -> None:
    content = bytearray(file.read_bytes())
    content[len(content) // 2] ^= 1
    file.write_bytes(content)


@pytest.mark.parametrize(
    "file", ["bundle.json", "weights.safetensors", "preparation.json", "vocabulary.json", "card.md"]
)
def test_a_changed_byte_is_named_and_the_bundle_is_neither_promoted_nor_found(file: str, registry: Registry) -> None:
    changed_byte(registry.path / "heart" / "2" / file)
    (problem,) = registry.verify().problems
    assert problem.startswith("heart@2: ")
    assert file in problem or file == "bundle.json"
    before = registry.log.read_bytes()
    with pytest.raises(BundleError, match="heart@2: is not as it was added"):
        registry.promote("heart@2")
    assert registry.log.read_bytes() == before
    assert not registry.verify("heart@1").problems
    assert registry.verify("heart").problems == (problem,)
    changed_byte(registry.path / "heart" / "1" / file)
    with pytest.raises(BundleError, match="heart@1: is not as it was added"):
        find_bundle(registry.path / "heart")


def test_another_whole_bundle_in_the_place_of_one_shows(registry: Registry, tmp_path: Path) -> None:
    """It is in order by itself, hashes and seal: only the log knows that it is another."""
    place = registry.path / "heart" / "1"
    rmtree(place)
    copytree(tmp_path / "made-2", place)
    assert load_bundle(place).id
    assert registry.verify().problems == (
        "heart@1: bundle.json is not the file that was added",
        "heart@1: weights.safetensors is not the file that was added",
    )
    with pytest.raises(BundleError, match="is not as it was added"):
        find_bundle(registry.path / "heart")


def test_what_is_missing_or_was_put_there_by_hand_is_named_and_never_removed(
    registry: Registry, tmp_path: Path
) -> None:
    by_hand: dict[str, Callable[[], object]] = {
        "heart/3": lambda: copytree(tmp_path / "made-3", registry.path / "heart" / "3"),
        "kidney/1": lambda: copytree(tmp_path / "made-3", registry.path / "kidney" / "1"),
        "notes.txt": lambda: (registry.path / "notes.txt").write_text("remember"),
        "heart/notes.txt": lambda: (registry.path / "heart" / "notes.txt").write_text("remember"),
        "away": lambda: (registry.path / "away").symlink_to(tmp_path),
    }
    for put in by_hand.values():
        put()
    assert sorted(registry.verify().problems) == sorted(f"{name} is not in the log" for name in by_hand)
    assert list(registry.entries()) == ["heart", "lung"]
    assert registry.add(write_bundle(tmp_path / "new", weights=7), "lung").version == 2  # elsewhere it goes on
    with pytest.raises(BundleError, match=r"heart/3: is in the way, and is not in the log"):
        registry.add(tmp_path / "new", "heart")
    assert all((registry.path / name).exists() for name in by_hand)
    rmtree(registry.path / "lung" / "1")
    assert "lung@1 is missing" in registry.verify().problems


def test_a_file_added_to_a_bundle_or_turned_into_a_link_shows(registry: Registry, tmp_path: Path) -> None:
    place = registry.path / "lung" / "1"
    (place / "extra.txt").write_text("x")
    assert registry.verify().problems == ("lung@1: 'extra.txt' is not part of the bundle",)
    (place / "extra.txt").unlink()
    (place / "card.md").unlink()
    (place / "card.md").symlink_to(tmp_path / "made-3" / "card.md")
    assert registry.verify().problems == ("lung@1: card.md is not a plain file",)
    rmtree(place)
    place.symlink_to(tmp_path / "made-3")
    assert registry.verify().problems == ("lung@1 is missing",)


def test_a_changed_deleted_or_moved_line_of_the_log_shows_and_stops_everything(registry: Registry) -> None:
    lines = registry.log.read_bytes().splitlines(keepends=True)
    broken = {
        "line 2: has number 2 where 1 is due": [lines[0], *lines[2:]],
        "line 1: was changed": [lines[0].replace(b"Ada", b"Eve"), *lines[1:]],
        "line 3: has number 3 where 2 is due": [lines[0], lines[1], lines[3], lines[2]],
    }
    for problem, wrong in broken.items():
        registry.log.write_bytes(b"".join(wrong))
        (problem_text,) = registry.verify().problems
        assert problem_text.startswith(f"audit.jsonl: {problem}")
        calls: list[Callable[[], object]] = [
            registry.entries,
            lambda: registry.promote("heart@2"),
            lambda: registry.withdraw("heart"),
            lambda: find_bundle(registry.path / "heart"),
            lambda: registry.add(registry.path / "heart" / "1", "other"),
        ]
        for call in calls:
            with pytest.raises(BundleError, match="is not as it was written"):
                call()
        assert registry.log.read_bytes() == b"".join(wrong)


def test_a_log_that_is_gone_shows(registry: Registry) -> None:
    registry.log.unlink()
    assert registry.verify().problems == ("audit.jsonl is missing",)
    assert registry.entries() == {}


def test_a_forged_event_that_leads_out_of_the_folder_is_refused(registry: Registry) -> None:
    for detail in (
        {"name": "../made-1", "version": 1, "bundle": "x", "files": {}},
        {"name": "heart", "version": 9, "bundle": "x", "files": {}},
        {"name": "heart", "version": "3", "bundle": "x", "files": {}},
        {"name": "heart"},
        {"name": "heart", "version": 3, "bundle": "x", "files": 7},
    ):
        before = registry.log.read_bytes()
        AuditLog(registry.log).add("bundle added", **detail)  # the chain is whole: who writes here can do that
        with pytest.raises(BundleError, match="line 5: is not an event of a registry"):
            registry.entries()
        registry.log.write_bytes(before)
    assert in_order(registry)


# ---- what is interrupted


def test_what_fails_while_it_is_added_leaves_nothing(
    registry: Registry, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    new = write_bundle(tmp_path / "new", weights=5)
    before = registry.log.read_bytes()

    def full(*given: object, **named: object) -> None:
        raise OSError(28, "No space left on device")

    for target, name in ((registries, "_write_through"), (os, "rename"), (AuditLog, "add")):
        with monkeypatch.context() as patch:
            patch.setattr(target, name, full)
            with pytest.raises(BundleError, match=r"cannot be written \(No space left on device\)"):
                registry.add(new, "heart")
            with pytest.raises(BundleError, match=r"cannot be written \(No space left on device\)"):
                registry.add(new, "kidney")
        assert registry.log.read_bytes() == before
        assert in_order(registry)
        assert not (registry.path / "kidney").exists()

    def interrupted(*given: object, **named: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(registries, "_write_through", interrupted)
    with pytest.raises(KeyboardInterrupt):
        registry.add(new, "heart")
    assert in_order(registry)


def test_leftovers_of_every_moment_are_told_and_removed_and_what_counts_stays(
    registry: Registry, tmp_path: Path
) -> None:
    heart = registry.path / "heart"
    copying = heart / ".adding-3" / "bundle"
    copying.mkdir(parents=True)  # died while it copied
    (copying / "card.md").write_text("half")
    (heart / ".adding-2").mkdir()  # died after its line was written, before it tidied up: version 2 counts
    (registry.path / "kidney" / ".adding-1" / "bundle").mkdir(parents=True)
    verification = registry.verify()
    assert verification.problems == ()
    assert verification.leftovers == ("heart/.adding-2", "heart/.adding-3", "kidney/.adding-1")
    assert registry.add(write_bundle(tmp_path / "new", weights=5), "heart").version == 3
    assert in_order(registry)
    assert sorted(path.name for path in heart.iterdir()) == ["1", "2", "3"]
    assert not (registry.path / "kidney").exists()


def test_a_link_to_a_folder_elsewhere_is_not_tidied_up(registry: Registry, tmp_path: Path) -> None:
    elsewhere = tmp_path / "elsewhere"
    (elsewhere / ".adding-1").mkdir(parents=True)
    (elsewhere / "1").mkdir()
    (registry.path / "away").symlink_to(elsewhere)
    new = write_bundle(tmp_path / "new", weights=5)
    registry.add(new, "heart")
    with pytest.raises(BundleError, match="is in the way, and is not in the log"):
        registry.add(new, "away")
    assert sorted(path.name for path in elsewhere.iterdir()) == [".adding-1", "1"]


def test_a_half_written_line_never_happened(registry: Registry, tmp_path: Path) -> None:
    whole = registry.log.read_bytes()
    registry.promote("heart@2")
    line = registry.log.read_bytes()[len(whole) :]
    registry.log.write_bytes(whole + line[: len(line) // 2])
    assert registry.entries()["heart"].in_use == 1
    assert registry.verify().problems == ("audit.jsonl: line 5: is not finished",)
    registry.promote("heart@2")
    assert [event["event"] for event in events(registry)[4:]] == ["unfinished line removed", "bundle promoted"]
    assert in_order(registry)


def test_who_waits_too_long_is_told(registry: Registry, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(registries, "PATIENCE", 0.1)
    with registry._locked(), pytest.raises(BundleError, match="another process has been changing it"):
        Registry(registry.path).promote("heart@2")
    registry.promote("heart@2")


# ---- what predict and serve take


def test_the_bundle_that_is_meant_by_a_path(registry: Registry, tmp_path: Path) -> None:
    assert find_bundle(tmp_path / "made-1") == tmp_path / "made-1"
    assert find_bundle(str(registry.path / "heart" / "2")) == registry.path / "heart" / "2"
    assert find_bundle(registry.path / "heart") == registry.path / "heart" / "1"
    assert find_bundle(registry.path / "heart@2") == registry.path / "heart" / "2"
    assert find_bundle(tmp_path / "nothing") == tmp_path / "nothing"
    registry.promote("heart@2")
    assert find_bundle(registry.path / "heart") == registry.path / "heart" / "2"
    registry.withdraw("heart")
    for path, problem in (
        ("heart", "none of its versions is in use"),
        ("lung", "none of its versions is in use"),
        ("lung@2", "there is no such version"),
        ("kidney", "has no bundle called 'kidney'"),
    ):
        with pytest.raises(BundleError, match=problem):
            find_bundle(registry.path / path)
    with pytest.raises(BundleError, match="is a registry, not a bundle"):
        find_bundle(registry.path)


def test_a_path_to_a_version_goes_through_the_log_too(
    registry: Registry, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """DIR/NAME/1, a link to it, and the folder that one stands in."""
    place = registry.path / "heart" / "1"
    link = tmp_path / "current"
    link.symlink_to(place)
    monkeypatch.chdir(place)
    paths: list[str | Path] = [place, str(place) + "/", place / ".." / "1", link, Path(), Path("..") / "1"]
    assert [load_bundle(find_bundle(path)).id for path in paths] == [registry.find("heart@1").id] * len(paths)
    rmtree(place)
    copytree(tmp_path / "made-2", place)  # whole and sealed, and not what was added
    monkeypatch.chdir(place)
    for path in paths:
        with pytest.raises(BundleError, match="heart@1: is not as it was added"):
            find_bundle(path)
    for name in ("3", "01"):
        copytree(tmp_path / "made-3", registry.path / "heart" / name)
    with pytest.raises(BundleError, match="there is no such version"):
        find_bundle(registry.path / "heart" / "3")
    with pytest.raises(BundleError, match="lung/01: is not in the log of its registry"):
        find_bundle(copytree(tmp_path / "made-3", registry.path / "lung" / "01"))
    (registry.path / "heart" / "bundle.json").write_bytes((tmp_path / "made-2" / "bundle.json").read_bytes())
    with pytest.raises(BundleError, match="heart@1: is not as it was added"):
        find_bundle(registry.path / "heart")
    with pytest.raises(BundleError, match="has no bundle called 'by-hand'"):
        find_bundle(copytree(tmp_path / "made-3", registry.path / "by-hand"))


def test_a_bundle_in_a_run_folder_is_no_registrys(tmp_path: Path) -> None:
    """A run has a log of the same kind, which knows no bundle."""
    AuditLog(tmp_path / "audit.jsonl").add("run begun", study="hearts")
    for place in (tmp_path / "1", tmp_path / "bundles" / "1"):
        assert find_bundle(write_bundle(place)) == place


def test_a_withdrawn_version_is_told_with_when_and_why_and_nobody_is_told_to_promote_it(
    registry: Registry, tmp_path: Path
) -> None:
    registry.withdraw("heart", by="Ada", reason="recalled: new laboratory")
    when = events(registry)[-1]["time"]
    with pytest.raises(BundleError) as caught:
        find_bundle(registry.path / "heart")
    assert caught.value.problem == (
        f"none of its versions is in use: version 1 was withdrawn on {when[:10]} at {when[11:16]} UTC by Ada "
        "(recalled: new laboratory)"
    )
    assert "heart@1" not in caught.value.remedy
    assert "bundles promote" not in caught.value.remedy
    registry.promote("heart@2")
    assert find_bundle(registry.path / "heart").name == "2"
    registry.withdraw("heart")
    with pytest.raises(BundleError, match=r"version 2 was withdrawn .*no reason was given"):
        find_bundle(registry.path / "heart")
    with pytest.raises(BundleError, match="Promote one: `wardround bundles promote lung@1"):
        find_bundle(registry.path / "lung")


def test_a_changed_bundle_in_use_is_called_changed_and_not_in_order(registry: Registry) -> None:
    changed_byte(registry.path / "heart" / "1" / "card.md")
    with pytest.raises(BundleError, match="heart@1: is not as it was added"):
        registry.promote("heart@1")


@pytest.mark.parametrize("file", ["bundle.json", "card.md", "weights.safetensors"])
def test_a_list_marks_what_was_changed(file: str, registry: Registry) -> None:
    assert [row["as_added"] for row in listing(registry)] == [True, True, True]
    changed_byte(registry.path / "heart" / "2" / file)
    assert [(row["name"], row["version"], row["as_added"]) for row in listing(registry)] == [
        ("heart", 1, True),
        ("heart", 2, False),
        ("lung", 1, True),
    ]


def test_one_odd_bundle_does_not_hide_the_others(tmp_path: Path) -> None:
    """As a version of wardround may have let it in that did not look so closely."""
    registry = Registry(tmp_path / "registry", load=lambda path: load_bundle(tmp_path / "good"))
    registry.add(write_bundle(tmp_path / "good"), "good")
    odd_entries: list[dict[str, Any]] = [{"made": 7}, {"study": []}, {"card": ["x"]}, {"seed": None}, {"arm": {}}]
    for number, odd in enumerate(odd_entries):
        registry.add(write_bundle(tmp_path / f"odd-{number}", **odd), "odd")
    rows = listing(registry)
    assert [(row["name"], row["version"], row["as_added"]) for row in rows] == [
        ("good", 1, True),
        *(("odd", number, True) for number in range(1, 6)),
    ]
    assert (rows[0]["site"], rows[0]["seed"]) == ("north", 1)
    assert all(row["made"] is None for row in rows[1:])


def test_a_registry_that_may_only_be_read_can_be_verified_and_used(
    registry: Registry, monkeypatch: pytest.MonkeyPatch
) -> None:
    lock = registry.path / ".lock"
    lock.unlink()
    monkeypatch.setattr(os, "access", lambda path, mode: mode != os.W_OK)
    assert in_order(registry)
    assert find_bundle(registry.path / "heart").name == "1"
    assert len(registry.entries()) == 2
    assert not lock.exists()  # nothing was written

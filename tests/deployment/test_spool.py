"""Answers as they arrived: in the order of the sites, one trial at a time, to the last bit."""

from pathlib import Path

import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.deployment.in_process_federation import key
from wardround.core.tree import Tree
from wardround.deployment.common.spool import Spool
from wardround.protocol.messages import Message, Sealed, seal

SITES = ["north", "south", "west", "east"]


def tensors(value: float) -> Tree:
    leaf = torch.tensor([value, float("1e150"), -0.0, 5e-324], dtype=torch.float64)
    return {"0/params/b": leaf, "0/params/a": leaf + 1, "1/params/w": leaf + 2, "10/params/w": leaf + 3}


def arrived(value: float = 0.0, **body: object) -> tuple[Sealed, Message]:
    message = Message("update", {"trials": {"0": {"loss": value}}, **body}, tensors(value), site="north")
    return seal(message, key("north")), message


@settings(max_examples=20, deadline=None)
@given(st.permutations(SITES), st.integers(0, 4))
def test_entries_are_in_the_order_of_the_sites(order: list[str], count: int) -> None:
    from tempfile import TemporaryDirectory

    with TemporaryDirectory() as folder:
        spool = Spool(Path(folder), 0, 3)
        for number, site in enumerate(order[:count]):
            spool.add(site, *arrived(float(number)))
        by_site = Spool(Path(folder), 0, 3).entries(SITES)  # another process
        assert list(by_site) == [site for site in SITES if site in order[:count]]
        for site, entry in by_site.items():
            assert entry.body == {"trials": {"0": {"loss": float(order.index(site))}}}


def test_each_trial_is_read_by_itself_with_every_bit_in_the_messages_order(tmp_path: Path) -> None:
    spool = Spool(tmp_path, 0, 0)
    sealed, message = arrived(0.1)
    spool.add("north", sealed, message)
    entry = spool.entries(SITES)["north"]
    assert (entry.message, entry.size) == (sealed.hash, sealed.size)
    update = entry.update(0)
    assert list(update) == ["params"]
    assert list(update["params"]) == ["b", "a"]
    for name, leaf in update["params"].items():
        assert leaf.numpy().tobytes() == message.tensors[f"0/params/{name}"].numpy().tobytes()
    assert list(entry.update(1)["params"]) == ["w"]
    assert entry.update(1)["params"]["w"].numpy().tobytes() == message.tensors["1/params/w"].numpy().tobytes()
    assert entry.update(2) == {}


def test_an_answer_without_tensors_is_an_answer(tmp_path: Path) -> None:
    """Of an arm that sends nothing, such as `local`."""
    spool = Spool(tmp_path, 0, 0)
    message = Message("update", {"trials": {}}, site="north")
    spool.add("north", seal(message, key("north")), message)
    assert spool.entries(SITES)["north"].update(0) == {}


def test_an_answer_counts_when_its_last_file_is_written(tmp_path: Path) -> None:
    spool = Spool(tmp_path, 0, 0)
    spool.add("north", *arrived())
    (spool.folder / "north.json").unlink()
    assert spool.entries(SITES) == {}


def test_the_same_answer_twice_is_one(tmp_path: Path) -> None:
    spool = Spool(tmp_path, 0, 0)
    sealed, message = arrived()
    spool.add("north", sealed, message)
    spool.add("north", sealed, message)
    assert list(spool.entries(SITES)) == ["north"]


def test_rounds_and_waves_are_apart(tmp_path: Path) -> None:
    spools = [Spool(tmp_path, wave, number) for wave in (0, 1) for number in (0, 1)]
    spools[0].add("north", *arrived())
    assert [len(spool.entries(SITES)) for spool in spools] == [1, 0, 0, 0]
    for spool in spools:
        spool.add("south", *arrived())
    spools[0].clear()
    assert [len(spool.entries(SITES)) for spool in spools] == [0, 1, 1, 1]

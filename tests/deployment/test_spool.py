"""Answers as they arrived: in the order of the sites, one trial at a time, to the last bit."""

from dataclasses import replace
from pathlib import Path

import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.deployment.in_process_federation import key
from wardround.core.tree import Tree
from wardround.deployment.common.messaging import Answered
from wardround.deployment.common.spool import Spool
from wardround.protocol.catalogue import TrialWork, Update
from wardround.protocol.messages import message_of, seal

SITES = ["north", "south", "west", "east"]


def tensors(value: float) -> Tree:
    leaf = torch.tensor([value, float("1e150"), -0.0, 5e-324], dtype=torch.float64)
    return {"0/params/b": leaf, "0/params/a": leaf + 1, "1/params/w": leaf + 2, "10/params/w": leaf + 3}


def arrived(value: float = 0.0) -> Answered[Update]:
    work = TrialWork(epochs=1, loss=value, length=None, compression_error=None, moved=False, finite=True)
    return answered(Update(run="r", trials={0: work}, figures={}), tensors(value))


def answered(body: Update, leaves: Tree) -> Answered[Update]:
    message = message_of(body, leaves)
    return Answered(body, tuple(leaves), "", seal(replace(message, site="north"), key("north")))


@settings(max_examples=20, deadline=None)
@given(st.permutations(SITES), st.integers(0, 4))
def test_entries_are_in_the_order_of_the_sites(order: list[str], count: int) -> None:
    from tempfile import TemporaryDirectory

    with TemporaryDirectory() as folder:
        spool = Spool(Path(folder), 0, 3)
        for number, site in enumerate(order[:count]):
            spool.add(site, arrived(float(number)))
        by_site = Spool(Path(folder), 0, 3).entries(SITES, Update)  # another process
        assert list(by_site) == [site for site in SITES if site in order[:count]]
        for site, entry in by_site.items():
            assert entry.body.trials[0].loss == float(order.index(site))


def test_each_trial_is_read_by_itself_with_every_bit_in_the_messages_order(tmp_path: Path) -> None:
    spool = Spool(tmp_path, 0, 0)
    whole = arrived(0.1)
    spool.add("north", whole)
    entry = spool.entries(SITES, Update)["north"]
    assert (entry.message, entry.size) == (whole.sealed.hash, whole.sealed.size)
    update = entry.update(0)
    assert list(update) == ["params"]
    assert list(update["params"]) == ["b", "a"]
    for name, leaf in update["params"].items():
        assert leaf.numpy().tobytes() == tensors(0.1)[f"0/params/{name}"].numpy().tobytes()
    assert list(entry.update(1)["params"]) == ["w"]
    assert entry.update(1)["params"]["w"].numpy().tobytes() == tensors(0.1)["1/params/w"].numpy().tobytes()
    assert entry.update(2) == {}


def test_an_answer_without_tensors_is_an_answer(tmp_path: Path) -> None:
    """Of an arm that sends nothing, such as `local`."""
    spool = Spool(tmp_path, 0, 0)
    spool.add("north", answered(Update(run="r", trials={}, figures={}), {}))
    assert spool.entries(SITES, Update)["north"].update(0) == {}


def test_an_answer_counts_when_its_last_file_is_written(tmp_path: Path) -> None:
    spool = Spool(tmp_path, 0, 0)
    spool.add("north", arrived())
    (spool.folder / "north.answer").unlink()
    assert spool.entries(SITES, Update) == {}
    assert spool.sealed("north") is None


def test_an_answer_is_kept_byte_for_byte(tmp_path: Path) -> None:
    """So that a restarted coordinator opens and checks it as any other."""
    spool, whole = Spool(tmp_path, 0, 0), arrived()
    spool.add("north", whole)
    assert spool.sealed("north") == whole.sealed


def test_the_same_answer_twice_is_one(tmp_path: Path) -> None:
    spool = Spool(tmp_path, 0, 0)
    whole = arrived()
    spool.add("north", whole)
    spool.add("north", whole)
    assert list(spool.entries(SITES, Update)) == ["north"]


def test_rounds_and_waves_are_apart(tmp_path: Path) -> None:
    spools = [Spool(tmp_path, wave, number) for wave in (0, 1) for number in (0, 1)]
    spools[0].add("north", arrived())
    assert [len(spool.entries(SITES, Update)) for spool in spools] == [1, 0, 0, 0]
    for spool in spools:
        spool.add("south", arrived())
    spools[0].clear()
    assert [len(spool.entries(SITES, Update)) for spool in spools] == [0, 1, 1, 1]

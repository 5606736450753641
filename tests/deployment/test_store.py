"""What a site keeps between messages: the memory in force is that of the last update that counted, and no other."""

from pathlib import Path

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.small_federations import assert_same_tree
from wardround.core.errors import DeployError
from wardround.deployment.common.site_store import NONE_YET, Store
from wardround.protocol.messages import Sealed
from wardround.training.local import Memory

ANSWER = Sealed(b"{}\n\n", b"\x00\n\xff", b"sig\nnature")  # newlines, because the file has them too


def keep(store: Store, wave: int, number: int, memories: dict[int, Memory], request: str, answer: Sealed) -> None:
    """As after a round."""
    store.keep_memories(wave, number, memories)
    store.keep_answer(wave, number, request, answer)


def memory(value: float) -> Memory:
    leaf = torch.tensor([value, -0.0, float("nan"), 5e-324], dtype=torch.float64)
    return Memory({"control": {"b": leaf, "a": leaf + 1}}, {"bias": leaf * 2}, {"mean": leaf * 3})


def first() -> dict[int, Memory]:
    return {0: memory(0.0), 1: memory(0.5)}


def bits(memories: dict[int, Memory]) -> dict[str, bytes]:
    return {
        f"{n}/{name}": leaf.numpy().tobytes()
        for n, trial_memory in memories.items()
        for name, leaf in trial_memory.leaves().items()
    }


def files(folder: Path) -> set[str]:
    return {path.name for path in folder.rglob("*.*")}


def test_the_first_memory_is_in_force_until_something_counted(tmp_path: Path) -> None:
    store = Store(tmp_path)
    keep(store, 0, 0, {0: memory(7.0), 1: memory(8.0)}, "asked", ANSWER)
    assert bits(store.memories(0, NONE_YET, first)) == bits(first())
    assert "memory-000000.safetensors" not in files(tmp_path)


@pytest.mark.parametrize("again", [False, True], ids=["same process", "started again"])
def test_memory_counts_when_the_next_message_says_so(again: bool, tmp_path: Path) -> None:
    store = Store(tmp_path)
    stored = {0: memory(7.0), 1: memory(8.0)}
    keep(store, 0, 0, stored, "asked", ANSWER)
    store = Store(tmp_path) if again else store
    loaded = store.memories(0, 0, first)
    assert bits(loaded) == bits(stored)
    assert [list(trial_memory.leaves()) for trial_memory in loaded.values()] == [
        list(trial_memory.leaves()) for trial_memory in stored.values()
    ]


def test_a_memory_that_is_gone_is_an_error_that_says_which(tmp_path: Path) -> None:
    with pytest.raises(DeployError, match="its memory of round 4 is gone"):
        Store(tmp_path).memories(0, 3, first)


def test_without_anything_to_keep_nothing_is_missed(tmp_path: Path) -> None:
    store = Store(tmp_path)
    keep(store, 0, 0, {0: Memory()}, "asked", ANSWER)
    assert not list(tmp_path.rglob("memory-*"))
    assert Store(tmp_path).memories(0, 5, lambda: {0: Memory()}) == {0: Memory()}


def test_the_same_question_gets_the_same_bytes_and_another_none(tmp_path: Path) -> None:
    store = Store(tmp_path)
    keep(store, 0, 2, first(), "asked", ANSWER)
    for instance in (store, Store(tmp_path)):
        assert instance.answer(0, 2, "asked") == ANSWER
        assert instance.answer(0, 2, "asked otherwise") is None
        assert instance.answer(0, 1, "asked") is None
        assert instance.answer(1, 2, "asked") is None
    keep(store, 0, 3, first(), "asked", ANSWER)
    assert store.answer(0, 2, "asked") is None  # one answer is kept


def test_rounds_that_are_over_are_refused(tmp_path: Path) -> None:
    store = Store(tmp_path)
    store.refuse_old(0, 0)
    keep(store, 0, 4, first(), "asked", ANSWER)
    store.refuse_old(0, 4)
    store.refuse_old(0, 5)
    store.refuse_old(1, 0)
    with pytest.raises(DeployError, match="round 4, which is over"):
        Store(tmp_path).refuse_old(0, 3)


def test_an_answer_that_was_half_written_does_not_count(tmp_path: Path) -> None:
    store = Store(tmp_path)
    keep(store, 0, 1, first(), "asked", ANSWER)
    (tmp_path / "wave-00000" / "answer-000001.head").unlink()  # it is written last
    assert store.answer(0, 1, "asked") is None


def test_waves_are_apart_and_all_is_forgotten(tmp_path: Path) -> None:
    store = Store(tmp_path)
    for wave in (0, 1):
        keep(store, wave, 0, {0: memory(float(wave)), 1: memory(9.0)}, "asked", ANSWER)
    assert (
        bits(Store(tmp_path).memories(1, 0, first))["0/algorithm/control/b"]
        == bits({0: memory(1.0)})["0/algorithm/control/b"]
    )
    assert not (tmp_path / "wave-00000").exists()  # a wave is over when the next begins
    store.forget()
    assert not list(tmp_path.iterdir())


@settings(max_examples=40, deadline=None)
@given(st.lists(st.tuples(st.booleans(), st.booleans()), min_size=1, max_size=8))
def test_whatever_counts_and_whoever_dies_the_memory_is_that_of_the_last_that_counted(
    tmp_path_factory: pytest.TempPathFactory, happened: list[tuple[bool, bool]]
) -> None:
    """Round after round: a site trains; its update counts or not; its process dies or not."""
    folder = tmp_path_factory.mktemp("store")
    store, counted, expected = Store(folder), NONE_YET, first()
    for number, (counts, dies) in enumerate(happened):
        in_force = store.memories(0, counted, first)
        assert bits(in_force) == bits(expected)
        network = {n: memory(number + 10.0 * n + 1) for n in in_force}
        keep(store, 0, number, network, f"asked {number}", ANSWER)
        store = Store(folder) if dies else store
        assert len(list(folder.rglob("memory-*"))) <= 2
        if counts:
            counted, expected = number, network
    assert bits(store.memories(0, counted, first)) == bits(expected)
    assert len(list(folder.rglob("memory-*"))) == (counted != NONE_YET)


def test_the_trees_come_back_as_they_were(tmp_path: Path) -> None:
    stored = {0: Memory({"params": {"1.weight": torch.ones(2, 2), "0.bias": torch.zeros(1)}}, {"b": torch.ones(1)})}
    keep(Store(tmp_path), 0, 0, stored, "asked", ANSWER)
    loaded = Store(tmp_path).memories(0, 0, lambda: stored)[0]
    assert_same_tree(loaded.algorithm["params"], stored[0].algorithm["params"])
    assert_same_tree(loaded.private, stored[0].private)
    assert list(loaded.algorithm["params"]) == ["1.weight", "0.bias"]

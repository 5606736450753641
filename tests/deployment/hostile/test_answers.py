"""A hostile hospital answers: malformed, forged and impossible, validly signed, to every question that is asked."""

from collections.abc import Iterator
from functools import lru_cache
from pathlib import Path
from tempfile import TemporaryDirectory

import pytest

from tests.deployment.hostile.answer_mutations import Given, at
from tests.deployment.hostile.byte_network import (
    Message,
    Place,
    World,
    copied,
    flat,
    in_regions,
    kind_of,
    numbers,
    secure,
    vertical,
)
from tests.deployment.hostile.hostile_runs import Honest, honest_run, lying
from tests.deployment.hostile.mutation_suite import (
    ALL,
    LONG,
    SHORT,
    chosen,
    impossible,
    in_turn,
    where_all_are_needed,
    where_some_may_leave,
)
from tests.deployment.hostile.outcome_checks import named
from tests.representatives import represented
from wardround.core.errors import WardroundError

AGREEING = ("hello", "facts", "fill_values", "moments", "prepare")
HOSPITAL = (*AGREEING, "train", "evaluate", "goodbye")
SUM = ("keys", "shares", "train", "confirm", "unmask")
WORLDS: dict[str, World] = {
    "flat": flat,
    "numbers": numbers,
    "secure": secure,
    "regions": in_regions,
    "parties": vertical,
}
# who is hostile in which kind of federation, and all that it is asked there
SENDERS: dict[tuple[str, str], tuple[str, ...]] = {
    ("flat", "north"): HOSPITAL,
    ("flat", "west"): HOSPITAL,
    ("numbers", "north"): HOSPITAL,
    ("secure", "north"): (*AGREEING, *SUM, "evaluate", "goodbye"),
    ("regions", "coast"): HOSPITAL,
    ("regions", "north"): HOSPITAL,
    ("parties", "clinic"): ("hello", "match", "assign", "shape", "agree", "learn", "assess", "goodbye"),
    ("parties", "lab"): ("hello", "match", "shape", "agree", "embed", "embed_last", "goodbye"),
}
CASES = [(world, sender, kind) for (world, sender), kinds in SENDERS.items() for kind in kinds]
# of these some answers are tried with every change; of the others, because they are much the same, only in long runs
OFTEN: dict[tuple[str, str], tuple[str, ...]] = {
    ("flat", "north"): HOSPITAL,
    ("numbers", "north"): ("hello", "facts", "train", "evaluate"),
    ("secure", "north"): SUM,
    ("regions", "coast"): HOSPITAL[:-1],
    ("regions", "north"): ("hello", "train", "evaluate"),
    ("parties", "clinic"): ("hello", "match", "assign", "shape", "learn", "assess"),
    ("parties", "lab"): ("match", "embed", "embed_last"),
}


SHORTLY = (("flat", "north"), ("numbers", "north"), ("secure", "north"))


@pytest.fixture(scope="module")
def folder() -> Iterator[Path]:
    with TemporaryDirectory() as path:
        yield Path(path)


@lru_cache(maxsize=8)
def honest(folder: Path, world: str, quorum: bool = False) -> Honest:
    """Once for all tests in this process."""
    place = folder / f"{world}-{quorum}"
    senders = [sender for name, sender in SENDERS if name == world]
    return honest_run(WORLDS[world](place / "data", quorum), place, senders)


def place_in(run: Honest, sender: str, kind: str) -> Place:
    return next(place for place in run.places[sender] if place[0] == kind)


@pytest.mark.parametrize("world", represented(WORLDS, by=["flat", "numbers", "secure"]))
def test_every_question_has_hostile_answers(world: str, folder: Path) -> None:
    """A question that is new has to be added above, with figures that no answer to it can have."""
    run = honest(folder, world)
    asked = {kind_of(question) for _, question, _ in run.carried}
    assert asked == {kind for (name, _), kinds in SENDERS.items() if name == world for kind in kinds}
    for sender in run.senders:
        places = run.places[sender]
        assert {place[0] for place in places} == set(SENDERS[world, sender])
        for place in places:
            given = run.given(sender, place)
            plain = ("prepare", "agree", "goodbye", "embed", "embed_last")  # nothing is told but that it was done
            assert place[0] in plain or impossible(given), place
            assert len(chosen(given, ALL)) >= 100, place


@pytest.mark.slow
def test_hundreds_of_answers_are_tried(folder: Path) -> None:
    tried: dict[str, int] = {}
    for (world, sender), kinds in OFTEN.items():
        run = honest(folder, world)
        for kind in kinds:
            given = run.given(sender, place_in(run, sender, kind))
            tried[kind] = tried.get(kind, 0) + len(chosen(given, LONG, cheap=True))
    assert sum(tried.values()) >= 300
    assert min(tried.values()) >= 5, tried


@pytest.mark.parametrize(
    ("world", "sender"),
    [pytest.param(*case, marks=[] if case in SHORTLY else pytest.mark.slow) for case in OFTEN],
)
def test_a_hostile_answer_stops_the_run_and_the_next_start_goes_on(
    world: str, sender: str, folder: Path, tmp_path: Path
) -> None:
    """Every hospital is needed: each answer that is refused stops the run, and the coordinator is started again."""
    run, sizes = honest(folder, world), SHORT
    tried = in_turn(run, sender, OFTEN[world, sender], tmp_path, sizes)
    assert not tried.failures, tried.told()
    assert tried.kinds == set(OFTEN[world, sender])


@pytest.mark.slow
@pytest.mark.parametrize(("world", "sender", "kind"), CASES)
def test_all_hostile_answers(world: str, sender: str, kind: str, folder: Path, tmp_path: Path) -> None:
    run = honest(folder, world)
    sizes = ALL if (world, sender) == ("flat", "north") else LONG
    tried = where_all_are_needed(run, sender, place_in(run, sender, kind), tmp_path, sizes)
    assert not tried.failures, tried.told()


FEW = {"impossible": 2, "tensors": 1, "no": 1, "generated": 1}
QUICK = [("flat", "north", "train")]
QUORUM = [(world, sender) for world, sender in SENDERS if world != "parties"]


@pytest.mark.parametrize(
    ("world", "sender", "kind"),
    [
        pytest.param(*case, marks=[] if case in QUICK else pytest.mark.slow)
        for case in CASES
        if case[:2] in QUORUM and case[2] != "goodbye"
    ],
)
def test_where_the_quorum_allows_it_the_run_ends_without_the_sender(
    world: str, sender: str, kind: str, folder: Path, tmp_path: Path
) -> None:
    """As if the sender had failed at that question: the same models, the same figures of all others."""
    run = honest(folder, world, quorum=True)
    sizes = FEW if (world, sender, kind) in QUICK else {name: 5 * size for name, size in FEW.items()}
    tried = where_some_may_leave(run, sender, place_in(run, sender, kind), tmp_path, sizes)
    assert not tried.failures, tried.told()


@pytest.mark.parametrize("quorum", represented([False, True], by=[True]))
def test_who_always_answers_another_question_does_not_keep_the_run_waiting(
    quorum: bool, folder: Path, tmp_path: Path
) -> None:
    run = honest(folder, "flat", quorum)
    place = place_in(run, "north", "train")
    network = copied(run.opened, run.before("north", place), tmp_path / "run")
    elsewhere = at(("kind",), "prepared")

    def answer(sender: str, question: Message, answered: Message) -> Message:
        if sender != "north" or kind_of(question) != "train":
            return answered
        return elsewhere(Given(sender, question, answered, (), ()))

    ended = network.run(answer)
    assert named("north", ended)
    assert isinstance(ended.error, WardroundError) is not quorum, ended.error


def test_who_claims_more_than_half_of_all_rows_is_noticed(folder: Path, tmp_path: Path) -> None:
    """The claim agrees with itself, so that nobody can tell that it is untrue. It would decide on every model."""
    run = honest(folder, "flat")
    place = place_in(run, "north", "facts")
    network = copied(run.opened, run.before("north", place), tmp_path / "run")
    given = run.given("north", place)
    claim = next(mutation for mutation in impossible(given) if mutation.name.startswith("far more rows"))
    ended = network.run(lying(claim, given, place, []))
    lines = (
        [*ended.lines, str(ended.error)]
        if ended.error is not None
        else [notice["text"] for notice in network.results()["notices"]]
    )
    assert ended.error is None or isinstance(ended.error, WardroundError)
    assert any("north" in line for line in lines), lines

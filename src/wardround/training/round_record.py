"""The record of a round: what every engine and every coordinator yields, and every reader reads."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

Price = tuple[float, float, int]  # sampling rate, noise, steps


@dataclass(frozen=True)
class RoundRecord:
    """One round of one arm with one seed, as seen from outside. It holds no value of a patient."""

    arm: str
    seed: int
    round: int  # from 1
    loss: float | None = None  # mean over the counted sites' batches
    update_norm: float | None = None  # mean length of the sites' local changes
    divergence: float | None = None  # root mean square distance of the sites' models from their mean
    change: float | None = None  # length of the shared model's change; None where sites have models of their own
    sites: tuple[str, ...] = ()  # whose work counted
    dropped: tuple[str, ...] = ()
    bytes_down: int = 0
    bytes_up: int = 0
    settings: Mapping[str, float] = field(default_factory=dict)  # that the coordinator holds, such as mu
    charges: Mapping[str, Price] = field(default_factory=dict)  # by site
    site_charge: Price | None = None  # the same for each site as a whole
    stopped: tuple[str, ...] = ()  # sites that would have exceeded their epsilon
    failed: str = ""  # why the round, or a region's, came to nothing
    # between regions and the coordinator of all, down and up; `bytes_down` and `bytes_up` are the sites'
    region_messages: tuple[int, int] = (0, 0)
    region_bytes: tuple[int, int] = (0, 0)
    compression_error: float | None = None  # mean over the sites: length of what was lost over that of the update
    exchanges: int = 0  # of embeddings for gradients, between parties with different features
    epochs: Mapping[str, int] = field(default_factory=dict)  # across hospitals: what each counted site did
    not_finite: tuple[str, ...] = ()  # across hospitals: whose update was no number, and did not count
    # where updates are screened, by site: length, mean cosine with the others', why it was named (`screening.Evidence`)
    lengths: Mapping[str, float] = field(default_factory=dict)
    agreements: Mapping[str, float] = field(default_factory=dict)
    named: Mapping[str, tuple[float, ...]] = field(default_factory=dict)
    time: float | None = None  # at which the round closed, in seconds of virtual time; None where none passes
    # of each counted site, where work may be late: updates of the shared model since it began. With `sites` and
    # `epochs` it is the order of the run, which `schedule.recorded_rosters` makes a schedule again
    staleness: Mapping[str, int] = field(default_factory=dict)
    engine: str | None = None  # None across hospitals
    seconds: float = 0.0  # where trials train together, each has an equal part of the time
    figures: Mapping[str, float] = field(default_factory=dict)  # test_loss, validation_auc, ...: where it was scored

    @property
    def variant(self) -> str:
        """Of the study; "" for the study as it stands."""
        return self.arm.partition("@")[2].partition("?")[0]

    def finished(self, engine: str, seconds: float, figures: Mapping[str, float]) -> "RoundRecord":
        """With what is known only when the round is over."""
        return self.but(engine=engine, seconds=seconds, figures=figures)

    def but(self, **fields: Any) -> "RoundRecord":
        """`dataclasses.replace` in a tenth of its time: a stack asks for it hundreds of times in a round."""
        record = object.__new__(RoundRecord)
        object.__setattr__(record, "__dict__", {**self.__dict__, **fields})
        return record

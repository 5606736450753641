"""A hospital's part in drawing the groups of secure sums: one number for a study with these hospitals, committed to
before any other is known."""

import os
from collections.abc import Mapping
from pathlib import Path

from wardround.core.errors import DeployError
from wardround.deployment.common.secure_sum_site import Commitments
from wardround.deployment.flat.group_draw import NUMBER_BYTES, REMEDY, Drawing, drawn_seed
from wardround.privacy.signatures import Signer, Verifier
from wardround.protocol.catalogue import Commitment, Draw
from wardround.study.schema import Study

NUMBER, DRAWN = "number", "commitments"  # what is kept of a draw
OTHERS = "was drawn with other commitments before, and groups drawn anew would show single updates"


class SiteDraw:
    """`past` outlives runs: the groups of a study with these hospitals are drawn once."""

    def __init__(self, study: Study, site: str, sites: list[str], past: Path) -> None:
        self.study, self.site, self.sites = study, site, sites
        self.drawing, self.past = Drawing(study.hash, tuple(sites)), Commitments(past)

    def commit(self, signer: Signer) -> Commitment:
        return self.drawing.commit(self.site, self._number(), signer)

    def open(self, commitments: Mapping[str, Commitment], peers: Mapping[str, Verifier]) -> str:
        """This site's number, once it knows what all have committed to."""
        number = self._number()
        self.drawing.check(commitments, peers)
        if commitments[self.site].commitment != self.drawing.hash_of(self.site, number):
            raise DeployError("coordinator", "has another commitment than this hospital's", REMEDY)
        digest = self.drawing.digest(commitments)
        if self.past.commit(DRAWN, self.drawing.context, digest) != digest:
            remedy = "Change the seed of the study, and let every site approve it anew."
            raise DeployError("groups", OTHERS, remedy)
        return number

    def seed(self, draw: Draw | None) -> int | None:
        """Of the groups, from what the coordinator says of a draw that this site has taken part in."""
        seed = drawn_seed(self.study, self.sites, draw)
        if draw is not None and seed is not None:
            known = self.past.known.get((DRAWN, self.drawing.context.hex()))
            if known != self.drawing.digest(draw.commitments).hex():
                problem = "has drawn groups from other numbers than those to which this hospital saw all commit"
                raise DeployError("coordinator", problem, REMEDY)
        return seed

    def _number(self) -> str:
        return self.past.commit(NUMBER, self.drawing.context, os.urandom(NUMBER_BYTES)).hex()

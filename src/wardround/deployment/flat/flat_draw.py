"""The coordinator's part in drawing the groups of secure sums: it carries commitments and numbers, and can choose
nothing."""

from collections.abc import Generator

from wardround.core.errors import DeployError
from wardround.core.extras import needs
from wardround.deployment.common.messaging import Messenger, Step
from wardround.deployment.coordinating.agreement import Federation
from wardround.deployment.flat.group_draw import REMEDY, Drawing, drawn_seed, draws_groups
from wardround.protocol.catalogue import Commit, Committed, Draw, Open, Opened
from wardround.tasks.task import require

with needs("deploy", "a study across hospitals"):
    from msgspec import structs


def with_groups(messenger: Messenger, federation: Federation) -> Generator[Step, None, Federation]:
    """The federation with groups that all of its sites have drawn, where the study has some."""
    study, sites = messenger.study, federation.plan.sites
    if not draws_groups(study):
        return federation
    drawing = Drawing(study.hash, tuple(sites))

    def is_signed(site: str, body: Committed) -> None:
        try:
            drawing.check_one(site, body.commitment, messenger.keys)
        except DeployError:
            require(False, "a commitment that it has not signed")

    committed = yield from messenger.ask_required(Commit(run=messenger.run_name), Committed, is_signed)
    commitments = {site: body.commitment for site, body in committed.items()}

    def fits(site: str, body: Opened) -> None:
        require(
            drawing.hash_of(site, body.number) == commitments[site].commitment, "another number than it committed to"
        )

    request = Open(run=messenger.run_name, commitments=commitments)
    opened = yield from messenger.ask_required(request, Opened, fits)
    draw = Draw(commitments=commitments, numbers={site: body.number for site, body in opened.items()})
    seed = drawn_seed(study, sites, draw)
    if seed is None:
        raise DeployError("groups", "were not drawn", REMEDY)
    federation.plan.group_seed = seed
    prepare = structs.replace(federation.prepare, draw=draw)
    return Federation(federation.plan, federation.described, prepare, federation.notices)

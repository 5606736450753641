"""A hospital's part of a deployment: its site file, policy, rows and connection."""

import fcntl
import socket
import ssl
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from datetime import datetime
from pathlib import Path

from wardround.core.errors import DeployError, WardroundError
from wardround.core.health import Condition
from wardround.core.notices import Notice, remedy_of, text_of
from wardround.data.records import Records
from wardround.deployment.common.deployed_plan import DeployedPlan, own_plan
from wardround.deployment.governance.approvals import approvals_of, approved_study
from wardround.deployment.governance.gate import Gate
from wardround.deployment.governance.policy import (
    Refusal,
    Refused,
    closed,
    objections,
    refusal_of_rows,
    refusal_of_study,
)
from wardround.deployment.hospital import Hospital
from wardround.deployment.provisioning.site_file import FROM_KIT, SiteFile, open_source
from wardround.deployment.regional.regions import companions
from wardround.deployment.site.answering import SiteWork
from wardround.deployment.vertical.party_plan import own_vertical_plan
from wardround.deployment.vertical.patient_matching import ids_of
from wardround.deployment.vertical.vertical_validation import is_vertical
from wardround.privacy.disclosure import Limits
from wardround.privacy.dp.accountant import epsilon
from wardround.privacy.psi.patient_ids import read_ids
from wardround.protocol.signing import PublicKey, read_key, read_public_key
from wardround.runs.catalog import families as known_families
from wardround.runs.ledger import Ledger, charges_of
from wardround.runs.spending import LEDGER
from wardround.study.parser import Families, parse_study, read_study_file
from wardround.study.schema import Study

CONNECT_WITHIN = 10.0  # seconds
ShowLine = Callable[[str], None]


@dataclass(frozen=True)
class SiteGate(Gate):
    """Decisions by the site file, which is read anew each time: an approval may be withdrawn during a run."""

    site: SiteFile
    families: Families

    def study(self, study_hash: str, sites: list[str]) -> Study:
        with _reliable():
            approvals = approvals_of(self.site)
            study = approved_study(self.site, study_hash, self.families)
        if study is None:
            how = "somebody there must read it and run `wardround approve`"
            raise Refused(Refusal(f"study {study_hash[:12]} is not approved at {self.site.name}; {how}"))
        _stop_at(refusal_of_study(self.site.policy, study, self.site.name, sites, approvals))
        return study

    def still_approved(self, study_hash: str) -> None:
        with _reliable():
            approved = study_hash in approvals_of(self.site)
        if not approved:
            raise Refused(Refusal(f"the approval of study {study_hash[:12]} was withdrawn at {self.site.name}"))

    def enough(self, training_rows: int) -> None:
        _stop_at(refusal_of_rows(self.site.policy, training_rows))

    def budget(self) -> float | None:
        return self.site.policy.most_total_epsilon

    def least_sites(self) -> int:
        return self.site.policy.least_sites

    def limits(self) -> Limits:
        policy = self.site.policy
        return replace(super().limits(), smallest_cell=policy.smallest_cell, least_sites=policy.least_sites)

    def opening_hours(self) -> None:
        _stop_at(closed(self.site.policy, datetime.now().astimezone()))


@contextmanager
def _reliable() -> Iterator[None]:
    try:
        yield
    except WardroundError as error:
        raise Refused(Refusal(f"the approvals here cannot be relied on: {error.problem}")) from None


def _stop_at(refusal: Refusal | None) -> None:
    if refusal is not None:
        raise Refused(refusal)


def hospital_of(site: SiteFile, families: Families) -> Hospital:
    source = open_source(site, families)
    gate, signer = SiteGate(site, families), read_key(site.key)
    return Hospital(site.name, site.state, gate, families, source.load, signer, peers_of(site))


def peers_of(site: SiteFile) -> dict[str, PublicKey]:
    """Hospitals whose keys this one has. Without its key nothing is added up with a hospital."""
    return {path.stem: read_public_key(path.read_bytes(), path) for path in sorted(site.peers.glob("*.pub"))}


def join_studies(site: SiteFile, notice: ShowLine, stop: Callable[[], bool] = lambda: False) -> None:
    """Take part in all studies approved here, until `stop` or a KeyboardInterrupt."""
    from wardround.deployment.flower.site_loop import SiteLoop

    families = known_families()
    hospital = hospital_of(site, families)
    trusted = read_public_key(site.coordinator_key.read_bytes(), site.coordinator_key)
    trust(site.ca)
    with alone(site.state):
        work = SiteWork(site.name, site.state, hospital, hospital.signer, trusted, notice)
        hospital.rows()  # a hospital hears of a broken file now, not in the middle of a study
        loop = SiteLoop(
            address=site.coordinator,
            ca=site.ca,
            key=read_key(site.key).private,
            answer=work.answer,
            number_file=site.state / "connection",
            notice=notice,
            stop=stop,
        )
        loop.run()


@contextmanager
def alone(state: Path, problem: str = "another process has joined with it") -> Iterator[None]:
    """One process at a time: two would overwrite each other's memory."""
    state.mkdir(parents=True, exist_ok=True, mode=0o700)
    with (state / ".lock").open("w") as file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise DeployError(str(state), problem, "Stop that one first.") from None
        yield


def preflight(site: SiteFile) -> list[Condition]:
    """All checks that need no message: rows, policy, approval, connection."""
    families = known_families()
    conditions = []
    try:
        hospital = hospital_of(site, families)
        read_public_key(site.coordinator_key.read_bytes(), site.coordinator_key)
        records = hospital.rows()
        labels = records.task.words if any(records.task.names) else "no labels"
        conditions.append(Condition("data", True, f"{len(records)} rows, {labels}"))
        conditions += [Condition(notice.code, True, text_of(notice), needed=False) for notice in records.notices]
    except WardroundError as error:
        return [_failed("data", error), connection_to(site.coordinator, site.ca)]
    studies = {
        study.hash: (study, True)
        for study_hash in approvals_of(site)
        if (study := approved_study(site, study_hash, families)) is not None
    }
    kit = site.path.parent / "study.toml"
    if kit.is_file():
        study = parse_study(read_study_file(kit), families, kit.name, kit.parent)
        studies.setdefault(study.hash, (study, False))
    for study, approved in studies.values():
        conditions.append(_approval(study, approved, site))
        conditions += _of_study(site, study, families, hospital)
    return [*conditions, connection_to(site.coordinator, site.ca)]


def _failed(name: str, error: WardroundError) -> Condition:
    return Condition(name, False, f"{error.where}: {error.problem}", error.remedy)


def _approval(study: Study, approved: bool, site: SiteFile) -> Condition:
    text = f"{study.name} ({study.hash[:12]}): {'approved' if approved else 'not approved'}"
    return Condition("approval", approved, text, f"Read it, then: wardround approve STUDY --site {site.path}")


def _of_study(site: SiteFile, study: Study, families: Families, hospital: Hospital) -> list[Condition]:
    conditions = []
    against = objections(site.policy, study, site.name, site.sites or None)
    remedy = "Ask the coordinator to change the study, or change [policy] in the site file."
    conditions.append(Condition("policy", not against, "; ".join(against) or f"allows {study.name}", remedy))
    conditions += _keys(site, study, hospital)
    if is_vertical(study):
        return [*conditions, *_of_party(site, study, families, hospital.rows())]
    try:
        plan = own_plan(study, families, site.name, site.sites or [site.name], hospital.rows())
        rows = min(len(plan.own_split(key).train) for key in plan.row_sets)
        conditions += _spending(site, plan)
        few = refusal_of_rows(site.policy, rows)
        conditions.append(Condition("rows", few is None, few.reason if few else f"{rows} training rows", remedy))
        conditions += map(_condition, plan.own_notices())
    except WardroundError as error:
        conditions.append(_failed("study", error))
    return conditions


def _of_party(site: SiteFile, study: Study, families: Families, records: Records) -> list[Condition]:
    """What can be checked before patients are matched."""
    try:
        patients = read_ids(site.name, ids_of(site.name, records))
        plan = own_vertical_plan(study, families, site.name, records)
        notices = plan.own_notices() if site.name == plan.holder else []
    except WardroundError as error:
        return [_failed("study", error)]
    conditions = [Condition("patients", True, f"{len(patients)} patients, whose numbers are {patients.form}")]
    return [*conditions, *map(_condition, notices)]


def _condition(notice: Notice) -> Condition:
    refused = notice.severity == "error"
    return Condition(notice.code, not refused, text_of(notice), remedy_of(notice), needed=refused)


def _keys(site: SiteFile, study: Study, hospital: Hospital) -> list[Condition]:
    """Public keys of other hospitals, for secure sums and for what parties seal for each other."""
    if not is_vertical(study) and not any(arm.privacy.secure_sum is not None for arm in study.trained_arms):
        return []
    near = companions(study, site.name, site.sites) or site.sites
    lacking = [name for name in near if name not in hospital.peers]
    text = f"no public key of {', '.join(lacking)}" if lacking else f"public keys of {len(hospital.peers)} hospitals"
    return [Condition("keys", not lacking, text, f"They belong into {site.peers}; the kit has them.")]


def _spending(site: SiteFile, plan: DeployedPlan) -> list[Condition]:
    """What patients here have spent, and would have spent after this study."""
    entries, charges = Ledger(site.state / LEDGER).entries(), plan.own_charges()
    if not charges:
        return []
    deltas = [arm.privacy.example.delta for arm in plan.study.trained_arms if arm.privacy.example is not None]
    delta = min([*deltas, *(entry.delta for entry in entries)])
    before, after = (epsilon([*charges_of(entries), *more], delta) for more in ([], charges))
    text = f"epsilon {before:.3g} spent so far, {after:.3g} after this study, at delta {delta:g}"
    budget = site.policy.most_total_epsilon
    enough = budget is None or after <= budget
    remedy = "Work here would stop before the end. Raise `most_total_epsilon` in [policy], or ask for less."
    return [Condition("privacy", enough, text if enough else f"{text}: more than {budget:g}", remedy, False)]


def trust(ca: Path) -> ssl.SSLContext:
    """Certificates of coordinators are checked against it. A damaged file is reported as such, not as a bad
    connection."""
    try:
        return ssl.create_default_context(cafile=str(ca))
    except OSError:  # errors of TLS among them
        raise DeployError(str(ca), "is not a certificate in PEM", FROM_KIT) from None


def connection_to(coordinator: str, ca: Path) -> Condition:
    """A TLS handshake and nothing more."""
    host, _, port = coordinator.rpartition(":")
    try:
        context = trust(ca)
    except DeployError as error:
        return _failed("connection", error)
    remedy = "Is the coordinator running, and may this machine connect to it (outgoing TCP)?"
    try:
        plain = socket.create_connection((host.strip("[]"), int(port)), CONNECT_WITHIN)
        with plain, context.wrap_socket(plain, server_hostname=host.strip("[]")) as secured:
            return Condition("connection", True, f"{coordinator} answers, {secured.version()}")
    except ssl.SSLCertVerificationError:
        problem = f"{coordinator} shows a certificate that is not of this study's authority or address"
        return Condition("connection", False, problem, "Ask the coordinator for the right kit and address.")
    except OSError as error:
        problem = f"{coordinator} cannot be reached ({error.strerror or type(error).__name__})"
        return Condition("connection", False, problem, remedy)

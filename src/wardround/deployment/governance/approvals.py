"""Which studies a hospital approved: who, when, and exactly what.

    approved/HASH.toml         the resolved study, as it was read and approved
    approved/approvals.jsonl   an audit log: approvals and withdrawals

Both must agree. A study that was changed after its approval, or a log that was, stops everything; a withdrawal also
removes the study's file, so that cutting the log's tail off does not bring an approval back.
"""

import json
import re
from dataclasses import dataclass
from pathlib import Path

import tomli_w

from wardround.core.errors import DeployError, as_person
from wardround.deployment.provisioning.kit_files import as_deploy_errors
from wardround.deployment.provisioning.site_file import SiteFile
from wardround.runs.audit import AuditLog, file_hash, verify
from wardround.runs.folder import write_atomically
from wardround.study.parser import Families, parse_study, read_study_file
from wardround.study.schema import Study

APPROVED, WITHDRAWN = "study approved", "approval withdrawn"
HASH = re.compile(r"[0-9a-f]{64}")


@dataclass(frozen=True)
class Approval:
    hash: str
    study: str  # its name
    name: str  # of the person who approved it last
    time: str
    file: str  # sha256 of the stored study


def approve(site: SiteFile, study: Study, name: str) -> None:
    """Record that `name` read this very study and allows it here, within the policy."""
    person = as_person(name, "approve: name", DeployError)
    approvals_of(site)  # a log that was changed is not written on
    site.approved.mkdir(mode=0o700, parents=True, exist_ok=True)
    path = _study_file(site, study.hash)
    write_atomically(path, tomli_w.dumps(dict(study.resolved)).encode())
    _log(site).add(APPROVED, hash=study.hash, study=study.name, name=person, file=file_hash(path))


def withdraw(site: SiteFile, study_hash: str, name: str) -> None:
    person = as_person(name, "approve: name", DeployError)
    if study_hash not in approvals_of(site):
        problem = f"study {study_hash[:12]} is not approved, so that nothing can be withdrawn"
        raise DeployError(str(site.approved), problem, "Look at `approvals.jsonl` there for what was approved.")
    _study_file(site, study_hash).unlink(missing_ok=True)
    _log(site).add(WITHDRAWN, hash=study_hash, name=person)


def approvals_of(site: SiteFile) -> dict[str, Approval]:
    """The present approvals by hash. DeployError if the log was changed."""
    path = _log(site).path
    if not path.is_file():
        return {}
    audit = verify(path)
    if audit.broken:
        remedy = "Nothing runs until it is settled. Keep the folder as evidence, begin a new one and approve again."
        raise DeployError(str(path), f"the log of approvals was changed: {audit.broken}", remedy)
    approvals: dict[str, Approval] = {}
    for line in path.read_bytes().splitlines():
        entry = json.loads(line)
        detail = entry["detail"]
        if entry["event"] == APPROVED:
            approvals[detail["hash"]] = Approval(
                detail["hash"], detail["study"], detail["name"], entry["time"], detail["file"]
            )
        elif entry["event"] == WITHDRAWN:
            approvals.pop(detail["hash"], None)
    return approvals


def approved_study(site: SiteFile, study_hash: str, families: Families) -> Study | None:
    """The study as it was approved, or None. DeployError if its file or the log was changed."""
    if not HASH.fullmatch(study_hash):  # it came over the network and becomes part of a path
        return None
    approval = approvals_of(site).get(study_hash)
    if approval is None:
        return None
    path = _study_file(site, study_hash)
    remedy = "Read the study again and run `wardround approve`."
    if not path.is_file():
        raise DeployError(str(path), "the approved study is missing", remedy)
    if file_hash(path) != approval.file:
        raise DeployError(str(path), "was changed after its approval", remedy)
    with as_deploy_errors():
        study = parse_study(read_study_file(path), families, path.name, path.parent)
    if study.hash != study_hash:
        # an update of wardround may read the same text as another study
        raise DeployError(str(path), "reads as another study than the one that was approved", remedy)
    return study


def _study_file(site: SiteFile, study_hash: str) -> Path:
    return site.approved / f"{study_hash}.toml"


def _log(site: SiteFile) -> AuditLog:
    return AuditLog(site.approved / "approvals.jsonl")

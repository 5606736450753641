"""Names of findings, and how one name is recognised in several spellings."""

from collections.abc import Iterable

from wardround.core.errors import StudyError, suggest

# In the order of NIH ChestX-ray14 (Wang et al., CVPR 2017, and its later release); MedMNIST keeps the same order.
FINDINGS = (
    "Atelectasis",
    "Cardiomegaly",
    "Effusion",
    "Infiltration",
    "Mass",
    "Nodule",
    "Pneumonia",
    "Pneumothorax",
    "Consolidation",
    "Edema",
    "Emphysema",
    "Fibrosis",
    "Pleural_Thickening",
    "Hernia",
)
# NIH's file of boxes says "Infiltrate", ChestMNIST says "pleural".
OTHER_NAMES = {"infiltrate": "infiltration", "pleural": "pleuralthickening"}
NO_FINDING = "nofinding"


def simple(name: str) -> str:
    return "".join(filter(str.isalnum, name.casefold()))


def plain(name: str) -> str:
    """What is compared: without regard to case, spaces, underscores and the like."""
    return OTHER_NAMES.get(simple(name), simple(name))


def check_findings(findings: tuple[str, ...]) -> None:
    """As far as that is possible before any file is read."""
    if not findings:
        raise StudyError("data: findings", "the list is empty", "Name at least one finding, or leave the setting out.")
    places: dict[str, str] = {}
    for name in findings:
        if plain(name) in places:
            problem = f"{places[plain(name)]!r} and {name!r} are the same finding"
            raise StudyError("data: findings", problem, "Name each finding once.")
        places[plain(name)] = name


def chosen(
    findings: tuple[str, ...], known: Iterable[str], where: str, public: Iterable[str] | None = None
) -> tuple[str, ...]:
    """The chosen findings as `known` spells them. `where` says of which file these are the findings.

    An error lists the `public` ones alone, where `known` was read from cells.
    """
    spellings = {plain(name): name for name in known}
    for name in findings:
        if plain(name) not in spellings:
            remedy = suggest(name, spellings.values() if public is None else public, "Findings there")
            raise StudyError("data: findings", f"{name!r} is not a finding of {where}", remedy)
    return tuple(spellings[plain(name)] for name in findings)

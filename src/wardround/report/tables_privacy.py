"""Tables on privacy: what protects each arm, what each site spent of its budget, and how gradients were cut."""

import math
from collections.abc import Mapping
from typing import Any

from wardround.privacy.dp.epsilons import INFINITE, from_json
from wardround.report.evidence import Evidence
from wardround.report.spent import is_clipped, protected_arms, spent_epsilon
from wardround.report.table import Format, Table, make_table, percent, without_empty
from wardround.runs.spending import EACH_SITE

ADJACENCY = "Epsilon: one patient more or less (add/remove); replace: one patient exchanged for another."


def exact(value: float) -> str:
    """An epsilon, rounded up, because it is a promise: 0.052, 1.31, 1,685."""
    digits = 0 if value >= 100 else 2 if value >= 1 else 3
    return f"{math.ceil(value * 10**digits - 1e-6) / 10**digits:,.{digits}f}" if math.isfinite(value) else INFINITE


def said(value: float) -> str:
    """The same in a sentence: 0.053, 1, 8."""
    text = exact(value)
    return text.rstrip("0").rstrip(".") if "." in text else text


def brief(value: float | str) -> str:
    return value if isinstance(value, str) else f"{value:g}"


def protection_table(evidence: Evidence) -> Table | None:
    """Every arm, also those that nothing protects: that must be seen at a glance."""
    protected = protected_arms(evidence)
    if not protected:
        return None
    rows = []
    for name, arm in {**evidence.arms, **evidence.partial}.items():
        if name in protected:
            found = protected[name]
            asked = [_of(found["example"] or found["site"], key) for key in ("epsilon", "delta", "clip")]
            spent = [spent_epsilon(found, key) for key in ("epsilon", "epsilon_replace", "epsilon_rdp")]
            rows.append([name, _unit(found), *asked, *spent, _sum(found), _ended(found)])
        elif not (name.endswith("[selected]") and _protected_family(evidence, arm["family"])):
            rows.append([name, "nothing", *[None] * 6, _no_sum(evidence, name), None])
    columns: dict[str, Format | None] = {"arm": None, "differential privacy of": None, "epsilon at most": brief}
    columns |= {"delta": brief, "clip": brief, "spent": exact, "spent, replace": exact, "by RDP": exact}
    columns |= {"secure sum": None, "cut short": None}
    note = (
        f"Spent: from the ledger, by the site that spent most, with the seed that cost most. {ADJACENCY} By RDP: the "
        "older way of counting (Rényi), add/remove, to compare with; it is looser."
    )
    return without_empty(make_table("protection", "What protects each arm", columns, rows, note))


def _of(block: Mapping[str, Any] | None, key: str) -> Any:
    return block[key] if block else None


def _unit(found: Mapping[str, Any]) -> str:
    units = [word for key, word in (("example", "patients"), ("site", "whole sites")) if found[key]]
    if not is_clipped(found):
        units.remove("patients")
    example = found["example"] or {}
    more = (
        "adaptive clip" if example.get("adaptive") else "",
        "noise changes" if example.get("noise_schedule") else "",
    )
    return ", ".join([" and ".join(units) or "nothing", *filter(None, more)])


def _sum(found: Mapping[str, Any]) -> str | None:
    if not found["federated"]:
        return None  # there is no sum
    if not found["secure_sum"]:
        return "no"
    threshold = found["secure_sum"]["threshold"]
    return f"yes, of {threshold} or more" if threshold else "yes"


def _no_sum(evidence: Evidence, name: str) -> str | None:
    algorithm = evidence.results["arms"][name]["algorithm"]["name"]
    return None if algorithm in ("local", "pooled") else "no"


def _ended(found: Mapping[str, Any]) -> str | None:
    told = [f"{site} from round {number}" for site, number in found["stopped"].items()]
    if found["failed_rounds"]:
        told.append(f"{len(found['failed_rounds'])} rounds without a sum")
    return "; ".join(told) or None


def _protected_family(evidence: Evidence, family: str) -> bool:
    return any(evidence.results["arms"][name]["family"] == family for name in protected_arms(evidence))


def spent_table(evidence: Evidence) -> Table | None:
    """Each arm at each site, as the ledger has it."""
    rows = [
        [
            name,
            site,
            found["rate"],
            *_noise(found),
            *(found[key] for key in ("rounds", "steps", "delta")),
            *_epsilons(found),
        ]
        for name, arm in protected_arms(evidence).items()
        for site, found in arm["sites"].items()
    ]
    columns: dict[str, Format | None] = {"arm": None, "site": None, "sampling rate": _rate, "noise, clips": _rate}
    columns |= {
        "in the last round": _rate,
        "rounds": str,
        "steps": str,
        "delta": brief,
        "epsilon": exact,
        "replace": exact,
        "by RDP": exact,
    }
    note = (
        "From the ledger, of the seed that cost the site most. In each step a patient is drawn by a coin with the "
        f"sampling rate; noise is the standard deviation on the sum, in clips. {ADJACENCY}"
    )
    return without_empty(make_table("spent", "What each site spent", columns, rows, note))


def _noise(found: Mapping[str, Any]) -> list[float | None]:
    """Of the first round, and of the last one where it differs."""
    first, last = found["noise"], found.get("noise_last", found["noise"])
    return [first, None if last == first else last]


def _epsilons(found: Mapping[str, Any]) -> list[Any]:
    return [from_json(found.get(key)) for key in ("epsilon", "epsilon_replace", "epsilon_rdp")]


def _rate(value: float) -> str:
    return f"{value:.4g}"


def total_table(evidence: Evidence) -> Table | None:
    total = (evidence.results.get("privacy") or {}).get("total", {})
    rows = [
        [site, found["rounds"], found["steps"], found["delta"], *_epsilons(found)[:2]]
        for site, found in total.items()
        if site != EACH_SITE
    ]
    columns: dict[str, Format | None] = {"site": None, "rounds": str, "steps": str, "delta": brief}
    columns |= {"epsilon": exact, "replace": exact}
    note = (
        "Every arm, swept value, variant and seed that trained on the site's patients, together: what whoever sees "
        f"all models of this study may learn. {ADJACENCY}"
    )
    return make_table("spent-in-all", "What the whole study spent", columns, rows, note)


def length_table(evidence: Evidence) -> Table | None:
    rows = []
    for name, arm in protected_arms(evidence).items():
        for site, models in ((arm.get("lengths") or {}).get("sites") or {}).items():
            for model, found in models.items():
                rows.append([name, site, f"{model} model", found["clip"], found["median"], found["clipped"]])
    columns: dict[str, Format | None] = {"arm": None, "site": None, "of the": None, "clip": _rate}
    columns |= {"median length, clips": _rate, "cut, %": percent}
    note = "With the first seed. Measured in a simulation only: these figures speak of patients and are not charged."
    return make_table("gradient-lengths", "How long patients' gradients are", columns, rows, note)

"""Facts about protected arms: what each spent, which differ in epsilon alone, and how an epsilon is written."""

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from wardround.evaluation.comparisons.listing import grouped
from wardround.privacy.dp.epsilons import INFINITE, from_json
from wardround.report.arms import SELECTED
from wardround.report.evidence import Evidence
from wardround.runs.spending import EACH_SITE
from wardround.study.sweeps import flatten


@dataclass(frozen=True)
class Line:
    """Arms that differ in epsilon and in nothing else, and the arm that is like them without noise."""

    title: str
    arms: tuple[tuple[float, str], ...]  # by the epsilon that was spent, smallest first
    unprotected: str | None


def is_clipped(arm: Mapping[str, Any]) -> bool:
    return not arm["example"] or arm["example"]["clip"] != "none"


def unclipped_arms(evidence: Evidence) -> list[str]:
    """Arms in which patients' gradients are not clipped, so that nothing is promised."""
    return [name for name, arm in evidence.protected_arms.items() if not is_clipped(arm)]


def noisy_arms(evidence: Evidence) -> dict[str, Any]:
    """Those with differential privacy, for patients or for sites; a secure sum alone adds no noise."""
    arms = evidence.protected_arms
    return {name: arm for name, arm in arms.items() if (arm["example"] or arm["site"]) and is_clipped(arm)}


def unprotected_arms(evidence: Evidence) -> list[str]:
    """Arms without differential privacy. What a selection put together is not among them where its members are not."""
    noisy = [*noisy_arms(evidence), *unclipped_arms(evidence)]
    families = {evidence.results["arms"][name]["family"] for name in noisy}
    return [
        name
        for name, arm in evidence.arms.items()
        if name not in noisy and not (name.endswith(SELECTED) and arm["family"] in families)
    ]


def spent_epsilon(arm: Mapping[str, Any], key: str = "epsilon") -> float | None:
    """What the site spent that spent most, by the ledger: of its patients' budget, or else of its own as a whole."""
    sites = [site for site in arm["sites"] if (site == EACH_SITE) != bool(arm["example"])]
    spent = [from_json(arm["sites"][site][key]) for site in sites]
    return max((value for value in spent if value is not None), default=None)


def epsilon_lines(evidence: Evidence) -> list[Line]:
    """One line for each way of training, with as many arms as it has epsilons. Arms that spent nothing are on none."""

    def alike(name: str, arm: Mapping[str, Any]) -> str:
        # a secure sum does not change what a model learns
        blocks = [{k: v for k, v in (arm[kind] or {}).items() if k != "epsilon"} for kind in ("example", "site")]
        return f"{setting_of(evidence, name)} {blocks} {not arm['example']}"

    lines = grouped(
        (alike(name, arm), (spent, name))
        for name, arm in noisy_arms(evidence).items()
        if name in evidence.arms and (spent := spent_epsilon(arm)) is not None
    )
    return [
        Line(_title(evidence, [name for _, name in arms]), tuple(sorted(arms)), _counterpart(evidence, arms[0][1]))
        for arms in lines.values()
    ]


def _counterpart(evidence: Evidence, noisy: str) -> str | None:
    """The arm without noise that is like this one; or one that is, but for how it is trained: what is best with noise
    is mostly not what is best without."""
    for training in (True, False):
        setting = setting_of(evidence, noisy, training)
        for name in unprotected_arms(evidence):
            if setting_of(evidence, name, training) == setting:
                return name
    return None


def setting_of(evidence: Evidence, name: str, training: bool = True) -> str:
    """All in which arms may differ except their protection, as one text. Without `training`, how they train as well."""
    arm = evidence.results["arms"][name]
    entries = [e for e in evidence.study.get("arms", []) if e.get("name", e.get("algorithm")) == arm["family"]]
    overrides = flatten(entries[0]) if entries else {}
    private = [key for key in overrides if key.startswith("privacy")]
    private += [key.rpartition(".")[2] for key in private]
    swept = [part for part in _swept(name) if part.partition("=")[0] not in private]
    compared = ("training.", "model.", "data.") if training else ("model.", "data.")
    fixed = [
        (key, value)
        for key, value in sorted(overrides.items())
        if key.startswith(compared) and not any(part.startswith(f"{key.rpartition('.')[2]}=") for part in swept)
    ]
    return repr(([arm[key] for key in ("algorithm", "data", "partition", "stragglers", "train_at")], fixed, swept))


def _swept(name: str) -> list[str]:
    """`epsilon=1.0` and `mu=0.1` of an arm that is called after them."""
    return name.partition("[")[2].removesuffix("]").split(",") if "[" in name else []


def _title(evidence: Evidence, names: list[str]) -> str:
    families = dict.fromkeys(evidence.results["arms"][name]["family"] for name in names)
    common = [part for part in _swept(names[0]) if all(part in _swept(name) for name in names)]
    shown = [part for part in common if not part.startswith("epsilon=") or len(names) > 1]
    return " / ".join(families) + (f"[{','.join(shown)}]" if shown else "")


def epsilon_number(value: float) -> str:
    """An epsilon, rounded up, because it is a promise: 0.052, 1.31, 1,685."""
    digits = 0 if value >= 100 else 2 if value >= 1 else 3
    return f"{math.ceil(value * 10**digits - 1e-6) / 10**digits:,.{digits}f}" if math.isfinite(value) else INFINITE


def epsilon_text(value: float) -> str:
    """The same in a sentence: 0.053, 1, 8."""
    text = epsilon_number(value)
    return text.rstrip("0").rstrip(".") if "." in text else text

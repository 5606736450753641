"""`privacy` of results.json as figures, tables and sentences need it: who is protected how, and which arms compare."""

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from wardround.privacy.dp.epsilons import INFINITE, from_json
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
    return {
        name: found
        for name, found in evidence.protected_arms.items()
        if (found["example"] or found["site"]) and is_clipped(found)
    }


def spent_epsilon(arm: Mapping[str, Any], key: str = "epsilon") -> float | None:
    """What the site spent that spent most, by the ledger: of its patients' budget, or else of its own as a whole."""
    sites = [site for site in arm["sites"] if (site == EACH_SITE) != bool(arm["example"])]
    found = [from_json(arm["sites"][site][key]) for site in sites]
    return max((value for value in found if value is not None), default=None)


def epsilon_lines(evidence: Evidence) -> list[Line]:
    """One line for each way of training, with as many arms as it has epsilons. Arms that spent nothing are on none."""
    lines: dict[str, list[tuple[float, str]]] = {}
    for name, arm in noisy_arms(evidence).items():
        spent = spent_epsilon(arm)
        if name in evidence.arms and spent is not None:
            lines.setdefault(f"{_setting(evidence, name)} {_protection(arm)}", []).append((spent, name))
    return [
        Line(_title(evidence, [name for _, name in arms]), tuple(sorted(arms)), _like(evidence, arms[0][1]))
        for arms in lines.values()
    ]


def _like(evidence: Evidence, noisy: str) -> str | None:
    """The arm without noise that is like this one; or one that is, but for how it is trained: what is best with noise
    is mostly not what is best without."""
    open_arms = unprotected_arms(evidence)
    epsilon_number = [name for name in open_arms if same_setting(evidence, name, noisy)]
    wanted = _setting(evidence, noisy, training=False)
    return next(
        iter([*epsilon_number, *(name for name in open_arms if _setting(evidence, name, training=False) == wanted)]),
        None,
    )


def same_setting(evidence: Evidence, one: str, other: str) -> bool:
    """Whether two arms differ in their protection alone."""
    return _setting(evidence, one) == _setting(evidence, other)


def unprotected_arms(evidence: Evidence) -> list[str]:
    """Arms without differential privacy. What a selection put together is not among them where its members are not."""
    noisy = [*noisy_arms(evidence), *unclipped_arms(evidence)]
    families = {evidence.results["arms"][name]["family"] for name in noisy}
    return [
        name
        for name, arm in evidence.arms.items()
        if name not in noisy and not (name.endswith("[selected]") and arm["family"] in families)
    ]


def _setting(evidence: Evidence, name: str, training: bool = True) -> str:
    """All in which arms may differ except their protection, as one text. Without `training`, how they train as well."""
    arm = evidence.results["arms"][name]
    entries = evidence.study.get("arms", [])
    entry: dict[str, Any] = next((one for one in entries if one.get("name", one.get("algorithm")) == arm["family"]), {})
    overrides = flatten(entry)
    private = {key.rpartition(".")[2] for key in overrides if key.startswith("privacy")} | {
        key for key in overrides if key.startswith("privacy")
    }
    swept = [part for part in _swept(name) if part.partition("=")[0] not in private]
    compared = ("training.", "model.", "data.") if training else ("model.", "data.")
    fixed = {key: value for key, value in overrides.items() if key.startswith(compared)}
    shared = {key: value for key, value in fixed.items() if not any(part.startswith(_last(key)) for part in swept)}
    parts = [arm[key] for key in ("algorithm", "data", "partition", "stragglers", "train_at")]
    return repr((parts, sorted(shared.items()), swept))


def _swept(name: str) -> list[str]:
    """`epsilon=1.0` and `mu=0.1` of an arm that is called after them."""
    return name.partition("[")[2].removesuffix("]").split(",") if "[" in name else []


def _last(key: str) -> str:
    return f"{key.rpartition('.')[2]}="


def _protection(arm: Mapping[str, Any]) -> str:
    """Without epsilon; a secure sum does not change what a model learns."""
    parts = [{k: v for k, v in (arm[kind] or {}).items() if k != "epsilon"} for kind in ("example", "site")]
    return repr((parts, not arm["example"]))


def _title(evidence: Evidence, names: list[str]) -> str:
    families = list(dict.fromkeys(evidence.results["arms"][name]["family"] for name in names))
    entries = [part for part in _swept(names[0]) if all(part in _swept(name) for name in names)]
    rest = [part for part in entries if not part.startswith("epsilon=") or len(names) > 1]
    return " / ".join(families) + (f"[{','.join(rest)}]" if rest else "")


def epsilon_number(value: float) -> str:
    """An epsilon, rounded up, because it is a promise: 0.052, 1.31, 1,685."""
    digits = 0 if value >= 100 else 2 if value >= 1 else 3
    return f"{math.ceil(value * 10**digits - 1e-6) / 10**digits:,.{digits}f}" if math.isfinite(value) else INFINITE


def epsilon_text(value: float) -> str:
    """The same in a sentence: 0.053, 1, 8."""
    text = epsilon_number(value)
    return text.rstrip("0").rstrip(".") if "." in text else text

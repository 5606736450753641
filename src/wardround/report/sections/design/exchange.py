"""In which ways the arms of a study exchange, and what one update is: facts for drawings of a study."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from wardround.core.notices.code import listed
from wardround.evaluation.comparisons.listing import grouped
from wardround.report.arms import YARDSTICKS, exchange_kind
from wardround.report.evidence import Evidence
from wardround.report.render.table import counted


@dataclass(frozen=True)
class Exchange:
    """Arms that exchange in the same way."""

    kind: str  # flat, hierarchical, vertical, local or pooled
    arms: tuple[str, ...]
    protection: tuple[Mapping[str, Any], ...] = ()  # of each arm

    def has(self, part: str) -> bool:
        return any(block.get(part) is not None for block in self.protection)

    def settings(self, part: str, name: str) -> str:
        """A setting of a part of the protection, in each of the arms that have it otherwise."""
        values = dict.fromkeys(block[part][name] for block in self.protection if block.get(part) is not None)
        texts = [f"{value:g}" if isinstance(value, int | float) else str(value) for value in values]
        return listed(texts) if texts else ""


def exchanges_of(evidence: Evidence) -> list[Exchange]:
    """Federated ones first, then the yardsticks."""
    exchanges: dict[str, Exchange] = {}
    for name, arm in evidence.arms.items():
        kind, protection = exchange_kind(arm), _protection(evidence, name)
        shape = (arm.get("topology") if kind in ("hierarchical", "vertical") else None) or {}
        parts = [part for part in ("example", "site", "secure_sum") if protection.get(part) is not None]
        alike = repr((kind, parts, list(shape.get("parties", ())), list(shape.get("regions", ()))))
        before = exchanges.get(alike, Exchange(kind, ()))
        exchanges[alike] = Exchange(kind, (*before.arms, name), (*before.protection, protection))
    return sorted(exchanges.values(), key=lambda exchange: exchange.kind in YARDSTICKS)


def _protection(evidence: Evidence, arm: str) -> Mapping[str, Any]:
    """Nothing where no arm has [privacy]; without a coordinator there is no sum to protect."""
    protection = dict(evidence.private_arms.get(arm, {}))
    return {"example": protection.get("example")} if exchange_kind(evidence.arms[arm]) in YARDSTICKS else protection


def named_arms(evidence: Evidence, arms: Sequence[str]) -> str:
    """By family, with the number of arms where a setting is swept."""
    families = grouped((evidence.arms[arm]["family"], arm) for arm in arms)
    return listed([names[0] if len(names) == 1 else f"{name} ({len(names)} arms)" for name, names in families.items()])


def download_text(evidence: Evidence, exchange: Exchange) -> str:
    own = [arm for arm in exchange.arms if evidence.arms[arm].get("own_models")]
    apart = f"; in {named_arms(evidence, own)} sites have models of their own" if own else ""
    return f"the shared model{model_numbers(evidence, exchange.arms[0])}{apart}"


def upload_text(evidence: Evidence, exchange: Exchange) -> str:
    """What one update is, and what was done to it before it left."""
    sizes = grouped((update_numbers(evidence, arm), arm) for arm in exchange.arms)
    (first, _), *others = sizes.items()
    text = "its update" if first is None else f"its update of {counted(first, 'parameter')}"
    extra = [f"{count:,} in {named_arms(evidence, arms)}" for count, arms in others if count is not None]
    text += f" ({listed(extra)})" if extra else ""
    treatments = {
        "example": "trained on clipped and noised gradients of patients",
        "site": f"clipped to {exchange.settings('site', 'clip')}",
        "secure_sum": "masked",
    }
    compressed = [arm for arm in exchange.arms if evidence.arms[arm].get("compression") is not None]
    if compressed:
        kinds = listed(list(dict.fromkeys(evidence.arms[arm]["compression"]["kind"] for arm in compressed)))
        apart = "" if len(compressed) == len(exchange.arms) else f" in {named_arms(evidence, compressed)}"
        text += f", compressed ({kinds}){apart}"
    return ", ".join([text, *(treatment for part, treatment in treatments.items() if exchange.has(part))])


def rules_text(evidence: Evidence, exchange: Exchange) -> str:
    """By which rules updates become one, where that is not by their mean in all arms; empty: it is."""
    rules = {
        arm: evidence.arms[arm]["aggregation"]["rule"] for arm in exchange.arms if "aggregation" in evidence.arms[arm]
    }
    if not rules:
        return ""
    names = listed(list(dict.fromkeys(rules.values())))
    return names if len(rules) == len(exchange.arms) else f"{names} in {named_arms(evidence, list(rules))}"


def update_numbers(evidence: Evidence, arm: str) -> int | None:
    """How many numbers an update has, with what an algorithm adds to the model's own; masked and compressed ones, whose
    size does not tell, have the model's."""
    entry = evidence.arms[arm]
    shared: int | None = (entry.get("model") or {}).get("shared_parameters")
    cost, size = entry["cost"], (entry.get("model") or {}).get("parameter_bytes")
    unlike = entry.get("compression") is not None or _protection(evidence, arm).get("secure_sum") is not None
    if unlike or not cost.get("updates") or size is None:
        return shared
    return round(float(cost["bytes_up"] / (cost["updates"] * size)))


def model_numbers(evidence: Evidence, arm: str) -> str:
    count = (evidence.arms[arm].get("model") or {}).get("shared_parameters")
    return "" if count is None else f", {counted(count, 'parameter')}"

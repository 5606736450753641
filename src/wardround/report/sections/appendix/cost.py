"""What training took: rounds, bytes and seconds; and what compression of updates lost."""

from typing import Any

from wardround.report.evidence import Evidence
from wardround.report.render.table import Table, decimals, make_table, one_decimal
from wardround.report.section import Section


def cost_table(evidence: Evidence) -> Table:
    compressed = any(arm.get("compression") for arm in evidence.arms.values())
    rows = [
        [
            name,
            a["cost"]["rounds"],
            a["cost"]["bytes_up"] / 1000,
            *([kind_of_compression(a), (a.get("compression") or {}).get("error")] if compressed else []),
            a["cost"]["bytes_down"] / 1000,
            a["cost"]["seconds"],
        ]
        for name, a in evidence.arms.items()
    ]
    time = "the rounds' time, waiting included" if evidence.deployed else "this machine's time for training"
    regions = " What went between regions is in Topology." if evidence.topologies("hierarchical") else ""
    return make_table(
        "cost",
        "Cost",
        {
            "arm": None,
            "rounds": str,
            "KB from the sites": one_decimal,
            **({"updates": None, "error": error_text} if compressed else {}),
            "KB to the sites": one_decimal,
            "seconds": decimals,
        },
        rows,
        f"Of one seed: tensors without framing, and {time}.{regions}{ERROR if compressed else ''}",
    )


def kind_of_compression(arm: Any) -> str | None:
    compression = arm.get("compression")
    if compression is None:
        return "whole" if arm["cost"]["bytes_up"] else None
    setting = {"top-k": " {share:g}", "quantised": ", {bits} bits"}.get(compression["kind"], "")
    return f"{compression['kind']}{setting.format(**compression)}"


def error_text(value: float) -> str:
    return f"{value:.2g}"


ERROR = (
    " Error: the length of what compression lost of an update, over the update's length; mean over sites, rounds and "
    "seeds. What top-k leaves out is added to the site's next update. None is given for updates that are sent whole "
    "or under [privacy.site], of which it would tell something."
)
PAGE = """
<section id="cost"><h2>Cost</h2>{{ show("cost") }}
<p class="meta">Machine: {{ environment.system }}, {{ environment.processors }} processors,
Python {{ environment.python }}, engine {{ environment.engine }}.</p></section>"""
SECTION = Section(PAGE, "cost", "Cost", tables=(cost_table,))

"""What training took: rounds, bytes and seconds."""

from wardround.report.evidence import Evidence
from wardround.report.render.table import Table, decimals, make_table, one_decimal
from wardround.report.section import Section


def cost_table(evidence: Evidence) -> Table:
    rows = [
        [name, a["cost"]["rounds"], a["cost"]["bytes_up"] / 1000, a["cost"]["bytes_down"] / 1000, a["cost"]["seconds"]]
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
            "KB to the sites": one_decimal,
            "seconds": decimals,
        },
        rows,
        f"Of one seed: tensors without framing, and {time}.{regions}",
    )


PAGE = """
<section id="cost"><h2>Cost</h2>{{ show("cost") }}
<p class="meta">Machine: {{ environment.system }}, {{ environment.processors }} processors,
Python {{ environment.python }}, engine {{ environment.engine }}.</p></section>"""
SECTION = Section(PAGE, "cost", "Cost", tables=(cost_table,))

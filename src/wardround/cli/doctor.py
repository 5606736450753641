"""`wardround doctor`: is this machine ready?"""

import typer

from wardround.cli import rendering as render
from wardround.cli.options import Json


def doctor(json: Json = False) -> None:
    """Check this machine: versions, extras, processors, shipped data, rules of disclosure. Exit code 7 if something
    needed is missing."""
    from wardround.core.errors import MachineError
    from wardround.core.extras import examine_extras
    from wardround.core.health import examine
    from wardround.privacy.disclosure import RULES

    conditions, extras = examine(), examine_extras()
    rules = {name: rule.forbids for name, rule in RULES.items()}
    content = {"conditions": conditions, "extras": extras, "disclosure_rules": rules}
    render.show_either(json, content, render.show_machine, conditions, extras, rules)
    if any(condition.needed and not condition.ok for condition in conditions):
        raise typer.Exit(MachineError.exit_code)
